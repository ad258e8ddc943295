"""A gateway sends for all teams: what its resources name is believed, and of nobody else."""

import json
from collections.abc import Iterator, Mapping
from hashlib import sha256

import pytest
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
from opentelemetry.proto.common.v1.common_pb2 import AnyValue

from otel_rl.bridge.receive.audit import Audit
from otel_rl.bridge.receive.limits import ReceiveLimits
from otel_rl.bridge.receive.signal_specs import SIGNALS as SIGNAL_SPECS
from otel_rl.bridge.receive.tokens import TeamSettings
from otel_rl.run_id import run_id
from otel_rl.signals import Signal
from tests.support.otlp_door import PROTOCOLS, Door, door_of
from tests.support.otlp_requests import (
    gauge,
    logs_request,
    metrics_request,
    point,
    trace_request,
)

Request = ExportMetricsServiceRequest | ExportTraceServiceRequest | ExportLogsServiceRequest

TOKENS = {name: f"token-of-{name}-sixteen-characters" for name in ("a", "b", "gateway")}
TEAMS = tuple(
    TeamSettings.model_validate(
        {
            "name": name,
            "sha256": [sha256(token.encode()).hexdigest()],
            **({"gateway": True} if name == "gateway" else {"experiments": [f"{name}/*"]}),
        }
    )
    for name, token in TOKENS.items()
)
SIGNALS = list(Signal)
Answer = ExportMetricsServiceResponse | ExportTraceServiceResponse | ExportLogsServiceResponse
ANSWERS: Mapping[Signal, tuple[type[Answer], str]] = {
    Signal.METRICS: (ExportMetricsServiceResponse, "rejected_data_points"),
    Signal.TRACES: (ExportTraceServiceResponse, "rejected_spans"),
    Signal.LOGS: (ExportLogsServiceResponse, "rejected_log_records"),
}
COUNTERS = {
    Signal.METRICS: "points.refused",
    Signal.TRACES: "spans.refused",
    Signal.LOGS: "logs.refused",
}


@pytest.fixture(scope="module", params=PROTOCOLS)
def door(request: pytest.FixtureRequest) -> Iterator[Door]:
    with door_of(request.param, auth=TEAMS) as door:
        yield door


def body_of(signal: Signal, **resource: str) -> bytes:
    """A request with one item of a resource with ``experiment`` and ``team``."""
    return _request(signal, resource).SerializeToString()


def _request(signal: Signal, resource: Mapping[str, str]) -> Request:
    attributes = _named(resource)
    if signal is Signal.METRICS:
        return metrics_request(gauge(point()), resource=attributes)
    if signal is Signal.TRACES:
        return trace_request(resource=attributes)
    return logs_request(resource=attributes)


def _named(resource: Mapping[str, str]) -> dict[str, str]:
    full = {"experiment": "rl.experiment.name", "team": "otel_rl.team"}
    return {"service.name": "x", **{full[name]: value for name, value in resource.items()}}


def sent(door: Door, signal: Signal, body: bytes, token: str) -> tuple[list[str], int, str]:
    """Return the experiments that were stored, the items that were refused, and why."""
    door.receiver.journal.take()
    response, field = ANSWERS[signal]
    partial = response.FromString(door.send(body, signal, token=TOKENS[token])).partial_success
    stored = [batch.experiment.experiment for batch in door.receiver.journal.take()]
    return stored, getattr(partial, field), partial.error_message


@pytest.mark.parametrize("signal", SIGNALS)
@pytest.mark.parametrize("team", ["a", "b"])
def test_a_gateway_writes_for_the_team_that_a_resource_names(
    door: Door, signal: Signal, team: str
) -> None:
    body = body_of(signal, experiment=f"{team}/x", team=team)
    assert sent(door, signal, body, "gateway") == ([f"{team}/x"], 0, "")


@pytest.mark.parametrize("signal", SIGNALS)
@pytest.mark.parametrize(
    ("token", "resource", "reason", "words"),
    [
        ("gateway", {"experiment": "a/x", "team": "b"}, "not_allowed", "Team b may not write"),
        ("gateway", {"experiment": "a/x"}, "wrong_team", "Gateway gateway names no team"),
        ("gateway", {"experiment": "a/x", "team": "c"}, "wrong_team", "(got 'c')"),
        ("gateway", {"experiment": "a/x", "team": "gateway"}, "wrong_team", "(got 'gateway')"),
        ("b", {"experiment": "a/x", "team": "a"}, "wrong_team", "Team b may not write as team 'a'"),
        ("b", {"experiment": "b/x", "team": "a"}, "wrong_team", "Team b may not write as team 'a'"),
        ("b", {"experiment": "a/x", "team": "b"}, "not_allowed", "Team b may not write"),
    ],
    ids=[
        "experiment-of-another",
        "no-team",
        "unknown-team",
        "itself",
        "a-team-that-names-another",
        "a-team-in-the-name-of-another",
        "a-team-that-names-itself",
    ],
)
def test_what_a_resource_may_not_say_is_refused_with_its_reason(
    door: Door, signal: Signal, token: str, resource: Mapping[str, str], reason: str, words: str
) -> None:
    counter = COUNTERS[signal], reason
    before = door.receiver.counts().get(counter, 0)
    stored, refused, message = sent(door, signal, body_of(signal, **resource), token)
    assert (stored, refused) == ([], 1)
    assert reason in message
    assert words in message
    assert door.receiver.counts()[counter] == before + 1


def test_a_team_that_names_itself_is_taken(door: Door) -> None:
    body = body_of(Signal.METRICS, experiment="b/x", team="b")
    assert sent(door, Signal.METRICS, body, "b") == (["b/x"], 0, "")


def test_requests_of_several_teams_in_one_are_judged_each_for_itself(door: Door) -> None:
    joined = ExportMetricsServiceRequest()
    for team, experiment in (("a", "a/1"), ("b", "b/1"), ("a", "b/2"), ("", "a/2")):
        resource = {"experiment": experiment} | ({"team": team} if team else {})
        joined.MergeFromString(body_of(Signal.METRICS, **resource))
    stored, refused, _ = sent(door, Signal.METRICS, joined.SerializeToString(), "gateway")
    assert (stored, refused) == (["a/1", "b/1"], 2)


@pytest.mark.parametrize("signal", SIGNALS)
def test_a_team_that_is_named_twice_is_not_guessed(door: Door, signal: Signal) -> None:
    """A collector's processor replaces one of the two: the other is the sender's own."""
    message = _request(signal, {"experiment": "a/x", "team": "a"})
    (part,) = getattr(message, SIGNAL_SPECS[signal].resources)
    part.resource.attributes.add(key="otel_rl.team", value=AnyValue(string_value="b"))
    stored, refused, words = sent(door, signal, message.SerializeToString(), "gateway")
    assert (stored, refused) == ([], 1)
    assert "is given twice" in words


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_the_shares_of_a_gateways_requests_are_those_of_the_teams(protocol: str) -> None:
    """One team names more experiments than its share; that of the other stays whole."""
    with door_of(protocol, ReceiveLimits(max_experiments=20), TEAMS) as door:

        def named(team: str, n: int) -> tuple[int, str]:
            joined = ExportMetricsServiceRequest()
            for number in range(n):
                one = body_of(Signal.METRICS, experiment=f"{team}/{number}", team=team)
                joined.MergeFromString(one)
            stored, refused, words = sent(
                door, Signal.METRICS, joined.SerializeToString(), "gateway"
            )
            assert len(stored) == n - refused
            return refused, words

        refused, words = named("a", 100)
        assert refused == 90
        assert "Token a has its share of 10 experiments" in words
        assert named("b", 10) == (0, "")


@pytest.mark.parametrize("signal", SIGNALS)
def test_the_audit_log_says_who_wrote_which_run_once_a_minute(
    signal: Signal, caplog: pytest.LogCaptureFixture
) -> None:
    with door_of("http", auth=TEAMS, audit=Audit(is_on=True)) as door:
        for resource, token in (
            ({"experiment": "a/x", "team": "a"}, "gateway"),
            ({"experiment": "a/x", "team": "a"}, "gateway"),
            ({"experiment": "b/x"}, "b"),
            ({"experiment": "a/x"}, "b"),  # refused, which is no write
        ):
            sent(door, signal, body_of(signal, **resource), token)
    told = [json.loads(one.message) for one in caplog.records if one.name == "otel_rl.audit"]
    by = {name: f"{name} {team.sha256[0][:8]}" for name, team in zip(TOKENS, TEAMS, strict=True)}
    same = {"event": "write", "address": "127.0.0.1", "route": str(signal)}
    assert told == [
        {
            **same,
            "team": team,
            "token": by[token],
            "run": f"{team}/x/default",
            "run_id": run_id(f"{team}/x", "default"),
        }
        for team, token in (("a", "gateway"), ("b", "b"))
    ]
