"""A process's place in the run: how it joins, hears the orchestrator, and leaves.

The control connection is also the leash. A process whose orchestrator is gone has nobody left who
would stop it, so it ends itself at once.
"""

import os
import queue
import signal
import sys
import threading

from otel_rl.demo.messages import Address, Hello, Impair, Start, Stop
from otel_rl.demo.troubles import Troubles
from otel_rl.demo.wire import connect, exit_when_a_thread_fails

__all__ = ["CONTROL_VARIABLE", "Seat"]

CONTROL_VARIABLE = "OTEL_RL_DEMO_CONTROL"
"""Environment variable with the port of the orchestrator."""


class Seat:
    """Joins the run on creation and returns when everybody has.

    Attributes:
        index: Place among the processes of the role.
        count: Number of processes of the role.
        start: Settings and addresses.
        inbox: What the orchestrator says after that; ``None`` means stop.
        troubles: What is wrong with this process.
    """

    def __init__(self, role: str, address: Address | None = None) -> None:
        # Ctrl-C reaches every process of the terminal; the orchestrator alone decides on it.
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
        self.troubles = Troubles()
        self.troubles.begin(start.troubles)
        threading.Thread(target=self._listen, name=f"{role}-control", daemon=True).start()

    def tell(self, message: object) -> None:
        """Send a message to the orchestrator. Any thread."""
        with self._sending:
            self._connection.send(message)

    def wait_for_stop(self) -> None:
        """Return when the orchestrator says stop."""
        while self.inbox.get() is not None:
            pass

    def address(self, role: str, index: int = 0) -> Address:
        """Where a process of the run serves."""
        return self.start.addresses[f"{role}/{index}"]

    def _listen(self) -> None:
        while True:
            try:
                message = self._connection.recv()
            except (EOFError, ConnectionError):
                os._exit(1)
            if isinstance(message, Impair):
                self.troubles.begin(message.troubles)
            else:
                self.inbox.put(None if isinstance(message, Stop) else message)
