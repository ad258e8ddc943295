"""A resource in JSON that cannot be read takes nothing else of its request with it."""

import json
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from otel_rl.bridge.receive.parsing.partial_json import parse_json_partially
from otel_rl.bridge.receive.signal_specs import SIGNALS, ExportRequest
from otel_rl.errors import MalformedRequest
from otel_rl.records import ExperimentKey
from otel_rl.signals import Signal
from tests.fuzz.corpus import otlp_json
from tests.support import plain_http
from tests.support.otlp_requests import (
    Receiver,
    event,
    gauge,
    http_receiver,
    logs_request,
    metrics_request,
    point,
    trace_request,
)

Json = Any
Damage = Callable[[Json], None]
"""Makes a resource unreadable."""

RESOURCES = {
    Signal.METRICS: "resourceMetrics",
    Signal.TRACES: "resourceSpans",
    Signal.LOGS: "resourceLogs",
}
HOLDERS = {Signal.METRICS: "metrics", Signal.TRACES: "spans", Signal.LOGS: "logRecords"}
every_signal = pytest.mark.parametrize("signal", Signal)


def resource_of(signal: Signal, experiment: str, n: int = 3) -> Json:
    """A resource of ``n`` items."""
    resource = {"rl.experiment.name": experiment}
    requests: Mapping[Signal, ExportRequest] = {
        Signal.METRICS: metrics_request(gauge(*[point()] * n), resource=resource),
        Signal.TRACES: trace_request(n, resource=resource),
        Signal.LOGS: logs_request(*[event()] * n, resource=resource),
    }
    return json.loads(otlp_json(requests[signal]))[RESOURCES[signal]][0]


def body_of(signal: Signal, *resources: Json) -> bytes:
    return json.dumps({RESOURCES[signal]: resources}).encode()


def put(value: Json) -> Damage:
    """Adds an attribute of this value to the resource."""

    def damage(resource: Json) -> None:
        resource["resource"]["attributes"].append({"key": "k", "value": value})

    return damage


def nested(levels: int) -> Json:
    value: Json = {}
    for _ in range(levels):
        value = {"arrayValue": {"values": [value]}}
    return value


DAMAGES: dict[str, Damage] = {
    "nested too deep": put(nested(60)),
    "number as text": put({"doubleValue": "much"}),
    "text as number": put({"stringValue": 7}),
    "boolean as text": put({"boolValue": "true"}),
    "integer beyond 64 bits": put({"intValue": str(2**63)}),
    "integer as fraction": put({"intValue": 1.5}),
    "integer of 500 digits": put({"intValue": 10**500}),
    "bytes in hexadecimal digits": put({"bytesValue": "abc"[:1]}),
    "two values": put({"stringValue": "a", "boolValue": True}),
    "lone surrogate": put({"stringValue": "cut \ud83d"}),
    "literal of NaN": put({"doubleValue": float("nan")}),
    "object as array": lambda resource: resource.update(resource=[]),
    "text as object": lambda resource: resource.update(resource="x"),
}
every_damage = pytest.mark.parametrize("damage", DAMAGES.values(), ids=DAMAGES)


@pytest.fixture(scope="module")
def receiver() -> Iterator[Receiver]:
    with http_receiver() as receiver:
        yield receiver


def answer_to(receiver: Receiver, signal: Signal, body: bytes) -> tuple[int, Json]:
    receiver.journal.take()
    answer = plain_http.post(
        f"{receiver.url}/v1/{signal.value}",
        content=body,
        headers={"content-type": "application/json"},
        timeout=60,
    )
    return answer.status_code, json.loads(answer.content)


@every_signal
@every_damage
def test_a_resource_that_cannot_be_read_is_refused_and_the_others_are_stored(
    receiver: Receiver, signal: Signal, damage: Damage
) -> None:
    broken = resource_of(signal, "broken")
    damage(broken)
    body = body_of(signal, resource_of(signal, "a"), broken, resource_of(signal, "b"))
    status, answer = answer_to(receiver, signal, body)
    assert status == 200
    partial = answer["partialSuccess"]
    assert [int(partial[key]) for key in partial if key.startswith("rejected")] == [3]
    assert "3 (malformed)" in partial["errorMessage"]
    assert f"$.{RESOURCES[signal]}[1].resource" in partial["errorMessage"]
    assert {batch.experiment.experiment for batch in receiver.journal.take()} == {"a", "b"}


@every_signal
@every_damage
def test_a_request_of_unreadable_resources_is_malformed(
    receiver: Receiver, signal: Signal, damage: Damage
) -> None:
    broken = resource_of(signal, "broken")
    damage(broken)
    status, answer = answer_to(receiver, signal, body_of(signal, broken, broken))
    assert (status, answer["code"]) == (400, 3)
    assert receiver.journal.take() == []


@pytest.mark.parametrize(
    "sent", [b"\xff", b"\xe9t\xe9", b"\xed\xa0\x80"], ids=["no byte of UTF-8", "latin-1", "cesu-8"]
)
def test_a_text_in_another_encoding_costs_its_resource_only(
    receiver: Receiver, sent: bytes
) -> None:
    broken = resource_of(Signal.LOGS, "broken")
    put({"stringValue": "MARK"})(broken)
    body = body_of(Signal.LOGS, resource_of(Signal.LOGS, "a"), broken).replace(b"MARK", sent)
    status, answer = answer_to(receiver, Signal.LOGS, body)
    assert (status, answer["partialSuccess"]["rejectedLogRecords"]) == (200, "3")


@pytest.mark.parametrize(
    ("signal", "old", "new"),
    [
        (Signal.METRICS, {"asDouble": 1.0}, {"asDouble": "1,5"}),
        (Signal.METRICS, {"asDouble": 1.0}, {"asInt": 2**64}),
        (Signal.TRACES, {"traceId": "01" * 16}, {"traceId": "AQEBAQEBAQEBAQEBAQEBAQ=="}),
        (Signal.TRACES, {"name": "rl.train"}, {"name": "rl.train", "kind": "SPAN_KIND_NEW"}),
    ],
)
def test_a_wrong_type_in_one_item_is_named_by_its_place(
    receiver: Receiver, signal: Signal, old: Json, new: Json
) -> None:
    broken = json.dumps(resource_of(signal, "broken"))
    was, now = (json.dumps(pair)[1:-1] for pair in (old, new))
    assert was in broken
    body = body_of(signal, resource_of(signal, "a"), json.loads(broken.replace(was, now)))
    status, answer = answer_to(receiver, signal, body)
    assert status == 200
    place = answer["partialSuccess"]["errorMessage"]
    assert HOLDERS[signal] + "[0]" in place
    assert next(reversed(new)) + ": must be" in place


def test_what_cannot_be_separated_is_refused_as_a_whole(receiver: Receiver) -> None:
    good = resource_of(Signal.METRICS, "a")
    sound = body_of(Signal.METRICS, good, good)
    for body in (
        sound[:-1],
        sound[:-40],
        b"[" * 2000,
        body_of(Signal.METRICS, good, nested(1))[1:],
    ):
        assert answer_to(receiver, Signal.METRICS, body)[0] == 400
        assert receiver.journal.take() == []


def test_a_number_that_json_does_not_have_is_never_a_value(receiver: Receiver) -> None:
    good, broken = resource_of(Signal.METRICS, "a"), resource_of(Signal.METRICS, "b")
    put({"stringValue": "\ud800"})(broken)
    body = body_of(Signal.METRICS, good, broken).replace(b'"asDouble": 1.0', b'"asDouble": 1e999')
    assert answer_to(receiver, Signal.METRICS, body)[0] == 400
    assert receiver.journal.take() == []


def test_records_that_cannot_be_events_are_left_out_without_a_word() -> None:
    spec = SIGNALS[Signal.LOGS]
    nginx = json.loads(otlp_json(logs_request(event("nginx", {"path": "x"}))))["resourceLogs"][0]
    put({"stringValue": 7})(nginx)
    parsed = parse_json_partially(spec, body_of(Signal.LOGS, nginx), max_objects=10_000)
    assert [(part.items, part.is_wanted) for part in parsed.unreadable] == [(1, False)]


def test_the_experiment_is_named_if_it_can_be_read() -> None:
    broken = resource_of(Signal.TRACES, "mine")
    broken["scopeSpans"][0]["spans"][1]["name"] = 7
    spec, good = SIGNALS[Signal.TRACES], resource_of(Signal.TRACES, "a")
    body = body_of(Signal.TRACES, broken, good)
    (part,) = parse_json_partially(spec, body, max_objects=10_000).unreadable
    assert part.experiment == ExperimentKey("mine")
    assert part.fault == "$.resourceSpans[0].scopeSpans[0].spans[1].name: must be a string"


@settings(deadline=None)
@given(
    signal=st.sampled_from(Signal),
    parts=st.lists(st.sampled_from(["", *DAMAGES]), max_size=5),
)
def test_every_resource_is_read_or_counted(signal: Signal, parts: list[str]) -> None:
    resources = []
    for name in parts:
        resources.append(resource_of(signal, "e"))
        if name:
            DAMAGES[name](resources[-1])
    spec, body = SIGNALS[signal], body_of(signal, *resources)
    if parts and "" not in parts:
        with pytest.raises(MalformedRequest):
            parse_json_partially(spec, body, max_objects=100_000)
        return
    parsed = parse_json_partially(spec, body, max_objects=100_000)
    assert len(getattr(parsed.request, spec.resources)) == parts.count("")
    assert [part.items for part in parsed.unreadable] == [3] * (len(parts) - parts.count(""))
