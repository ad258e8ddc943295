"""A request of a known shape has the same outcome as if it were parsed."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, TypeVar

import pytest
from google.protobuf.message import DecodeError
from hypothesis import HealthCheck, given, settings
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

from otel_rl.bridge.counters import Counters, Refusal
from otel_rl.bridge.ingest.admission.experiments import Experiments
from otel_rl.bridge.ingest.limits import ReceiveLimits
from otel_rl.bridge.ingest.pipeline import IngestPipeline
from otel_rl.bridge.ingest.validation.known_shapes import KnownShapes
from otel_rl.bridge.ingest.validation.validate import Validated, validate
from otel_rl.bridge.otlp import known_bodies
from otel_rl.bridge.otlp.decode import decode, decode_parts
from otel_rl.bridge.otlp.known_bodies import read_known
from otel_rl.bridge.otlp.resource import sender_of
from otel_rl.bridge.otlp.shapes import ShapeCache, resource_parts
from otel_rl.bridge.otlp.shapes.fields import with_length
from otel_rl.errors import RequestError, RequestTooLarge
from otel_rl.records import Batch, Decoded, ExperimentKey, Measurements, Signal
from tests import otlp_requests
from tests.otlp_requests import Journal, backwards, gauge, key_values
from tests.slow import examples

_Buckets = TypeVar("_Buckets", HistogramDataPoint, ExponentialHistogramDataPoint)
_Spelled = tuple[list[str], str, bool]

NOW_NS = 1_700_000_000_000_000_000
S = 1_000_000_000
LIMITS = ReceiveLimits(max_points_per_request=4000, max_attributes=3, max_exemplars=2)

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


def outcome(found: Validated) -> object:
    batches = [
        (batch.experiment, batch.received_ns, _canonical(batch.payload)) for batch in found.batches
    ]
    return replace(found, batches=()), batches


def _canonical(payload: bytes) -> str:
    return str(ExportMetricsServiceRequest.FromString(payload))


def by_parsing(payload: bytes, asked: list[ExperimentKey]) -> object:
    try:
        return outcome(validate(Signal.METRICS, payload, LIMITS, NOW_NS, admission(asked)))
    except RequestError as error:
        return type(error), str(error)


def admission(asked: list[ExperimentKey]) -> "_Admission":
    return _Admission(asked)


class _Admission:
    """Refuses one experiment, and notes which ones were asked for."""

    def __init__(self, asked: list[ExperimentKey]) -> None:
        self._asked = asked

    def __call__(self, key: ExperimentKey) -> tuple[Refusal, str] | None:
        if key not in self._asked:
            self._asked.append(key)
        return (Refusal.NOT_ALLOWED, "no") if key.experiment == "two" else None


@given(conversations())
@settings(max_examples=examples(150), deadline=None, suppress_health_check=list(HealthCheck))
def test_a_known_shape_is_accepted_as_if_it_were_parsed(sent: list[bytes]) -> None:
    known = KnownShapes(LIMITS)
    for payload in sent:
        asked: list[ExperimentKey] = []
        found = known.validate(payload, NOW_NS, admission(asked))
        expected_asked: list[ExperimentKey] = []
        expected = by_parsing(payload, expected_asked)
        if found is not None:
            assert (outcome(found), asked) == (expected, expected_asked)
        known.learn(payload, NOW_NS)


@given(conversations())
@settings(max_examples=examples(150), deadline=None, suppress_health_check=list(HealthCheck))
def test_a_request_that_needs_no_thread_has_the_outcome_of_one_that_does(sent: list[bytes]) -> None:
    fast, slow = _Site(), _Site()
    door = fast.door()
    for payload in sent:
        # A new door knows no shape.
        assert fast.outcome(door, payload) == slow.outcome(slow.door(), payload)
    assert fast.counters.snapshot() == slow.counters.snapshot()


class _Site:
    """What a bridge keeps of the requests that it takes; it has room for one experiment."""

    def __init__(self) -> None:
        self.counters = Counters()
        self._journal = Journal()
        self._experiments = Experiments(1)

    def door(self) -> IngestPipeline:
        return IngestPipeline(
            accept=self._journal,
            limits=LIMITS,
            counters=self.counters,
            clock_ns=lambda: NOW_NS,
            experiments=self._experiments,
        )

    def outcome(self, door: IngestPipeline, payload: bytes) -> object:
        try:
            found = door.take(Signal.METRICS, payload)
        except RequestError as error:
            found_error = type(error), str(error)
            return found_error, len(self._journal.batches)
        kept = [(batch.experiment, _canonical(batch.payload)) for batch in self._journal.take()]
        return outcome(found), kept


@given(conversations())
@settings(max_examples=examples(150), deadline=None, suppress_health_check=list(HealthCheck))
def test_a_known_shape_is_decoded_as_if_it_were_parsed(sent: list[bytes]) -> None:
    for payload in sent:
        found = _decoded(payload)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(known_bodies, "_shapes", ShapeCache())
            assert found == _decoded(payload)
        # A field that OTLP does not have, so that the order is the request's.
        assert _sorted(found) == _sorted(_decoded(payload + b"\x78\x01"))


def _decoded(payload: bytes) -> tuple[_Spelled, list[_Spelled]] | None:
    batch = Batch(ExperimentKey("one"), Signal.METRICS, payload, NOW_NS)
    try:
        return _spelled(decode(batch)), [_spelled(part) for part in decode_parts(batch, 3)]
    except DecodeError:
        return None


def _sorted(found: tuple[_Spelled, object] | None) -> _Spelled | None:
    if found is None:
        return None
    points, exports, has_more = found[0]
    return sorted(points), exports, has_more


def _spelled(decoded: Decoded) -> _Spelled:
    points = [
        replace(
            point,
            times_ns=[*point.times_ns],
            values=[*point.values],
            steps=[*point.steps],
        )
        if isinstance(point, Measurements)
        else point
        for point in decoded.points
    ]
    return list(map(repr, points)), repr(decoded.exports), decoded.has_more


@given(st.data())
@settings(max_examples=examples(60), deadline=None, suppress_health_check=list(HealthCheck))
def test_a_worker_is_recognised_from_its_second_request_on(data: st.DataObject) -> None:
    known = KnownShapes(LIMITS)
    is_backwards = data.draw(st.booleans())
    parts = data.draw(st.sampled_from(["g", "gs", "gh", "gsh", "shg"]))
    first, second = (
        _export(data.draw(st.integers(0, 127)), time_ns, parts, is_backwards=is_backwards)
        for time_ns in (1, 2)
    )
    assert known.validate(first, NOW_NS, lambda _: None) is None
    known.learn(first, NOW_NS)
    found = known.validate(second, NOW_NS, lambda _: None)
    assert found is not None
    assert found.accepted == sum({"g": 3, "s": 2, "h": 2}[part] for part in parts)


@pytest.mark.parametrize(
    "fault",
    [
        {"time_unix_nano": NOW_NS + 3600 * S},
        {"scale": 21},
        {"attributes": [KeyValue(key=f"a{n}") for n in range(4)]},
        {"exemplars": [Exemplar(time_unix_nano=NOW_NS)] * 3},
        {"exemplars": [Exemplar(time_unix_nano=NOW_NS + 3600 * S)]},
    ],
    ids=["far", "scale", "attributes", "exemplars", "far exemplar"],
)
def test_a_histogram_with_a_fault_is_left_to_parsing(fault: dict[str, Any]) -> None:
    known = KnownShapes(LIMITS)
    sent = _export(3, 1, "gh", is_backwards=False)
    known.learn(sent, NOW_NS)
    assert known.validate(sent, NOW_NS, lambda _: None) is not None
    request = ExportMetricsServiceRequest.FromString(sent)
    metric = request.resource_metrics[0].scope_metrics[1].metrics[1]
    metric.exponential_histogram.data_points.add(**fault)
    assert known.validate(request.SerializeToString(), NOW_NS, lambda _: None) is None


@given(st.data())
@settings(max_examples=examples(60), deadline=None, suppress_health_check=list(HealthCheck))
def test_a_worker_is_decoded_from_its_second_request_on(data: st.DataObject) -> None:
    is_backwards = data.draw(st.booleans())
    parts = data.draw(st.sampled_from(["gs", "gh", "gsh", "hsg"]))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(known_bodies, "_shapes", ShapeCache())
        for time_ns in (1, 2):
            step = data.draw(st.integers(0, 127))
            payload = _export(step, time_ns, parts, is_backwards=is_backwards)
            (part,) = resource_parts(payload) or ()
            sender = sender_of(payload[part.resource : part.resource_end])
            body = payload[part.body : part.body_end]
            assert (read_known(sender, body, NOW_NS) is None) == (time_ns == 1)
            assert _sorted(_decoded(payload)) == _sorted(_decoded(payload + b"\x78\x01"))


def _export(step: int, time_ns: int, parts: str = "g", *, is_backwards: bool) -> bytes:
    """An export of gauges, sums and histograms, with what was counted in a step."""
    request = ExportMetricsServiceRequest()
    part = request.resource_metrics.add()
    for key, value in (("rl.experiment.name", "one"), ("telemetry.distro.name", "otel_rl")):
        part.resource.attributes.add(key=key).value.string_value = value
    for kind in parts:
        scope = part.scope_metrics.add()
        scope.scope.name = kind
        for n in range(3 if kind == "g" else 2):
            {"g": _add_gauge, "s": _add_sums, "h": _add_histograms}[kind](
                scope.metrics.add(name=f"{kind}{n}"), step, NOW_NS + time_ns
            )
    return backwards(request) if is_backwards else request.SerializeToString()


def _add_gauge(metric: Metric, step: int, time_ns: int) -> None:
    point = metric.gauge.data_points.add(time_unix_nano=time_ns, as_double=step / 7)
    exemplar = point.exemplars.add(time_unix_nano=NOW_NS, as_double=step / 7)
    exemplar.filtered_attributes.add(key="rl.loop.iteration").value.int_value = step


def _add_sums(metric: Metric, step: int, time_ns: int) -> None:
    metric.sum.aggregation_temporality = AggregationTemporality.AGGREGATION_TEMPORALITY_CUMULATIVE
    metric.sum.is_monotonic = True
    point = metric.sum.data_points.add(
        start_time_unix_nano=time_ns - 9, time_unix_nano=time_ns, as_int=step
    )
    _of_step(point, step, time_ns, {"otel_rl.step.share": 9, "otel_rl.step.duration": 7})


def _add_histograms(metric: Metric, step: int, time_ns: int) -> None:
    data = metric.exponential_histogram
    data.aggregation_temporality = AggregationTemporality.AGGREGATION_TEMPORALITY_DELTA
    point = data.data_points.add(
        start_time_unix_nano=time_ns - 9, time_unix_nano=time_ns, count=step, sum=step / 7
    )
    point.positive.bucket_counts.extend(range(step))
    _of_step(point, step, time_ns, {})


def _of_step(
    point: NumberDataPoint | ExponentialHistogramDataPoint,
    step: int,
    time_ns: int,
    marks: Mapping[str, int],
) -> None:
    exemplar = point.exemplars.add(time_unix_nano=time_ns - 1, as_double=step / 3)
    for key, value in {"rl.loop.iteration": step, **marks}.items():
        exemplar.filtered_attributes.add(key=key).value.int_value = value


@given(st.data())
@settings(max_examples=examples(60), deadline=None, suppress_health_check=list(HealthCheck))
def test_many_workers_in_a_request_are_recognised_within_the_bounds(data: st.DataObject) -> None:
    is_backwards = data.draw(st.booleans())
    parts = data.draw(st.sampled_from(["g", "gs"]))
    workers = [
        _export(n, n, parts, is_backwards=is_backwards)
        for n in range(data.draw(st.integers(1, 12)))
    ]
    limits = LIMITS.model_copy(
        update={
            "max_points_per_request": data.draw(st.integers(5, 80)),
            "max_messages_per_request": data.draw(st.sampled_from([*range(20, 300, 10), 4000])),
        }
    )
    known = KnownShapes(limits)
    known.learn(_export(0, 1, parts, is_backwards=is_backwards), NOW_NS)
    payload = b"".join(workers)
    found = known.validate(payload, NOW_NS, lambda _: None)
    try:
        expected = validate(Signal.METRICS, payload, limits, NOW_NS)
    except RequestTooLarge:
        assert found is None
    else:
        assert found is not None
        assert outcome(found) == outcome(expected)


def _field(tag: int, content: bytes) -> bytes:
    return with_length(tag, len(content)) + content


def _in_one_scope(*metrics: bytes) -> bytes:
    part = ResourceMetrics()
    part.resource.attributes.extend(key_values({"rl.experiment.name": "one"}))
    return _field(0x0A, part.SerializeToString() + _field(0x12, b"".join(metrics)))


def _gauge(name: str, description: str = "") -> bytes:
    metric = gauge(otlp_requests.point(1.0, NOW_NS), name=name)
    metric.description = description
    return _field(0x12, metric.SerializeToString())


def test_a_histogram_within_another_metric_is_left_to_parsing() -> None:
    short, large = _gauge("a"), _gauge("a", "d" * 100)
    rest = len(large) - len(short)
    (other,) = [one for n in range(rest) if len(one := _gauge("b", "e" * n)) == rest]
    metric = Metric(name="h")
    metric.histogram.data_points.add(count=1, sum=0.5, time_unix_nano=NOW_NS, bucket_counts=[1])
    histogram = _field(0x12, metric.SerializeToString())
    filler = _field(0x12, Metric(name="x").SerializeToString())
    known = KnownShapes(LIMITS)
    # The same sender's cut, and a shape of as many bytes as what is left of the last request.
    known.learn(_in_one_scope(short, histogram, other), NOW_NS)
    known.learn(_in_one_scope(large, filler), NOW_NS)
    sent = _in_one_scope(large[: len(short)], histogram, large[len(short) :])
    with pytest.raises(RequestError):
        validate(Signal.METRICS, sent, LIMITS, NOW_NS)
    assert known.validate(sent, NOW_NS, lambda _: None) is None


def test_a_histogram_is_of_the_scope_of_its_own_body(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(known_bodies, "_shapes", ShapeCache())
    # Cut at the same places, although their scopes end at different ones.
    first, second = _in_a_scope("own", "loss.of"), _in_a_scope("own.name", "lo")
    for sent in (first, second, first):
        assert _sorted(_decoded(sent)) == _sorted(_decoded(sent + b"\x78\x01"))


def _in_a_scope(name: str, metric: str) -> bytes:
    request = ExportMetricsServiceRequest()
    part = request.resource_metrics.add()
    part.resource.attributes.extend(key_values({"telemetry.distro.name": "otel_rl"}))
    scope = part.scope_metrics.add()
    scope.scope.name = name
    _add_gauge(scope.metrics.add(name=metric), 3, NOW_NS)
    _add_histograms(scope.metrics.add(name="h"), 3, NOW_NS)
    return request.SerializeToString()


@pytest.mark.parametrize("group", [b"\x7b\x7c", b"\x7b\x08\x01\x7c"], ids=["empty", "number"])
def test_a_group_in_a_resource_is_left_to_parsing(group: bytes) -> None:
    resource = ResourceMetrics()
    resource.resource.attributes.extend(key_values({"rl.experiment.name": "one"}))
    serialized = resource.resource.SerializeToString() + group
    sent = _field(0x0A, _field(0x0A, serialized) + _field(0x12, _gauge("a")))
    assert KnownShapes(LIMITS).validate(sent, NOW_NS, lambda _: None) is None
