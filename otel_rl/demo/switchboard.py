"""The orchestrator's end of all control connections."""

import queue
import threading
from collections.abc import Iterator
from multiprocessing.connection import Connection, wait

from otel_rl.demo.messages import Hello
from otel_rl.demo.wire import accept, listen

__all__ = ["Switchboard"]

Member = tuple[str, int]
"""Role and index."""


class Switchboard:
    """Who is connected, and what they say. One thread, but for the one that opens the door.

    Attributes:
        port: Where members knock.
    """

    def __init__(self) -> None:
        self._listener, (_, self.port) = listen()
        self._arrived: queue.SimpleQueue[tuple[Hello, Connection]] = queue.SimpleQueue()
        self._connections: dict[Member, Connection] = {}
        threading.Thread(target=self._open_door, name="orchestrator-door", daemon=True).start()

    def receive(self, *, timeout_s: float) -> Iterator[tuple[Member, object]]:
        """Everything that members have said; a new member's first word is :class:`Hello`.

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
                yield from self._hear(members[ready], ready)

    def send(self, member: Member, message: object) -> None:
        """Say something to a member. To one that has just died, it goes into the void."""
        try:
            self._connections[member].send(message)
        except (KeyError, OSError):
            self._connections.pop(member, None)

    def _hear(self, member: Member, connection: Connection) -> Iterator[tuple[Member, object]]:
        try:
            while connection.poll():
                yield member, connection.recv()
        except (EOFError, OSError):
            # Whether that is a failure is for the one who watches the processes to say.
            if self._connections.get(member) is connection:
                del self._connections[member]

    def _open_door(self) -> None:
        while True:
            connection = accept(self._listener)
            try:
                hello = connection.recv()
            except (EOFError, OSError):
                continue
            if isinstance(hello, Hello):
                self._arrived.put((hello, connection))
