"""The wire between a bridge and what it needs, which can be cut in several ways."""

import contextlib
import math
import socket
import threading
from enum import StrEnum
from typing import Self

_CHUNK = 1 << 16
_LOOK_S = 0.05


class Trouble(StrEnum):
    """What is wrong with the wire.

    Attributes:
        NONE: Nothing.
        REFUSED: Nobody listens.
        SILENT: Connections end; others are taken, and nothing passes.
        FROZEN: No connection ends, and nothing passes; afterwards what waited does, late.
        LOST_ANSWERS: Requests pass; the connection ends before the answer.
        CUT_ANSWERS: Requests pass; the connection ends in the middle of the answer.
    """

    NONE = "none"
    REFUSED = "refused"
    SILENT = "silent"
    FROZEN = "frozen"
    LOST_ANSWERS = "lost answers"
    CUT_ANSWERS = "cut answers"


class Link:
    """Listens on a port of its own and passes bytes on to ``target``.

    Args:
        target: Port on loopback.
        freezes_after: Bytes of requests, after which it is frozen.
    """

    def __init__(self, target: int, *, freezes_after: float = math.inf) -> None:
        self._target = target
        self._freezes_after = freezes_after
        # Holds the port while nobody listens on it.
        self._placeholder = _bound(0)
        self._port: int = self._placeholder.getsockname()[1]
        # _lock guards everything below.
        self._lock = threading.Lock()
        self._listener: socket.socket | None = None
        self._trouble = Trouble.NONE
        self._passed = 0
        self._ended = False
        self._open: set[socket.socket] = set()

    @property
    def port(self) -> int:
        """Where it listens on loopback."""
        return self._port

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._port}"

    def __enter__(self) -> Self:
        self._listen()
        return self

    def __exit__(self, *_: object) -> None:
        with self._lock:
            self._ended = True
        self.suffer(Trouble.REFUSED)
        self._placeholder.close()

    def lead_to(self, target: int) -> None:
        """From now on, new connections go to this port, as those to a Service whose pod changes."""
        self._target = target

    def suffer(self, trouble: Trouble) -> None:
        """From now on, this is wrong."""
        with self._lock:
            is_kept = Trouble.FROZEN in {trouble, self._trouble}
            self._trouble = trouble
            listener = self._listener
            if trouble is Trouble.REFUSED:
                self._listener = None
            connections = [] if is_kept and not self._ended else list(self._open)
        for connection in connections:
            _close(connection)
        if trouble is Trouble.REFUSED and listener is not None:
            _close(listener)
        elif trouble is not Trouble.REFUSED and listener is None:
            self._listen()

    def _listen(self) -> None:
        listener = _bound(self._port)
        listener.listen(64)
        with self._lock:
            self._listener = listener
        threading.Thread(
            target=self._accept, args=(listener,), name="faults-link", daemon=True
        ).start()

    def _accept(self, listener: socket.socket) -> None:
        while True:
            try:
                client, _ = listener.accept()
            except OSError:
                return  # closed
            try:
                server = socket.create_connection(("127.0.0.1", self._target), timeout=10)
            except OSError:
                _close(client)
                continue
            server.settimeout(None)
            with self._lock:
                self._open |= {client, server}
            for source, sink, is_answer in ((client, server, False), (server, client, True)):
                threading.Thread(
                    target=self._pump,
                    args=(source, sink),
                    kwargs={"is_answer": is_answer},
                    name="faults-link-pump",
                    daemon=True,
                ).start()

    def _pump(self, source: socket.socket, sink: socket.socket, *, is_answer: bool) -> None:
        with contextlib.suppress(OSError):
            while chunk := source.recv(_CHUNK):
                if not is_answer:
                    self._count(len(chunk))
                trouble = self._wait_while_nothing_passes()
                if is_answer and trouble is Trouble.LOST_ANSWERS:
                    break
                if is_answer and trouble is Trouble.CUT_ANSWERS:
                    sink.sendall(chunk[: len(chunk) // 2])
                    break
                sink.sendall(chunk)
        with self._lock:
            self._open -= {source, sink}
        _close(source)
        _close(sink)

    def _count(self, n: int) -> None:
        with self._lock:
            self._passed += n
            is_enough = self._passed > self._freezes_after
        if is_enough:
            self.suffer(Trouble.FROZEN)

    def _wait_while_nothing_passes(self) -> Trouble:
        while True:
            with self._lock:
                if self._ended or self._trouble not in {Trouble.SILENT, Trouble.FROZEN}:
                    return self._trouble
            threading.Event().wait(_LOOK_S)


def _bound(port: int) -> socket.socket:
    bound = socket.socket()
    # Two sockets share the port: one listens now and then, the other keeps it ours.
    bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    bound.bind(("127.0.0.1", port))
    return bound


def _close(connection: socket.socket) -> None:
    with contextlib.suppress(OSError):
        connection.shutdown(socket.SHUT_RDWR)
    connection.close()
