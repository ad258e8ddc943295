"""Log events that OTLP allows and nobody expects: they pass the door, and go on to the run."""

from collections.abc import Callable, Sequence
from random import Random

from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest
from opentelemetry.proto.logs.v1.logs_pb2 import LogRecord, ResourceLogs

from otel_rl.records import Value
from otel_rl.semconv import names
from tests.fuzz.corpus import S
from tests.support.otlp_requests import any_value, key_values

_TEXTS = (
    "",
    " ",
    "x",
    "\x00",
    "a\nb",
    "\u202egnp.exe",
    "\U0001f4a3" * 40,
    "t" * 5000,
    "../x",
    "NaN",
)
_KEYS = ("lr", "a.b", "a/b", "_wandb", "_step", "step", "worker", "\x1b[31m", "__proto__", "k" * 64)
_NUMBERS: Sequence[Value] = (
    *(0, -1, 2**53 + 1, 2**63 - 1, -(2**63), 0.0, -0.0, 5e-324, True, None),
    *(float("inf"), float("-inf"), float("nan")),
)
_STATUSES = ("complete", "aborted", "crashed", "failed", "running", "COMPLETE", "")


def strange_events(random: Random, request: ExportLogsServiceRequest) -> None:
    """Make one to six values of the request's records legal and unexpected."""
    places = [
        (part, record)
        for part in request.resource_logs
        for scope_logs in part.scope_logs
        for record in scope_logs.log_records
    ]
    for _ in range(random.randint(1, 6) if places else 0):
        part, record = random.choice(places)
        random.choice(_CHANGES)(random, part, record)


def _value(random: Random, depth: int = 4) -> Value:
    choice = random.random()
    if depth and choice < 0.15:
        return [_value(random, depth - 1) for _ in range(random.randint(0, 3))]
    if depth and choice < 0.3:
        return {
            random.choice(_KEYS): _value(random, depth - 1) for _ in range(random.randint(0, 3))
        }
    return random.choice(_TEXTS) if choice < 0.6 else random.choice(_NUMBERS)


def _say(record: LogRecord, key: str, value: Value) -> None:
    kept = [attribute for attribute in record.attributes if attribute.key != key]
    del record.attributes[:]
    record.attributes.extend([*kept, *key_values({key: value})])


def _times(random: Random, _part: ResourceLogs, record: LogRecord) -> None:
    """Earlier, later, at the start of a run, unknown, or only observed."""
    shift = random.choice((0, 1, -1, S, -S, 400 * S, -86_400 * S))
    record.time_unix_nano = max(0, record.time_unix_nano + shift)
    if random.random() < 0.3:
        record.observed_time_unix_nano = record.time_unix_nano
        record.time_unix_nano = 0


def _config(random: Random, _part: ResourceLogs, record: LogRecord) -> None:
    config = {random.choice(_KEYS): _value(random) for _ in range(random.randint(0, 5))}
    _say(record, names.RL_EXPERIMENT_CONFIG, config)


def _description(random: Random, _part: ResourceLogs, record: LogRecord) -> None:
    key = random.choice(
        (names.RL_EXPERIMENT_NOTES, names.RL_EXPERIMENT_GROUP, names.RL_EXPERIMENT_JOB_TYPE)
    )
    _say(record, key, random.choice(_TEXTS))
    tags = [
        random.choice(("grpo", "a b", "../x", "\U0001f4a3")) for _ in range(random.randint(0, 70))
    ]
    _say(record, names.RL_EXPERIMENT_TAGS, tags)


def _status(random: Random, _part: ResourceLogs, record: LogRecord) -> None:
    key = random.choice((names.RL_EXPERIMENT_STATUS, names.RL_WORKER_STATUS))
    _say(record, key, random.choice(_STATUSES))


def _fields(random: Random, _part: ResourceLogs, record: LogRecord) -> None:
    """Other columns, and other types in the same ones."""
    fields = ("prompt", "completion", "reward", *_KEYS)
    body = {random.choice(fields): _value(random, 0) for _ in range(random.randint(0, 70))}
    record.body.CopyFrom(any_value(body))


def _table(random: Random, _part: ResourceLogs, record: LogRecord) -> None:
    table = random.choice(("", "samples", "loss", "a/b", "..", "phase", "t" * 128, "\x00"))
    _say(record, names.RL_SAMPLE_TABLE, table)
    _say(record, names.RL_LOOP_ITERATION, random.choice(_NUMBERS))


def _id(random: Random, _part: ResourceLogs, record: LogRecord) -> None:
    """Of another record, of none, or none at all."""
    _say(record, names.LOG_RECORD_UID, random.choice(("one", "two", "", "u" * 3000)))


def _name(random: Random, _part: ResourceLogs, record: LogRecord) -> None:
    """Another event with what this one says; or no event."""
    record.event_name = random.choice((*sorted(names.EVENTS), "", "other", "rl.experiment"))
    if random.random() < 0.3:
        _say(record, "event.name", random.choice((*sorted(names.EVENTS), "other")))


def _sender(random: Random, part: ResourceLogs, _record: LogRecord) -> None:
    key, value = random.choice(
        (
            ("rl.worker.role", "a/b"),
            ("rl.worker.index", -1),
            ("rl.experiment.name", f"fuzz-{random.randint(0, 40)}"),
            ("service.instance.id", ""),
            ("rl.trial.name", "other"),
        )
    )
    kept = [attribute for attribute in part.resource.attributes if attribute.key != key]
    del part.resource.attributes[:]
    part.resource.attributes.extend([*kept, *key_values({key: value})])


def _again(random: Random, part: ResourceLogs, record: LogRecord) -> None:
    """As many records as a call may make, some of them the same."""
    records = random.choice(part.scope_logs).log_records
    for n in range(random.choice((1, 20, 100))):
        another = records.add()
        another.CopyFrom(record)
        if random.random() < 0.7:
            _say(another, names.LOG_RECORD_UID, f"{n}")


_CHANGES: Sequence[Callable[[Random, ResourceLogs, LogRecord], None]] = (
    _times,
    _config,
    _description,
    _status,
    _fields,
    _table,
    _id,
    _name,
    _sender,
    _again,
)
