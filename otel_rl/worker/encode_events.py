"""Events to OTLP bytes: a log record with a name for each.

Field numbers are those of opentelemetry/proto/logs/v1/logs.proto:

    ExportLogsServiceRequest { resource_logs = 1 }
    ResourceLogs { resource = 1, scope_logs = 2, schema_url = 3 }
    ScopeLogs { scope = 1, log_records = 2 }
    LogRecord { time = 1, body = 5, attributes = 6, event_name = 12 }
"""

import struct
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from otel_rl import __version__
from otel_rl.records import Signal
from otel_rl.semconv.names import RL_WORKER_END
from otel_rl.worker import wire
from otel_rl.worker.encode import MAX_REQUEST_BYTES, Request
from otel_rl.worker.plain import Plain

__all__ = ["Event", "Record", "encode_event", "event_requests"]

SCOPE_NAME: Final = "otel_rl"
_SCOPE: Final = wire.field(
    1, wire.field(1, SCOPE_NAME.encode()) + wire.field(2, __version__.encode())
)
_TIME = struct.Struct("<BQ").pack
_NESTING_BYTES: Final = 16
"""Tags and lengths of a record's parents."""


@dataclass(frozen=True, slots=True)
class Event:
    """Something that is said once.

    Attributes:
        name: Of ``names.EVENTS``.
        time_ns: When.
        attributes: About it.
        body: What it consists of, in this order; None if its attributes say it all.
    """

    name: str
    time_ns: int
    attributes: Mapping[str, Plain]
    body: Mapping[str, object] | None = None

    @property
    def says_something(self) -> bool:
        """Whether anything that a program has said is lost with it."""
        return bool(self.attributes or self.body) and self.name != RL_WORKER_END


@dataclass(frozen=True, slots=True)
class Record:
    """An event as it stands on the wire.

    Attributes:
        encoded: From ``encode_event``.
        says_something: As of the event.
    """

    encoded: bytes
    says_something: bool


def encode_event(event: Event) -> bytes:
    """A ``LogRecord`` in the field that ``ScopeLogs`` has for it."""
    record = _TIME(0x09, event.time_ns)
    if event.body is not None:
        pairs = (wire.field(1, wire.key_value(key, value)) for key, value in event.body.items())
        record += wire.field(5, wire.field(6, b"".join(pairs)))  # AnyValue.kvlist_value
    record += wire.attributes(6, event.attributes)
    return wire.field(2, record + wire.field(12, event.name.encode()))


def event_requests(
    resource: bytes, records: Iterable[Record], *, max_request_bytes: int = MAX_REQUEST_BYTES
) -> list[Request]:
    """Records in as many requests as the size limit needs, in order.

    Args:
        resource: From ``encode_resource``.
        records: Each much smaller than a request.
        max_request_bytes: No request is larger.
    """
    pages: list[list[Record]] = []
    room = 0
    for record in records:
        if not pages or len(record.encoded) > room:
            pages.append([])
            room = max_request_bytes - len(resource) - len(_SCOPE) - _NESTING_BYTES
        pages[-1].append(record)
        room -= len(record.encoded)
    return [_request(resource, page) for page in pages]


def _request(resource: bytes, records: Sequence[Record]) -> Request:
    scope = wire.field(2, _SCOPE + b"".join(record.encoded for record in records))
    lost = sum(record.says_something for record in records)
    return Request(wire.field(1, resource + scope), lost, Signal.LOGS)
