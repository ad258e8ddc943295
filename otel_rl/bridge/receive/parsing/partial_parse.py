"""Recovers the readable resources of a malformed request.

A collector joins requests of many processes. One text that is not UTF-8, or one value nested too
deep, would cost all of them their data: a collector drops a batch that is answered with 400. So
each resource of such a request is parsed by itself.
"""

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass

from google.protobuf.message import DecodeError
from opentelemetry.proto.resource.v1.resource_pb2 import Resource

from otel_rl.bridge.otlp.attributes import experiment_of, team_of
from otel_rl.bridge.receive.parsing.preparse import (
    SMALLER_BATCHES,
    check_message_count,
    fields,
    messages_in,
)
from otel_rl.bridge.receive.signal_specs import SignalSpec
from otel_rl.errors import MalformedRequest, RequestTooLarge
from otel_rl.records import ExperimentKey

_FIRST = 1  # field number of resources in a request, and of the resource in such a part


@dataclass(frozen=True, slots=True)
class UnreadablePart:
    """Unreadable part of a request, for one resource.

    Attributes:
        items: Number of points, spans or log records, as far as they can be counted; at least one.
        experiment: Experiment of the resource, if it can be read.
        team: Team that the resource names, if it can be read; else empty.
        is_wanted: Whether the part may hold anything that the bridge would keep.
    """

    items: int
    experiment: ExperimentKey | None
    team: str
    is_wanted: bool


@dataclass(frozen=True, slots=True)
class PartialRequest:
    """A request without its unreadable parts.

    Attributes:
        payload: The readable rest.
        unreadable: The unreadable parts, at least one.
    """

    payload: bytes
    unreadable: Sequence[UnreadablePart]


def parse_partially(
    spec: SignalSpec, payload: bytes, max_messages: int, max_parts: int
) -> PartialRequest | None:
    """Split a malformed request into its readable and unreadable parts.

    Returns:
        None if nothing is readable, or the parts cannot be separated, as in a truncated request.

    Raises:
        RequestTooLarge: The request has too many parts.
    """
    readable: list[bytes] = []
    unreadable: list[UnreadablePart] = []
    is_wanted = False
    try:
        for number, start, content, end in fields(payload):
            part = payload[start:end]
            if len(readable) + len(unreadable) == max_parts:
                raise RequestTooLarge(
                    f"The request has more than {max_parts} parts.", hint=SMALLER_BATCHES
                )
            if number != _FIRST or _can_be_read(spec, part, max_messages):
                readable.append(part)
                is_wanted |= number == _FIRST
            else:
                unreadable.append(_unreadable(spec, part, payload[content:end]))
    except MalformedRequest:
        return None
    is_worth_it = is_wanted or not all(part.is_wanted for part in unreadable)
    return PartialRequest(b"".join(readable), unreadable) if unreadable and is_worth_it else None


def _can_be_read(spec: SignalSpec, part: bytes, max_messages: int) -> bool:
    try:
        check_message_count(part, spec.request.DESCRIPTOR, max_messages)
        spec.request.FromString(part)
    except (DecodeError, MalformedRequest, RequestTooLarge):
        return False
    return True


def _unreadable(spec: SignalSpec, part: bytes, content: bytes) -> UnreadablePart:
    items = 0
    with suppress(MalformedRequest):
        for kind in messages_in(part, spec.request.DESCRIPTOR):
            items += kind is not None and kind.full_name in spec.item_types
    is_wanted = not spec.markers or any(marker in part for marker in spec.markers)
    resource = _resource(content)
    return UnreadablePart(
        max(1, items), experiment_of(resource.attributes), team_of(resource.attributes), is_wanted
    )


def _resource(content: bytes) -> Resource:
    """Return the resource of a part; an empty one if it cannot be read."""
    try:
        for number, _, start, end in fields(content):
            if number == _FIRST:
                return Resource.FromString(content[start:end])
    except (DecodeError, MalformedRequest):
        pass
    return Resource()
