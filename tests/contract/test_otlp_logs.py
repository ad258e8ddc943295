"""What OTLP asks of logs, over real sockets and both protocols.

The items that concern a signal and not the server, see docs/otlp.md.
"""

import json
from collections.abc import Iterator
from hashlib import sha256

import grpc
import httpx
import pytest
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import (
    ExportLogsPartialSuccess,
    ExportLogsServiceRequest,
    ExportLogsServiceResponse,
)
from opentelemetry.proto.logs.v1.logs_pb2 import LogRecord

from otel_rl.bridge.receive.limits import ReceiveLimits
from otel_rl.bridge.receive.tokens import TeamSettings
from otel_rl.signals import Signal
from tests.support import plain_http
from tests.support.otlp_door import PROTOCOLS, Door, Refused, door_of
from tests.support.otlp_requests import (
    Attributes,
    Receiver,
    delimited,
    event,
    every_event,
    http_receiver,
    logs_request,
)

JSON = {"content-type": "application/json"}
PATH = "/v1/logs"
TOKEN = "team-" + "a" * 32
AUTH = (
    TeamSettings(name="team", experiments=("x",), sha256=(sha256(TOKEN.encode()).hexdigest(),)),
)
EVENT = logs_request().SerializeToString()


def partial_of(
    door: Door, request: ExportLogsServiceRequest, *, token: str = ""
) -> ExportLogsPartialSuccess:
    """What the answer says was refused."""
    answer = door.send(request.SerializeToString(), Signal.LOGS, token=token)
    return ExportLogsServiceResponse.FromString(answer).partial_success


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
    return plain_http.post(receiver.url + PATH, content=body, headers=JSON, timeout=60)


END = {
    "eventName": "rl.worker.end",
    "attributes": [{"key": "rl.worker.status", "value": {"stringValue": "complete"}}],
}


# What is taken


def test_30_every_event_is_stored_as_sent(door: Door) -> None:
    events = every_event()
    assert door.send(logs_request(*events).SerializeToString(), Signal.LOGS) == b""
    assert stored(door.receiver) == events


def test_what_is_no_event_of_ours_is_acknowledged_counted_and_not_stored(door: Door) -> None:
    before = door.receiver.counts().get(("logs.ignored", ""), 0)
    request = logs_request(plain_record(), event(), event("device.crash"))
    request.MergeFrom(logs_request(plain_record(), resource={"service.name": "nginx"}))
    assert door.send(request.SerializeToString(), Signal.LOGS) == b""
    assert [record.event_name for record in stored(door.receiver)] == ["rl.worker.end"]
    assert door.receiver.counts()["logs.ignored", ""] == before + 3


# What is not taken


def test_12_an_answer_stays_small_whatever_is_refused(door: Door) -> None:
    request = logs_request(
        event("rl.experiment.end", {"rl.experiment.status": "long" * 1000}),
        event("rl.rollout.sample", {}, {"k" * 200: [1]}),
        event("rl.experiment.start", {"rl.experiment.config": {"k" * 50_000: 1}}),
        event(time_ns=5),
        *(event(attributes={"a" * 200_000: i}) for i in range(3)),
    )
    assert 0 < len(door.send(request.SerializeToString(), Signal.LOGS)) < 4096


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_20_a_token_writes_events_of_its_experiments_only(protocol: str) -> None:
    with door_of(protocol, auth=AUTH) as door:
        with pytest.raises(Refused) as caught:
            door.send(EVENT, Signal.LOGS)
        assert caught.value.code == grpc.StatusCode.UNAUTHENTICATED.value[0]
        request = logs_request(resource={"rl.experiment.name": "theirs"})
        request.MergeFrom(logs_request())
        request.MergeFrom(logs_request(plain_record(), resource={"rl.experiment.name": "theirs"}))
        partial = partial_of(door, request, token=TOKEN)
        assert partial.rejected_log_records == 1
        assert "Team team may not write experiment 'theirs'" in partial.error_message
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
        partial = partial_of(door, joined)
        assert partial.rejected_log_records == 1
        assert "experiment-4" in partial.error_message
        assert door.receiver.counts()["logs.refused", "too_many_experiments"] == 1


# When it is acknowledged


def test_23_refused_events_are_counted_and_explained_and_the_rest_is_stored(door: Door) -> None:
    sound = event()
    partial = partial_of(
        door, logs_request(event(time_ns=5), sound, event("rl.experiment.end", {}))
    )
    assert partial.rejected_log_records == 2
    assert "Log records refused: 1 (time_out_of_range)" in partial.error_message
    assert "Event rl.experiment.end: rl.experiment.status is missing" in partial.error_message
    assert stored(door.receiver) == [sound]


def test_23_refused_events_are_told_in_json_too(http: Receiver) -> None:
    partial = post_json(http, {**END, "attributes": []}).json()["partialSuccess"]
    assert partial["rejectedLogRecords"] == "1"
    assert "rl.worker.status is missing" in partial["errorMessage"]


# JSON


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
        answer = ExportLogsServiceResponse.FromString(door.send(body, Signal.LOGS))
    except Refused as refused:
        assert refused.code == grpc.StatusCode.INVALID_ARGUMENT.value[0]  # noqa: PT017
        assert depth > 25
    else:
        assert answer.partial_success.rejected_log_records == 1
        assert "is nested deeper than 16 levels" in answer.partial_success.error_message
