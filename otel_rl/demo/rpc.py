"""Request and answer over sockets of one machine, between processes that share a key.

A service answers every message of every connection, each connection on a thread of its own. A peer
that dies ends only its connection: generators are killed in this demo. A process whose connection
to the orchestrator closes exits, because no other process could stop it.

Both ends measure each call, in plain OpenTelemetry, like an RPC library. The metric names are
literals, because the generators do not use otel_rl.
"""

import os
import queue
import secrets
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable
from multiprocessing import AuthenticationError
from multiprocessing.connection import Client, Connection, Listener

from opentelemetry import metrics

from otel_rl.demo.faults import FaultInjection
from otel_rl.demo.messages import Address, Hello, Impair, Start, Stop

KEY_VARIABLE = "OTEL_RL_DEMO_KEY"
"""Environment variable with the run's secret, which separates two demos on one machine."""

BACKLOG = 32  # every process of a run may connect at once


def listen() -> tuple[Listener, Address]:
    """Open a new address. Connections wait for :func:`serve`."""
    # The name begins with a zero byte: it is of no file, and ends with the process.
    address = f"\0otel-rl-demo-{secrets.token_hex(8)}"
    return Listener(address, backlog=BACKLOG, authkey=_key()), address


def accept(listener: Listener) -> Connection:
    """Return the next connection. Skips peers that die early or have the wrong key.

    The listener must stay open: it is never closed before the process ends.
    """
    while True:
        try:
            return listener.accept()
        except (AuthenticationError, EOFError, OSError):
            continue


def connect(address: Address) -> Connection:
    """Open a connection.

    Raises:
        OSError: No process listens there.
    """
    return Client(address, authkey=_key())


def serve(
    listener: Listener,
    answer: Callable[[object], object],
    *,
    name: str,
    is_measured: bool = True,
) -> None:
    """Answer messages on background threads from now on.

    Args:
        listener: From :func:`listen`.
        answer: Called with each message, from several threads at once.
        name: Of the threads.
        is_measured: False for a service that is not a worker of the experiment, and reports
            nothing.
    """
    duration = _meter().create_histogram("rpc.server.call.duration", "s") if is_measured else None

    def measured(message: object) -> object:
        begun_s = time.perf_counter()
        try:
            return answer(message)
        finally:
            if duration is not None:
                duration.record(time.perf_counter() - begun_s, _method(message))

    def accept_all() -> None:
        while True:
            connection = accept(listener)
            threading.Thread(
                target=_answer_all, args=(connection, measured), name=f"{name}-peer", daemon=True
            ).start()

    threading.Thread(target=accept_all, name=f"{name}-accept", daemon=True).start()


class Remote:
    """Client of a service. One call at a time; thread-safe.

    Args:
        address: Of the service.
        travel: Called for each direction of a message, to delay it.
    """

    def __init__(self, address: Address, travel: Callable[[], None] = lambda: None) -> None:
        self._connection = connect(address)
        self._travel = travel
        self._duration = _meter().create_histogram("rpc.client.call.duration", "s")
        # _lock keeps a request and its answer together.
        self._lock = threading.Lock()

    def call(self, message: object) -> object:
        """Send a message and wait for its answer.

        Raises:
            EOFError: The service is gone.
            OSError: The service is gone.
        """
        begun_s = time.perf_counter()
        self._travel()
        with self._lock:
            self._connection.send(message)
            answer = self._connection.recv()
        self._travel()
        self._duration.record(time.perf_counter() - begun_s, _method(message))
        return answer


def exit_when_a_thread_fails() -> None:
    """End the process with 1 on an error in any thread, so that the supervisor detects it."""

    def fail(failure: threading.ExceptHookArgs) -> None:
        if failure.exc_value is not None:
            traceback.print_exception(failure.exc_value)
        os._exit(1)

    threading.excepthook = fail


def _answer_all(connection: Connection, answer: Callable[[object], object]) -> None:
    with connection:
        while True:
            try:
                message = connection.recv()
            except (EOFError, ConnectionError):
                return
            reply = answer(message)
            try:
                connection.send(reply)
            except ConnectionError:
                return


def _meter() -> metrics.Meter:
    return metrics.get_meter("otel_rl.demo.rpc")


def _method(message: object) -> dict[str, str]:
    return {"rpc.method": type(message).__name__}


def _key() -> bytes:
    return bytes.fromhex(os.environ[KEY_VARIABLE])


CONTROL_VARIABLE = "OTEL_RL_DEMO_CONTROL"
"""Environment variable with the number of the file that leads to the orchestrator."""


class ControlClient:
    """Joins the run on creation; returns when all processes have joined.

    Attributes:
        inbox: Later messages of the orchestrator; ``None`` means stop.
    """

    def __init__(self, role: str, address: Address | None = None) -> None:
        # Ctrl-C reaches every process of the terminal; only the orchestrator handles it.
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        exit_when_a_thread_fails()
        self.index = int(os.environ["OTEL_RL_INDEX"])
        self.count = int(os.environ["OTEL_RL_COUNT"])
        self.inbox: queue.SimpleQueue[object] = queue.SimpleQueue()
        self._connection = Connection(int(os.environ[CONTROL_VARIABLE]))
        # _sending keeps messages of several threads apart.
        self._sending = threading.Lock()
        self._connection.send(Hello(address))
        start = self._connection.recv()
        while isinstance(start, Impair):  # that began while this process came up: Start has it, too
            start = self._connection.recv()
        if isinstance(start, Stop):  # the run ended while this process came up
            sys.exit(0)
        if not isinstance(start, Start):
            raise TypeError(f"expected Start, got {start!r}")
        self.start = start
        self.faults = FaultInjection()
        self.faults.begin(start.faults)
        threading.Thread(target=self._listen, name=f"{role}-control", daemon=True).start()

    def send(self, message: object) -> None:
        with self._sending:
            self._connection.send(message)

    def wait_for_stop(self) -> None:
        while self.inbox.get() is not None:
            pass

    def address(self, role: str, index: int = 0) -> Address:
        return self.start.addresses[f"{role}/{index}"]

    def _listen(self) -> None:
        while True:
            try:
                message = self._connection.recv()
            except (EOFError, ConnectionError):
                os._exit(1)
            if isinstance(message, Impair):
                self.faults.begin(message.faults)
            else:
                self.inbox.put(None if isinstance(message, Stop) else message)
