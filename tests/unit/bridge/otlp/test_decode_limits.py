"""How a point is known again, whose step and scope it has, and what its buckets mean."""

from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import (
    ExportMetricsServiceRequest,
)
from opentelemetry.proto.metrics.v1.metrics_pb2 import Metric

from otel_rl.bridge.rows.series.cumulative import CounterStream
from otel_rl.records import (
    Batch,
    ExperimentKey,
    HistogramPoint,
    Measurements,
    Point,
    Series,
    Signal,
    SumPoint,
    Temporality,
    Worker,
)
from otel_rl.semconv.spec import Instrument
from tests.support.doors import decode
from tests.support.otlp_requests import key_values

OURS = {"telemetry.distro.name": "otel_rl"}


def points(
    metric: Metric, *, resource: dict[str, str] | None = None, version: str = ""
) -> list[Point]:
    request = ExportMetricsServiceRequest()
    part = request.resource_metrics.add()
    part.resource.attributes.extend(
        key_values({"rl.experiment.name": "e", "rl.worker.role": "trainer", **(resource or {})})
    )
    scope = part.scope_metrics.add()
    scope.scope.name, scope.scope.version = "library", version
    scope.metrics.append(metric)
    batch = Batch(ExperimentKey("e"), Signal.METRICS, request.SerializeToString(), 77)
    return list(decode(batch).points)


def gauge(*times_ns: tuple[int, int], value: float = 1.0) -> Metric:
    metric = Metric(name="m")
    for start_ns, time_ns in times_ns:
        metric.gauge.data_points.add(
            start_time_unix_nano=start_ns, time_unix_nano=time_ns, as_double=value
        )
    return metric


def covers(metric: Metric, **resource: str) -> list[object]:
    found = points(metric, resource=resource)
    return [point.covers for point in found if isinstance(point, Measurements)]


def test_a_point_without_a_time_is_known_by_nothing() -> None:
    assert covers(gauge((0, 0), (0, 0))) == [None, None]


def test_only_our_own_points_tile_time() -> None:
    several = gauge((5, 10), (5, 20))
    assert covers(several) == [(0, 10), (0, 20)]
    assert covers(several, **OURS) == [(5, 10), (5, 20)]


def test_a_measurement_has_the_step_of_its_own_before_that_of_its_point() -> None:
    metric = gauge((5, 10))
    (point,) = metric.gauge.data_points
    point.attributes.extend(key_values({"rl.loop.iteration": 9}))
    own = point.exemplars.add(time_unix_nano=8, as_double=1.0)
    own.filtered_attributes.extend(key_values({"rl.loop.iteration": 3}))
    point.exemplars.add(time_unix_nano=9, as_double=2.0)
    (found,) = points(metric, resource=OURS)
    assert isinstance(found, Measurements)
    assert list(found.steps) == [3, 9]


def test_two_versions_of_a_library_have_two_series() -> None:
    of = [points(gauge((5, 10)), version=version)[0].series for version in ("1", "2", "2")]
    assert of[0] != of[1] == of[2]


def test_the_scale_of_an_exponential_histogram_divides_each_power_of_two() -> None:
    metric = Metric(name="m")
    point = metric.exponential_histogram.data_points.add(
        time_unix_nano=10, count=2, scale=1, sum=5.0
    )
    point.positive.offset = 2
    point.positive.bucket_counts.extend([0, 2])
    (found,) = points(metric)
    assert isinstance(found, HistogramPoint)
    ((lower, upper, count),) = found.buckets
    assert (round(lower, 9), round(upper, 9), count) == (round(2**1.5, 9), 4.0, 2)


def test_what_was_counted_since_nobody_knows_when_took_no_time() -> None:
    series = Series(Worker("trainer", "a"), "tokens", instrument=Instrument.COUNTER)
    increment = CounterStream().advance(SumPoint(series, 0, 10**18, 5, Temporality.DELTA))
    assert increment is not None
    assert (increment.value, increment.seconds) == (5, 0.0)
