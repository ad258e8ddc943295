"""Right numbers for senders that are not ours: a stock SDK, a Collector that scrapes.

From the SDK's own exporter encoding, or from points as such senders make them, to what stands in
the run.
"""

import itertools
import math
import re
import statistics
import time
from collections.abc import Mapping, Sequence

import pytest
from opentelemetry.exporter.otlp.proto.common.metrics_encoder import encode_metrics
from opentelemetry.metrics import Observation
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from opentelemetry.proto.common.v1.common_pb2 import AnyValue, ArrayValue, KeyValue
from opentelemetry.proto.metrics.v1.metrics_pb2 import (
    AggregationTemporality,
    Gauge,
    Histogram,
    HistogramDataPoint,
    Metric,
    NumberDataPoint,
    ResourceMetrics,
    ScopeMetrics,
    Sum,
    Summary,
    SummaryDataPoint,
)
from opentelemetry.proto.resource.v1.resource_pb2 import Resource
from opentelemetry.sdk.metrics import Counter as SdkCounter
from opentelemetry.sdk.metrics import Histogram as SdkHistogram
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import AggregationTemporality as SdkTemporality
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.resources import Resource as SdkResource

from otel_rl.bridge.journal.log import Appended as DedupLog
from otel_rl.bridge.rows.messages import DROPPED, FOLDED, OVERFLOWED, SHARED
from otel_rl.bridge.rows.run import Run
from otel_rl.bridge.rows.settings import AlignSettings
from otel_rl.records import Batch, ExperimentKey, Row, Signal
from tests.support.doors import decode
from tests.support.kept import revived

KEY = ExperimentKey("exp")
S = 1_000_000_000
T0 = time.time_ns() // (1000 * S) * 1000 * S  # windows of up to 1000 s begin there
CUMULATIVE = AggregationTemporality.AGGREGATION_TEMPORALITY_CUMULATIVE


class StockRun:
    """What a bridge makes of requests, without the wire in between."""

    def __init__(self, **options: float) -> None:
        self.aligner = Run(AlignSettings.model_validate(options))
        self.rows: list[Row] = []
        self.now_ns = T0

    def take(self, request: ExportMetricsServiceRequest, *, after_s: float = 1) -> None:
        self.now_ns += int(after_s * S)
        batch = Batch(KEY, Signal.METRICS, request.SerializeToString(), self.now_ns)
        self.aligner.add(decode(batch), received_ns=self.now_ns)
        self.rows += self.aligner.close(self.now_ns)

    def restart(self, logs: list[DedupLog]) -> None:
        """Go on from what is kept in a journal."""
        log = self.aligner.take_dedup()
        logs += [] if log is None else [log]
        logs[:] = [
            log for log in logs if log.newest_ns > self.aligner.intake.series.memory.forgotten_ns
        ]
        self.aligner = revived(self.aligner)
        for log in reversed(logs):
            self.aligner.restore_dedup(log.body)

    def end(self) -> "StockRun":
        self.rows += self.aligner.close(self.now_ns, everything=True)
        return self

    def last(self, key: str) -> float:
        return [row.values[key] for row in self.rows if key in row.values][-1]

    def by_step(self, key: str) -> list[tuple[int | None, float]]:
        return [(row.step, row.values[key]) for row in self.rows if key in row.values]

    def written(self) -> set[str]:
        return {key for row in self.rows for key in row.values}


class StockWorker:
    """A process with the stock SDK, whose exports are collected by hand."""

    def __init__(
        self, instance: str = "w", role: str = "trainer", *, is_delta: bool = False
    ) -> None:
        deltas: dict[type, SdkTemporality] = {
            SdkCounter: SdkTemporality.DELTA,
            SdkHistogram: SdkTemporality.DELTA,
        }
        self.reader = InMemoryMetricReader(deltas if is_delta else None)
        self.provider = MeterProvider(
            [self.reader],
            SdkResource.create({"rl.worker.role": role, "service.instance.id": instance}),
            shutdown_on_exit=False,
        )
        self.meter = self.provider.get_meter("stock")

    def export(self) -> ExportMetricsServiceRequest:
        data = self.reader.get_metrics_data()
        assert data is not None
        return encode_metrics(data)


def request(
    *metrics: Metric, instance: str = "w", role: str = "trainer"
) -> ExportMetricsServiceRequest:
    resource = Resource(
        attributes=[text("rl.worker.role", role), text("service.instance.id", instance)]
    )
    scoped = ScopeMetrics(metrics=metrics)
    return ExportMetricsServiceRequest(
        resource_metrics=[ResourceMetrics(resource=resource, scope_metrics=[scoped])]
    )


def text(key: str, value: str) -> KeyValue:
    return KeyValue(key=key, value=AnyValue(string_value=value))


def counter(
    name: str,
    start_s: float,
    time_s: float,
    value: int,
    attributes: Sequence[KeyValue] = (),
    unit: str = "",
) -> Metric:
    point = NumberDataPoint(
        start_time_unix_nano=T0 + int(start_s * S),
        time_unix_nano=T0 + int(time_s * S),
        as_int=value,
        attributes=attributes,
    )
    data = Sum(data_points=[point], aggregation_temporality=CUMULATIVE, is_monotonic=True)
    return Metric(name=name, unit=unit, sum=data)


def gauge(
    name: str, time_s: float, value: float, attributes: Sequence[KeyValue] = (), unit: str = ""
) -> Metric:
    point = NumberDataPoint(
        time_unix_nano=T0 + int(time_s * S), as_double=value, attributes=attributes
    )
    return Metric(name=name, unit=unit, gauge=Gauge(data_points=[point]))


def histogram(
    name: str,
    start_s: float,
    time_s: float,
    values: Sequence[float],
    *,
    extremes: bool,
    bounds: Sequence[float] = (0.01, 0.02, 0.03, 0.05, 0.1, 0.5, 2, 5),
) -> Metric:
    """A cumulative point, as Go and Node send it; without extremes, as one who scrapes does."""
    edges = [-math.inf, *bounds, math.inf]
    point = HistogramDataPoint(
        start_time_unix_nano=T0 + int(start_s * S),
        time_unix_nano=T0 + int(time_s * S),
        count=len(values),
        sum=sum(values),
        explicit_bounds=bounds,
        bucket_counts=[
            sum(lower < value <= upper for value in values)
            for lower, upper in itertools.pairwise(edges)
        ],
    )
    if extremes:
        point.min, point.max = min(values), max(values)
    data = Histogram(data_points=[point], aggregation_temporality=CUMULATIVE)
    return Metric(name=name, histogram=data)


def test_quantiles_of_a_cumulative_histogram_are_not_those_of_its_first_point() -> None:
    run = StockRun()
    values = [0.02]
    for second in range(1, 10):
        run.take(request(histogram("latency", 0, second, values, extremes=True)))
        values = [*values, 0.045, 0.048, 0.06]
    run.end()
    assert run.last("trainer/latency") == pytest.approx(0.051)
    assert 0.03 < run.last("trainer/latency/p50") <= 0.05
    assert 0.05 < run.last("trainer/latency/p99") <= 0.06, "bounded by the life's maximum"


def test_one_fresh_worker_does_not_spoil_the_quantiles_of_its_role() -> None:
    run = StockRun(window_s=60)
    old = [1 + 0.001 * place for place in range(100)]
    run.take(request(histogram("latency", 0, 0, old, extremes=False), instance="old"))
    run.take(request(histogram("latency", 0, 1, old * 2, extremes=False), instance="old"))
    run.take(request(histogram("latency", 0.5, 1, [0.01], extremes=True), instance="new"))
    run.end()
    assert 0.5 < run.last("trainer/latency/p50") <= 2
    assert {"trainer/latency/min", "trainer/latency/max"}.isdisjoint(run.written())


def test_a_mean_is_not_told_where_a_part_has_no_sum() -> None:
    """OTLP leaves the sum out where measurements may be negative."""
    run = StockRun(window_s=60)
    part = histogram("advantage", 0, 1, [-0.5, 0.5], extremes=True, bounds=(0,))
    part.histogram.data_points[0].ClearField("sum")
    run.take(request(part, instance="a"))
    run.take(request(histogram("advantage", 0, 1, [4.0, 5.0], extremes=True), instance="b"))
    run.end()
    assert run.last("trainer/advantage/count") == 4
    assert "trainer/advantage" not in run.written()


def test_the_first_scrape_of_a_histogram_is_a_reference_as_that_of_a_counter() -> None:
    run = StockRun(window_s=1)
    for start, second, total in ((1, 1, 1000), (1, 2, 1007), (9, 9, 1010), (9, 10, 1012)):
        run.take(
            request(
                histogram("latency", start, second, [1.0] * total, extremes=False),
                counter("requests", start, second, total),
            ),
            after_s=2,
        )
    run.end()
    counts = [value for _, value in run.by_step("trainer/latency/count")]
    assert counts == [7, 3, 2]
    assert run.last("trainer/requests") == sum(counts)


def scraped(*metrics: Metric, instance: str = "host:9090") -> ExportMetricsServiceRequest:
    """A request as a Collector's Prometheus receiver makes it."""
    sent = request(*metrics, instance=instance, role="generator")
    sent.resource_metrics[0].resource.attributes.append(text("url.scheme", "http"))
    return sent


def test_what_a_scraped_process_counted_before_the_run_is_not_of_the_run() -> None:
    run = StockRun()
    run.take(request(gauge("loss", 100, 1)), after_s=100)
    for second in range(101, 111):
        # It has counted since second 7, with its ``_created``.
        run.take(scraped(counter("tokens", 7, second, 5000 + second)))
    assert run.end().last("generator/tokens") == 9


@pytest.mark.parametrize("first_s", [100, 104])
def test_what_a_process_counted_that_started_in_the_run_is_of_the_run(first_s: int) -> None:
    run = StockRun()
    run.take(request(gauge("loss", 100, 1)), after_s=100)
    for second in range(101, 104):
        run.take(scraped(counter("tokens", 7, second, 5000)))
    # It starts again, and another one starts.
    for second in range(105, 111):
        run.take(scraped(counter("tokens", first_s, second, 40 + second)))
        run.take(scraped(counter("tokens", first_s, second, 60), instance="other:9090"))
    assert run.end().last("generator/tokens") == 40 + 110 + 60


def test_a_restart_of_the_bridge_counts_nothing_that_was_before_the_run() -> None:
    run, logs = StockRun(), list[DedupLog]()
    run.take(request(gauge("loss", 100, 1)), after_s=100)
    for second in range(101, 104):
        run.take(scraped(counter("tokens", 7, second, 5000 + second)))
        run.restart(logs)
    run.take(scraped(counter("tokens", 9, 105, 7777), instance="other:9090"))
    assert run.end().last("generator/tokens") == 2


def joined(metric: Metric, start_s: float) -> Metric:
    """A delta metric with a second point of the same time, which starts elsewhere.

    As aggregate_labels of the Collector's metricstransform makes it of two series, if one was idle.
    """
    data = getattr(metric, metric.WhichOneof("data") or "")
    data.aggregation_temporality = AggregationTemporality.AGGREGATION_TEMPORALITY_DELTA
    data.data_points.add().CopyFrom(data.data_points[0])
    data.data_points[1].start_time_unix_nano = T0 + int(start_s * S)
    return metric


def test_deltas_of_one_time_that_a_collector_has_joined_count_each_once() -> None:
    run = StockRun()
    for second in (2, 3):
        sent = request(
            joined(counter("tokens", second - 1, second, 10), 0),
            joined(histogram("took", second - 1, second, [0.05] * 5, extremes=True), 0),
        )
        for _ in range(2):  # the answer was lost
            run.take(sent)
    assert run.end().last("trainer/tokens") == 40
    assert sum(row.values.get("trainer/took/count", 0) for row in run.rows) == 20


def test_deltas_with_a_start_beyond_all_times_count_each_once() -> None:
    """It comes of an SDK that subtracts from 0."""
    run = StockRun()
    sent = request(joined(counter("tokens", 1, 2, 10), 0))
    sent.resource_metrics[0].scope_metrics[0].metrics[0].sum.data_points[1].start_time_unix_nano = (
        1 << 64
    ) - 1
    for _ in range(2):
        run.take(sent)
    assert run.end().last("trainer/tokens") == 20


def test_eight_steps_of_a_stock_gauge_are_eight_rows_however_often_it_is_exported() -> None:
    worker, run = StockWorker(), StockRun()
    loss = worker.meter.create_gauge("loss")
    expected = []
    for step in range(1, 9):
        loss.set(1 / step, {"rl.loop.iteration": step})
        expected.append((step, 1 / step))
        run.take(worker.export())
        run.take(worker.export())
    run.end()
    assert run.by_step("trainer/loss") == expected
    assert run.aligner.sample_counts.late == 0


def test_an_integer_that_no_float_is_is_told_of_once_however_often_it_is_exported() -> None:
    worker, run = StockWorker(), StockRun()
    seen, logs = worker.meter.create_gauge("seen"), list[DedupLog]()
    counts = [2**53 + step for step in range(1, 9)]
    for step, count in enumerate(counts):
        seen.set(count, {"rl.loop.iteration": step})
        run.take(worker.export())
        run.take(worker.export())
        run.restart(logs)
    run.end()
    assert run.by_step("trainer/seen") == [(step, float(n)) for step, n in enumerate(counts)]
    assert run.aligner.sample_counts.late == 0


def test_up_down_counters_of_a_stock_sdk_stand_at_the_steps_that_they_name() -> None:
    worker, run = StockWorker(), StockRun()
    running: list[Observation] = []
    added = worker.meter.create_up_down_counter("added")
    worker.meter.create_observable_up_down_counter("observed", [lambda _: running])
    worker.meter.create_observable_up_down_counter("timed", [lambda _: [Observation(7)]])
    for step in range(1, 9):
        added.add(10 * step, {"rl.loop.iteration": step})
        running[:] = [Observation(step, {"rl.loop.iteration": step})]
        run.take(worker.export())
        run.take(worker.export())
    run.end()
    assert run.by_step("trainer/added") == [(step, 10 * step) for step in range(1, 9)]
    assert run.by_step("trainer/observed") == [(step, step) for step in range(1, 9)]
    windows = [row for row in run.rows if "trainer/timed" in row.values]
    assert windows
    assert not [row for row in windows if "trainer/added" in row.values]


@pytest.mark.parametrize("starts", [(1, 2), (0, 0)], ids=["with a start", "without"])
def test_two_processes_with_one_name_tell_each_step_once(starts: tuple[int, int]) -> None:
    """They export in turns, past steps included, and disagree about each of them."""
    run = StockRun(max_open_steps=1)
    steps = 8
    for newest in range(1, steps + 1):
        for place, start in enumerate(starts):
            told = []
            for step in range(1, newest + 1):
                attributes = [KeyValue(key="rl.loop.iteration", value=AnyValue(int_value=step))]
                told.append(gauge("loss", newest + place / 2, place + step / 100, attributes))
                if start:
                    told[-1].gauge.data_points[0].start_time_unix_nano = T0 + start
            run.take(request(*told))
    run.end()
    # Without starts nobody can tell them apart, and what alternates soon counts no more.
    most = 2 * steps if starts[0] else 5 * steps
    assert 2 * steps <= run.aligner.sample_counts.taken <= most


def test_processes_without_a_name_are_counted_and_the_run_tells_it() -> None:
    """Go and Node send no ``service.instance.id`` by default."""
    run = StockRun()
    for second in range(1, 5):
        for process in range(8):
            run.take(request(counter("tokens", process / 100, second, 10 * second), instance=""))
    run.end()
    assert run.last("trainer/tokens") == 8 * 40
    (told,) = (row.labels[SHARED] for row in run.rows if row.labels)
    assert "service.instance.id" in told
    assert "'trainer'" in told


@pytest.mark.parametrize("kind", ["counter", "histogram"])
def test_processes_with_deltas_and_one_name_are_told_of(kind: str) -> None:
    run = StockRun()
    processes = [StockWorker("", is_delta=True) for _ in range(2)]
    if kind == "counter":
        adds = [process.meter.create_counter("tokens").add for process in processes]
    else:
        adds = [process.meter.create_histogram("tokens").record for process in processes]
    for _ in range(4):
        for process, add in zip(processes, adds, strict=True):
            add(10)
            run.take(process.export())
    run.end()
    (told,) = (row.labels[SHARED] for row in run.rows if row.labels)
    assert "service.instance.id" in told


@pytest.mark.parametrize("is_delta", [True, False])
def test_one_process_shares_its_name_with_none_however_long_it_reports(is_delta: bool) -> None:
    run, worker = StockRun(), StockWorker(is_delta=is_delta)
    seconds = worker.meter.create_histogram("step_time")
    tokens = worker.meter.create_counter("tokens")
    for _ in range(10):
        seconds.record(0.1)
        tokens.add(10)
        run.take(worker.export())
    run.end()
    assert not [row.labels for row in run.rows if row.labels]


def test_deltas_of_one_process_and_of_one_that_replaces_it_are_no_shared_name() -> None:
    run = StockRun()
    old, new = StockWorker("", is_delta=True), StockWorker("", is_delta=True)
    for process in (old, old, new, old, new, new, new):  # the old one ends beside the new one
        tokens = process.meter.create_counter("tokens")
        for number in range(3):
            tokens.add(10, {"rl.loop.iteration": number})
        tokens.add(10)
        run.take(process.export())
    run.end()
    assert not [row for row in run.rows if row.labels]


def test_steps_for_which_an_sdk_has_no_room_are_told_of_once() -> None:
    """2,000 sets of attributes an instrument by default: what is beyond comes without a step."""
    worker, run = StockWorker(), StockRun()
    loss, tokens = worker.meter.create_gauge("loss"), worker.meter.create_counter("tokens")
    for step in range(1, 2101):
        loss.set(step, {"rl.loop.iteration": step})
        tokens.add(1, {"rl.loop.iteration": step})
    logs: list[DedupLog] = []
    for _ in range(3):
        run.take(worker.export())
        run.restart(logs)
    run.end()
    assert run.last("trainer/loss") == 2000
    assert run.last("trainer/loss/overflow") == 2100
    assert run.last("trainer/tokens") + run.last("trainer/tokens/overflow") == 2100
    (told,) = (row.labels[OVERFLOWED] for row in run.rows if row.labels)
    assert "trainer/loss/overflow" in told
    assert "delta" in told


@pytest.mark.parametrize("is_counter", [True, False])
def test_an_attribute_with_a_new_value_every_time_folds_beyond_a_bound(is_counter: bool) -> None:
    worker, run = StockWorker(), StockRun(max_metric_keys=20)
    meter = worker.meter
    tell = meter.create_counter("seen").add if is_counter else meter.create_gauge("seen").set
    logs: list[DedupLog] = []
    for number in range(60):
        tell(1, {"request.id": f"r{number}", "route": f"/{number % 3}"})
        if number % 20 == 19:
            run.take(worker.export())
            run.restart(logs)
    worker.meter.create_gauge("other").set(3)
    run.take(worker.export())
    run.end()
    kept = [key for key in run.written() if re.fullmatch(r"trainer/seen/r\d+/\d", key)]
    assert len(kept) == 20
    assert run.last("trainer/seen/overflow") == (40 if is_counter else 1)
    assert run.last("trainer/other") == 3
    (told,) = (row.labels[FOLDED] for row in run.rows if row.labels)
    assert "'seen'" in told
    assert "'request.id'" in told
    assert "trainer/seen/overflow" in told


@pytest.mark.parametrize(
    ("name", "device", "paths"),
    [
        (
            "hw.gpu.io",
            "hw.id",
            ["gpu/trainer/io", "gpu/io", "gpu/node1/d0/io", "gpu/node1/d1/io"],
        ),
        ("system.disk.io", "host.name", ["host/disk/io", "host/d0/disk/io", "host/d1/disk/io"]),
    ],
)
def test_the_keys_of_devices_fold_each_and_of_all(name: str, device: str, paths: list[str]) -> None:
    worker, run = StockWorker(), StockRun(max_metric_keys=20)
    gauge = worker.meter.create_gauge(name)
    logs: list[DedupLog] = []
    for number in range(60):
        for one in ("d0", "d1"):
            gauge.set(1, {"host.name": "node1", device: one, "request.id": f"r{number}"})
        if number % 20 == 19:
            run.take(worker.export())
            run.restart(logs)
    run.end()
    for path in paths:
        kept = [key for key in run.written() if re.fullmatch(rf"{path}/r\d+", key)]
        assert len(kept) == 20, path
        assert run.last(f"{path}/overflow") is not None
    told = [row.labels[FOLDED] for row in run.rows if row.labels]
    assert len(told) == 1, told
    assert f"'{name}'" in told[0]
    assert "of ''" not in told[0]


def test_keys_beside_a_metric_that_has_too_many_stay_apart() -> None:
    worker, run = StockWorker(), StockRun(max_metric_keys=20)
    for name in ("a", "b"):
        gauge = worker.meter.create_gauge(name)
        for number in range(20):
            gauge.set(number, {"layer": f"l{number}"})
    run.take(worker.export())
    run.end()
    assert len([key for key in run.written() if "/l" in key]) == 40
    assert not [row for row in run.rows if row.labels]


def test_series_that_fold_leave_room_for_other_metrics() -> None:
    worker, run = StockWorker(), StockRun(max_metric_keys=10, max_series=60)
    requests = worker.meter.create_counter("requests")
    for number in range(100):
        requests.add(1, {"request.id": f"r{number}"})
    run.take(worker.export())
    worker.meter.create_gauge("loss").set(3)
    run.take(worker.export())
    run.end()
    assert run.last("trainer/requests/overflow") == 30
    assert run.last("trainer/loss") == 3
    assert {label for row in run.rows for label in row.labels} == {DROPPED, FOLDED}


def test_nan_that_is_told_again_is_a_repetition_too() -> None:
    run = StockRun()
    step = [KeyValue(key="rl.loop.iteration", value=AnyValue(int_value=1))]
    for second in range(1, 5):
        run.take(request(gauge("loss", second, math.nan, step)))
    run.end()
    assert len(run.by_step("trainer/loss")) == 1


def test_a_bridge_that_starts_again_knows_which_steps_were_told() -> None:
    worker, run = StockWorker(), StockRun()
    loss = worker.meter.create_gauge("loss")
    logs: list[DedupLog] = []
    for step in range(1, 9):
        loss.set(1 / step, {"rl.loop.iteration": step})
        run.take(worker.export())
        run.restart(logs)
    run.end()
    assert run.by_step("trainer/loss") == [(step, 1 / step) for step in range(1, 9)]


def test_forgotten_steps_that_are_told_again_are_not_new() -> None:
    """The memory has a bound, and a stock SDK tells its past for ever."""
    worker, run = StockWorker(), StockRun(max_remembered=10)
    loss = worker.meter.create_gauge("loss")
    logs: list[DedupLog] = []
    for step in range(1, 31):
        loss.set(1 / step, {"rl.loop.iteration": step})
        run.take(worker.export())
        run.restart(logs)
    run.end()
    steps = [step for step, _ in run.by_step("trainer/loss")]
    assert len(steps) == len(set(steps))
    assert steps[-1] == 30


def test_another_value_of_a_past_step_is_a_measurement() -> None:
    worker, run = StockWorker(), StockRun()
    loss = worker.meter.create_gauge("loss")
    for step, value in ((1, 5.0), (2, 3.0), (2, 4.0), (3, 1.0)):
        loss.set(value, {"rl.loop.iteration": step})
        run.take(worker.export())
        run.take(worker.export())
    run.end()
    assert run.aligner.sample_counts.taken == 4


@pytest.mark.parametrize("kind", ["counter", "histogram", "up_down_counter"])
def test_a_step_on_any_instrument_makes_no_series(kind: str) -> None:
    worker, run = StockWorker(), StockRun(max_series=3)
    steps = 40
    loss = worker.meter.create_gauge("loss")
    instrument = getattr(worker.meter, f"create_{kind}")("things")
    for step in range(1, steps + 1):
        add = instrument.record if kind == "histogram" else instrument.add
        add(5, {"rl.loop.iteration": step})
        loss.set(1.0, {"rl.loop.iteration": step})
        run.take(worker.export())
    worker.meter.create_gauge("late").set(7.0, {"rl.loop.iteration": steps})
    run.take(worker.export())
    run.end()
    assert run.last("trainer/late") == 7.0
    assert run.aligner.sample_counts.too_many_series == 0
    if kind == "counter":
        assert run.last("trainer/things") == 5 * steps
    elif kind == "histogram":
        assert sum(value for _, value in run.by_step("trainer/things/count")) == steps
    else:
        assert run.by_step("trainer/things") == [(step, 5.0) for step in range(1, steps + 1)]


def test_a_hung_process_and_its_replacement_count_each_for_itself() -> None:
    """One ``service.instance.id``, two starts, and reports in turns."""
    run = StockRun()
    old, new = 5000, 0
    run.take(request(counter("tokens", 0, 1, old)))
    for second in range(2, 12):
        new += 10
        run.take(request(counter("tokens", 0, second, old)))
        run.take(request(counter("tokens", 1.5, second + 0.5, new)))
    run.end()
    assert run.last("trainer/tokens") == 5100


LOOK_ALIKES: Mapping[str, tuple[AnyValue, AnyValue]] = {
    "integer": (AnyValue(int_value=1), AnyValue(string_value="1")),
    "truth": (AnyValue(bool_value=True), AnyValue(string_value="true")),
    "float": (AnyValue(double_value=0.5), AnyValue(string_value="0.5")),
    "array": (
        AnyValue(array_value=ArrayValue(values=[AnyValue(string_value=c) for c in "ab"])),
        AnyValue(string_value="a,b"),
    ),
    "nested": (
        AnyValue(array_value=ArrayValue(values=[AnyValue(string_value="a,b")])),
        AnyValue(array_value=ArrayValue(values=[AnyValue(string_value=c) for c in "ab"])),
    ),
    "bytes": (AnyValue(bytes_value=b"\x01"), AnyValue(string_value="01")),
}


@pytest.mark.parametrize("values", LOOK_ALIKES.values(), ids=LOOK_ALIKES)
def test_attributes_that_look_alike_are_series_of_their_own(
    values: tuple[AnyValue, AnyValue],
) -> None:
    run = StockRun(window_s=100)
    one, other = ([KeyValue(key="k", value=value)] for value in values)
    for second in range(1, 6):
        run.take(
            request(
                counter("tokens", 0, second, 5, one),
                counter("tokens", 0, second, 8, other),
                gauge("depth", second, 1.0, one),
                gauge("depth", second, 3.0, other),
            )
        )
    run.end()
    key, _ = sorted(key for key in run.written() if key.startswith("trainer/tokens/"))
    assert run.last(key) == 13
    assert run.last(key.replace("tokens", "depth")) == 2.0
    assert run.aligner.sample_counts.duplicate == 0


def test_look_alikes_from_a_stock_sdk_are_series_of_their_own() -> None:
    worker, run = StockWorker(), StockRun()
    tokens = worker.meter.create_counter("tokens")
    for _ in range(5):
        tokens.add(1, {"k": 1})
        tokens.add(2, {"k": "1"})
        run.take(worker.export())
    run.end()
    assert run.last("trainer/tokens/1") == 15


def level(name: str, time_s: float, value: int) -> Metric:
    """A point of an up-down counter."""
    metric = counter(name, 0, time_s, value)
    metric.sum.is_monotonic = False
    return metric


OF_ONE_NAME = {
    "counter": counter("work", 0, 1, 7),
    "level": level("work", 1, 11),
    "gauge": gauge("work", 1, 13.0),
    "histogram": histogram("work", 0, 1, [17.0], extremes=True),
}


@pytest.mark.parametrize("restarts", [False, True])
@pytest.mark.parametrize("kinds", [*itertools.permutations(OF_ONE_NAME, 2)], ids="-".join)
def test_instruments_of_one_name_lose_no_value(kinds: tuple[str, str], restarts: bool) -> None:
    run = StockRun()
    for kind in kinds:
        run.take(request(OF_ONE_NAME[kind]))
        if restarts:
            run.restart([])
    told = {value for row in run.end().rows for value in row.values.values()}
    expected = {"counter": 7, "level": 11, "gauge": 13, "histogram": 17}
    assert {expected[kind] for kind in kinds} <= told


def test_a_summary_beside_a_gauge_of_its_name_loses_neither() -> None:
    run = StockRun(window_s=100)
    for second in range(1, 4):
        summary = SummaryDataPoint(
            time_unix_nano=T0 + second * S,
            count=second,
            sum=1.0,
            quantile_values=[SummaryDataPoint.ValueAtQuantile(quantile=0.5, value=2.0)],
        )
        run.take(
            request(
                Metric(name="latency", summary=Summary(data_points=[summary])),
                gauge("latency", second, 3.0),
            )
        )
    run.end()
    assert run.last("trainer/latency") == 3.0
    assert run.last("trainer/latency/p50") == 2.0
    assert run.aligner.sample_counts.duplicate == 0


def summary(
    time_s: float, count: int, total: float, *, instance: str = "w", **quantiles: float
) -> ExportMetricsServiceRequest:
    """A point as the Prometheus receiver makes it: the first one starts at its own time."""
    point = SummaryDataPoint(
        start_time_unix_nano=T0 + S,
        time_unix_nano=T0 + int(time_s * S),
        count=count,
        sum=total,
        quantile_values=[
            SummaryDataPoint.ValueAtQuantile(quantile=int(name[1:]) / 100, value=value)
            for name, value in quantiles.items()
        ],
    )
    data = Summary(data_points=[point])
    return request(Metric(name="latency", summary=data), instance=instance)


def test_a_summary_without_quantiles_as_of_python_s_client_has_mean_and_count() -> None:
    run = StockRun(window_s=1)
    for second, count, total in ((1, 100, 500.0), (2, 104, 508.0), (3, 104, 508.0), (4, 105, 518)):
        run.take(summary(second, count, total))
        run.restart([])
    run.end()
    assert [value for _, value in run.by_step("trainer/latency/mean")] == [2.0, 10.0]
    assert [value for _, value in run.by_step("trainer/latency/mean/count")] == [4, 1]


def test_a_summary_without_recent_measurements_does_not_hide_another_worker_s() -> None:
    run = StockRun(window_s=100)
    for second in range(1, 4):
        run.take(summary(second, 7, 14.0, instance="idle", p50=math.nan, p99=math.nan))
        run.take(summary(second, 5 * second, 9.0 * second, instance="busy", p50=1.0, p99=2.0))
    run.end()
    assert (run.last("trainer/latency/p50"), run.last("trainer/latency/p99")) == (1.0, 2.0)
    assert run.last("trainer/latency/mean") == pytest.approx(1.8)
    assert run.last("trainer/latency/mean/count") == 10


def test_a_summary_that_measured_nan_shows_it() -> None:
    run = StockRun(window_s=100)
    for second in (1, 2):
        run.take(summary(second, second, math.nan, p50=math.nan))
    assert math.isnan(run.end().last("trainer/latency/p50"))


def test_an_sdk_that_begins_and_collects_in_one_millisecond_has_counted_all_the_same() -> None:
    """Node's clock is that coarse. Who scrapes puts its first look at the start, see above."""
    run = StockRun()
    for second, value in ((1, 10), (2, 20), (3, 35)):
        sent = request(counter("tokens", 1, second, value))
        sent.resource_metrics[0].resource.attributes.append(text("telemetry.sdk.name", "x"))
        run.take(sent)
    run.end()
    assert run.last("trainer/tokens") == 35


def in_unit(unit: str, value: float, second: int) -> ExportMetricsServiceRequest:
    return request(gauge("latency", second, value, unit=unit), instance=unit)


def test_another_unit_has_a_key_of_its_own_and_the_run_tells_it() -> None:
    run = StockRun(window_s=100)
    for second, (unit, value) in enumerate(
        [("s", 0.5), ("ms", 500.0), ("", 0.7), ("{second}", 0.6), ("seconds", 0.4)], 1
    ):
        run.take(in_unit(unit, value, second))
    run.take(request(counter("tokens", 0, 6, 5)))
    run.end()
    assert run.last("trainer/latency") == pytest.approx((0.5 + 0.7 + 0.6 + 0.4) / 4)
    assert run.last("trainer/latency/ms") == 500.0
    (told,) = (row.labels for row in run.rows if row.labels)
    (sentence,) = told.values()
    assert "trainer/latency" in sentence
    assert "'ms'" in sentence


@pytest.mark.parametrize(
    ("first", "second"), [("{token}", "{request}"), ("", "s"), ("1", "{step}"), ("By", "bytes")]
)
def test_units_that_do_not_contradict_each_other_share_a_key(first: str, second: str) -> None:
    run = StockRun(window_s=100)
    run.take(in_unit(first, 1.0, 1))
    run.take(in_unit(second, 2.0, 2))
    run.end()
    assert run.last("trainer/latency") == 1.5
    assert not any(row.labels for row in run.rows)


def test_a_share_in_per_cent_is_not_mixed_with_one_of_one() -> None:
    run = StockRun(window_s=100)
    run.take(in_unit("1", 0.5, 1))
    run.take(in_unit("%", 50.0, 2))
    run.end()
    assert run.last("trainer/latency") == 0.5
    assert run.last("trainer/latency/percent") == 50.0


def test_the_unit_of_the_registry_has_the_known_name_whoever_comes_first() -> None:
    run = StockRun(window_s=100)
    name = "rl.iteration.duration"
    run.take(request(gauge(name, 1, 900.0, unit="ms"), instance="a"))
    run.take(request(gauge(name, 2, 0.9, unit="s"), instance="b"))
    run.end()
    assert run.last("trainer/iteration/duration") == 0.9
    assert run.last("trainer/iteration/duration/ms") == 900.0
    (told,) = (row.labels for row in run.rows if row.labels)
    assert "'ms'" in str(told)


def test_a_unit_keeps_its_key_over_a_restart_of_the_bridge() -> None:
    run = StockRun(window_s=1)
    run.take(in_unit("s", 0.5, 1))
    run.take(in_unit("ms", 500.0, 2))
    run.restart([])
    run.take(in_unit("ms", 600.0, 9), after_s=20)
    run.end()
    assert run.last("trainer/latency") == 0.5
    assert run.last("trainer/latency/ms") == 600.0
    assert len([row for row in run.rows if row.labels]) == 1


def test_the_same_values_by_the_stock_sdk_have_the_quantiles_that_numpy_finds() -> None:
    worker, run = StockWorker(), StockRun(window_s=1000)
    bounds = [0.5 * place for place in range(1, 40)]
    latency = worker.meter.create_histogram("latency", explicit_bucket_boundaries_advisory=bounds)
    values = [((37 * place) % 101) / 6 for place in range(101)]
    for value in values:
        latency.record(value)
        run.take(worker.export(), after_s=0.1)
    run.end()
    for suffix, place in (("p50", 49), ("p90", 89), ("p99", 98)):
        true = statistics.quantiles(values, n=100)[place]
        assert run.last(f"trainer/latency/{suffix}") == pytest.approx(true, abs=0.5)
