"""What OTLP asks of logs, over real sockets and both protocols.

The items that concern a signal and not the server, see docs/otlp.md.
"""

import gzip
import json
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from hashlib import sha256
from random import Random

import grpc
import httpx
import pytest
from google.rpc.error_details_pb2 import RetryInfo  # type: ignore[import-untyped]
from google.rpc.status_pb2 import Status  # type: ignore[import-untyped]
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import (
    ExportLogsPartialSuccess,
    ExportLogsServiceRequest,
    ExportLogsServiceResponse,
)
from opentelemetry.proto.logs.v1.logs_pb2 import LogRecord

from otel_rl.bridge.receive import AuthSettings, ReceiveLimits
from otel_rl.bridge.receive.tokens import TokenSettings
from otel_rl.errors import (
    JournalClosed,
    JournalFull,
    MalformedRequest,
    OtelRLError,
    Overloaded,
    RequestTooLarge,
)
from otel_rl.records import Signal
from tests.otlp_requests import (
    Attributes,
    Receiver,
    delimited,
    event,
    every_event,
    grpc_receiver,
    http_receiver,
    logs_request,
)

PROTOBUF = {"content-type": "application/x-protobuf"}
JSON = {"content-type": "application/json"}
PATH = "/v1/logs"
EXPORT = "/opentelemetry.proto.collector.logs.v1.LogsService/Export"
TOKEN = "team-" + "a" * 32
AUTH = AuthSettings(
    tokens=(
        TokenSettings(
            name="team", experiments=("x",), sha256=(sha256(TOKEN.encode()).hexdigest(),)
        ),
    )
)
EVENT = logs_request().SerializeToString()


class Refused(Exception):
    """The sender was answered by an error.

    Args:
        code: Of gRPC; over HTTP, as the Status says.
        status: That came with it.
    """

    def __init__(self, code: int, status: Status) -> None:
        super().__init__(code)
        self.code = code
        self.status = status


@dataclass(frozen=True)
class Door:
    """A receiver, and how to send to it."""

    protocol: str
    receiver: Receiver
    client: httpx.Client
    channel: grpc.Channel

    def send(self, body: bytes, *, is_zipped: bool = False, token: str = "") -> bytes:
        """The body of the answer to a request in protobuf."""
        bearer = {"authorization": f"Bearer {token}"} if token else {}
        if self.protocol == "grpc":
            return self._call(body, bearer, is_zipped=is_zipped)
        encoding = {"content-encoding": "gzip"} if is_zipped else {}
        sent = gzip.compress(body) if is_zipped else body
        headers = PROTOBUF | bearer | encoding
        answer = self.client.post(PATH, content=sent, headers=headers)
        if answer.status_code != 200:
            status = Status.FromString(answer.content)
            raise Refused(status.code, status)
        return answer.content

    def partial(
        self, request: ExportLogsServiceRequest, *, token: str = ""
    ) -> ExportLogsPartialSuccess:
        """What the answer says was refused."""
        answer = self.send(request.SerializeToString(), token=token)
        return ExportLogsServiceResponse.FromString(answer).partial_success

    def _call(self, body: bytes, metadata: dict[str, str], *, is_zipped: bool) -> bytes:
        call: grpc.UnaryUnaryMultiCallable[bytes, bytes]
        call = self.channel.unary_unary(EXPORT, bytes, bytes)
        compression = grpc.Compression.Gzip if is_zipped else None
        try:
            return call(body, timeout=60, metadata=tuple(metadata.items()), compression=compression)
        except grpc.RpcError as error:
            details = {datum.key: datum.value for datum in error.trailing_metadata() or ()}
            status = Status.FromString(details.get("grpc-status-details-bin", b""))
            raise Refused(error.code().value[0], status) from error


@contextmanager
def door_of(
    protocol: str, limits: ReceiveLimits | None = None, auth: AuthSettings | None = None
) -> Iterator[Door]:
    receivers: dict[str, Callable[..., AbstractContextManager[Receiver]]] = {
        "http": http_receiver,
        "grpc": grpc_receiver,
    }
    with (
        receivers[protocol](limits, auth=auth) as receiver,
        httpx.Client(base_url=receiver.url, timeout=60) as client,
        grpc.insecure_channel(receiver.server.address) as channel,
    ):
        yield Door(protocol, receiver, client, channel)


PROTOCOLS = ["http", "grpc"]


@pytest.fixture(scope="module", params=PROTOCOLS)
def shared(request: pytest.FixtureRequest) -> Iterator[Door]:
    with door_of(request.param) as door:
        yield door


@pytest.fixture
def door(shared: Door) -> Iterator[Door]:
    shared.receiver.journal.take()
    yield shared
    shared.receiver.journal.error = None


@pytest.fixture(scope="module")
def http() -> Iterator[Receiver]:
    with http_receiver() as receiver:
        yield receiver


def stored(receiver: Receiver) -> list[LogRecord]:
    """The events taken since the last call."""
    return [
        record
        for batch in receiver.journal.take()
        for part in ExportLogsServiceRequest.FromString(batch.payload).resource_logs
        for scope_logs in part.scope_logs
        for record in scope_logs.log_records
    ]


def plain_record() -> LogRecord:
    record = LogRecord(severity_text="INFO")
    record.body.string_value = "GET /"
    return record


def post_json(receiver: Receiver, *records: object, experiment: str = "x") -> httpx.Response:
    name = {"key": "rl.experiment.name", "value": {"stringValue": experiment}}
    part = {"resource": {"attributes": [name]}, "scopeLogs": [{"logRecords": list(records)}]}
    body = json.dumps({"resourceLogs": [part]})
    return httpx.post(receiver.url + PATH, content=body, headers=JSON, timeout=60)


END = {
    "eventName": "rl.worker.end",
    "attributes": [{"key": "rl.worker.status", "value": {"stringValue": "complete"}}],
}


# What is taken


def test_01_events_are_stored_as_sent_and_answered_by_an_empty_response(door: Door) -> None:
    assert door.send(EVENT) == b""
    (batch,) = door.receiver.journal.batches
    assert (batch.signal, batch.payload) == (Signal.LOGS, EVENT)


def test_02_json_is_answered_by_an_empty_object(http: Receiver) -> None:
    http.journal.take()
    answer = post_json(http, END)
    assert (answer.status_code, answer.content) == (200, b"{}")
    assert answer.headers["content-type"] == "application/json"
    assert [record.event_name for record in stored(http)] == ["rl.worker.end"]


def test_04_empty_requests_and_envelopes_are_taken_and_nothing_is_stored(door: Door) -> None:
    envelope = ExportLogsServiceRequest()
    envelope.resource_logs.add().scope_logs.add()
    for request in (ExportLogsServiceRequest(), envelope, logs_request(plain_record())):
        assert door.send(request.SerializeToString()) == b""
    assert door.receiver.journal.batches == []


def test_05_the_body_of_a_success_parses(door: Door) -> None:
    answer = ExportLogsServiceResponse.FromString(door.send(EVENT))
    assert not answer.HasField("partial_success")


def test_07_a_compressed_request_is_stored_uncompressed(door: Door) -> None:
    assert door.send(EVENT, is_zipped=True) == b""
    assert [batch.payload for batch in door.receiver.journal.batches] == [EVENT]


def test_30_every_event_is_stored_as_sent(door: Door) -> None:
    events = every_event()
    assert door.send(logs_request(*events).SerializeToString()) == b""
    assert stored(door.receiver) == events


def test_what_is_no_event_of_ours_is_acknowledged_counted_and_not_stored(door: Door) -> None:
    before = door.receiver.counts().get(("logs.ignored", ""), 0)
    request = logs_request(plain_record(), event(), event("device.crash"))
    request.MergeFrom(logs_request(plain_record(), resource={"service.name": "nginx"}))
    assert door.send(request.SerializeToString()) == b""
    assert [record.event_name for record in stored(door.receiver)] == ["rl.worker.end"]
    assert door.receiver.counts()["logs.ignored", ""] == before + 3


# What is not taken


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_11_a_request_over_the_limit_is_final_and_the_next_is_served(protocol: str) -> None:
    limits = ReceiveLimits(max_body_bytes=4096, max_in_flight_bytes=8192)
    with door_of(protocol, limits) as door:
        for body in (bytes(4097), logs_request(*[event()] * 100).SerializeToString()):
            for is_zipped in (False, True):
                with pytest.raises(Refused) as caught:
                    door.send(body, is_zipped=is_zipped)
                assert caught.value.code == grpc.StatusCode.RESOURCE_EXHAUSTED.value[0]
        assert door.send(EVENT) == b""
        assert len(door.receiver.journal.batches) == 1


def test_12_an_answer_stays_small_whatever_is_refused(door: Door) -> None:
    request = logs_request(
        event("rl.experiment.end", {"rl.experiment.status": "long" * 1000}),
        event("rl.rollout.sample", {}, {"k" * 200: [1]}),
        event("rl.experiment.start", {"rl.experiment.config": {"k" * 50_000: 1}}),
        event(time_ns=5),
        *(event(attributes={"a" * 200_000: i}) for i in range(3)),
    )
    assert 0 < len(door.send(request.SerializeToString())) < 4096


@pytest.mark.parametrize("garbage", [b"\xff\xfe garbage", b"\x0a\xff\xff\xff\xff\x7f", b"{"])
def test_13_what_cannot_be_decoded_is_malformed(door: Door, garbage: bytes) -> None:
    with pytest.raises(Refused) as caught:
        door.send(garbage)
    assert caught.value.code == grpc.StatusCode.INVALID_ARGUMENT.value[0]
    assert "ExportLogsServiceRequest" in caught.value.status.message
    assert not caught.value.status.details


def test_14_another_method_is_answered_405_in_words(http: Receiver) -> None:
    answer = httpx.get(http.url + PATH, timeout=60)
    assert (answer.status_code, answer.text) == (405, "405 method not allowed, supported: [POST]")


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (MalformedRequest("x"), grpc.StatusCode.INVALID_ARGUMENT),
        (RequestTooLarge("x"), grpc.StatusCode.RESOURCE_EXHAUSTED),
        (OtelRLError("x"), grpc.StatusCode.UNAVAILABLE),
        (OSError(28, "x"), grpc.StatusCode.UNAVAILABLE),
        (RuntimeError("a secret"), grpc.StatusCode.UNAVAILABLE),
    ],
    ids=repr,
)
def test_17_every_error_has_its_answer_and_an_unforeseen_one_is_retryable(
    door: Door, error: Exception, code: grpc.StatusCode
) -> None:
    door.receiver.journal.error = error
    with pytest.raises(Refused) as caught:
        door.send(EVENT)
    assert caught.value.code == code.value[0]
    assert "secret" not in caught.value.status.message


@pytest.mark.parametrize("error", [JournalFull("full"), JournalClosed("stop"), Overloaded("many")])
def test_18_back_pressure_says_when_to_send_again(door: Door, error: Exception) -> None:
    door.receiver.journal.error = error
    with pytest.raises(Refused) as caught:
        door.send(EVENT)
    assert caught.value.code == grpc.StatusCode.UNAVAILABLE.value[0]
    retry = RetryInfo()
    assert caught.value.status.details[0].Unpack(retry)
    assert retry.retry_delay.seconds == 1


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_20_a_token_writes_events_of_its_experiments_only(protocol: str) -> None:
    with door_of(protocol, auth=AUTH) as door:
        with pytest.raises(Refused) as caught:
            door.send(EVENT)
        assert caught.value.code == grpc.StatusCode.UNAUTHENTICATED.value[0]
        request = logs_request(resource={"rl.experiment.name": "theirs"})
        request.MergeFrom(logs_request())
        request.MergeFrom(logs_request(plain_record(), resource={"rl.experiment.name": "theirs"}))
        partial = door.partial(request, token=TOKEN)
        assert partial.rejected_log_records == 1
        assert "Token team may not write experiment 'theirs'" in partial.error_message
        assert [batch.experiment.experiment for batch in door.receiver.journal.batches] == ["x"]
        assert door.receiver.counts()["logs.refused", "not_allowed"] == 1


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_experiments_too_many_are_refused_and_other_records_take_no_room(protocol: str) -> None:
    with door_of(protocol, ReceiveLimits(max_experiments=2)) as door:
        joined = ExportLogsServiceRequest()
        for i in range(5):
            resource: Attributes = {"rl.experiment.name": f"experiment-{i}"}
            record = event() if i > 1 else plain_record()
            joined.MergeFrom(logs_request(record, resource=resource))
        partial = door.partial(joined)
        assert partial.rejected_log_records == 1
        assert "experiment-4" in partial.error_message
        assert door.receiver.counts()["logs.refused", "too_many_experiments"] == 1


# When it is acknowledged


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_21_events_are_acknowledged_only_after_they_are_durable(protocol: str) -> None:
    durable, waiting = threading.Event(), threading.Event()

    def wait_for_disk() -> None:
        waiting.set()
        durable.wait(60)

    with door_of(protocol) as door, ThreadPoolExecutor(1) as sender:
        door.receiver.journal.before = wait_for_disk
        answer = sender.submit(door.send, EVENT)
        assert waiting.wait(60)
        assert not answer.done()
        durable.set()
        assert answer.result(60) == b""


def test_22_a_repeated_request_is_handed_on_as_often_as_it_is_sent(door: Door) -> None:
    assert [door.send(EVENT) for _ in range(2)] == [b"", b""]
    assert [batch.payload for batch in door.receiver.journal.batches] == [EVENT, EVENT]


def test_23_refused_events_are_counted_and_explained_and_the_rest_is_stored(door: Door) -> None:
    sound = event()
    partial = door.partial(logs_request(event(time_ns=5), sound, event("rl.experiment.end", {})))
    assert partial.rejected_log_records == 2
    assert "Log records refused: 1 (time_out_of_range)" in partial.error_message
    assert "Event rl.experiment.end: rl.experiment.status is missing" in partial.error_message
    assert stored(door.receiver) == [sound]


def test_23_refused_events_are_told_in_json_too(http: Receiver) -> None:
    partial = post_json(http, {**END, "attributes": []}).json()["partialSuccess"]
    assert partial["rejectedLogRecords"] == "1"
    assert "rl.worker.status is missing" in partial["errorMessage"]


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_38_counts_match_what_was_acknowledged(protocol: str) -> None:
    outcomes = [None, JournalFull("full"), RuntimeError("bug"), MalformedRequest("bad"), None]
    message = logs_request(event(), event(time_ns=5), plain_record()).SerializeToString()
    with door_of(protocol) as door:
        for error in outcomes:
            door.receiver.journal.error = error
            if error is None:
                door.send(message)
            else:
                with pytest.raises(Refused):
                    door.send(message)
        assert door.receiver.counts() == {
            ("requests", "partial"): 2,
            ("requests", "no_room"): 1,
            ("requests", "failed"): 1,
            ("requests", "malformed"): 1,
            ("exceptions", protocol): 1,
            ("logs.accepted", ""): 2,
            ("logs.refused", "time_out_of_range"): 2,
            ("logs.ignored", ""): 2,
        }


# JSON


def test_25_ids_are_hexadecimal(http: Receiver) -> None:
    http.journal.take()
    ids = {"traceId": "0123456789ABCDEF0123456789abcdef", "spanId": "0123456789abcdef"}
    assert post_json(http, {**END, **ids}).content == b"{}"
    (record,) = stored(http)
    assert record.trace_id.hex() == "0123456789abcdef" * 2
    assert record.span_id.hex() == "0123456789abcdef"
    answer = post_json(http, {**END, "spanId": "0123"})
    assert answer.status_code == 400
    assert "resourceLogs[0].scopeLogs[0].logRecords[0].spanId" in answer.json()["message"]


def test_26_64_bit_integers_are_strings_or_numbers(http: Receiver) -> None:
    time_ns = event().time_unix_nano
    for step in (7, "7"):
        sample = {
            "eventName": "rl.rollout.sample",
            "timeUnixNano": type(step)(time_ns),
            "attributes": [{"key": "rl.loop.iteration", "value": {"intValue": step}}],
            "body": {"kvlistValue": {"values": [{"key": "n", "value": {"intValue": step}}]}},
        }
        http.journal.take()
        assert post_json(http, sample).content == b"{}"
        (record,) = stored(http)
        assert record.time_unix_nano == time_ns
        assert record.attributes[0].value.int_value == 7
        assert record.body.kvlist_value.values[0].value.int_value == 7


def test_27_enums_are_numbers_and_unknown_and_snake_case_keys_are_ignored(http: Receiver) -> None:
    for severity in (9, "SEVERITY_NUMBER_INFO"):
        http.journal.take()
        record = {**END, "severityNumber": severity, "event_name": "another", "invented": [{}]}
        assert post_json(http, record).content == b"{}"
        (kept,) = stored(http)
        assert (kept.event_name, kept.severity_number) == ("rl.worker.end", 9)


def test_28_nan_is_a_string(http: Receiver) -> None:
    value = {"key": "reward", "value": {"doubleValue": "NaN"}}
    body = {"kvlistValue": {"values": [value]}}
    assert post_json(http, {"eventName": "rl.rollout.sample", "body": body}).content == b"{}"
    value["value"] = {"doubleValue": float("nan")}
    assert post_json(http, {"eventName": "rl.rollout.sample", "body": body}).status_code == 400


@pytest.mark.parametrize("depth", [20, 50, 1000])
def test_29_deep_nesting_never_fails_the_server(door: Door, depth: int) -> None:
    # In bytes, because protobuf builds no message that it would not parse.
    value = b""
    for _ in range(depth):
        pair = b"\x0a\x01k" + delimited(0x12, value)
        value = delimited(0x32, delimited(0x0A, pair))
    config = delimited(0x0A, b"rl.experiment.config") + delimited(0x12, value)
    record = event("rl.experiment.start", {}).SerializeToString() + delimited(0x32, config)
    resource = logs_request().resource_logs[0].resource.SerializeToString()
    scope_logs = delimited(0x12, delimited(0x12, record))
    body = delimited(0x0A, delimited(0x0A, resource) + scope_logs)
    try:
        answer = ExportLogsServiceResponse.FromString(door.send(body))
    except Refused as refused:
        assert refused.code == grpc.StatusCode.INVALID_ARGUMENT.value[0]  # noqa: PT017
        assert depth > 25
    else:
        assert answer.partial_success.rejected_log_records == 1
        assert "is nested deeper than 16 levels" in answer.partial_success.error_message


def test_29_deep_nesting_in_json_never_fails_the_server(http: Receiver) -> None:
    for depth in (20, 50, 1000, 100_000):
        value = b'{"kvlistValue":{"values":[{"key":"k","value":' * depth + b"{}" + b"}]}}" * depth
        body = b'{"resourceLogs":[{"scopeLogs":[{"logRecords":[{"body":%b}]}]}]}' % value
        answer = httpx.post(http.url + PATH, content=body, headers=JSON, timeout=60)
        assert answer.status_code in (200, 400, 413)


def test_29_invalid_utf8_is_malformed(door: Door) -> None:
    with pytest.raises(Refused) as caught:
        door.send(EVENT.replace(b"complete", b"comp\xffete"))
    assert caught.value.code == grpc.StatusCode.INVALID_ARGUMENT.value[0]


def test_29_a_resource_that_cannot_be_read_takes_nothing_else_with_it(door: Door) -> None:
    broken = logs_request(event(), event()).SerializeToString().replace(b"complete", b"comp\xffete")
    answer = ExportLogsServiceResponse.FromString(door.send(EVENT + broken))
    assert answer.partial_success.rejected_log_records == 2
    assert [batch.payload for batch in door.receiver.journal.batches] == [EVENT]


def test_37_no_bytes_fail_the_server_and_the_next_request_is_served(door: Door) -> None:
    random, faults = Random(37), ("exceptions", door.protocol)
    before = door.receiver.counts().get(faults, 0)
    sound = logs_request(*every_event()).SerializeToString()
    for _ in range(150):
        damaged = bytearray(sound)
        for _ in range(random.randint(1, 3)):
            damaged[random.randrange(len(damaged))] = random.randrange(256)
        try:
            door.send(bytes(damaged[: random.choice((len(damaged), random.randrange(200)))]))
        except Refused as refused:
            assert refused.code == grpc.StatusCode.INVALID_ARGUMENT.value[0]  # noqa: PT017
    assert door.send(EVENT) == b""
    assert door.receiver.counts().get(faults, 0) == before
