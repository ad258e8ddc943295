"""Encodes events as OTLP log records with an event name."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from opentelemetry.proto.common.v1.common_pb2 import AnyValue, KeyValueList
from opentelemetry.proto.logs.v1.logs_pb2 import LogRecord
from opentelemetry.sdk.util.instrumentation import InstrumentationScope

from otel_rl.semconv.names import LOG_RECORD_UID, RL_WORKER_END
from otel_rl.signals import Signal
from otel_rl.version import __version__
from otel_rl.worker.drops import DropReason
from otel_rl.worker.guard import Guard
from otel_rl.worker.otlp.anyvalue import Plain, attributes, key_value
from otel_rl.worker.otlp.requests import (
    MAX_REQUEST_BYTES,
    Request,
    RequestPacker,
    encode_scope,
)

__all__ = ["Event", "event_requests"]

_SCOPE: Final = encode_scope(InstrumentationScope("otel_rl", __version__)).head


@dataclass(frozen=True, slots=True)
class Event:
    """Event of a run, reported once.

    Attributes:
        name: One of ``names.EVENTS``.
        time_ns: Time of the event.
        attributes: Of the event.
        body: Content, a text or fields in this order; None if the attributes hold everything.
        span: Trace id and span id of the span in which it happened; None without one.
        uid: Identifies a repetition; empty until the event is sent.
    """

    name: str
    time_ns: int
    attributes: Mapping[str, Plain]
    body: Mapping[str, object] | str | None = None
    span: tuple[int, int] | None = None
    uid: str = ""

    @property
    def carries_data(self) -> bool:
        """True if the loss of the event would lose data of the program."""
        return bool(self.attributes or self.body) and self.name != RL_WORKER_END


def _encoded(event: Event) -> bytes:
    record = LogRecord(
        time_unix_nano=event.time_ns,
        attributes=attributes({**event.attributes, LOG_RECORD_UID: event.uid}),
        event_name=event.name,
    )
    if isinstance(event.body, str):
        text = event.body.encode("utf-8", "backslashreplace").decode()
        record.body.CopyFrom(AnyValue(string_value=text))
    elif event.body is not None:  # in the order of the program
        fields = KeyValueList(values=[key_value(*pair) for pair in event.body.items()])
        record.body.CopyFrom(AnyValue(kvlist_value=fields))
    if event.span is not None:
        trace_id, span_id = event.span
        record.trace_id, record.span_id = trace_id.to_bytes(16), span_id.to_bytes(8)
    encoded: bytes = record.SerializeToString()
    return encoded


def event_requests(
    resource: bytes,
    events: Iterable[Event],
    guard: Guard,
    *,
    max_request_bytes: int = MAX_REQUEST_BYTES,
) -> list[Request]:
    """Pack events into as many requests as the size limit needs, in order.

    Args:
        resource: From ``encode_resource``.
        events: Each much smaller than a request.
        guard: Counts those that no request can hold.
        max_request_bytes: Size limit of a request.
    """
    packer = RequestPacker(resource, Signal.LOGS, max_request_bytes)
    for event in events:
        if not packer.add(_SCOPE, _encoded(event), event.carries_data):
            guard.drop(DropReason.TOO_LARGE, "An event alone is larger than a request may be.")
    return packer.requests()
