"""Many senders that pause between exports, at a real server: what has arrived is answered."""

import contextlib
import socket
import time
from contextlib import ExitStack

import pytest

from bench.sparse_worker import Instruments, Worker
from otel_rl.bridge.receive.protocol import BoundedProtocol
from tests.support.otlp_requests import http_receiver

WORKERS, PACE_S = 24, 0.6
HEAD = (
    b"POST /v1/metrics HTTP/1.1\r\ncontent-type: application/x-protobuf\r\n"
    b"content-length: %d\r\n\r\n"
)


def test_a_stopping_server_answers_what_has_arrived_and_waits_to_be_read() -> None:
    workers = [Worker(index, WORKERS, Instruments(2), time.time_ns()) for index in range(WORKERS)]
    with ExitStack() as stack:
        receiver = stack.enter_context(http_receiver())
        host, _, port = receiver.server.address.rpartition(":")
        senders = [
            stack.enter_context(socket.create_connection((host, int(port)), timeout=60))
            for _ in workers
        ]
        for second in range(6):
            begun_s = time.monotonic()
            bodies = [worker.request(second) for worker in workers]
            for sender, body in zip(senders, bodies, strict=True):
                sender.sendall(HEAD % len(body) + body)
            for sender in senders:
                assert sender.recv(1 << 16).startswith(b"HTTP/1.1 200")
            time.sleep(max(0.0, begun_s + PACE_S - time.monotonic()))
        taken = len(receiver.journal.batches)
        body = workers[0].request(6)
        senders[0].sendall(HEAD % len(body) + body)
        receiver.server.stop()
        assert senders[0].recv(1 << 16).startswith(b"HTTP/1.1 200")
        assert len(receiver.journal.batches) == taken + 1
        assert all(sender.recv(1) == b"" for sender in senders[1:])


def test_an_exception_on_the_event_loop_is_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise ValueError("broken")

    monkeypatch.setattr(BoundedProtocol, "data_received", fail)
    with http_receiver() as receiver:
        host, _, port = receiver.server.address.rpartition(":")
        with socket.create_connection((host, int(port)), timeout=60) as sender:
            sender.sendall(b"GET / HTTP/1.1\r\n\r\n")
            with contextlib.suppress(ConnectionError):
                assert sender.recv(1) == b""
        assert receiver.counts() == {("exceptions", "http"): 1}
