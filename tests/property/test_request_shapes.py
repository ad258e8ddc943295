"""A request of a known shape has the same outcome as if it were parsed."""

from dataclasses import replace

from google.protobuf.message import DecodeError
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import (
    ExportMetricsServiceRequest,
)
from opentelemetry.proto.metrics.v1.metrics_pb2 import (
    AggregationTemporality,
    DataPointFlags,
    NumberDataPoint,
    ResourceMetrics,
)

from otel_rl.bridge.counters import Counters, Refusal
from otel_rl.bridge.ingest.admission.experiments import Experiments
from otel_rl.bridge.ingest.limits import ReceiveLimits
from otel_rl.bridge.ingest.pipeline import IngestPipeline
from otel_rl.bridge.ingest.validation.known_shapes import KnownShapes
from otel_rl.bridge.ingest.validation.validate import Validated, validate
from otel_rl.bridge.otlp.decode import decode, decode_parts
from otel_rl.errors import RequestError, RequestTooLarge
from otel_rl.records import Batch, Decoded, ExperimentKey, Measurements, Signal
from tests.otlp_requests import Journal, backwards
from tests.slow import examples

NOW_NS = 1_700_000_000_000_000_000
S = 1_000_000_000
LIMITS = ReceiveLimits(max_points_per_request=4000, max_attributes=3, max_exemplars=2)

near = st.integers(NOW_NS - 20 * S, NOW_NS + 20 * S)
times = st.one_of(
    *[near] * 9,
    st.sampled_from([0, 1, NOW_NS - 30 * 86_400 * S, NOW_NS + 3600 * S, (1 << 64) - 1]),
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


@st.composite
def resources(draw: st.DrawFn) -> ResourceMetrics:
    part = ResourceMetrics(schema_url=draw(st.sampled_from(["", "https://schema"])))
    experiment = draw(st.sampled_from([" ", None])) if _rarely(draw) else "one"
    for key, value in (
        ("rl.experiment.name", "two" if _rarely(draw, 10) else experiment),
        ("telemetry.distro.name", "other" if _rarely(draw, 10) else "otel_rl"),
        ("service.instance.id", draw(st.sampled_from(["a", "b"]))),
    ):
        if value is not None:
            part.resource.attributes.add(key=key).value.string_value = value
    for scope in range(0 if _rarely(draw) else draw(st.sampled_from([1, 1, 2]))):
        scope_metrics = part.scope_metrics.add()
        scope_metrics.scope.name = f"scope{scope}"
        for n in range(draw(st.integers(1, 3))):
            metric = scope_metrics.metrics.add(name="" if _rarely(draw) else f"m{n}")
            if _rarely(draw):
                metric.sum.aggregation_temporality = (
                    AggregationTemporality.AGGREGATION_TEMPORALITY_CUMULATIVE
                )
                metric.sum.is_monotonic = True
                metric.sum.data_points.extend(draw(st.lists(points(), max_size=2)))
            else:
                metric.gauge.data_points.extend(draw(st.lists(points(), max_size=2)))
    return part


@st.composite
def requests(draw: st.DrawFn) -> bytes:
    """A request as protobuf writes it, or as the Collector does."""
    parts = draw(st.lists(resources(), min_size=1, max_size=2))
    request = ExportMetricsServiceRequest(resource_metrics=parts)
    return backwards(request) if draw(st.booleans()) else request.SerializeToString()


def _set(message: object, value: float) -> None:
    setattr(message, "as_int" if isinstance(value, int) else "as_double", value)


@st.composite
def changed(draw: st.DrawFn, payload: bytes) -> bytes:
    """A request of the same length, mostly: other numbers, or other bytes.

    Its fields go the way of those of the first one, mostly.
    """
    request = ExportMetricsServiceRequest.FromString(payload)
    found = [
        point
        for part in request.resource_metrics
        for scope in part.scope_metrics
        for metric in scope.metrics
        for point in (*metric.gauge.data_points, *metric.sum.data_points)
    ]
    for point in found:
        if draw(st.booleans()):
            if point.time_unix_nano:
                point.time_unix_nano = draw(times if _rarely(draw) else near)
            for exemplar in point.exemplars:
                exemplar.time_unix_nano = draw(times if _rarely(draw) else near)
                if exemplar.HasField("as_double"):
                    exemplar.as_double = draw(st.floats())
                for pair in exemplar.filtered_attributes:
                    if pair.value.HasField("int_value") and 0 <= pair.value.int_value < 128:
                        top = 130 if _rarely(draw) else 127
                        pair.value.int_value = draw(st.integers(0, top))
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
        known = door.known(payload)
        try:
            if known is None:
                found = door.take(Signal.METRICS, lambda: payload)
            else:
                self._journal(known.batches)
                found = door.known_was_kept(known)
        except RequestError as error:
            found_error = type(error), str(error)
            return found_error, len(self._journal.batches)
        kept = [(batch.experiment, _canonical(batch.payload)) for batch in self._journal.take()]
        return outcome(found), kept


@given(conversations())
@settings(max_examples=examples(150), deadline=None, suppress_health_check=list(HealthCheck))
def test_a_known_shape_is_decoded_as_if_it_were_parsed(sent: list[bytes]) -> None:
    for payload in sent:
        # A field that OTLP does not have, so that the request is parsed.
        assert _decoded(payload) == _decoded(payload + b"\x78\x01")


def _decoded(payload: bytes) -> object:
    batch = Batch(ExperimentKey("one"), Signal.METRICS, payload, NOW_NS)
    try:
        return _spelled(decode(batch)), [_spelled(part) for part in decode_parts(batch, 3)]
    except DecodeError:
        return None


def _spelled(decoded: Decoded) -> str:
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
    return repr((points, decoded.exports, decoded.has_more))


@given(st.data())
@settings(max_examples=examples(60), deadline=None, suppress_health_check=list(HealthCheck))
def test_a_worker_is_recognised_from_its_second_request_on(data: st.DataObject) -> None:
    known = KnownShapes(LIMITS)
    is_backwards = data.draw(st.booleans())
    first, second = (
        _export(data.draw(st.integers(0, 127)), time_ns, is_backwards=is_backwards)
        for time_ns in (1, 2)
    )
    assert known.validate(first, NOW_NS, lambda _: None) is None
    known.learn(first, NOW_NS)
    found = known.validate(second, NOW_NS, lambda _: None)
    assert found is not None
    assert found.accepted == 3


def _export(step: int, time_ns: int, *, is_backwards: bool) -> bytes:
    request = ExportMetricsServiceRequest()
    part = request.resource_metrics.add()
    part.resource.attributes.add(key="rl.experiment.name").value.string_value = "one"
    scope = part.scope_metrics.add()
    for n in range(3):
        point = scope.metrics.add(name=f"m{n}").gauge.data_points.add(
            time_unix_nano=NOW_NS + time_ns, as_double=step / 7
        )
        exemplar = point.exemplars.add(time_unix_nano=NOW_NS, as_double=step / 7)
        exemplar.filtered_attributes.add(key="rl.loop.iteration").value.int_value = step
    return backwards(request) if is_backwards else request.SerializeToString()


@given(st.data())
@settings(max_examples=examples(60), deadline=None, suppress_health_check=list(HealthCheck))
def test_many_workers_in_a_request_are_recognised_within_the_bounds(data: st.DataObject) -> None:
    is_backwards = data.draw(st.booleans())
    workers = [
        _export(n, n, is_backwards=is_backwards) for n in range(data.draw(st.integers(1, 12)))
    ]
    limits = LIMITS.model_copy(
        update={
            "max_points_per_request": data.draw(st.integers(5, 80)),
            "max_messages_per_request": data.draw(st.sampled_from([*range(20, 300, 10), 4000])),
        }
    )
    known = KnownShapes(limits)
    known.learn(_export(0, 1, is_backwards=is_backwards), NOW_NS)
    payload = b"".join(workers)
    found = known.validate(payload, NOW_NS, lambda _: None)
    try:
        expected = validate(Signal.METRICS, payload, limits, NOW_NS)
    except RequestTooLarge:
        assert found is None
    else:
        assert found is not None
        assert outcome(found) == outcome(expected)
