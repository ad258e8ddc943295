"""What OTLP asks of a server for every signal, over HTTP and gRPC and real sockets."""

import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from random import Random
from typing import Any

import grpc
import pytest
from google.rpc.error_details_pb2 import RetryInfo  # type: ignore[import-untyped]
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import (
    ExportLogsServiceRequest,
    ExportLogsServiceResponse,
)
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import (
    ExportMetricsServiceRequest,
    ExportMetricsServiceResponse,
)
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)

from otel_rl.bridge.receive.limits import ReceiveLimits
from otel_rl.errors import (
    JournalClosed,
    JournalFull,
    JournalLocked,
    MalformedRequest,
    OtelRLError,
    Overloaded,
    RequestTooLarge,
    SlowSender,
)
from otel_rl.signals import Signal
from tests.support.otlp_door import PROTOCOLS, Door, Refused, door_of
from tests.support.otlp_requests import (
    event,
    every_event,
    gauge,
    logs_request,
    metrics_request,
    point,
    request_of_every_type,
    request_of_odd_points,
    trace_request,
)

INVALID_ARGUMENT = grpc.StatusCode.INVALID_ARGUMENT.value[0]
RESOURCE_EXHAUSTED = grpc.StatusCode.RESOURCE_EXHAUSTED.value[0]
UNAVAILABLE = grpc.StatusCode.UNAVAILABLE.value[0]


@dataclass(frozen=True)
class Kind:
    """A signal, with requests of it.

    Attributes:
        signal: It.
        counted: Beginning of the names of its counters.
        rejected: Field of the answer that counts what was refused.
        response: Type of the answer.
        envelope: A request with an empty resource.
        sound: A request of one item.
        half: A request of one item that is taken, and one that names no experiment.
        many: A request of more than four kibibytes.
        text: In the sound request, a text.
    """

    signal: Signal
    counted: str
    rejected: str
    response: Any
    envelope: bytes
    sound: bytes
    half: bytes
    many: bytes
    text: bytes


def _metrics() -> Kind:
    envelope = ExportMetricsServiceRequest()
    envelope.resource_metrics.add().scope_metrics.add()
    half = metrics_request()
    half.MergeFrom(metrics_request(resource={}))
    return Kind(
        Signal.METRICS,
        "points",
        "rejected_data_points",
        ExportMetricsServiceResponse,
        envelope.SerializeToString(),
        metrics_request().SerializeToString(),
        half.SerializeToString(),
        metrics_request(gauge(*(point() for _ in range(500)))).SerializeToString(),
        b"loss",
    )


def _traces() -> Kind:
    envelope = ExportTraceServiceRequest()
    envelope.resource_spans.add().scope_spans.add()
    half = trace_request()
    half.MergeFrom(trace_request(resource={}))
    return Kind(
        Signal.TRACES,
        "spans",
        "rejected_spans",
        ExportTraceServiceResponse,
        envelope.SerializeToString(),
        trace_request().SerializeToString(),
        half.SerializeToString(),
        trace_request(200).SerializeToString(),
        b"rl.train",
    )


def _logs() -> Kind:
    envelope = ExportLogsServiceRequest()
    envelope.resource_logs.add().scope_logs.add()
    half = logs_request()
    half.MergeFrom(logs_request(resource={}))
    return Kind(
        Signal.LOGS,
        "logs",
        "rejected_log_records",
        ExportLogsServiceResponse,
        envelope.SerializeToString(),
        logs_request().SerializeToString(),
        half.SerializeToString(),
        logs_request(*[event()] * 100).SerializeToString(),
        b"complete",
    )


KINDS = [_metrics(), _traces(), _logs()]


@pytest.fixture(params=KINDS, ids=lambda kind: kind.signal.value)
def kind(request: pytest.FixtureRequest) -> Kind:
    made: Kind = request.param
    return made


@pytest.fixture(scope="module", params=PROTOCOLS)
def shared(request: pytest.FixtureRequest) -> Iterator[Door]:
    with door_of(request.param) as door:
        yield door


@pytest.fixture
def door(shared: Door) -> Iterator[Door]:
    shared.receiver.journal.take()
    yield shared
    shared.receiver.journal.error = None


def refusal(door: Door, kind: Kind, body: bytes, *, is_zipped: bool = False) -> Refused:
    with pytest.raises(Refused) as caught:
        door.send(body, kind.signal, is_zipped=is_zipped)
    return caught.value


def payloads(door: Door) -> list[bytes]:
    return [batch.payload for batch in door.receiver.journal.batches]


# What is taken


def test_01_a_request_is_stored_as_sent_and_answered_by_an_empty_response(
    door: Door, kind: Kind
) -> None:
    assert door.send(kind.sound, kind.signal) == b""
    (batch,) = door.receiver.journal.batches
    assert (batch.signal, batch.payload) == (kind.signal, kind.sound)


def test_04_empty_requests_and_envelopes_are_taken_and_nothing_is_stored(
    door: Door, kind: Kind
) -> None:
    assert [door.send(body, kind.signal) for body in (b"", kind.envelope)] == [b"", b""]
    assert door.receiver.journal.batches == []


def test_05_the_body_of_a_success_parses(door: Door, kind: Kind) -> None:
    answer = kind.response.FromString(door.send(kind.sound, kind.signal))
    assert not answer.HasField("partial_success")


def test_07_a_compressed_request_is_stored_uncompressed(door: Door, kind: Kind) -> None:
    assert door.send(kind.sound, kind.signal, is_zipped=True) == b""
    assert payloads(door) == [kind.sound]


@pytest.mark.parametrize("request_of", [request_of_every_type, request_of_odd_points])
def test_30_and_31_every_type_of_metric_and_point_is_stored_as_sent(
    door: Door, request_of: Callable[[], ExportMetricsServiceRequest]
) -> None:
    body = request_of().SerializeToString()
    assert door.send(body) == b""
    assert payloads(door) == [body]


# What is not taken


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_11_a_request_over_the_limit_is_final_and_the_next_is_served(
    protocol: str, kind: Kind
) -> None:
    limits = ReceiveLimits(max_body_bytes=4096, max_in_flight_bytes=8192)
    with door_of(protocol, limits) as door:
        for body in (bytes(4097), kind.many):
            for is_zipped in (False, True):
                refused = refusal(door, kind, body, is_zipped=is_zipped)
                assert refused.code == RESOURCE_EXHAUSTED
                assert not refused.status.details
        assert door.send(kind.sound, kind.signal) == b""
        assert payloads(door) == [kind.sound]


@pytest.mark.parametrize("garbage", [b"\xff\xfe garbage", b"\x0a\xff\xff\xff\xff\x7f", b"{"])
def test_13_what_cannot_be_decoded_is_malformed(door: Door, kind: Kind, garbage: bytes) -> None:
    refused = refusal(door, kind, garbage)
    assert refused.code == INVALID_ARGUMENT
    assert kind.response.__name__.replace("Response", "Request") in refused.message
    assert not refused.status.details


@pytest.mark.parametrize(
    ("error", "http", "code"),
    [
        (MalformedRequest("x"), 400, INVALID_ARGUMENT),
        (RequestTooLarge("x"), 413, RESOURCE_EXHAUSTED),
        (Overloaded("x"), 503, UNAVAILABLE),
        (SlowSender("x"), 503, UNAVAILABLE),
        (JournalFull("x"), 503, UNAVAILABLE),
        (JournalClosed("x"), 503, UNAVAILABLE),
        (JournalLocked("x"), 503, UNAVAILABLE),
        (OtelRLError("x"), 503, UNAVAILABLE),
        (OSError(28, "x"), 503, UNAVAILABLE),
        (MemoryError(), 503, UNAVAILABLE),
        (RuntimeError("x"), 503, UNAVAILABLE),
    ],
    ids=repr,
)
def test_39_every_error_has_its_answer(
    door: Door, kind: Kind, error: Exception, http: int, code: int
) -> None:
    door.receiver.journal.error = error
    refused = refusal(door, kind, kind.sound)
    assert refused.code == code
    assert refused.http in {None, http}


def test_17_an_unforeseen_error_is_retryable_counted_and_not_described(
    door: Door, kind: Kind
) -> None:
    counter = "exceptions", door.protocol
    before = door.receiver.counts().get(counter, 0)
    door.receiver.journal.error = RuntimeError("a secret")
    refused = refusal(door, kind, kind.sound)
    assert refused.code == UNAVAILABLE
    assert "secret" not in refused.message
    assert door.receiver.counts()[counter] == before + 1


@pytest.mark.parametrize("error", [JournalFull("full"), JournalClosed("stop"), Overloaded("many")])
def test_18_back_pressure_says_when_to_send_again(door: Door, kind: Kind, error: Exception) -> None:
    door.receiver.journal.error = error
    refused, retry = refusal(door, kind, kind.sound), RetryInfo()
    assert (refused.code, refused.message) == (UNAVAILABLE, str(error))
    assert refused.status.details[0].Unpack(retry)
    assert retry.retry_delay.seconds == 1


def test_23_what_is_refused_is_counted_and_explained_and_the_rest_is_stored(
    door: Door, kind: Kind
) -> None:
    answer = door.send(kind.half, kind.signal)
    partial = kind.response.FromString(answer).partial_success
    assert getattr(partial, kind.rejected) == 1
    assert "rl.experiment.name" in partial.error_message
    assert len(door.receiver.journal.batches) == 1


def test_24_points_taken_without_some_exemplars_are_a_warning(door: Door) -> None:
    with_exemplars = point()
    with_exemplars.exemplars.add(as_double=1, time_unix_nano=time.time_ns())
    with_exemplars.exemplars.add(as_double=2, time_unix_nano=7)
    answer = door.send(metrics_request(gauge(with_exemplars)).SerializeToString())
    partial = ExportMetricsServiceResponse.FromString(answer).partial_success
    assert partial.rejected_data_points == 0
    assert "Exemplars refused: 1" in partial.error_message
    (stored,) = door.receiver.journal.metrics()
    (kept,) = stored.resource_metrics[0].scope_metrics[0].metrics[0].gauge.data_points
    assert [exemplar.as_double for exemplar in kept.exemplars] == [1]


def test_12_an_answer_stays_small_whatever_is_refused(door: Door) -> None:
    body = metrics_request(gauge(name="long" * 50_000)).SerializeToString()
    assert 0 < len(door.send(body)) < 4096


def test_29_invalid_utf8_is_malformed(door: Door, kind: Kind) -> None:
    broken = kind.sound.replace(kind.text, kind.text[:-1] + b"\xff")
    assert refusal(door, kind, broken).code == INVALID_ARGUMENT


def test_29_a_resource_that_cannot_be_read_takes_nothing_else_with_it(
    door: Door, kind: Kind
) -> None:
    broken = kind.sound.replace(kind.text, kind.text[:-1] + b"\xff")
    answer = door.send(kind.sound + broken + broken, kind.signal)
    partial = kind.response.FromString(answer).partial_success
    assert getattr(partial, kind.rejected) == 2
    assert "malformed" in partial.error_message
    assert payloads(door) == [kind.sound]


# When it is acknowledged


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_21_a_request_is_acknowledged_only_after_it_is_durable(protocol: str, kind: Kind) -> None:
    durable, waiting = threading.Event(), threading.Event()

    def wait_for_disk() -> None:
        waiting.set()
        durable.wait(60)

    with door_of(protocol) as door, ThreadPoolExecutor(1) as sender:
        door.receiver.journal.before = wait_for_disk
        answer = sender.submit(door.send, kind.sound, kind.signal)
        assert waiting.wait(60)
        assert not answer.done()
        durable.set()
        assert answer.result(60) == b""


def test_22_a_repeated_request_is_handed_on_as_often_as_it_is_sent(door: Door, kind: Kind) -> None:
    assert [door.send(kind.sound, kind.signal) for _ in range(2)] == [b"", b""]
    assert payloads(door) == [kind.sound, kind.sound]


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_38_counts_match_what_was_acknowledged(protocol: str, kind: Kind) -> None:
    outcomes = [None, JournalFull("full"), RuntimeError("bug"), MalformedRequest("bad"), None]
    with door_of(protocol) as door:
        for error in outcomes:
            door.receiver.journal.error = error
            if error is None:
                door.send(kind.half, kind.signal)
            else:
                refusal(door, kind, kind.half)
        assert door.receiver.counts() == {
            ("requests", "partial"): 2,
            ("requests", "no_room"): 1,
            ("requests", "failed"): 1,
            ("requests", "malformed"): 1,
            ("exceptions", protocol): 1,
            (f"{kind.counted}.accepted", ""): 2,
            (f"{kind.counted}.refused", "no_experiment"): 2,
        }


# Whatever comes


def test_37_no_bytes_fail_the_server_and_the_next_request_is_served(door: Door, kind: Kind) -> None:
    random, faults = Random(37), ("exceptions", door.protocol)
    before = door.receiver.counts().get(faults, 0)
    sound = logs_request(*every_event()).SerializeToString()
    sound = sound if kind.signal is Signal.LOGS else kind.sound
    for _ in range(100):
        damaged = bytearray(random.choice((sound, random.randbytes(200))))
        for _ in range(random.randint(1, 3)):
            damaged[random.randrange(len(damaged))] = random.randrange(256)
        try:
            cut = random.choice((len(damaged), random.randrange(200)))
            door.send(bytes(damaged[:cut]), kind.signal)
        except Refused as refused:
            assert refused.code == INVALID_ARGUMENT  # noqa: PT017
    assert door.send(kind.sound, kind.signal) == b""
    assert door.receiver.counts().get(faults, 0) == before
