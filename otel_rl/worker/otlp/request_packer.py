"""Packs encoded points, spans and events into requests within the size limit.

The three export requests of OTLP have one shape, and these field numbers:

    Export...ServiceRequest { resource_... = 1 }
    Resource... { resource = 1, scope_... = 2, schema_url = 3 }
    Scope... { scope = 1, items = 2, schema_url = 3 }

Each request repeats the resource and the scopes of its items.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.util.instrumentation import InstrumentationScope

from otel_rl.signals import Signal
from otel_rl.worker.otlp import protobuf

__all__ = [
    "MAX_REQUEST_BYTES",
    "Request",
    "RequestPacker",
    "encode_bare_scope",
    "encode_resource",
    "encode_scope",
]

MAX_REQUEST_BYTES: Final = 3 << 20
"""gRPC servers refuse messages over 4 MiB by default; the rest is room for a collector's edits."""

_HEAD_BYTES: Final = 6
"""Upper bound of the tag and length of a message that holds others."""


@dataclass(frozen=True, slots=True)
class Request:
    """Serialized ``Export{Metrics,Logs,Trace}ServiceRequest``.

    Attributes:
        payload: Uncompressed protobuf.
        measurements: Number of measurements, events or spans that are lost with it.
        signal: Signal of the three.
    """

    payload: bytes
    measurements: int
    signal: Signal = Signal.METRICS


class RequestPacker:
    """Packs items of one resource, in order. Use it once: ``add``, then ``requests``. One thread.

    Args:
        resource: From ``encode_resource``.
        signal: Signal of the items.
        max_request_bytes: Size limit of a request.
    """

    def __init__(
        self, resource: bytes, signal: Signal, max_request_bytes: int = MAX_REQUEST_BYTES
    ) -> None:
        self._resource = resource
        self._signal = signal
        self._room_bytes = max_request_bytes - len(resource) - _HEAD_BYTES
        self._closed: list[Request] = []
        self._open()

    def _open(self) -> None:
        # Pieces of the items by scope.
        self._scopes: dict[bytes, list[bytes]] = {}
        self._free_bytes = self._room_bytes
        self._measurements = 0

    @property
    def has_items(self) -> bool:
        """Report whether an item was added."""
        return bool(self._scopes or self._closed)

    def add(
        self, scope: bytes, item: Sequence[bytes], item_bytes: int, measurements: int = 1
    ) -> bool:
        """Add an item to the last request, or to a new one.

        Args:
            scope: From ``encode_scope``; fastest if equal scopes are the same object.
            item: Encoded field ``items``, in pieces.
            item_bytes: Length of all pieces.
            measurements: See ``Request``.

        Returns:
            False if no request can hold the item. It is not added.
        """
        pieces = self._scopes.get(scope)
        if pieces is None or item_bytes > self._free_bytes:
            pieces = self._begin_scope(scope, item_bytes)
            if pieces is None:
                return False
        pieces += item
        self._free_bytes -= item_bytes
        self._measurements += measurements
        return True

    def _begin_scope(self, scope: bytes, item_bytes: int) -> list[bytes] | None:
        head_bytes = len(scope) + _HEAD_BYTES
        if head_bytes + item_bytes > self._room_bytes:
            return None
        if head_bytes + item_bytes > self._free_bytes:
            self._close()
        self._free_bytes -= head_bytes
        pieces = self._scopes[scope] = []
        return pieces

    def requests(self) -> list[Request]:
        """Return the requests, in the order of their items."""
        if self._scopes:
            self._close()
        return self._closed

    def _close(self) -> None:
        parts = [self._resource]
        all_bytes = len(self._resource)
        for scope, pieces in self._scopes.items():
            scope_bytes = len(scope) + sum(map(len, pieces))
            head = protobuf.head(2, scope_bytes)
            all_bytes += len(head) + scope_bytes
            parts += (head, scope)
            parts += pieces
        # One join of everything: copying whole levels costs more than encoding them.
        payload = b"".join((protobuf.head(1, all_bytes), *parts))
        self._closed.append(Request(payload, self._measurements, self._signal))
        self._open()


def encode_resource(resource: Resource) -> bytes:
    """Encode the resource and schema URL that all items share."""
    encoded = protobuf.field(1, protobuf.attributes(1, resource.attributes))
    if resource.schema_url:
        encoded += protobuf.field(3, resource.schema_url.encode())
    return encoded


def encode_scope(scope: InstrumentationScope) -> bytes:
    """Encode the scope and schema URL of items."""
    encoded = encode_bare_scope(scope)
    if scope.schema_url:
        encoded += protobuf.field(3, protobuf.utf8(scope.schema_url))
    return encoded


def encode_bare_scope(scope: InstrumentationScope) -> bytes:
    """Encode ``InstrumentationScope`` as the field of items, without the schema URL."""
    body = protobuf.field(1, protobuf.utf8(scope.name))
    if scope.version:
        body += protobuf.field(2, protobuf.utf8(scope.version))
    return protobuf.field(1, body + protobuf.attributes(3, scope.attributes or {}))
