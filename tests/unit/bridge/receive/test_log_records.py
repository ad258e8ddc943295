"""Which log records are kept, which are left out without a word, and which are refused."""

from collections.abc import Sequence
from random import Random

import pytest
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest
from opentelemetry.proto.logs.v1.logs_pb2 import LogRecord

from otel_rl.bridge.counters import Refusal
from otel_rl.bridge.receive.limits import ReceiveLimits
from otel_rl.bridge.receive.validate import Validated, validate
from otel_rl.errors import RequestTooLarge
from otel_rl.records import ExperimentKey, Signal
from otel_rl.semconv import names
from tests.support.otlp_requests import Attributes, event, every_event, key_values, logs_request

NOW_NS = 1_800_000_000_000_000_000
LIMITS = ReceiveLimits()

NOBODY: Attributes = {"service.name": "nginx"}


def admit_logs(request: ExportLogsServiceRequest, limits: ReceiveLimits = LIMITS) -> Validated:
    return validate(Signal.LOGS, request.SerializeToString(), limits, NOW_NS)


def a_event() -> LogRecord:
    return event(time_ns=NOW_NS)


def plain_record(text: str = "GET /") -> LogRecord:
    """What any program may log."""
    record = LogRecord(time_unix_nano=1, severity_text="INFO")
    record.body.string_value = text
    return record


def kept(admitted: Validated) -> Sequence[LogRecord]:
    return [
        record
        for batch in admitted.batches
        for part in ExportLogsServiceRequest.FromString(batch.payload).resource_logs
        for scope_logs in part.scope_logs
        for record in scope_logs.log_records
    ]


def test_a_request_of_events_keeps_its_very_bytes() -> None:
    payload = logs_request(a_event(), a_event()).SerializeToString() + b"\xba\x3e\x03new"
    admitted = validate(Signal.LOGS, payload, LIMITS, NOW_NS)
    assert admitted.batches[0].payload is payload
    assert admitted.batches[0].signal is Signal.LOGS
    assert (admitted.accepted, admitted.ignored, admitted.message) == (2, 0, "")


def test_a_record_that_is_no_event_of_ours_is_left_out_without_a_word() -> None:
    others = [plain_record(), event("device.app.lifecycle", time_ns=NOW_NS), event("rl.unknown")]
    admitted = admit_logs(logs_request(others[0], a_event(), *others[1:]))
    assert kept(admitted) == [a_event()]
    assert (admitted.accepted, admitted.ignored) == (1, 3)
    assert (admitted.refused, admitted.message) == ({}, "")


@pytest.mark.parametrize(
    "resource",
    [NOBODY, {"rl.experiment.name": ""}, {f"k{i}": i for i in range(1000)}, {"k": "v" * 10_000}],
)
def test_nothing_is_asked_of_who_sends_only_other_records(resource: Attributes) -> None:
    admitted = admit_logs(logs_request(plain_record(), plain_record(), resource=resource))
    assert (admitted.batches, admitted.ignored) == ([], 2)
    assert (admitted.refused, admitted.message) == ({}, "")


def test_an_experiment_of_other_records_is_none() -> None:
    asked: list[ExperimentKey] = []
    request = logs_request(plain_record(), resource={"rl.experiment.name": "logs only"})
    request.MergeFrom(logs_request(a_event()))
    admitted = validate(Signal.LOGS, request, LIMITS, NOW_NS, lambda key, _team: asked.append(key))
    assert asked == [ExperimentKey("x")]
    assert [batch.experiment for batch in admitted.batches] == [ExperimentKey("x")]


def test_an_event_of_no_experiment_is_refused_beside_records_that_are_left_out() -> None:
    admitted = admit_logs(logs_request(plain_record(), a_event(), resource=NOBODY))
    assert (admitted.batches, admitted.ignored) == ([], 1)
    assert admitted.refused == {Refusal.NO_EXPERIMENT: 1}
    assert "Log records refused: 1 (no_experiment)" in admitted.message


def test_an_event_of_no_experiment_goes_to_the_default_one() -> None:
    limits = ReceiveLimits(default_experiment="lab")
    request = logs_request(a_event(), resource=NOBODY)
    request.MergeFrom(logs_request(plain_record(), resource=NOBODY))
    admitted = admit_logs(request, limits)
    (batch,) = admitted.batches
    assert batch.experiment == ExperimentKey("lab")
    (part,) = ExportLogsServiceRequest.FromString(batch.payload).resource_logs
    assert "lab" in [pair.value.string_value for pair in part.resource.attributes]


def test_an_event_is_known_by_its_attribute_too() -> None:
    record = event("", {"event.name": "rl.worker.end", "rl.worker.status": "done"}, time_ns=NOW_NS)
    assert admit_logs(logs_request(record)).refused == {Refusal.INVALID_EVENT: 1}
    record.attributes[1].value.string_value = "complete"
    assert kept(admit_logs(logs_request(record))) == [record]


def test_the_field_counts_where_field_and_attribute_name_an_event() -> None:
    record = event("nginx.access", {"event.name": "rl.worker.end"}, time_ns=NOW_NS)
    assert admit_logs(logs_request(record)).ignored == 1


def test_a_broken_event_is_refused_and_the_rest_is_taken() -> None:
    broken = event("rl.experiment.end", {}, time_ns=NOW_NS)
    admitted = admit_logs(logs_request(a_event(), broken, a_event()))
    assert kept(admitted) == [a_event(), a_event()]
    assert admitted.refused == {Refusal.INVALID_EVENT: 1}


def test_events_of_a_scope_that_breaks_a_rule_are_refused() -> None:
    request = logs_request(a_event(), plain_record())
    scope = request.resource_logs[0].scope_logs[0].scope
    scope.attributes.extend(key_values({f"k{i}": i for i in range(65)}))
    admitted = admit_logs(request)
    assert admitted.refused == {Refusal.TOO_MANY_ATTRIBUTES: 1}


def test_events_are_cut_into_one_batch_for_each_experiment() -> None:
    request = ExportLogsServiceRequest()
    for name in ("a", "b", "a"):
        part = logs_request(a_event(), plain_record(), resource={"rl.experiment.name": name})
        request.MergeFrom(part)
    admitted = admit_logs(request)
    assert {
        batch.experiment.experiment: len(kept(Validated([batch], 0))) for batch in admitted.batches
    } == {"a": 2, "b": 1}
    assert (admitted.accepted, admitted.ignored) == (3, 3)


def test_events_of_an_experiment_that_is_not_welcome_are_refused() -> None:
    def problem(key: ExperimentKey, _team: str) -> tuple[Refusal, str] | None:
        return (Refusal.NOT_ALLOWED, f"{key} is not yours") if key.experiment == "b" else None

    request = logs_request(a_event(), resource={"rl.experiment.name": "a"})
    request.MergeFrom(logs_request(a_event(), resource={"rl.experiment.name": "b"}))
    admitted = validate(Signal.LOGS, request, LIMITS, NOW_NS, problem)
    assert [batch.experiment.experiment for batch in admitted.batches] == ["a"]
    assert admitted.refused == {Refusal.NOT_ALLOWED: 1}


def test_records_that_are_left_out_count_for_the_bound() -> None:
    limits = ReceiveLimits(max_points_per_request=5)
    assert admit_logs(logs_request(*[plain_record()] * 5), limits).ignored == 5
    with pytest.raises(RequestTooLarge, match="more than 5 data points, spans or log records"):
        admit_logs(logs_request(*[plain_record()] * 6), limits)


def test_every_record_is_taken_refused_or_left_out() -> None:
    random = Random(7)
    broken = [event(record.event_name, {}, time_ns=5) for record in every_event()]
    for record in (sound := every_event()):
        record.time_unix_nano = NOW_NS
    records = [*sound, *broken, *(plain_record(str(i)) for i in range(4))]
    random.shuffle(records)
    admitted = admit_logs(logs_request(*records))
    assert admitted.accepted == len(sound)
    assert sum(admitted.refused.values()) == len(broken)
    assert admitted.ignored == 4
    again = validate(Signal.LOGS, admitted.batches[0].payload, LIMITS, NOW_NS)
    assert (again.batches, again.ignored, again.refused) == (admitted.batches, 0, {})


def test_every_event_of_the_registry_is_known() -> None:
    assert {record.event_name for record in every_event()} == names.EVENTS
