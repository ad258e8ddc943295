"""Parses OTLP/JSON into protobuf messages.

OTLP/JSON is the JSON mapping of protobuf with four changes: trace and span ids are hexadecimal
(protobuf's own ``json_format`` reads them as base64, into other ids), enums are numbers, keys are
lowerCamelCase only, and unknown keys are ignored.
https://opentelemetry.io/docs/specs/otlp/#json-protobuf-encoding

JavaScript writes NaN and infinities as null. So a measurement that is null is read as NaN; null
means an absent value everywhere else, as in protobuf's mapping.
"""

import binascii
import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache, partial

import orjson
from google.protobuf.descriptor import Descriptor, EnumDescriptor, FieldDescriptor
from google.protobuf.message import Message

from otel_rl.bridge.receive.signal_specs import SIGNALS, ExportRequest
from otel_rl.bridge.receive.wire import SMALLER_BATCHES
from otel_rl.errors import MalformedRequest, RequestTooLarge
from otel_rl.signals import Signal

Json = dict[str, "Json"] | list["Json"] | str | int | float | bool | None
Scalar = str | bytes | int | float | bool

MAX_DEPTH = 100  # nested messages; the limit of protobuf's own parsers

# A Python object for each takes about as much memory as a protobuf message.
_MEMBERS_PER_OBJECT = 4

_ID_BYTES = {"trace_id": 16, "span_id": 8, "parent_span_id": 8}

_MAX_EXACT_FLOAT = 2.0**53  # above it a number with a point or exponent does not name one integer

_INTEGER = re.compile(r"-?[0-9]{1,20}")
_NUMBER = re.compile(r"-?[0-9]{1,400}(\.[0-9]{1,400})?([eE][+-]?[0-9]{1,4})?")
_MEASUREMENT = "as_double"
_NOT_FINITE = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}


def parse_json(signal: Signal, payload: bytes, *, max_objects: int) -> ExportRequest:
    """Parse a JSON request.

    Args:
        payload: JSON in UTF-8.
        max_objects: Bound on objects and arrays at every depth, checked before any is created.
            Members and elements are held to a multiple of this bound.

    Raises:
        MalformedRequest: The payload is not a request of this signal. The error names the faulty
            path.
        RequestTooLarge: The payload holds too many objects or members.
    """
    _check_object_count(payload, max_objects)
    request = SIGNALS[signal].request()
    _fill(request, _json_of(payload), "$", MAX_DEPTH)
    return request


def _json_of(payload: bytes) -> Json:
    try:
        # orjson refuses input that is not JSON: NaN as a literal, lone surrogates, bad UTF-8,
        # numbers beyond a double, more than 1,024 levels.
        value: Json = orjson.loads(payload)
    except orjson.JSONDecodeError as exc:
        raise MalformedRequest(f"The body is not JSON: {exc}.") from exc
    return value


def _check_object_count(payload: bytes, max_objects: int) -> None:
    """Refuse a payload with too many objects, at a fraction of the cost of parsing it."""
    # Also counts brackets and commas in strings, which are few beside the bound.
    max_members = max_objects * _MEMBERS_PER_OBJECT
    objects, members = payload.count(b"{") + payload.count(b"["), payload.count(b",")
    if objects > max_objects or members > max_members:
        msg = f"The request holds more than {max_objects} objects or {max_members} values."
        raise RequestTooLarge(msg, hint=SMALLER_BATCHES)


@dataclass(frozen=True, slots=True)
class _Field:
    name: str
    is_repeated: bool
    message: Descriptor | None
    oneof: str
    scalar: Callable[[Json], Scalar]


def _fill(message: Message, value: Json, path: str, depth: int) -> None:
    if not isinstance(value, dict):
        raise MalformedRequest(f"{path} must be an object.")
    if depth == 0:
        raise MalformedRequest(f"{path[:200]} is nested deeper than {MAX_DEPTH} levels.")
    fields = _fields(message.DESCRIPTOR.full_name, message.DESCRIPTOR)
    is_nan = False
    for key, member in value.items():
        field = fields.get(key)
        if field is None:
            continue
        if member is None:
            is_nan |= field.name == _MEASUREMENT
            continue
        where = f"{path}.{key}"
        if field.oneof and message.WhichOneof(field.oneof) is not None:
            raise MalformedRequest(f"{where} is a second value where only one can be.")
        if field.is_repeated:
            _extend(message, field, member, where, depth)
        elif field.message is not None:
            child: Message = getattr(message, field.name)
            child.SetInParent()
            _fill(child, member, where, depth - 1)
        else:
            _set(message, field, member, where)
    if is_nan and message.WhichOneof("value") is None:
        setattr(message, _MEASUREMENT, math.nan)


def _extend(message: Message, field: _Field, value: Json, path: str, depth: int) -> None:
    if not isinstance(value, list):
        raise MalformedRequest(f"{path} must be an array.")
    container = getattr(message, field.name)
    for i, element in enumerate(value):
        where = f"{path}[{i}]"
        if field.message is not None:
            _fill(container.add(), element, where, depth - 1)
            continue
        try:
            container.append(field.scalar(element))
        except ValueError as exc:
            raise MalformedRequest(f"{where}: {exc}.") from exc


def _set(message: Message, field: _Field, value: Json, path: str) -> None:
    try:
        setattr(message, field.name, field.scalar(value))
    except ValueError as exc:  # protobuf's, too, for an integer out of range
        raise MalformedRequest(f"{path}: {exc}.") from exc


@cache
def _fields(_full_name: str, descriptor: Descriptor) -> Mapping[str, _Field]:
    return {
        field.json_name: _Field(
            name=field.name,
            is_repeated=field.is_repeated,
            message=field.message_type,
            oneof=field.containing_oneof.name if field.containing_oneof is not None else "",
            scalar=_scalar(field),
        )
        for field in descriptor.fields
    }


def _scalar(field: FieldDescriptor) -> Callable[[Json], Scalar]:
    if field.name in _ID_BYTES and field.type == FieldDescriptor.TYPE_BYTES:
        return partial(_id, _ID_BYTES[field.name])
    if field.enum_type is not None:
        return partial(_enum, field.enum_type)
    return _SCALARS.get(field.cpp_type, _integer) if field.type != _BYTES else _bytes


def _id(n_bytes: int, value: Json) -> bytes:
    if not isinstance(value, str) or not _HEX.fullmatch(value):
        raise ValueError("must be hexadecimal digits")
    if value and len(value) != 2 * n_bytes:
        raise ValueError(f"must be {2 * n_bytes} hexadecimal digits, has {len(value)}")
    return bytes.fromhex(value)


def _enum(enum: EnumDescriptor, value: Json) -> int:
    # OTLP forbids names here; the Collector accepts them, so some senders use them.
    if isinstance(value, str) and value in enum.values_by_name:
        return enum.values_by_name[value].number
    return _integer(value)


def _integer(value: Json) -> int:
    if isinstance(value, str) and _INTEGER.fullmatch(value):
        return int(value)
    if isinstance(value, float) and value.is_integer() and abs(value) <= _MAX_EXACT_FLOAT:
        return int(value)
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    raise ValueError("must be an integer, as a number or a string")


def _double(value: Json) -> float:
    if isinstance(value, str):
        if value in _NOT_FINITE:
            return _NOT_FINITE[value]
        if _NUMBER.fullmatch(value) and math.isfinite(number := float(value)):
            return number
    elif isinstance(value, int | float) and not isinstance(value, bool):
        return float(value)
    raise ValueError('must be a number, "NaN", "Infinity" or "-Infinity"')


def _bool(value: Json) -> bool:
    if not isinstance(value, bool):
        raise ValueError("must be true or false")
    return value


def _string(value: Json) -> str:
    if not isinstance(value, str):
        raise ValueError("must be a string")
    return value


def _bytes(value: Json) -> bytes:
    if not isinstance(value, str):
        raise ValueError("must be a base64 string")
    # The JSON mapping allows both alphabets, with or without padding.
    padded = value.rstrip("=").translate(_URL_SAFE)
    padded += "=" * (-len(padded) % 4)
    try:
        return binascii.a2b_base64(padded, strict_mode=True)
    except ValueError as exc:
        raise ValueError(f"must be a base64 string: {exc}") from exc


_HEX = re.compile("[0-9a-fA-F]*")
_URL_SAFE = str.maketrans("-_", "+/")
_BYTES = FieldDescriptor.TYPE_BYTES
_SCALARS: Mapping[int, Callable[[Json], Scalar]] = {
    FieldDescriptor.CPPTYPE_DOUBLE: _double,
    FieldDescriptor.CPPTYPE_FLOAT: _double,
    FieldDescriptor.CPPTYPE_BOOL: _bool,
    FieldDescriptor.CPPTYPE_STRING: _string,
}
