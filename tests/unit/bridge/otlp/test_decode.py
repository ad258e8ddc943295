"""OTLP requests to points."""

import math
from collections.abc import Iterable

import pytest
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import (
    ExportMetricsServiceRequest,
)
from opentelemetry.proto.common.v1.common_pb2 import AnyValue, InstrumentationScope, KeyValue
from opentelemetry.proto.metrics.v1.metrics_pb2 import (
    AggregationTemporality,
    Exemplar,
    ExponentialHistogram,
    ExponentialHistogramDataPoint,
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

from otel_rl.records import (
    Batch,
    Decoded,
    ExperimentKey,
    HistogramPoint,
    Measurements,
    Point,
    Signal,
    SummaryPoint,
    SumPoint,
    Temporality,
)
from otel_rl.semconv.spec import Instrument, Reduction
from tests.support.doors import decode

KEY = ExperimentKey("exp")
RECEIVED_NS = 99
CUMULATIVE = AggregationTemporality.AGGREGATION_TEMPORALITY_CUMULATIVE
DELTA = AggregationTemporality.AGGREGATION_TEMPORALITY_DELTA


def attributes(pairs: dict[str, str | int | float | bool]) -> list[KeyValue]:
    fields: dict[type, str] = {
        str: "string_value",
        bool: "bool_value",
        int: "int_value",
        float: "double_value",
    }
    return [
        KeyValue(key=key, value=AnyValue(**{fields[type(value)]: value}))  # type: ignore[arg-type]  # the field fits the type
        for key, value in pairs.items()
    ]


def resource(**changes: str | int) -> Resource:
    pairs: dict[str, str | int | float | bool] = {
        "rl.experiment.name": "exp",
        "rl.worker.role": "trainer",
        "rl.worker.index": 1,
        "rl.worker.count": 2,
        "service.instance.id": "abc",
        "telemetry.distro.name": "otel_rl",
        **{key.replace("__", "."): value for key, value in changes.items()},
    }
    return Resource(attributes=attributes({k: v for k, v in pairs.items() if v != ""}))


def decoded(
    *metrics: Metric, of: Resource | None = None, scope: InstrumentationScope | None = None
) -> Decoded:
    request = ExportMetricsServiceRequest(
        resource_metrics=[
            ResourceMetrics(
                resource=of or resource(),
                scope_metrics=[ScopeMetrics(scope=scope, metrics=metrics)],
            )
        ]
    )
    return decode(Batch(KEY, Signal.METRICS, request.SerializeToString(), RECEIVED_NS))


def points(*metrics: Metric, **context: Resource | InstrumentationScope) -> list[Point]:
    return list(decoded(*metrics, **context).points)  # type: ignore[arg-type]  # passed on


def gauge(*data_points: NumberDataPoint, name: str = "loss") -> Metric:
    return Metric(name=name, gauge=Gauge(data_points=data_points))


def exemplar(value: float, time_ns: int, step: int | None = None) -> Exemplar:
    filtered = attributes({"rl.loop.iteration": step} if step is not None else {})
    return Exemplar(as_double=value, time_unix_nano=time_ns, filtered_attributes=filtered)


def measured(found: Iterable[Point]) -> list[tuple[list[int], list[float], list[int | None]]]:
    return [
        (list(p.times_ns), list(p.values), list(p.steps))
        for p in found
        if isinstance(p, Measurements)
    ]


def test_the_worker_is_read_from_the_resource() -> None:
    found = decoded(gauge(NumberDataPoint(as_double=1, time_unix_nano=5)))
    (export,) = found.exports
    assert (export.worker.role, export.worker.index, export.worker.count) == ("trainer", 1, 2)
    assert "abc" in export.worker.instance


def test_instances_of_two_services_are_two_workers() -> None:
    found = [
        decoded(of=resource(service__name=service, service__instance__id="0")).exports[0].worker
        for service in ("vllm-a", "vllm-b", "vllm-a")
    ]
    assert found[0] == found[2] != found[1]


@pytest.mark.parametrize(
    ("service", "role"), [("vllm", "vllm"), ("unknown_service:python", "worker"), ("", "worker")]
)
def test_a_worker_without_a_role_is_called_by_its_service(service: str, role: str) -> None:
    of = resource(rl__worker__role="", service__name=service)
    assert decoded(gauge(NumberDataPoint(as_double=1)), of=of).exports[0].worker.role == role


def test_exemplars_are_the_measurements_and_the_point_is_their_echo() -> None:
    point = NumberDataPoint(
        as_double=2, time_unix_nano=20, exemplars=[exemplar(1, 10, 3), exemplar(2, 20, 4)]
    )
    assert measured(points(gauge(point))) == [([10, 20], [1, 2], [3, 4])]


def test_exemplars_without_a_step_count_where_they_are_complete() -> None:
    point = NumberDataPoint(as_double=2, time_unix_nano=20, exemplars=[exemplar(1, 10)])
    assert measured(points(gauge(point))) == [([10], [1], [None])]


def test_a_stock_sdks_sample_of_exemplars_is_not_taken_for_all_of_them() -> None:
    of = resource(telemetry__distro__name="")
    point = NumberDataPoint(as_double=2, time_unix_nano=20, exemplars=[exemplar(1, 10)])
    assert measured(points(gauge(point), of=of)) == [([20], [2], [None])]


def test_a_step_that_a_plain_sdk_leaves_on_the_point_is_the_step() -> None:
    point = NumberDataPoint(
        as_double=2,
        time_unix_nano=20,
        attributes=attributes({"rl.loop.iteration": 7, "head": "value"}),
    )
    (found,) = points(gauge(point))
    assert isinstance(found, Measurements)
    assert list(found.steps) == [7]
    assert found.series.attributes == (("head", "value"),)


@pytest.mark.parametrize(
    ("written", "step"),
    [
        *(("7", 7), ("7.0", 7), (7.0, 7), (7.9, None), ("7.9", None)),
        *(("1.5e300", None), ("9" * 30, None), ("x", None)),
    ],
)
def test_a_step_that_is_no_integer_of_64_bits_is_no_step(
    written: str | float, step: int | None
) -> None:
    one = Exemplar(
        as_double=1,
        time_unix_nano=1,
        filtered_attributes=attributes({"rl.loop.iteration": written}),
    )
    assert measured(points(gauge(NumberDataPoint(exemplars=[one])))) == [([1], [1], [step])]


def test_step_zero_is_a_step() -> None:
    point = NumberDataPoint(exemplars=[exemplar(1, 10, 0)])
    assert measured(points(gauge(point))) == [([10], [1], [0])]


def test_nan_and_infinity_are_kept() -> None:
    point = NumberDataPoint(exemplars=[exemplar(math.nan, 1, 1), exemplar(-math.inf, 2, 2)])
    first, second = [value for _, values, _ in measured(points(gauge(point))) for value in values]
    assert math.isnan(first)
    assert second == -math.inf


def test_the_reduction_travels_as_a_scope_attribute() -> None:
    scope = InstrumentationScope(name="x", attributes=attributes({"rl.reduce": "max"}))
    (found,) = points(gauge(NumberDataPoint(as_double=1)), scope=scope)
    assert found.series.reduction is Reduction.MAX


def test_an_unknown_reduction_leaves_the_registrys() -> None:
    scope = InstrumentationScope(name="x", attributes=attributes({"rl.reduce": "median"}))
    (found,) = points(gauge(NumberDataPoint(as_double=1)), scope=scope)
    assert found.series.reduction is None


def test_a_point_without_a_time_gets_that_of_its_arrival() -> None:
    assert measured(points(gauge(NumberDataPoint(as_double=1)))) == [([RECEIVED_NS], [1], [None])]


def test_how_far_a_worker_has_come_is_what_its_heartbeat_says() -> None:
    beat = gauge(NumberDataPoint(time_unix_nano=7, flags=1), name="otel_rl.worker.heartbeat")
    later = gauge(NumberDataPoint(as_double=1, time_unix_nano=9))
    assert [export.time_ns for export in decoded(beat).exports] == [7]
    assert [export.time_ns for export in decoded(later, beat).exports] == [7]
    assert [export.time_ns for export in decoded(later).exports] == [0]


def test_how_far_any_other_sender_has_come_is_what_its_points_say() -> None:
    of = resource(telemetry__distro__name="")
    gone = gauge(NumberDataPoint(time_unix_nano=7, flags=1))
    measured = gauge(NumberDataPoint(as_double=1, time_unix_nano=9))
    assert [export.time_ns for export in decoded(gone, of=of).exports] == [7]
    assert [export.time_ns for export in decoded(measured, gone, of=of).exports] == [9]


def test_a_point_without_a_recorded_value_is_no_measurement() -> None:
    assert points(gauge(NumberDataPoint(time_unix_nano=7, flags=1))) == []


def test_a_point_without_a_recorded_value_says_nothing() -> None:
    assert points(gauge(NumberDataPoint(flags=1))) == []


@pytest.mark.parametrize(
    ("kind", "temporality"), [(DELTA, Temporality.DELTA), (CUMULATIVE, Temporality.CUMULATIVE)]
)
def test_sums_keep_their_temporality_and_integers(
    kind: AggregationTemporality.ValueType, temporality: Temporality
) -> None:
    data = Sum(
        aggregation_temporality=kind,
        is_monotonic=True,
        data_points=[NumberDataPoint(as_int=2**60 + 1, start_time_unix_nano=1, time_unix_nano=2)],
    )
    (found,) = points(Metric(name="tokens", sum=data))
    assert isinstance(found, SumPoint)
    assert (found.start_ns, found.time_ns, found.value) == (1, 2, 2**60 + 1)
    assert found.temporality == temporality
    assert found.series.instrument is Instrument.COUNTER


def steps_of_a_sum(*marks: dict[str, str | int | float | bool]) -> list[SumPoint]:
    """The points of a cumulative sum with these exemplars, of 30 ns each."""
    point = NumberDataPoint(
        as_int=50,
        attributes=attributes({"kind": "a"}),
        start_time_unix_nano=10,
        time_unix_nano=40,
        exemplars=[
            Exemplar(as_int=5, time_unix_nano=30, filtered_attributes=attributes(one))
            for one in marks
        ],
    )
    data = Sum(aggregation_temporality=CUMULATIVE, is_monotonic=True, data_points=[point])
    found = points(Metric(name="tokens", sum=data))
    return [point for point in found if isinstance(point, SumPoint)]


def test_what_is_counted_in_a_step_is_known_by_its_mark_and_by_the_time_it_covers() -> None:
    one, two, total = steps_of_a_sum(
        {"rl.loop.iteration": 7, "otel_rl.step.share": 21, "otel_rl.step.duration": 12},
        {"otel_rl.step.share": 30, "rl.loop.iteration": 8},
        {"rl.loop.iteration": 7},
    )
    assert (one.is_share, one.step, one.value) == (True, 7, 5)
    assert (one.start_ns, one.time_ns) == (18, 30)
    assert one.covers == (9, 30)
    assert (two.is_share, two.step, two.start_ns, two.covers) == (True, 8, 0, (0, 30))
    assert one.series is two.series
    assert dict(one.series.attributes) == {"kind": "a"}
    assert (total.is_share, total.value, total.time_ns) == (False, 50, 40)
    assert total.series != one.series


def test_a_mark_without_a_step_is_an_announcement() -> None:
    one, _ = steps_of_a_sum({"otel_rl.step.share": 0})
    assert (one.is_share, one.step) == (True, None)


def steps_of_a_histogram(
    *measured: tuple[float, int, int | None], start_ns: int = 100
) -> list[HistogramPoint]:
    """The steps' points of a histogram with exemplars of value, step and number."""
    point = ExponentialHistogramDataPoint(
        count=9,
        start_time_unix_nano=start_ns,
        time_unix_nano=200,
        exemplars=[
            Exemplar(
                as_double=value,
                time_unix_nano=150,
                filtered_attributes=attributes(
                    {"rl.loop.iteration": step, **({} if n is None else {"otel_rl.step.count": n})}
                ),
            )
            for value, step, n in measured
        ],
    )
    data = ExponentialHistogram(aggregation_temporality=DELTA, data_points=[point])
    found = points(
        Metric(name="age", exponential_histogram=data),
    )
    return [one for one in found if isinstance(one, HistogramPoint) and one.is_share]


def test_each_step_has_the_distribution_of_its_measurements() -> None:
    seven, eight = steps_of_a_histogram((2.0, 7, None), (0.0, 8, 3), (4.0, 7, 2))
    assert (seven.step, seven.count, seven.total) == (7, 3, 10.0)
    assert (seven.minimum, seven.maximum) == (2.0, 4.0)
    assert [(round(upper, 9), n) for _, upper, n in seven.buckets] == [(2.0, 1), (4.0, 2)]
    assert (eight.step, eight.count, [*eight.buckets]) == (8, 3, [(0.0, 0.0, 3)])


def test_the_steps_of_a_histogram_tile_the_time_of_its_point() -> None:
    found = steps_of_a_histogram((1.0, 7, 1), (1.0, 8, 1), (1.0, 9, 1))
    assert [one.covers for one in found] == [(100, 101), (101, 102), (102, 200)]
    narrow = steps_of_a_histogram((1.0, 7, 1), (1.0, 8, 1), start_ns=199)
    assert [one.covers for one in narrow] == [(0, 200), (0, 200)]  # each has its step, too


def test_measurements_that_are_no_numbers_or_sampled_are_not_of_a_step() -> None:
    found = steps_of_a_histogram((math.inf, 7, 1), (math.nan, 7, 1), (1.0, 7, -1), (3.0, 8, 1))
    assert [(one.step, one.count) for one in found] == [(8, 1)]
    assert steps_of_a_histogram((3.0, 8, None)) == []


def test_an_explicit_histogram_has_open_ends_and_no_empty_buckets() -> None:
    data = Histogram(
        aggregation_temporality=DELTA,
        data_points=[
            HistogramDataPoint(
                count=3,
                sum=7.0,
                explicit_bounds=[1, 2, 4],
                bucket_counts=[1, 0, 1, 1],
                time_unix_nano=5,
            )
        ],
    )
    (found,) = points(Metric(name="latency", histogram=data))
    assert isinstance(found, HistogramPoint)
    assert list(found.buckets) == [(-math.inf, 1, 1), (2, 4, 1), (4, math.inf, 1)]
    assert (found.count, found.total, found.minimum, found.maximum) == (3, 7.0, None, None)


def test_an_exponential_histogram_has_computed_bounds() -> None:
    data = ExponentialHistogram(
        aggregation_temporality=DELTA,
        data_points=[
            ExponentialHistogramDataPoint(
                count=6,
                sum=1.0,
                scale=0,
                zero_count=1,
                zero_threshold=0.5,
                positive=ExponentialHistogramDataPoint.Buckets(offset=1, bucket_counts=[2, 0, 1]),
                negative=ExponentialHistogramDataPoint.Buckets(offset=0, bucket_counts=[2]),
                time_unix_nano=5,
            )
        ],
    )
    (found,) = points(Metric(name="latency", exponential_histogram=data))
    assert isinstance(found, HistogramPoint)
    assert found.buckets == ((-2, -1, 2), (-0.5, 0.5, 1), (2, 4, 2), (8, 16, 1))


def test_an_exponential_histogram_of_absurd_scale_does_not_fail() -> None:
    data = ExponentialHistogram(
        data_points=[
            ExponentialHistogramDataPoint(
                count=1,
                scale=-10,
                positive=ExponentialHistogramDataPoint.Buckets(
                    offset=2_000_000_000, bucket_counts=[1]
                ),
            )
        ]
    )
    (found,) = points(Metric(name="latency", exponential_histogram=data))
    assert isinstance(found, HistogramPoint)
    assert found.buckets == ((math.inf, math.inf, 1),)


def test_a_summary_keeps_its_quantiles() -> None:
    data = Summary(
        data_points=[
            SummaryDataPoint(
                count=10,
                sum=5.0,
                time_unix_nano=5,
                quantile_values=[SummaryDataPoint.ValueAtQuantile(quantile=0.99, value=3.0)],
            )
        ]
    )
    (found,) = points(Metric(name="rpc", summary=data))
    assert isinstance(found, SummaryPoint)
    assert found.quantiles == ((0.99, 3.0),)


def test_a_metric_without_data_is_ignored() -> None:
    assert points(Metric(name="nothing")) == []


def test_a_worker_in_two_parts_of_a_request_has_come_as_far_as_the_further_one() -> None:
    """A Collector joins what a worker has sent in turn, in any order."""
    parts = [
        ResourceMetrics(
            resource=resource(telemetry__distro__name=""),
            scope_metrics=[
                ScopeMetrics(metrics=[gauge(NumberDataPoint(as_double=1, time_unix_nano=time_ns))])
            ],
        )
        for time_ns in (9, 7)
    ]
    payload = ExportMetricsServiceRequest(resource_metrics=parts).SerializeToString()
    (export,) = decode(Batch(KEY, Signal.METRICS, payload, RECEIVED_NS)).exports
    assert export.time_ns == 9
