import math
import sys
from collections.abc import Generator, Iterable
from itertools import pairwise
from time import time_ns

import numpy as np
import pytest
from opentelemetry import trace
from opentelemetry.metrics import CallbackOptions, Observation
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import (
    ExportMetricsServiceRequest,
)
from opentelemetry.proto.metrics.v1.metrics_pb2 import Metric
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.util.types import AnyValue

from otel_rl.worker.drops import DropReason, Drops
from otel_rl.worker.guard import Guard
from otel_rl.worker.metrics.gauges import Buffer
from otel_rl.worker.metrics.provider import BufferedMeterProvider
from tests.support.otlp_sink import pairs
from tests.unit.worker.conftest import Collect

STEP = "rl.loop.iteration"


def sdk_metrics(provider: BufferedMeterProvider) -> dict[str, Metric]:
    return {
        metric.name: metric
        for request in provider.collect()
        for resource in ExportMetricsServiceRequest.FromString(request.payload).resource_metrics
        for scope in resource.scope_metrics
        for metric in scope.metrics
    }


def test_every_measurement_of_a_gauge_is_kept_in_order(
    provider: BufferedMeterProvider, collect: Collect
) -> None:
    gauge = provider.get_meter("m").create_gauge("loss")
    for step in range(50):
        gauge.set(step / 10, {STEP: step})
    assert [(m.value, m.step) for m in collect()] == [(step / 10, step) for step in range(50)]


def test_nan_and_infinities_are_data(provider: BufferedMeterProvider, collect: Collect) -> None:
    gauge = provider.get_meter("m").create_gauge("loss")
    for value in (math.nan, math.inf, -math.inf):
        gauge.set(value)
    found = [m.value for m in collect()]
    assert math.isnan(found[0])
    assert found[1:] == [math.inf, -math.inf]


def test_a_dict_that_is_reused_for_the_next_step_changes_nothing(
    provider: BufferedMeterProvider, collect: Collect
) -> None:
    gauge = provider.get_meter("m").create_gauge("loss")
    attributes: dict[str, AnyValue] = {STEP: 0, "kind": "a"}
    for step in range(3):
        attributes[STEP] = step
        gauge.set(1.0, attributes)
    assert [m.step for m in collect()] == [0, 1, 2]
    assert attributes == {STEP: 2, "kind": "a"}


def test_a_measurement_knows_the_span_it_was_made_in(
    provider: BufferedMeterProvider, collect: Collect
) -> None:
    gauge = provider.get_meter("m").create_gauge("loss")
    tracer = TracerProvider(shutdown_on_exit=False).get_tracer("t")
    with tracer.start_as_current_span("step") as span:
        gauge.set(1.0)
    gauge.set(2.0, context=trace.set_span_in_context(span))
    gauge.set(3.0)
    ids = span.get_span_context()
    expected = (f"{ids.trace_id:032x}", f"{ids.span_id:016x}")
    assert [(m.trace_id, m.span_id) for m in collect()] == [expected, expected, ("", "")]


def test_a_meters_attributes_travel_with_its_gauges(
    provider: BufferedMeterProvider, collect: Collect
) -> None:
    provider.get_meter("m", attributes={"rl.reduce": "max"}).create_gauge("g").set(1)
    assert [m.scope for m in collect()] == [{"rl.reduce": "max"}]


def test_a_gauge_that_is_made_again_is_the_same_gauge(provider: BufferedMeterProvider) -> None:
    meter = provider.get_meter("m")
    assert meter.create_gauge("Loss", "1") is provider.get_meter("m").create_gauge("loss", "1")


@pytest.mark.parametrize(
    ("amount", "attributes", "reason"),
    [
        ("0.5", None, DropReason.NOT_A_NUMBER),
        (None, None, DropReason.NOT_A_NUMBER),
        (1.0, 5, DropReason.BAD_ATTRIBUTES),
        (1.0, {STEP: "five"}, DropReason.BAD_STEP),
        (1.0, {STEP: True}, DropReason.BAD_STEP),
        (1.0, {STEP: 1.5}, DropReason.BAD_STEP),
        (1.0, {STEP: 1 << 64}, DropReason.BAD_STEP),
    ],
)
def test_bad_measurements_never_raise_and_are_counted(
    provider: BufferedMeterProvider,
    collect: Collect,
    drops: Drops,
    amount: object,
    attributes: object,
    reason: DropReason,
) -> None:
    gauge = provider.get_meter("m").create_gauge("g")
    gauge.set(amount, attributes)  # type: ignore[arg-type]  # bad types are the point
    assert collect() == []
    assert drops.counts() == {reason: 1}


def test_a_whole_float_is_taken_as_a_step(
    provider: BufferedMeterProvider, collect: Collect
) -> None:
    provider.get_meter("m").create_gauge("g").set(1.0, {STEP: 12.0})
    assert [m.step for m in collect()] == [12]


def test_a_full_buffer_drops_the_newest_and_counts_them(drops: Drops) -> None:
    provider = BufferedMeterProvider(Resource({}), Guard(drops), Buffer(capacity=10))
    gauge = provider.get_meter("m").create_gauge("g")
    for step in range(25):
        gauge.set(1.0, {STEP: step})
    assert drops.counts() == {DropReason.BUFFER_FULL: 15}
    assert sum(request.measurements for request in provider.collect()) == 10


def test_a_request_knows_how_many_measurements_are_lost_with_it(
    provider: BufferedMeterProvider,
) -> None:
    meter = provider.get_meter("m")
    meter.create_gauge("g").set(1.0)
    meter.create_observable_gauge("level", [lambda _: [Observation(1), Observation(2, {"a": 1})]])
    counter = meter.create_counter("tokens")
    counter.add(5)  # its total is repeated in the next export
    counter.add(5, {STEP: 1})  # what it counts in a step is not
    latency = meter.create_histogram("latency")
    for _ in range(3):
        latency.record(1.0)
    assert sum(request.measurements for request in provider.collect()) == 1 + 2 + 1 + 3


def test_losses_are_a_metric_of_the_next_export(
    provider: BufferedMeterProvider, drops: Drops
) -> None:
    drops.add(DropReason.QUEUE_FULL, 7)
    metric = sdk_metrics(provider)["otel_rl.worker.measurements.dropped"]
    (point,) = metric.sum.data_points
    assert (point.as_int, pairs(point.attributes)) == (7, {"rl.reason": "queue_full"})
    assert metric.sum.is_monotonic


def test_counters_are_cumulative(provider: BufferedMeterProvider) -> None:
    counter = provider.get_meter("m").create_counter("tokens")
    counter.add(2)
    sdk_metrics(provider)
    counter.add(3)
    (point,) = sdk_metrics(provider)["tokens"].sum.data_points
    assert point.as_int == 5


def test_histograms_are_delta_and_exponential(provider: BufferedMeterProvider) -> None:
    histogram = provider.get_meter("m").create_histogram("latency")
    histogram.record(100.0)
    sdk_metrics(provider)
    histogram.record(2.0)
    (point,) = sdk_metrics(provider)["latency"].exponential_histogram.data_points
    assert (point.count, point.max) == (1, 2.0)


def test_a_histogram_that_advises_buckets_is_exponential_too(
    provider: BufferedMeterProvider,
) -> None:
    histogram = provider.get_meter("m").create_histogram(
        "latency", explicit_bucket_boundaries_advisory=[1.0, 5.0]
    )
    histogram.record(2.0)
    (point,) = sdk_metrics(provider)["latency"].exponential_histogram.data_points
    assert point.count == 1


def test_a_step_on_a_counter_makes_no_new_series(provider: BufferedMeterProvider) -> None:
    counter = provider.get_meter("m").create_counter("tokens")
    for step in range(20):
        counter.add(1, {STEP: step, "kind": "prompt"})
    (point,) = sdk_metrics(provider)["tokens"].sum.data_points
    assert (point.as_int, pairs(point.attributes)) == (20, {"kind": "prompt"})


def test_an_instrument_that_the_sdk_refuses_records_nothing_and_raises_nothing(
    provider: BufferedMeterProvider,
) -> None:
    provider.get_meter("m").create_counter("not a name!").add(1)
    provider.get_meter("m").create_gauge("").set(1)
    for odd in (None, 1, ["c"], b"c"):
        provider.get_meter("m").create_counter(odd).add(1)  # type: ignore[arg-type]
        provider.get_meter("m").create_gauge(odd).set(1)  # type: ignore[arg-type]
    assert provider.collect() == []


def test_a_value_that_no_point_holds_costs_no_other_one(
    provider: BufferedMeterProvider, drops: Drops
) -> None:
    meter = provider.get_meter("m")
    flops, tokens = meter.create_counter("flops"), meter.create_counter("tokens")
    seconds = meter.create_histogram("seconds")
    meter.create_observable_gauge("odd", [lambda _: [Observation(np.ones(2))]])  # type: ignore[arg-type]
    for _ in range(20):
        flops.add(10**18)
        tokens.add(1)
        seconds.record(1.5)
    found = sdk_metrics(provider)
    assert found["flops"].sum.data_points[0].as_double == 2e19
    assert found["tokens"].sum.data_points[0].as_int == 20
    assert found["seconds"].exponential_histogram.data_points[0].count == 20
    assert drops.counts() == {DropReason.NOT_A_NUMBER: 1}


@pytest.mark.parametrize("step", [np.int64(5), np.array(5), 5.0, 5])
def test_counts_take_an_integer_of_any_library_as_their_step(
    provider: BufferedMeterProvider, step: AnyValue
) -> None:
    provider.get_meter("m").create_counter("tokens").add(1, {STEP: step})
    provider.get_meter("m").create_histogram("seconds").record(1.5, {STEP: step})
    found = sdk_metrics(provider)
    (tokens,), (seconds,) = (
        found["tokens"].sum.data_points,
        found["seconds"].exponential_histogram.data_points,
    )
    for (exemplar,) in (tokens.exemplars, seconds.exemplars):
        assert pairs(exemplar.filtered_attributes)[STEP] == 5


def test_a_step_that_is_no_integer_leaves_a_count_in_the_total(
    provider: BufferedMeterProvider, drops: Drops
) -> None:
    provider.get_meter("m").create_counter("tokens").add(1, {STEP: "five"})
    (point,) = sdk_metrics(provider)["tokens"].sum.data_points
    assert (point.as_int, pairs(point.attributes)) == (1, {})
    assert drops.counts() == {DropReason.BAD_STEP: 1}


@pytest.mark.parametrize(
    ("amount", "reason"),
    [
        ("2", DropReason.NOT_A_NUMBER),
        (None, DropReason.NOT_A_NUMBER),
        (math.nan, DropReason.NOT_ADDABLE),
        (math.inf, DropReason.NOT_ADDABLE),
        (-1, DropReason.NOT_ADDABLE),
    ],
)
def test_what_cannot_be_added_is_counted_and_raises_nothing(
    provider: BufferedMeterProvider, drops: Drops, amount: object, reason: DropReason
) -> None:
    meter = provider.get_meter("m")
    meter.create_counter("c").add(amount)  # type: ignore[arg-type]  # bad types are the point
    meter.create_histogram("h").record(amount)  # type: ignore[arg-type]
    assert drops.counts() == {reason: 2}


def test_the_log_names_the_instrument_that_dropped_an_amount(
    provider: BufferedMeterProvider, caplog: pytest.LogCaptureFixture
) -> None:
    provider.get_meter("m").create_histogram("advantages").record(-0.5)
    assert "advantages: a counter or histogram cannot take -0.5" in caplog.text


def test_the_log_names_an_up_down_counter_that_dropped_an_amount(
    provider: BufferedMeterProvider, caplog: pytest.LogCaptureFixture
) -> None:
    provider.get_meter("m").create_up_down_counter("depth").add(math.nan)
    assert "depth: a counter or histogram cannot take nan" in caplog.text


def test_an_up_down_counter_may_fall(provider: BufferedMeterProvider) -> None:
    provider.get_meter("m").create_up_down_counter("depth").add(-3)
    (point,) = sdk_metrics(provider)["depth"].sum.data_points
    assert point.as_int == -3


def test_a_histogram_takes_what_arrays_hold(provider: BufferedMeterProvider) -> None:
    provider.get_meter("m").create_histogram("h").record(np.float32(0.5))  # type: ignore[arg-type]
    (point,) = sdk_metrics(provider)["h"].exponential_histogram.data_points
    assert (point.count, point.sum) == (1, 0.5)


def test_after_a_restart_instruments_report_for_the_new_resource_from_zero(
    provider: BufferedMeterProvider, collect: Collect
) -> None:
    meter = provider.get_meter("m")
    gauge, counter = meter.create_gauge("g"), meter.create_counter("c")
    meter.create_observable_gauge("o", [lambda _options: [Observation(5)]])
    gauge.set(1.0)
    counter.add(10)
    provider.restart(Resource({"service.instance.id": "child"}), keep_buffer=False)
    gauge.set(2.0)
    counter.add(1)
    requests = [ExportMetricsServiceRequest.FromString(r.payload) for r in provider.collect()]
    resources = [pairs(r.resource_metrics[0].resource.attributes) for r in requests]
    found = {m.name: m for r in requests for m in r.resource_metrics[0].scope_metrics[0].metrics}
    assert all(resource["service.instance.id"] == "child" for resource in resources)
    assert [e.as_double for e in found["g"].gauge.data_points[0].exemplars] == [2.0]
    assert found["c"].sum.data_points[0].as_int == 1
    assert found["o"].gauge.data_points[0].as_int == 5


def test_a_generator_callback_goes_on_after_a_restart(provider: BufferedMeterProvider) -> None:
    def counting() -> Generator[Iterable[Observation], CallbackOptions, None]:
        yield []
        for value in range(10):
            yield [Observation(value)]

    provider.get_meter("m").create_observable_gauge("o", [counting()])
    first = sdk_metrics(provider)["o"].gauge.data_points[0].as_int
    provider.restart(Resource({}), keep_buffer=False)
    assert (first, sdk_metrics(provider)["o"].gauge.data_points[0].as_int) == (0, 1)


def test_one_failing_callback_costs_only_itself(provider: BufferedMeterProvider) -> None:
    def fails(_options: CallbackOptions) -> Iterable[Observation]:
        raise RuntimeError("no sensor")

    meter = provider.get_meter("m")
    meter.create_observable_gauge("bad", [fails])
    meter.create_counter("good").add(1)
    assert set(sdk_metrics(provider)) == {"good"}


def spans(provider: BufferedMeterProvider, name: str = "loss") -> list[tuple[int, int]]:
    """(start, time) of every point of the metric, in order."""
    return [
        (point.start_time_unix_nano, point.time_unix_nano)
        for request in provider.collect()
        for resource in ExportMetricsServiceRequest.FromString(request.payload).resource_metrics
        for scope in resource.scope_metrics
        for metric in scope.metrics
        if metric.name == name
        for point in getattr(metric, metric.WhichOneof("data") or "").data_points
    ]


def chained(found: list[tuple[int, int]]) -> bool:
    return all(start < end == next_start for (start, end), (next_start, _) in pairwise(found))


def test_a_gauges_points_tile_time_from_the_providers_start_on() -> None:
    before_ns = time_ns()
    provider = BufferedMeterProvider(Resource({"service.name": "test"}), Guard(Drops()))
    after_ns = time_ns()
    gauge = provider.get_meter("m").create_gauge("loss")
    found = []
    for change in (False, True, False):
        if change:
            provider.restart(Resource({"service.name": "corrected"}), keep_buffer=True)
        gauge.set(1.0)
        found += spans(provider)
    assert before_ns <= found[0][0] <= after_ns
    assert chained(found)


def test_a_forked_childs_points_start_when_it_does(provider: BufferedMeterProvider) -> None:
    gauge = provider.get_meter("m").create_gauge("loss")
    gauge.set(1.0)
    provider.collect()
    forked_ns = time_ns()
    provider.restart(Resource({"service.name": "child"}), keep_buffer=False)
    gauge.set(2.0)
    ((start_ns, _),) = spans(provider)
    assert start_ns >= forked_ns


def set_back(monkeypatch: pytest.MonkeyPatch) -> None:
    """From now on the SDK's clock is an hour behind."""
    real = time_ns
    for module in [m for name, m in sys.modules.items() if name.startswith("opentelemetry.sdk.m")]:
        if getattr(module, "time_ns", None) is real:
            monkeypatch.setattr(module, "time_ns", lambda: real() - 3600 * 10**9)


@pytest.mark.parametrize("kind", ["histogram", "observable gauge"])
def test_what_the_sdk_collects_tiles_time_though_its_clock_is_set_back(
    provider: BufferedMeterProvider, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    meter = provider.get_meter("m")
    found = []
    if kind == "observable gauge":
        meter.create_observable_gauge("loss", [lambda _: [Observation(1.0)]])
        found += spans(provider)
        set_back(monkeypatch)
        found += spans(provider) + spans(provider)
    else:
        loss = meter.create_histogram("loss")
        loss.record(1.0)
        found += spans(provider)
        set_back(monkeypatch)
        for _ in range(2):
            loss.record(1.0)
            found += spans(provider)
    assert len(found) == 3
    assert chained(found)


def test_two_kinds_of_gauge_with_one_name_never_claim_the_same_time(
    provider: BufferedMeterProvider,
) -> None:
    meter = provider.get_meter("m", "1.0", attributes={"rl.reduce": "max", "another": 1})
    gauge = meter.create_gauge("loss")
    observed = [Observation(1.0, {"b": 1, "a": "x"})]
    meter.create_observable_gauge("loss", [lambda _: observed])
    found = []
    for _ in range(3):
        gauge.set(1.0, {"a": "x", "b": 1})
        found += spans(provider)
    assert len(found) == 6
    assert chained(found)


def test_two_scopes_may_have_an_instrument_of_one_name(
    provider: BufferedMeterProvider, caplog: pytest.LogCaptureFixture
) -> None:
    for client in ("requests", "httpx"):
        meter = provider.get_meter(client)
        took = meter.create_histogram(
            "http.client.duration", explicit_bucket_boundaries_advisory=[1.0, 2.0]
        )
        took.record(1.0, {"client": client})
        meter.create_counter("calls").add(1)
    assert len(spans(provider, "http.client.duration")) == 2
    assert caplog.messages == []
