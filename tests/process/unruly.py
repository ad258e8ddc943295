"""An OTLP endpoint of which a test chooses the manners, and a worker process that talks to it."""

import os
import queue
import socket
import struct
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from threading import Condition, Event, Thread

from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import (
    ExportMetricsServiceRequest,
)

from tests.process.commands import clean_environment
from tests.support.otlp_sink import Sink
from tests.support.ports import free_ports

PATIENCE_S = 90.0

HEARTBEAT = "otel_rl.worker.heartbeat"

OWN_CLOCK = """
import time

def own_clock_s():
    with open("/proc/thread-self/schedstat") as file:
        ran_ns, wanted_ns, _ = map(int, file.read().split())
    return time.monotonic() - wanted_ns / 1e9
"""
"""For a worker's program: seconds, but for those in which its thread waited for a processor."""


@dataclass(frozen=True)
class Request:
    """One request as it came in on a connection, before anybody has answered."""

    connection: socket.socket
    path: str
    headers: dict[str, str]
    body: bytes

    @property
    def is_heartbeat(self) -> bool:
        """Whether it says no more than that its sender lives."""
        if self.path != "/v1/metrics" or self.headers.get("content-encoding"):
            return False
        names = {
            metric.name
            for resource in ExportMetricsServiceRequest.FromString(self.body).resource_metrics
            for scope in resource.scope_metrics
            for metric in scope.metrics
        }
        return names == {HEARTBEAT}

    def respond(self, status: int, headers: dict[str, str], body: bytes) -> None:
        lines = [f"HTTP/1.1 {status} Status", f"Content-Length: {len(body)}"]
        lines += [f"{key}: {value}" for key, value in headers.items()]
        self.connection.sendall("\r\n".join([*lines, "", ""]).encode() + body)

    def hang_up(self) -> None:
        """End the connection in order."""
        self.connection.shutdown(socket.SHUT_RDWR)

    def cut(self) -> None:
        """End the connection by a reset, as a killed process or a firewall does."""
        linger = struct.pack("ii", 1, 0)
        self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
        os.close(self.connection.detach())


Manner = Callable[["Endpoint", Request], None]
"""Answers a request, or does something worse."""


@dataclass
class Endpoint:
    """In front of ``sink``, on a port that stays the same while it is open or closed."""

    sink: Sink
    manner: Manner
    manner_of_events: Manner
    attempts: int = 0
    healed: Event = field(default_factory=Event)
    # None of those that connections get, one of which would take it while it is closed.
    _port: int = field(default_factory=lambda: free_ports(1)[0])
    _listener: socket.socket | None = None
    _changed: Condition = field(default_factory=Condition)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._port}"

    def deliver(self, request: Request) -> None:
        """What a good endpoint does."""
        request.respond(*self.accept(request))

    def accept(self, request: Request) -> tuple[int, dict[str, str], bytes]:
        """Hand the request to the sink; the answer is still to be given."""
        port: int = request.connection.getpeername()[1]
        return self.sink.receive(request.path, request.headers, request.body, port)

    def heal(self) -> None:
        """From now on it is a good endpoint, and those it keeps waiting are released."""
        with self._changed:
            self.manner = self.manner_of_events = Endpoint.deliver
            self.healed.set()
            self.open()

    def wait_for_attempts(self, count: int) -> None:
        with self._changed:
            assert self._changed.wait_for(lambda: self.attempts >= count, PATIENCE_S)

    def open(self) -> None:
        if self._listener is None:
            self._listener = socket.create_server(("127.0.0.1", self._port))
            Thread(target=self._listen, args=(self._listener,), daemon=True).start()

    def refuse(self) -> None:
        """Let nobody in until it is healed."""
        with self._changed:
            if not self.healed.is_set():
                self.close()

    def close(self) -> None:
        if self._listener is not None:
            # Ends the accept that is going on; a close alone would let one more in.
            with suppress(OSError):
                self._listener.shutdown(socket.SHUT_RDWR)
            self._listener.close()
            self._listener = None

    def _listen(self, listener: socket.socket) -> None:
        with suppress(OSError):
            while True:
                connection, _ = listener.accept()
                Thread(target=self._serve, args=(connection,), daemon=True).start()

    def _serve(self, connection: socket.socket) -> None:
        with connection, suppress(OSError), connection.makefile("rb") as stream:
            while first := stream.readline():
                headers = {}
                while line := stream.readline().decode().strip():
                    key, _, value = line.partition(":")
                    headers[key.lower()] = value.strip()
                body = stream.read(int(headers["content-length"]))
                if len(body) < int(headers["content-length"]):
                    return  # the sender was killed
                request = Request(connection, first.split()[1].decode(), headers, body)
                if request.path == "/v1/logs":
                    self.manner_of_events(self, request)
                    continue
                with self._changed:
                    self.attempts += not request.is_heartbeat
                    self._changed.notify_all()
                self.manner(self, request)


@contextmanager
def unruly(
    manner: Manner = Endpoint.deliver, manner_of_events: Manner = Endpoint.deliver
) -> Iterator[Endpoint]:
    """An endpoint with manners of its own for log events.

    Its attempts are the requests that hold measurements.
    """
    endpoint = Endpoint(Sink(), manner, manner_of_events)
    endpoint.open()
    try:
        yield endpoint
    finally:
        endpoint.healed.set()
        endpoint.close()


class Worker:
    """A running program: what it prints, line by line, and what it is told."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.process = process
        self._lines: queue.Queue[str] = queue.Queue()
        self.output = ""
        Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self._lines.put(line)
        self._lines.put("")

    def wait_for(self, text: str) -> None:
        """Read until a line holds ``text``."""
        while True:
            line = self._lines.get(timeout=PATIENCE_S)
            self.output += line
            if text in line:
                return
            assert line, f"ended without {text!r}:\n{self.output}"

    def go_on(self) -> None:
        """Let its ``sys.stdin.readline()`` return."""
        assert self.process.stdin is not None
        self.process.stdin.write("\n")
        self.process.stdin.flush()

    def end(self) -> int:
        """Its exit status."""
        status = self.process.wait(PATIENCE_S)
        while line := self._lines.get(timeout=PATIENCE_S):
            self.output += line
        return status


@contextmanager
def worker(url: str, program: str, **environ: str) -> Iterator[Worker]:
    """Run ``program`` with ``url`` as its endpoint; standard error is among its output.

    It says nothing of its code, unless ``environ`` wants that: most tests count its events.
    """
    own = {"OTEL_EXPORTER_OTLP_ENDPOINT": url, "OTEL_RL_PROVENANCE": "off"}
    own |= {"OTEL_RL_CONSOLE": "off", "OTEL_RL_HOST": "off", **environ}
    process = subprocess.Popen(
        [sys.executable, "-c", program],
        env=clean_environment(Path.home(), **own),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    with process:
        try:
            yield Worker(process)
        finally:
            process.kill()
