"""Sends what an attack is made of, from a process of its own that leaves the bridge its core."""

import contextlib
import http.client
import os
import socket
import threading
import time
from dataclasses import dataclass
from multiprocessing.connection import Connection
from multiprocessing.synchronize import Event

from tests.tenants.attacks import Attack, Lane

_TIMEOUT_S = 60.0
_PAUSE_S = 0.05
_RECONNECT_S = 5.0
_CALLS = 100
_PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes([0, 0, 0, 4, 0, 0, 0, 0, 0])
_EXPORT = "/opentelemetry.proto.collector.metrics.v1.MetricsService/Export"


@dataclass(frozen=True)
class Address:
    """Where the bridge is, and what lets the sender in.

    Attributes:
        http: Port.
        grpc: Port.
        token: Of the sender.
    """

    http: int
    grpc: int
    token: str


def attack(what: Attack, to: Address, ready: "Connection[None, None]", stop: Event) -> None:
    """Make what is to be sent, say so, and send it until told to stop.

    Args:
        what: The attack.
        to: Its target.
        ready: Something is sent when everything is made; something comes back when to begin.
        stop: Ends it.
    """
    lanes = what.lanes()
    ready.send(None)
    ready.recv()
    os.nice(10)  # a stranger's computer takes none of the bridge's time
    threads = [
        threading.Thread(target=_send, args=(lane, to, stop, what.repeats), daemon=True)
        for lane in lanes
    ]
    threads += [
        threading.Thread(target=_call_without_message, args=(to, stop), daemon=True)
        for _ in range(what.headers_only)
    ]
    for thread in threads:
        thread.start()
    stop.wait()


def _send(lane: Lane, to: Address, stop: Event, repeats: bool) -> None:
    while not stop.is_set():
        for request in lane:
            headers = {
                "Content-Type": "application/x-protobuf",
                "Authorization": f"Bearer {to.token}",
            }
            if request.encoding:
                headers["Content-Encoding"] = request.encoding
            connection = http.client.HTTPConnection("127.0.0.1", to.http, timeout=_TIMEOUT_S)
            # Whatever is answered, and whether at all: an attacker goes on.
            with contextlib.suppress(OSError, http.client.HTTPException):
                connection.request("POST", request.path, request.body, headers)
                connection.getresponse().read()
            connection.close()
            if stop.wait(_PAUSE_S):
                return
        if not repeats:
            return


def _call_without_message(to: Address, stop: Event) -> None:
    """Open a connection with a hundred calls every five seconds, and send no message."""
    headers = _headers(
        (":method", "POST"),
        (":scheme", "http"),
        (":path", _EXPORT),
        (":authority", "bridge"),
        ("te", "trailers"),
        ("content-type", "application/grpc"),
        ("authorization", f"Bearer {to.token}"),
    )
    calls = b"".join(_frame(1, 4, 2 * n + 1, headers) for n in range(_CALLS))
    while not stop.is_set():
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", to.grpc)) as one:
            one.sendall(_PREFACE + calls)
            stop.wait(_RECONNECT_S)
        time.sleep(_PAUSE_S)


def _headers(*fields: tuple[str, str]) -> bytes:
    """As HPACK: each a literal that is not indexed, of less than 127 bytes."""
    return b"".join(
        b"\0" + b"".join(bytes([len(text)]) + text.encode() for text in field) for field in fields
    )


def _frame(kind: int, flags: int, stream: int, payload: bytes) -> bytes:
    return len(payload).to_bytes(3) + bytes([kind, flags]) + stream.to_bytes(4) + payload
