"""What a sender may do to the HTTP parser: every request gets its own answer, in bounded memory."""

import itertools
import socket
from collections.abc import Iterable
from functools import partial

import pytest

from otel_rl.bridge.receive.limits import ReceiveLimits
from tests.support import waiting
from tests.support.otlp_requests import Receiver, http_receiver, metrics_request

wait_until = partial(waiting.wait_until, timeout_s=60)
GAUGE = metrics_request().SerializeToString()
HEALTH = b"GET /healthz HTTP/1.1\r\nhost: x\r\n\r\n"
KIB = 1 << 10


def head(*more: bytes, size: int | None = len(GAUGE)) -> bytes:
    """The head of an export; without a size its body comes in chunks."""
    length = b"transfer-encoding: chunked" if size is None else b"content-length: %d" % size
    fields = [b"host: x", b"content-type: application/x-protobuf", length, *more]
    return b"POST /v1/metrics HTTP/1.1\r\n" + b"\r\n".join(fields) + b"\r\n\r\n"


def chunk(body: bytes, extension: bytes = b"") -> bytes:
    return b"%x%b\r\n%b\r\n" % (len(body), extension, body)


def connection(receiver: Receiver) -> socket.socket:
    host, _, port = receiver.server.address.rpartition(":")
    return socket.create_connection((host, int(port)), timeout=60)


def answers(receiver: Receiver, *sent: bytes) -> list[int]:
    """The statuses of all answers to what is sent at once, with a last request that closes."""
    last = HEALTH.replace(b"host", b"connection: close\r\nhost")
    with connection(receiver) as sender:
        sender.sendall(b"".join(sent) + last)
        received = b""
        while piece := sender.recv(1 << 16):
            received += piece
    lines = [line for line in received.split(b"\r\n") if b"HTTP/1.1 " in line]
    return [int(line.partition(b"HTTP/1.1 ")[2][:3]) for line in lines]


def test_requests_sent_ahead_are_answered_in_their_order() -> None:
    with http_receiver() as receiver:
        missing = b"GET /nothing HTTP/1.1\r\nhost: x\r\n\r\n"
        assert answers(receiver, HEALTH, missing, head() + GAUGE, missing) == [
            200,
            404,
            200,
            404,
            200,
        ]
        assert len(receiver.journal.batches) == 1


def test_thousands_of_requests_sent_ahead_are_answered() -> None:
    with http_receiver() as receiver:
        assert answers(receiver, HEALTH * 5_000) == [200] * 5_001


def test_a_complete_request_is_answered_before_what_cannot_be_parsed_behind_it() -> None:
    with http_receiver() as receiver, connection(receiver) as sender:
        sender.sendall(head() + GAUGE + b"\x16\x03\x01 no HTTP\r\n\r\n")
        received = b""
        while piece := sender.recv(1 << 16):
            received += piece
        first, second = received.split(b"HTTP/1.1 ")[1:]
        assert (first[:3], second[:3]) == (b"200", b"400")
        assert receiver.counts()["requests", "malformed"] == 1
        assert len(receiver.journal.batches) == 1


@pytest.mark.parametrize("method", ["GET", "POST"])
def test_the_offer_of_another_protocol_is_ignored(method: str) -> None:
    offer = b"connection: upgrade, http2-settings", b"upgrade: h2c", b"http2-settings: AAMAAABk"
    if method == "POST":
        sent = head(*offer) + GAUGE
    else:
        sent = HEALTH[:-2] + b"\r\n".join(offer) + b"\r\n\r\n"
    with http_receiver() as receiver:
        assert answers(receiver, sent, head() + GAUGE) == [200, 200, 200]


def test_a_tunnel_is_refused() -> None:
    with http_receiver() as receiver:
        assert answers(receiver, b"CONNECT x:443 HTTP/1.1\r\nhost: x:443\r\n\r\n") == [400]
        assert receiver.counts() == {("requests", "malformed"): 1}


def test_trailers_are_no_headers() -> None:
    body = chunk(GAUGE) + b"0\r\ncontent-type: text/plain\r\ncontent-encoding: nonsense\r\n\r\n"
    with http_receiver() as receiver:
        assert answers(receiver, head(size=None) + body) == [200, 200]
        assert len(receiver.journal.batches) == 1


def send(sender: socket.socket, pieces: Iterable[bytes]) -> None:
    for piece in pieces:
        sender.sendall(piece)


ENDLESS = {
    "headers": (b"POST /v1/metrics HTTP/1.1\r\n", b"x: y\r\n"),
    "a header": (b"POST /v1/metrics HTTP/1.1\r\nx: ", b"y"),
    "a path": (b"POST /", b"x"),
    "empty lines": (b"", b"\r\n"),
    "trailers": (head(size=None) + chunk(GAUGE) + b"0\r\n", b"x: y\r\n"),
    "a trailer": (head(size=None) + chunk(GAUGE) + b"0\r\nx: ", b"y"),
    "an extension of a chunk": (head(size=None) + b"5;", b"x"),
}


@pytest.mark.parametrize("kind", ENDLESS)
def test_what_never_ends_is_cut_off(kind: str) -> None:
    first, then = ENDLESS[kind]
    piece = then * (4 * KIB // len(then))
    limits = ReceiveLimits(header_timeout_s=600, body_timeout_s=600)
    with http_receiver(limits) as receiver, connection(receiver) as endless:
        with pytest.raises(OSError, match=r"reset|Broken pipe"):
            send(
                endless, itertools.chain([first], itertools.repeat(piece, (64 << 20) // len(piece)))
            )
        assert receiver.journal.batches == []
        wait_until(lambda: sum(receiver.counts().values()) == 1)
        assert answers(receiver) == [200]


def test_a_body_in_very_small_chunks_is_taken() -> None:
    body = b"".join(chunk(GAUGE[at : at + 1], b";x=y") for at in range(len(GAUGE)))
    with http_receiver() as receiver:
        assert answers(receiver, head(size=None) + body + b"0\r\n\r\n") == [200, 200]


def test_two_lengths_are_refused() -> None:
    with http_receiver() as receiver:
        both = head(b"transfer-encoding: chunked") + chunk(GAUGE) + b"0\r\n\r\n"
        assert answers(receiver, both)[0] == 400
        assert receiver.journal.batches == []
