"""Rules for the shape of the log events that the bridge knows, one function each.

Attributes that the bridge needs must be present and of the right type: the sender is told of a
fault, where a later stage could only guess or drop. All other content passes unchanged.
"""

from collections.abc import Callable, Iterable, Mapping
from enum import StrEnum

from opentelemetry.proto.common.v1.common_pb2 import AnyValue, KeyValue
from opentelemetry.proto.logs.v1.logs_pb2 import LogRecord

from otel_rl.bridge.counters import Refusal
from otel_rl.bridge.receive.limits import ReceiveLimits
from otel_rl.semconv import names

Problem = tuple[Refusal, str] | None
"""First fault, as reason and detail."""

LARGE_ATTRIBUTES = frozenset(
    {
        names.PROCESS_COMMAND_ARGS,
        names.RL_EXPERIMENT_CONFIG,
        names.RL_EXPERIMENT_CONFIG_DEFAULTS,
        names.RL_EXPERIMENT_NOTES,
        names.RL_EXPERIMENT_TAGS,
        names.RL_WORKER_DIFF,
        names.RL_WORKER_PACKAGES,
    }
)
"""Attributes held to the bounds of an event, not to those of an attribute."""

_TYPES = {
    "string_value": "text",
    "bool_value": "a boolean",
    "int_value": "an integer",
    "double_value": "a number with a fraction",
    "array_value": "an array",
    "kvlist_value": "a map",
    "bytes_value": "bytes",
}

# Types of a table cell. Without any value it is an empty cell.
_CELLS = frozenset({"string_value", "bool_value", "int_value", "double_value", None})


class _Fault(Exception):
    def __init__(self, reason: Refusal, detail: str) -> None:
        super().__init__(detail)
        self.reason = reason


def event_problem(name: str, record: LogRecord, limits: ReceiveLimits) -> Problem:
    """Return reason and detail if the event ``name`` cannot be accepted, else None."""
    try:
        event = _Event(record, limits)
        event.get(names.LOG_RECORD_UID, "string_value")
        _CHECKS[name](event)
    except _Fault as fault:
        return fault.reason, f"Event {name}: {fault}"
    return None


class _Event:
    """Checks of one event; a fault is raised with its message."""

    def __init__(self, record: LogRecord, limits: ReceiveLimits) -> None:
        self._record = record
        self._limits = limits

    def get(self, key: str, kind: str, *, required: bool = False) -> AnyValue | None:
        """Return an attribute, which must be of a kind; None if it is absent."""
        values = [pair.value for pair in self._record.attributes if pair.key == key]
        if len(values) > 1:
            # Choosing one of the two would be a guess.
            raise _Fault(Refusal.INVALID_EVENT, f"{key} is given twice")
        if values:
            _must_be(kind, values[0], key)
            return values[0]
        if required:
            raise _Fault(Refusal.INVALID_EVENT, f"{key} is missing")
        return None

    def one_of(self, key: str, words: type[StrEnum]) -> None:
        value = self.get(key, "string_value", required=True)
        if value is not None and value.string_value not in list(words):
            known = ", ".join(words)
            detail = f"{key} is {value.string_value[:64]!r}, which is none of {known}"
            raise _Fault(Refusal.INVALID_EVENT, detail)

    def name(self, key: str) -> None:
        """Require the attribute to be a valid name, if it is present and not empty."""
        value = self.get(key, "string_value")
        if value is not None and value.string_value:
            self._check_name(value.string_value, key)

    def text(self, key: str) -> None:
        """Require the attribute to be text, if it is present."""
        value = self.get(key, "string_value")
        if value is not None:
            self._check_text(value.string_value, key)

    def value(self, value: AnyValue, owner: str, *, depth: int = 0) -> None:
        """Require nested values to be within the bounds."""
        kind = value.WhichOneof("value")
        if kind == "string_value":
            self._check_text(value.string_value, owner)
        if kind not in {"array_value", "kvlist_value"}:
            return
        most = self._limits.max_event_depth
        if depth == most:
            raise _Fault(Refusal.EVENT_TOO_LARGE, f"{owner} is nested deeper than {most} levels")
        if kind == "array_value":
            for element in value.array_value.values:
                self.value(element, owner, depth=depth + 1)
            return
        self._check_keys(value.kvlist_value.values, owner)
        for pair in value.kvlist_value.values:
            self.value(pair.value, owner, depth=depth + 1)

    def words(self, key: str) -> None:
        """Require the attribute to be an array of a few names, if it is present."""
        array = self.get(key, "array_value")
        if array is None:
            return
        words, most = array.array_value.values, self._limits.max_attributes
        if len(words) > most:
            raise _Fault(Refusal.TOO_MANY_ATTRIBUTES, f"{key} has {len(words)} words, over {most}")
        for word in words:
            _must_be("string_value", word, f"a word of {key}")
            self._check_name(word.string_value, f"a word of {key}")

    def texts(self, key: str) -> None:
        """Require the attribute to be an array of texts, if it is present."""
        array = self.get(key, "array_value")
        for text in () if array is None else array.array_value.values:
            _must_be("string_value", text, f"a text of {key}")
            self._check_text(text.string_value, key)

    def body_text(self) -> None:
        _must_be("string_value", self._record.body, "the body")
        self._check_text(self._record.body.string_value, "the body")

    def cells(self) -> None:
        """Require the body to be a flat map of a few fields."""
        body = self._record.body
        _must_be("kvlist_value", body, "the body")
        fields, most = body.kvlist_value.values, self._limits.max_attributes
        if not fields:
            raise _Fault(Refusal.INVALID_EVENT, "the body has no fields")
        if len(fields) > most:
            detail = f"the body has {len(fields)} fields, over {most}"
            raise _Fault(Refusal.TOO_MANY_ATTRIBUTES, detail)
        self.value(body, "the body")
        for field in fields:
            _must_be_printable(field.key, "a key in the body")  # it is a column name
            if (kind := field.value.WhichOneof("value")) not in _CELLS:
                is_ = _TYPES.get(str(kind), "of an unknown type")
                detail = f"field {field.key[:64]!r} is {is_}, not text, a number or a boolean"
                raise _Fault(Refusal.INVALID_EVENT, detail)

    def _check_name(self, name: str, owner: str) -> None:
        most = self._limits.max_name_chars
        if len(name) > most:
            raise _Fault(Refusal.INVALID_NAME, f"{owner} is over {most} characters")
        _must_be_printable(name, owner)

    def _check_text(self, text: str, owner: str) -> None:
        most = self._limits.max_event_text_bytes
        # A character has up to four bytes; few texts are long enough to be counted.
        if len(text) * 4 > most and (n_bytes := len(text.encode())) > most:
            detail = f"{owner} has a text of {n_bytes} bytes, over {most}"
            raise _Fault(Refusal.EVENT_TOO_LARGE, detail)

    def _check_keys(self, pairs: Iterable[KeyValue], owner: str) -> None:
        most = self._limits.max_attribute_key_bytes
        seen: set[str] = set()
        for pair in pairs:
            key = pair.key
            if len(key.encode()) > most:
                detail = f"key {key[:64]!r} in {owner} is over {most} bytes"
                raise _Fault(Refusal.INVALID_NAME, detail)
            _must_not_be_blank(key, f"a key in {owner}")
            if key in seen:
                raise _Fault(Refusal.INVALID_NAME, f"key {key[:64]!r} in {owner} is given twice")
            seen.add(key)


def _must_be(kind: str, value: AnyValue, owner: str) -> None:
    sent = value.WhichOneof("value")
    if sent != kind:
        is_ = _TYPES.get(str(sent), "empty")
        raise _Fault(Refusal.INVALID_EVENT, f"{owner} is {is_}, not {_TYPES[kind]}")


def _must_not_be_blank(name: str, owner: str) -> None:
    if not name.strip():
        raise _Fault(Refusal.INVALID_NAME, f"{owner} is empty")


def _must_be_printable(name: str, owner: str) -> None:
    _must_not_be_blank(name, owner)
    if not name.isprintable():
        raise _Fault(Refusal.INVALID_NAME, f"{owner} has control characters")


def _experiment_start(event: _Event) -> None:
    for key in (names.RL_EXPERIMENT_CONFIG, names.RL_EXPERIMENT_CONFIG_DEFAULTS):
        config = event.get(key, "kvlist_value")
        if config is not None:
            event.value(config, key)
    event.text(names.RL_EXPERIMENT_NOTES)
    for key in (
        names.RL_EXPERIMENT_GROUP,
        names.RL_EXPERIMENT_JOB_TYPE,
        names.RL_EXPERIMENT_PROJECT,
        names.RL_EXPERIMENT_ENTITY,
        names.RL_EXPERIMENT_DISPLAY_NAME,
        names.RL_EXPERIMENT_MODE,
    ):
        event.name(key)
    event.text(names.RL_TRACKER_WANDB_RUN_PATH)
    event.words(names.RL_EXPERIMENT_TAGS)


def _experiment_end(event: _Event) -> None:
    event.one_of(names.RL_EXPERIMENT_STATUS, names.RlExperimentStatusValues)


def _worker_start(event: _Event) -> None:
    event.texts(names.PROCESS_COMMAND_ARGS)
    event.texts(names.RL_WORKER_PACKAGES)
    for key in (
        names.PROCESS_EXECUTABLE_PATH,
        names.PROCESS_RUNTIME_VERSION,
        names.OS_DESCRIPTION,
        names.VCS_REF_HEAD_REVISION,
        names.VCS_REPOSITORY_URL_FULL,
        names.RL_WORKER_DIFF,
    ):
        event.text(key)


def _worker_console(event: _Event) -> None:
    event.name(names.LOG_IOSTREAM)
    event.body_text()


def _worker_error(event: _Event) -> None:
    event.get(names.ERROR_TYPE, "string_value", required=True)
    event.text(names.ERROR_TYPE)
    event.text(names.EXCEPTION_MESSAGE)
    event.get(names.RL_LOOP_ITERATION, "int_value", required=True)


def _worker_end(event: _Event) -> None:
    event.one_of(names.RL_WORKER_STATUS, names.RlWorkerStatusValues)
    event.text(names.ERROR_TYPE)
    event.text(names.EXCEPTION_MESSAGE)
    event.get(names.RL_LOOP_ITERATION, "int_value")


def _worker_stack(event: _Event) -> None:
    event.get(names.RL_LOOP_ITERATION, "int_value")
    event.cells()


def _rollout_progress(event: _Event) -> None:
    event.get(names.RL_LOOP_ITERATION, "int_value")
    event.cells()


def _rollout_sample(event: _Event) -> None:
    event.get(names.RL_LOOP_ITERATION, "int_value")
    event.name(names.RL_SAMPLE_TABLE)
    event.cells()


_CHECKS: Mapping[str, Callable[[_Event], None]] = {
    names.RL_EXPERIMENT_START: _experiment_start,
    names.RL_EXPERIMENT_END: _experiment_end,
    names.RL_WORKER_START: _worker_start,
    names.RL_WORKER_CONSOLE: _worker_console,
    names.RL_WORKER_ERROR: _worker_error,
    names.RL_WORKER_END: _worker_end,
    names.RL_WORKER_STACK: _worker_stack,
    names.RL_ROLLOUT_PROGRESS: _rollout_progress,
    names.RL_ROLLOUT_SAMPLE: _rollout_sample,
}
