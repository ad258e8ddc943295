"""A listener refuses what is over its bound, says so, and has room again once one is closed."""

import socket
from collections.abc import Iterator

import pytest

from otel_rl.bridge.receive.listener import BoundedListener

BOUND = 2


class Door:
    def __init__(self) -> None:
        self.refused = 0
        self.listener = BoundedListener(
            socket.AF_INET,
            socket.SOCK_STREAM,
            0,
            max_connections=BOUND,
            farewell=b"too many",
            on_refused=self._count,
        )
        self.listener.bind(("127.0.0.1", 0))
        self.listener.listen()

    def _count(self) -> None:
        self.refused += 1

    def connect(self, address: str = "127.0.0.1") -> socket.socket:
        return socket.create_connection(self.listener.getsockname(), 60, (address, 0))

    def accept(self) -> socket.socket:
        return self.listener.accept()[0]

    def refuse(self) -> None:
        with pytest.raises(ConnectionAbortedError):
            self.listener.accept()


def send_thrice(connection: socket.socket) -> None:
    for _ in range(3):  # the first one provokes a reset, a later one sees it
        connection.sendall(b"x")


@pytest.fixture
def door() -> Iterator[Door]:
    door = Door()
    with door.listener:
        yield door


def test_a_closed_connection_makes_room_and_counts_once(door: Door) -> None:
    senders = [door.connect() for _ in range(BOUND + 2)]
    first, second = door.accept(), door.accept()
    first.close()
    first.close()
    third = door.accept()
    door.refuse()
    for connection in [*senders, second, third]:
        connection.close()


def test_refused_connections_do_not_pile_up(door: Door) -> None:
    senders = [door.connect() for _ in range(BOUND)]
    accepted = [door.accept() for _ in range(BOUND)]
    first = door.connect()
    door.refuse()
    for _ in range(100):
        with door.connect():
            door.refuse()
    # Bytes to a socket that lingers are taken; the first one does so no longer.
    with pytest.raises(OSError, match=r"reset|Broken pipe"):
        send_thrice(first)
    for connection in [*senders, *accepted, first]:
        connection.close()
