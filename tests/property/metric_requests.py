"""Metrics requests of senders that go on: drawn, repeated, changed and damaged."""

from typing import TypeVar

from hypothesis import strategies as st
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import (
    ExportMetricsServiceRequest,
)
from opentelemetry.proto.common.v1.common_pb2 import KeyValue
from opentelemetry.proto.metrics.v1.metrics_pb2 import (
    AggregationTemporality,
    DataPointFlags,
    Exemplar,
    ExponentialHistogramDataPoint,
    HistogramDataPoint,
    Metric,
    NumberDataPoint,
    ResourceMetrics,
    SummaryDataPoint,
)

from tests.support.otlp_requests import backwards

_Buckets = TypeVar("_Buckets", HistogramDataPoint, ExponentialHistogramDataPoint)

NOW_NS = 1_700_000_000_000_000_000
S = 1_000_000_000

near = st.integers(NOW_NS - 20 * S, NOW_NS + 20 * S)
times = st.one_of(
    *[near] * 9,
    st.sampled_from([0, 1, NOW_NS - 30 * 86_400 * S, NOW_NS + 3600 * S, (1 << 64) - 1]),
)
TEMPORALITIES = st.sampled_from(
    [
        AggregationTemporality.AGGREGATION_TEMPORALITY_CUMULATIVE,
        AggregationTemporality.AGGREGATION_TEMPORALITY_DELTA,
        AggregationTemporality.AGGREGATION_TEMPORALITY_DELTA,
    ]
)
values = st.one_of(st.floats(), st.floats(), st.integers(-(1 << 63), (1 << 63) - 1))
steps = st.one_of(
    st.integers(0, 127),
    st.integers(0, 300),
    st.sampled_from([None, -1, 1 << 40, (1 << 63) - 1, -(1 << 63)]),
)


def _rarely(draw: st.DrawFn, n: int = 40) -> bool:
    return draw(st.integers(1, n)) == n


@st.composite
def points(draw: st.DrawFn) -> NumberDataPoint:
    point = NumberDataPoint(time_unix_nano=draw(near), start_time_unix_nano=draw(near))
    _set(point, draw(values))
    kind = "exemplar"
    if _rarely(draw, 6):
        kind = draw(st.sampled_from(["none", "heartbeat", "two", "odd"]))
    if kind == "heartbeat":
        point.ClearField("value")
        point.flags = DataPointFlags.DATA_POINT_FLAGS_NO_RECORDED_VALUE_MASK
    for _ in range({"exemplar": 1, "odd": 1, "two": 2}.get(kind, 0)):
        exemplar = point.exemplars.add(time_unix_nano=draw(near))
        _set(exemplar, draw(values))
        step = draw(steps)
        if step is not None:
            pair = exemplar.filtered_attributes.add(key="rl.loop.iteration")
            pair.value.int_value = step
        if draw(st.booleans()):
            exemplar.trace_id, exemplar.span_id = b"1234567812345678", b"12345678"
        if kind == "odd":
            exemplar.filtered_attributes.add(key="rl.loop.iteration").value.string_value = "7"
    if _rarely(draw):
        point.time_unix_nano = draw(times)
    if _rarely(draw):
        point.start_time_unix_nano = 0
    for n in range(draw(st.sampled_from([0, 0, 0, 1, 2]))):
        point.attributes.add(key=f"a{n}").value.string_value = draw(st.sampled_from(["x", "yy"]))
    if _rarely(draw):
        point.attributes.add(key="rl.loop.iteration").value.int_value = draw(st.integers(0, 9))
    return point


def _exemplars(draw: st.DrawFn, n: int) -> list[Exemplar]:
    found = []
    for _ in range(n):
        found.append(Exemplar(time_unix_nano=draw(times if _rarely(draw) else near)))
        _set(found[-1], draw(values))
        if _rarely(draw, 4):
            key = "rl.loop.iteration" if draw(st.booleans()) else "own"
            found[-1].filtered_attributes.add(key=key).value.int_value = draw(st.integers(0, 300))
    return found


def _of_steps(draw: st.DrawFn, n: int) -> list[Exemplar]:
    """Exemplars that tell what was counted in steps, nearly always whole."""
    found = []
    for _ in range(n):
        found.append(Exemplar(time_unix_nano=draw(times if _rarely(draw) else near)))
        _set(found[-1], draw(values))
        found[-1].filtered_attributes.extend(_marks(draw))
    return found


def _labels(draw: st.DrawFn) -> list[KeyValue]:
    """The attributes of a point of a counter or histogram, rarely with a step."""
    found = [KeyValue(key="a")] if draw(st.booleans()) else []
    if _rarely(draw, 20):
        found.append(KeyValue(key="rl.loop.iteration"))
        found[-1].value.int_value = draw(st.integers(0, 127))
    return found


def _marks(draw: st.DrawFn) -> list[KeyValue]:
    found: list[KeyValue] = []
    spans = st.sampled_from([0, 5, -1, 1 << 62])
    for key, value in (
        ("rl.loop.iteration", draw(steps) if _rarely(draw, 10) else draw(st.integers(0, 127))),
        ("otel_rl.step.share", draw(spans) if _rarely(draw, 10) else draw(st.integers(1, 127))),
        ("otel_rl.step.duration", draw(spans) if _rarely(draw, 10) else draw(st.integers(1, 127))),
    ):
        for _ in range(0 if _rarely(draw, 20) else 2 if _rarely(draw) else 1):
            pair = KeyValue(key=key)
            if value is None:
                pair.value.string_value = "7"
            else:
                pair.value.int_value = value
            found.append(pair)
    return draw(st.permutations(found))


@st.composite
def sums(draw: st.DrawFn) -> Metric:
    metric = Metric(name=draw(st.sampled_from(["s0", "s1"])))
    metric.sum.aggregation_temporality = draw(TEMPORALITIES)
    metric.sum.is_monotonic = draw(st.booleans())
    for _ in range(draw(st.integers(0, 2))):
        point = metric.sum.data_points.add(
            time_unix_nano=draw(times if _rarely(draw) else near),
            start_time_unix_nano=draw(st.one_of(near, st.just(0))),
            exemplars=[
                *_exemplars(draw, draw(st.sampled_from([0, 0, 0, 1, 2]))),
                *_of_steps(draw, draw(st.sampled_from([0, 1, 1, 2]))),
            ],
            attributes=_labels(draw),
        )
        if not _rarely(draw):
            _set(point, draw(values))
        if _rarely(draw, 10):
            point.flags = draw(st.sampled_from([1, 2]))
    return metric


@st.composite
def explicit(draw: st.DrawFn) -> HistogramDataPoint:
    bounds = draw(st.sampled_from([[], [1.0], [1.0, 2.0, 5.0], [2.0, 1.0]]))
    buckets = len(bounds) + (1 if bounds and not _rarely(draw) else 0)
    return HistogramDataPoint(
        explicit_bounds=bounds,
        bucket_counts=[draw(st.integers(0, 1 << 40)) for _ in range(buckets)],
    )


@st.composite
def exponential(draw: st.DrawFn) -> ExponentialHistogramDataPoint:
    point = ExponentialHistogramDataPoint(
        scale=21 if _rarely(draw) else draw(st.integers(-3, 20)), zero_count=draw(st.integers(0, 2))
    )
    for side in (point.positive, point.negative):
        side.offset = draw(st.integers(-300, 300))
        side.bucket_counts.extend(draw(st.lists(st.integers(0, 300), max_size=4)))
    return point


@st.composite
def histograms(draw: st.DrawFn) -> Metric:
    metric = Metric(name="" if _rarely(draw) else draw(st.sampled_from(["h0", "h1"])))
    is_explicit = draw(st.booleans())
    data = metric.histogram if is_explicit else metric.exponential_histogram
    data.aggregation_temporality = draw(TEMPORALITIES)
    for _ in range(draw(st.integers(0, 2))):
        if is_explicit:
            metric.histogram.data_points.append(_filled(draw, draw(explicit())))
        else:
            metric.exponential_histogram.data_points.append(_filled(draw, draw(exponential())))
    return metric


def _filled(draw: st.DrawFn, point: _Buckets) -> _Buckets:
    point.time_unix_nano = draw(times if _rarely(draw) else near)
    point.start_time_unix_nano = draw(st.one_of(near, st.just(0)))
    point.count = draw(st.integers(0, 1 << 40))
    for name in ("sum", "min", "max"):
        if draw(st.booleans()):
            setattr(point, name, draw(st.floats()))
    point.attributes.extend(_labels(draw))
    point.exemplars.extend(_exemplars(draw, draw(st.sampled_from([0, 1, 2]))))
    if _rarely(draw, 10):
        point.flags = draw(st.sampled_from([1, 2]))
    return point


@st.composite
def summaries(draw: st.DrawFn) -> Metric:
    metric = Metric(name="y")
    metric.summary.data_points.append(SummaryDataPoint(time_unix_nano=draw(near), count=3))
    return metric


@st.composite
def gauges(draw: st.DrawFn) -> Metric:
    metric = Metric(name="" if _rarely(draw) else draw(st.sampled_from(["m0", "m1", "m2"])))
    metric.gauge.data_points.extend(draw(st.lists(points(), max_size=2)))
    return metric


@st.composite
def resources(draw: st.DrawFn) -> ResourceMetrics:
    part = ResourceMetrics(schema_url=draw(st.sampled_from(["", "https://schema"])))
    experiment = draw(st.sampled_from([" ", None])) if _rarely(draw) else "one"
    for key, value in (
        ("rl.experiment.name", "two" if _rarely(draw, 10) else experiment),
        ("telemetry.distro.name", "other" if _rarely(draw, 10) else "otel_rl"),
        ("telemetry.sdk.name", draw(st.sampled_from([None, "opentelemetry"]))),
        ("service.instance.id", draw(st.sampled_from(["a", "b"]))),
    ):
        if value is not None:
            part.resource.attributes.add(key=key).value.string_value = value
    for scope in range(0 if _rarely(draw) else draw(st.sampled_from([1, 1, 2]))):
        scope_metrics = part.scope_metrics.add()
        scope_metrics.scope.name = f"scope{scope}"
        for _ in range(draw(st.integers(1, 4))):
            kind = draw(st.sampled_from([gauges, gauges, sums, histograms]))
            scope_metrics.metrics.append(draw(summaries() if _rarely(draw) else kind()))
    return part


@st.composite
def requests(draw: st.DrawFn) -> bytes:
    """A request as protobuf writes it, or as the Collector does."""
    parts = draw(st.lists(resources(), min_size=1, max_size=2))
    request = ExportMetricsServiceRequest(resource_metrics=parts)
    return backwards(request) if draw(st.booleans()) else request.SerializeToString()


def _set(message: object, value: float) -> None:
    setattr(message, "as_int" if isinstance(value, int) else "as_double", value)


def _change(draw: st.DrawFn, metric: Metric) -> None:
    """Give other numbers to a metric, and other points to a histogram."""
    if metric.HasField("histogram") or metric.HasField("exponential_histogram"):
        if draw(st.booleans()):
            other = draw(histograms())
            other.name = metric.name
            metric.CopyFrom(other)
        return
    for point in (*metric.gauge.data_points, *metric.sum.data_points):
        if draw(st.booleans()):
            _change_numbers(draw, point)


def _change_numbers(draw: st.DrawFn, point: NumberDataPoint) -> None:
    numbers: list[NumberDataPoint | Exemplar] = [point, *point.exemplars]
    for one in numbers:
        if one.time_unix_nano:
            one.time_unix_nano = draw(times if _rarely(draw) else near)
        if one.HasField("as_double"):
            one.as_double = draw(st.floats())
    of_exemplars = [pair for one in point.exemplars for pair in one.filtered_attributes]
    for pair in (*point.attributes, *of_exemplars):
        if pair.key == "rl.loop.iteration" and 0 <= pair.value.int_value < 128:
            top = 130 if _rarely(draw) else 127
            pair.value.int_value = draw(st.integers(0, top))
        elif pair.key.startswith("otel_rl.step.") and 0 < pair.value.int_value < 128:
            pair.value.int_value = draw(st.integers(1, 127))


@st.composite
def changed(draw: st.DrawFn, payload: bytes) -> bytes:
    """A request of the same shape, mostly: other numbers, or other bytes.

    Its fields go the way of those of the first one, mostly.
    """
    request = ExportMetricsServiceRequest.FromString(payload)
    for part in request.resource_metrics:
        for scope in part.scope_metrics:
            for metric in scope.metrics:
                _change(draw, metric)
    is_backwards = (backwards(request) == payload) != _rarely(draw)
    mutated = bytearray(backwards(request) if is_backwards else request.SerializeToString())
    for _ in range(draw(st.sampled_from([0, 0, 0, 0, 0, 1, 3]))):
        if mutated:
            place = draw(st.integers(0, len(mutated) - 1))
            mutated[place] = draw(st.integers(0, 255))
    if _rarely(draw):
        del mutated[draw(st.integers(0, len(mutated))) :]
    if _rarely(draw):
        mutated += draw(st.sampled_from([b"\x78\x01", b"\x0a\x00", b"\x0a\x02\x0a\x00", b"\xff"]))
    return bytes(mutated)


@st.composite
def conversations(draw: st.DrawFn) -> list[bytes]:
    """Requests of a few shapes, repeated, with other numbers and with damage."""
    shapes = draw(st.lists(requests(), min_size=1, max_size=2))
    sent = [*shapes]
    for _ in range(draw(st.integers(2, 6))):
        shape = draw(st.sampled_from(shapes))
        sent.append(draw(st.one_of(st.just(shape), changed(shape))))
    return sent
