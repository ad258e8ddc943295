"""Attribute values as text, as steps and as JSON. Pure."""

import base64
import json
from collections.abc import Iterable

from opentelemetry.proto.common.v1.common_pb2 import AnyValue, KeyValue
from opentelemetry.proto.logs.v1.logs_pb2 import LogRecord

from otel_rl.records import ExperimentKey, Value
from otel_rl.semconv import names
from otel_rl.semconv.foreign import own_identity

_INT64 = range(-(1 << 63), 1 << 63)


def text(value: AnyValue) -> str:
    """Return the value as part of a series' identity: each value has one spelling."""
    match value.WhichOneof("value"):
        case "string_value":
            return value.string_value
        case "bool_value":
            return "true" if value.bool_value else "false"
        case "int_value":
            return str(value.int_value)
        case "double_value":
            return repr(value.double_value)
        case "array_value":
            return ",".join(text(item) for item in value.array_value.values)
        case "kvlist_value":
            return ",".join(f"{kv.key}={text(kv.value)}" for kv in value.kvlist_value.values)
        case "bytes_value":
            return value.bytes_value.hex()
    return ""


def text_pairs(attributes: Iterable[KeyValue]) -> tuple[tuple[str, str], ...]:
    """Return the attributes as text, sorted, so that equal sets compare and hash equal."""
    return tuple(sorted((attribute.key, text(attribute.value)) for attribute in attributes))


def typed_pairs(attributes: Iterable[KeyValue]) -> tuple[tuple[str, str], ...]:
    """Return the attributes that are not text, sorted and spelled unambiguously."""
    return tuple(
        sorted(
            (attribute.key, _spelled(attribute.value))
            for attribute in attributes
            if attribute.value.WhichOneof("value") != "string_value"
        )
    )


def _spelled(value: AnyValue) -> str:
    match value.WhichOneof("value"):
        case "string_value":
            return json.dumps(value.string_value)
        case "array_value":
            return f"[{','.join(map(_spelled, value.array_value.values))}]"
        case "kvlist_value":
            pairs = sorted((kv.key, _spelled(kv.value)) for kv in value.kvlist_value.values)
            return f"{{{','.join(f'{json.dumps(key)}:{spelled}' for key, spelled in pairs)}}}"
        case "bytes_value":
            return f"0x{value.bytes_value.hex()}"
        case None:
            return "null"
    return text(value)  # numbers and booleans are unambiguous


def plain(value: AnyValue) -> Value:
    """Return the value as JSON; bytes as base64."""
    match value.WhichOneof("value"):
        case "string_value":
            return value.string_value
        case "bool_value":
            return value.bool_value
        case "int_value":
            return value.int_value
        case "double_value":
            return value.double_value
        case "array_value":
            return [plain(item) for item in value.array_value.values]
        case "kvlist_value":
            return {kv.key: plain(kv.value) for kv in value.kvlist_value.values}
        case "bytes_value":
            return base64.b64encode(value.bytes_value).decode()
    return None


def event_name(record: LogRecord) -> str:
    """Return the event name of a log record; empty if it is no event."""
    if record.event_name:
        return record.event_name
    # Place of the name before the record had a field for it.
    return next((a.value.string_value for a in record.attributes if a.key == "event.name"), "")


def experiment_of(attributes: Iterable[KeyValue]) -> ExperimentKey | None:
    """Return the experiment and trial that a resource names; None if it names no experiment."""
    experiment = trial = ""
    for attribute in attributes:
        if attribute.key == names.RL_EXPERIMENT_NAME:
            experiment = attribute.value.string_value
        elif attribute.key == names.RL_TRIAL_NAME:
            trial = attribute.value.string_value
    if not experiment:
        return None
    return ExperimentKey(experiment, trial) if trial else ExperimentKey(experiment)


def team_of(attributes: Iterable[KeyValue]) -> str:
    """Return the team that a resource names; empty if it names none."""
    named = (one.value.string_value for one in attributes if one.key == names.OTEL_RL_TEAM)
    return next(named, "")


def run_of_program(attributes: Iterable[KeyValue]) -> dict[str, str]:
    """Return experiment and trial by a known program's own attributes; empty if there are none."""
    identity = own_identity(dict(text_pairs(attributes)))
    return {
        name: identity[name]
        for name in (names.RL_EXPERIMENT_NAME, names.RL_TRIAL_NAME)
        if name in identity
    }


def integer(written: str | None) -> int | None:
    """Parse an integer, also one written as a float; None unless it has at most 64 bits."""
    if written is None:
        return None
    try:
        number = float(written) if "." in written else int(written)
        value = int(number)
    except (ValueError, OverflowError):
        return None
    # The values of step 5.5 are not those of step 5.
    return value if value == number and value in _INT64 else None


def step_of(attributes: Iterable[KeyValue]) -> int | None:
    for attribute in attributes:
        if attribute.key == names.RL_LOOP_ITERATION:
            value = attribute.value
            # Fast path: nearly every step is an integer, and every measurement has one.
            return value.int_value or integer(text(value))
    return None
