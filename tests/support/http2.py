"""A client of gRPC that begins calls and leaves it at that: frames of HTTP/2, written by hand."""

import socket
import struct
from typing import Self

EXPORT = "/opentelemetry.proto.collector.metrics.v1.MetricsService/Export"

_PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
_DATA, _HEADERS, _RST_STREAM, _SETTINGS, _GOAWAY = 0, 1, 3, 4, 7
_END_HEADERS, _END_STREAM, _ACK = 4, 1, 1


class RawClient:
    """One connection. Its calls have the numbers 1, 3, 5, ...

    Args:
        address: ``host:port`` of the server.
        source: Address to come from; any of 127.0.0.0/8 is one.
        metadata: Of every call.
    """

    def __init__(
        self, address: str, source: str = "127.0.0.1", metadata: dict[str, str] | None = None
    ) -> None:
        host, _, port = address.rpartition(":")
        self._socket = socket.create_connection((host, int(port)), 10, (source, 0))
        self._metadata = metadata or {}
        self._next = 1
        self._socket.sendall(_PREFACE + _frame(_SETTINGS))

    def begin(self, calls: int = 1) -> None:
        """Send the headers of so many calls, and nothing after them."""
        block = _headers(self._metadata)
        frames = []
        for _ in range(calls):
            frames.append(_frame(_HEADERS, _END_HEADERS, self._next, block))
            self._next += 2
        self._socket.sendall(b"".join(frames))

    def send(self, call: int, data: bytes, *, ends: bool = False) -> None:
        """Send bytes of a call's message."""
        self._socket.sendall(_frame(_DATA, _END_STREAM if ends else 0, call, data))

    def await_settings(self) -> None:
        """Wait until the server has taken the connection."""
        while self._frame()[0] != _SETTINGS:
            pass

    def await_ends(self, calls: int) -> None:
        """Wait until so many calls were ended by the server."""
        ended: set[int] = set()
        while len(ended) < calls:
            kind, flags, stream = self._frame()
            if kind == _RST_STREAM or (kind == _HEADERS and flags & _END_STREAM):
                ended.add(stream)

    def close(self) -> None:
        """Close the connection."""
        self._socket.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _frame(self) -> tuple[int, int, int]:
        head = self._receive(9)
        kind, flags, stream = struct.unpack(">BBI", head[3:])
        self._receive(int.from_bytes(head[:3]))
        if kind == _SETTINGS and not flags & _ACK:
            self._socket.sendall(_frame(_SETTINGS, _ACK))
        return kind, flags, stream

    def _receive(self, n: int) -> bytes:
        received = b""
        while len(received) < n:
            chunk = self._socket.recv(n - len(received))
            if not chunk:
                raise ConnectionError("the server has closed the connection")
            received += chunk
        return received


def _frame(kind: int, flags: int = 0, stream: int = 0, payload: bytes = b"") -> bytes:
    return len(payload).to_bytes(3) + struct.pack(">BBI", kind, flags, stream) + payload


def _headers(metadata: dict[str, str]) -> bytes:
    """The headers of a call of gRPC in HPACK, as literals that no index keeps."""
    fields = {
        ":method": "POST",
        ":scheme": "http",
        ":path": EXPORT,
        ":authority": "bridge",
        "content-type": "application/grpc",
        "te": "trailers",
        **metadata,
    }
    return b"".join(b"\x00" + _text(name) + _text(value) for name, value in fields.items())


def _text(text: str) -> bytes:
    encoded = text.encode()
    if len(encoded) < 127:
        return bytes([len(encoded)]) + encoded
    length, rest = b"\x7f", len(encoded) - 127
    while rest > 127:
        length += bytes([rest & 127 | 128])
        rest >>= 7
    return length + bytes([rest]) + encoded
