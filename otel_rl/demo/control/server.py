"""Control server: the orchestrator's end of all control connections."""

import queue
import threading
from collections.abc import Iterator
from multiprocessing.connection import Connection, wait

from otel_rl.demo.control.messages import Hello
from otel_rl.demo.control.rpc import accept, listen

__all__ = ["ControlServer"]

Member = tuple[str, int]
"""Role and index."""


class ControlServer:
    """Connected members and their messages. One thread, except the one that accepts connections.

    Attributes:
        port: Port for members.
    """

    def __init__(self) -> None:
        self._listener, (_, self.port) = listen()
        self._arrived: queue.SimpleQueue[tuple[Hello, Connection]] = queue.SimpleQueue()
        self._connections: dict[Member, Connection] = {}
        threading.Thread(target=self._accept_all, name="orchestrator-accept", daemon=True).start()

    def receive(self, *, timeout_s: float) -> Iterator[tuple[Member, object]]:
        """Yield all messages of members; a new member's first one is :class:`Hello`.

        Waits up to ``timeout_s`` for the first.
        """
        while not self._arrived.empty():
            hello, connection = self._arrived.get()
            member = (hello.role, hello.index)
            self._connections[member] = connection
            yield member, hello
        members = {connection: member for member, connection in self._connections.items()}
        for ready in wait(list(members), timeout_s):
            if isinstance(ready, Connection):
                yield from self._messages(members[ready], ready)

    def send(self, member: Member, message: object) -> None:
        """Send a message to a member. It is lost if the member has just died."""
        try:
            self._connections[member].send(message)
        except (KeyError, OSError):
            self._connections.pop(member, None)

    def _messages(self, member: Member, connection: Connection) -> Iterator[tuple[Member, object]]:
        try:
            while connection.poll():
                yield member, connection.recv()
        except (EOFError, OSError):
            # The supervisor of the processes decides if that is a failure.
            if self._connections.get(member) is connection:
                del self._connections[member]

    def _accept_all(self) -> None:
        while True:
            connection = accept(self._listener)
            try:
                hello = connection.recv()
            except (EOFError, OSError):
                continue
            if isinstance(hello, Hello):
                self._arrived.put((hello, connection))
