"""The writer process: one run of one tracker, driven over a socket by the delivery loop.

    python -m otel_rl.bridge.delivery.writer_main FD

The tracker gets a process of its own because a tracker library has global state: one that hangs,
exits, dies or raises KeyboardInterrupt harms only its own run, and a new process resumes that run.

A request is ``(method, arguments)``, and each has one answer:

    ("open", (tracker, run))       ("ok", (next_row, location))
    ("write", ([row, ...],))       ("ok", None)
    ("describe", (description,))   ("ok", None)
    ("flush", (timeout_s,))        ("ok", safe_row)
    ("close", (exit_code,))        ("ok", safe_row)
                                   ("unavailable", message, hint): another process may retry it
                                   ("rejected", message, hint): an operator must act

Messages travel pickled over a socket pair between a parent and the child that it started. No other
process can connect to it, so only trusted data is unpickled.

The process ignores SIGINT and SIGTERM, which a terminal or supervisor sends to all processes: the
parent decides when a run ends. It ends when the parent closes the socket or has died.
"""

import os
import select
import signal
import sys
import threading
import time
from multiprocessing.connection import Connection
from typing import Any, BinaryIO

from otel_rl.bridge.delivery.tracker import Tracker, backend, lock_run
from otel_rl.bridge.garbage import collect_rarely, return_memory, skip_last_collections
from otel_rl.errors import ConfigError, TrackerRejected, TrackerUnavailable

# For a dead parent while the tracker library blocks: long enough to finish a run, short enough that
# no process stays.
_ORPHAN_GRACE_S = 60.0


class Opening:
    """Tracker of one run and the lock of that run, in the process of the tracker. One thread."""

    def __init__(self) -> None:
        self.closed = False
        self._tracker: Tracker | None = None
        self._lock: BinaryIO | None = None

    def do(self, method: str, arguments: tuple[Any, ...]) -> object:
        """Execute a request. Raises the errors of ``Tracker``."""
        if method == "open":
            name, run = arguments
            self._lock = lock_run(run)
            try:
                self._tracker = backend(name).create(run)
                next_row = self._tracker.open(run)
            except ConfigError as exc:
                raise TrackerRejected(exc.args[0], hint=exc.hint) from exc
            return next_row, self._tracker.location()
        tracker, (argument,) = self._tracker, arguments
        if tracker is None:
            raise TrackerUnavailable("The run is not open.")
        match method:
            case "write":
                tracker.write(argument)
            case "describe":
                tracker.describe(argument)
            case "flush":
                return tracker.flush(timeout_s=argument)
            case "close":
                safe_row = tracker.close(exit_code=argument)
                self.closed = True
                return safe_row
        return None

    def let_go(self) -> None:
        """Release a tracker that only has files, and then its run."""
        self._tracker = None  # its files are closed before the lock is free
        if self._lock is not None:
            self._lock.close()


def _answer(opening: Opening, method: str, arguments: tuple[Any, ...]) -> tuple[Any, ...]:
    try:
        return "ok", opening.do(method, arguments)
    except TrackerRejected as exc:
        return "rejected", exc.args[0], exc.hint
    except TrackerUnavailable as exc:
        return "unavailable", exc.args[0], exc.hint
    except Exception as exc:  # noqa: BLE001  # an edge: the process goes on
        sys.excepthook(type(exc), exc, exc.__traceback__)  # into the log file
        return "unavailable", f"{type(exc).__name__}: {exc}", ""


def serve(connection: "Connection[Any, Any]") -> None:
    """Answer requests until the run was closed, or the other end is gone."""
    opening = Opening()
    while not opening.closed:
        try:
            method, arguments = connection.recv()
        except (EOFError, ConnectionError):
            # A parent that stops in order closes the run. One that it left behind has failed; the
            # next bridge resumes it.
            _answer(opening, "close", (1,))
            return
        connection.send(_answer(opening, method, arguments))


def _watch_parent(fd: int) -> None:
    """End the process some time after the other end of the socket is gone, even while it blocks."""
    hang_up = getattr(select, "POLLRDHUP", 0)  # Linux; elsewhere only POLLHUP
    poll = select.poll()
    poll.register(fd, hang_up)
    while not any(events & (hang_up | select.POLLHUP) for _, events in poll.poll()):
        pass
    time.sleep(_ORPHAN_GRACE_S)
    os._exit(1)


def main(fd: int) -> None:
    collect_rarely()
    return_memory()
    for signum in (signal.SIGINT, signal.SIGTERM):
        signal.signal(signum, signal.SIG_IGN)
    # Otherwise the tracker's own children keep the socket open.
    os.set_inheritable(fd, False)  # noqa: FBT003  # the signature of the standard library
    threading.Thread(
        target=_watch_parent, args=(fd,), name="otel-rl-writer-parent", daemon=True
    ).start()
    with Connection(fd) as connection:
        serve(connection)


if __name__ == "__main__":
    main(int(sys.argv[1]))
    skip_last_collections()
