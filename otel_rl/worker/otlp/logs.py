"""Encodes events as OTLP log records with an event name.

Field numbers are those of opentelemetry/proto/logs/v1/logs.proto:

    LogRecord { time = 1, body = 5, attributes = 6, trace_id = 9, span_id = 10, event_name = 12 }
"""

import struct
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from otel_rl.semconv.names import RL_WORKER_END
from otel_rl.signals import Signal
from otel_rl.version import __version__
from otel_rl.worker.drops import DropReason
from otel_rl.worker.guard import Guard
from otel_rl.worker.otlp import protobuf
from otel_rl.worker.otlp.anyvalue import Plain
from otel_rl.worker.otlp.request_packer import MAX_REQUEST_BYTES, Request, RequestPacker

__all__ = ["Event", "Record", "encode_event", "event_requests"]

SCOPE_NAME: Final = "otel_rl"
_SCOPE: Final = protobuf.field(
    1, protobuf.field(1, SCOPE_NAME.encode()) + protobuf.field(2, __version__.encode())
)
_TIME = struct.Struct("<BQ").pack


@dataclass(frozen=True, slots=True)
class Event:
    """Event of a run, reported once.

    Attributes:
        name: One of ``names.EVENTS``.
        time_ns: Time of the event.
        attributes: Of the event.
        body: Content, a text or fields in this order; None if the attributes hold everything.
        span: Trace id and span id of the span in which it happened; None without one.
    """

    name: str
    time_ns: int
    attributes: Mapping[str, Plain]
    body: Mapping[str, object] | str | None = None
    span: tuple[int, int] | None = None

    @property
    def carries_data(self) -> bool:
        """True if the loss of the event would lose data of the program."""
        return bool(self.attributes or self.body) and self.name != RL_WORKER_END


@dataclass(frozen=True, slots=True)
class Record:
    """Encoded event.

    Attributes:
        encoded: From ``encode_event``.
        carries_data: See ``Event``.
    """

    encoded: bytes
    carries_data: bool


def encode_event(event: Event) -> bytes:
    """Encode a ``LogRecord`` as the field of ``ScopeLogs``."""
    record = _TIME(0x09, event.time_ns)
    if isinstance(event.body, str):
        text = event.body.encode("utf-8", "backslashreplace")
        record += protobuf.field(5, protobuf.field(1, text))  # AnyValue.string_value
    elif event.body is not None:
        pairs = (
            protobuf.field(1, protobuf.key_value(key, value)) for key, value in event.body.items()
        )
        record += protobuf.field(5, protobuf.field(6, b"".join(pairs)))  # AnyValue.kvlist_value
    record += protobuf.attributes(6, event.attributes)
    if event.span is not None:
        trace_id, span_id = event.span
        record += protobuf.field(9, trace_id.to_bytes(16)) + protobuf.field(10, span_id.to_bytes(8))
    return protobuf.field(2, record + protobuf.field(12, event.name.encode()))


def event_requests(
    resource: bytes,
    records: Iterable[Record],
    guard: Guard,
    *,
    max_request_bytes: int = MAX_REQUEST_BYTES,
) -> list[Request]:
    """Pack records into as many requests as the size limit needs, in order.

    Args:
        resource: From ``encode_resource``.
        records: Each much smaller than a request.
        guard: Counts those that no request can hold.
        max_request_bytes: Size limit of a request.
    """
    packer = RequestPacker(resource, Signal.LOGS, max_request_bytes)
    for record in records:
        encoded = record.encoded
        if not packer.add(_SCOPE, (encoded,), len(encoded), record.carries_data):
            guard.drop(DropReason.TOO_LARGE, "An event alone is larger than a request may be.")
    return packer.requests()
