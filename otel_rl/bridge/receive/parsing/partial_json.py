"""Recovers the readable resources of a malformed OTLP/JSON request, as ``partial_parse`` does.

A text that is not Unicode, or a number that JSON does not have, damages one resource only: such a
body is read once more, by a parser that takes them.
"""

import json
import math
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass

from google.protobuf.descriptor import Descriptor, FieldDescriptor
from opentelemetry.proto.resource.v1.resource_pb2 import Resource

from otel_rl.bridge.otlp.attributes import experiment_of
from otel_rl.bridge.receive.parsing.otlp_json import (
    MAX_DEPTH,
    Json,
    check_object_count,
    fill,
    json_of,
)
from otel_rl.bridge.receive.parsing.partial_parse import UnreadablePart
from otel_rl.bridge.receive.signal_specs import ExportRequest, SignalSpec
from otel_rl.errors import MalformedRequest
from otel_rl.records import ExperimentKey

__all__ = ["PartialJson", "parse_json_partially"]

_MAX_REREAD_BYTES = 4 << 20  # the second parser holds the body as text, 4 bytes a character

_ITEM_DEPTH = 5  # resource, scope, metric, data, point

_INT64_DIGITS = 20  # with the sign; longer ones are floats, as in orjson


@dataclass(frozen=True, slots=True)
class PartialJson:
    """Request in JSON without its unreadable parts.

    Attributes:
        request: The readable rest.
        unreadable: The unreadable parts.
    """

    request: ExportRequest
    unreadable: Sequence[UnreadablePart]


def parse_json_partially(spec: SignalSpec, payload: bytes, *, max_objects: int) -> PartialJson:
    """Parse a request in JSON, without the resources that are malformed.

    Args:
        spec: Specification of the signal.
        payload: The request.
        max_objects: See ``parse_json``.

    Raises:
        MalformedRequest: Nothing is readable, or the parts cannot be separated. Names the first
            faulty path.
        RequestTooLarge: It holds too many objects or values.
    """
    check_object_count(payload, max_objects=max_objects)
    not_json: MalformedRequest | None = None
    try:
        value = json_of(payload)
    except MalformedRequest as exc:
        not_json = exc
        value = _read_again(payload, exc)
    request, resources = spec.request(), spec.request.DESCRIPTOR.fields_by_name[spec.resources]
    parts = value.get(resources.json_name) if isinstance(value, dict) else None
    if not isinstance(parts, list):
        fill(request, value, "$", MAX_DEPTH)  # nothing, or an error that names the place
        parts = []
    first_fault, unreadable = not_json, []
    for i, part in enumerate(parts):
        readable = getattr(request, spec.resources).add()
        try:
            fill(readable, part, f"$.{resources.json_name}[{i}]", MAX_DEPTH - 1)
        except MalformedRequest as exc:
            del getattr(request, spec.resources)[-1]
            first_fault = first_fault or exc
            unreadable.append(_unreadable(spec, resources, part, str(exc).removesuffix(".")))
    if first_fault is not None and (not unreadable or _is_nothing_left(request, spec, unreadable)):
        raise first_fault
    return PartialJson(request, unreadable)


def _is_nothing_left(
    request: ExportRequest, spec: SignalSpec, unreadable: Iterable[UnreadablePart]
) -> bool:
    return not getattr(request, spec.resources) and all(part.is_wanted for part in unreadable)


def _read_again(payload: bytes, error: MalformedRequest) -> Json:
    """Parse a body that is not JSON only for its texts and numbers.

    Such a text has lone surrogates, and such a number is an object of no type: no field takes them.
    """
    if len(payload) > _MAX_REREAD_BYTES:
        raise error
    try:
        value: Json = json.loads(
            payload.decode(errors="surrogateescape"),
            parse_constant=lambda _: _NO_NUMBER,
            parse_float=_float,
            parse_int=_int,
        )
    except (ValueError, RecursionError):
        raise error from None
    return value


_NO_NUMBER = object()


def _float(written: str) -> object:
    return number if math.isfinite(number := float(written)) else _NO_NUMBER


def _int(digits: str) -> object:
    return int(digits) if len(digits) <= _INT64_DIGITS else _float(digits)


def _unreadable(
    spec: SignalSpec, resources: FieldDescriptor, part: Json, fault: str
) -> UnreadablePart:
    items = max(1, _count(part, resources.message_type, spec.item_types, _ITEM_DEPTH))
    is_wanted = not spec.markers or any(
        marker.decode() in text for text in _texts(part) for marker in spec.markers
    )
    return UnreadablePart(items, _experiment(part), is_wanted, fault)


def _count(value: Json, descriptor: Descriptor | None, types: Collection[str], depth: int) -> int:
    """Count the messages of ``types`` within a message, as far as it can be walked."""
    if not isinstance(value, dict) or descriptor is None or not depth:
        return 0
    found = 0
    for field in descriptor.fields:
        members = value.get(field.json_name)
        if field.message_type is None or members is None:
            continue
        elements = members if isinstance(members, list) else [members]
        if field.message_type.full_name in types:
            found += len(elements)
        else:
            found += sum(_count(e, field.message_type, types, depth - 1) for e in elements)
    return found


def _texts(value: Json) -> Iterable[str]:
    waiting = [value]
    while waiting:
        match waiting.pop():
            case str() as text:
                yield text
            case dict() as members:
                waiting.extend(members.values())
            case list() as elements:
                waiting.extend(elements)


def _experiment(part: Json) -> ExperimentKey | None:
    resource = Resource()
    try:
        fill(resource, part.get("resource") if isinstance(part, dict) else None, "", MAX_DEPTH - 2)
    except MalformedRequest:
        return None
    return experiment_of(resource.attributes)
