"""Control client of a process: joins the run, receives messages, and leaves.

A process without an orchestrator could not be stopped by another process, so it exits when the
connection closes.
"""

import os
import queue
import signal
import sys
import threading

from otel_rl.demo.control.messages import Address, Hello, Impair, Start, Stop
from otel_rl.demo.control.rpc import connect, exit_when_a_thread_fails
from otel_rl.demo.faults.injection import FaultInjection

__all__ = ["CONTROL_VARIABLE", "ControlClient"]

CONTROL_VARIABLE = "OTEL_RL_DEMO_CONTROL"
"""Environment variable with the port of the orchestrator."""


class ControlClient:
    """Joins the run on creation; returns when all processes have joined.

    Attributes:
        index: Index among the processes of the role.
        count: Number of processes of the role.
        start: Settings and addresses.
        inbox: Later messages of the orchestrator; ``None`` means stop.
        faults: Faults of this process.
    """

    def __init__(self, role: str, address: Address | None = None) -> None:
        # Ctrl-C reaches every process of the terminal; only the orchestrator handles it.
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        exit_when_a_thread_fails()
        self.index = int(os.environ["OTEL_RL_INDEX"])
        self.count = int(os.environ["OTEL_RL_COUNT"])
        self.inbox: queue.SimpleQueue[object] = queue.SimpleQueue()
        self._connection = connect(("127.0.0.1", int(os.environ[CONTROL_VARIABLE])))
        # _sending keeps messages of several threads apart.
        self._sending = threading.Lock()
        self._connection.send(Hello(role, self.index, address))
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
        """Send a message to the orchestrator. Any thread."""
        with self._sending:
            self._connection.send(message)

    def wait_for_stop(self) -> None:
        """Return when the orchestrator sends Stop."""
        while self.inbox.get() is not None:
            pass

    def address(self, role: str, index: int = 0) -> Address:
        """Return the address of a process of the run."""
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
