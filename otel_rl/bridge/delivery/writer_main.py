"""The writer process: runs of one tracker, driven over sockets by the delivery loop.

    python -m otel_rl.bridge.delivery.writer_main FD           one run
    python -m otel_rl.bridge.delivery.writer_main FD shared    a thread for each run

A process of its own, because a tracker library has global state: one that hangs, exits, dies or
raises KeyboardInterrupt harms only its own run, and a new process resumes that run. Trackers
without such state share one, which gets the socket of each run over its own (ADR 25).

It ignores SIGINT and SIGTERM, which a terminal or supervisor sends to all processes: the parent
decides when a run ends. It ends when the parent closes the socket or has died.
"""

import contextlib
import fcntl
import os
import select
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable
from functools import partial
from multiprocessing.connection import Connection
from typing import BinaryIO

from otel_rl.bridge.delivery.tracker_interface import RunInfo, Tracker, writer_file
from otel_rl.bridge.delivery.trackers import backend
from otel_rl.bridge.delivery.writer_messages import (
    Close,
    Closed,
    Describe,
    Described,
    Flush,
    Flushed,
    Open,
    Ready,
    Rejected,
    Reply,
    Request,
    Unavailable,
    Write,
    Written,
)
from otel_rl.bridge.garbage import collect_rarely, return_memory, skip_last_collections
from otel_rl.errors import ConfigError, TrackerRejected, TrackerUnavailable

__all__ = ["serve", "serve_many"]

# For a dead parent while the tracker library blocks: long enough to finish a run, short enough that
# no process stays.
_ORPHAN_GRACE_S = 60.0


def serve(connection: "Connection[Reply, Request]") -> None:
    """Answer requests until ``Close`` has succeeded, or the other end is gone."""
    opening = connection.recv()
    if not isinstance(opening, Open):
        connection.send(Rejected("The first message must open a run."))
        return
    session = _Session(opening)
    try:
        connection.send(_answer(session.open))
        while not session.closed:
            try:
                request = connection.recv()
            except (EOFError, ConnectionError):
                # A parent that stops in order sends Close. A run that it left behind has failed;
                # the next bridge resumes it.
                _answer(partial(session.handle, Close(exit_code=1)))
                return
            connection.send(_answer(partial(session.handle, request)))
    finally:
        session.release()


def serve_many(control: socket.socket) -> None:
    """Serve a thread for each socket that comes over this one, until its other end is closed."""
    threads: set[threading.Thread] = set()
    while True:
        received, fds, _, _ = socket.recv_fds(control, 1, 1)
        if not received:
            break
        for fd in fds:
            os.set_inheritable(fd, False)  # noqa: FBT003  # the signature of the standard library
            thread = threading.Thread(target=_serve_one, args=(fd,), daemon=True)
            thread.start()
            threads.add(thread)
        threads = {thread for thread in threads if thread.is_alive()}
    for thread in threads:
        thread.join()


def _serve_one(fd: int) -> None:
    with Connection(fd) as connection, contextlib.suppress(EOFError, OSError):
        serve(connection)


class _Session:
    """Tracker of the process, and its lock."""

    def __init__(self, opening: Open) -> None:
        self.closed = False
        self._opening = opening
        self._tracker: Tracker | None = None
        self._lock: BinaryIO | None = None
        self._next_row = 0

    def open(self) -> Reply:
        run = self._opening.run
        self._lock = _lock(run)
        self._tracker = backend(self._opening.tracker).create(run)
        self._next_row = self._tracker.open(run)
        return Ready(self._next_row, self._tracker.location())

    def release(self) -> None:
        """Let others hold the run. Files of a failed tracker are closed before."""
        self._tracker = None
        if self._lock is not None:
            self._lock.close()

    def handle(self, request: Request) -> Reply:
        tracker = self._tracker
        if tracker is None:
            return Rejected("The run was not opened.")
        match request:
            case Write(rows):
                tracker.write(rows)
                self._next_row = rows[-1].number + 1 if rows else self._next_row
                return Written(self._next_row)
            case Describe(description):
                tracker.describe(description)
                return Described()
            case Flush(timeout_s):
                return Flushed(tracker.flush(timeout_s=timeout_s))
            case Close(exit_code):
                safe_row = tracker.close(exit_code=exit_code)
                self.closed = True
                return Closed(safe_row)
            case Open():
                return Rejected("The run is already open.")


def _answer(act: Callable[[], Reply]) -> Reply:
    try:
        return act()
    except (TrackerRejected, ConfigError) as exc:
        return Rejected(exc.args[0], exc.hint)
    except TrackerUnavailable as exc:
        return Unavailable(exc.args[0], exc.hint)
    except Exception as exc:  # noqa: BLE001  # an edge: the process goes on
        sys.excepthook(type(exc), exc, exc.__traceback__)  # into the log file
        return Unavailable(f"{type(exc).__name__}: {exc}")


def _lock(run: RunInfo) -> BinaryIO:
    """Lock the run, so that a leftover writer of a dead bridge ends before this one begins."""
    file = writer_file(run, "lock").open("wb")
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as exc:
        file.close()
        raise TrackerUnavailable(f"Another writer holds the run {run.run_id}.") from exc
    return file


def _watch_parent(fd: int) -> None:
    """End the process some time after the other end of the socket is gone, even if it blocks."""
    hang_up = getattr(select, "POLLRDHUP", 0)  # Linux; elsewhere only POLLHUP
    poll = select.poll()
    poll.register(fd, hang_up)
    while not any(events & (hang_up | select.POLLHUP) for _, events in poll.poll()):
        pass
    time.sleep(_ORPHAN_GRACE_S)
    os._exit(1)


def main(fd: int, *, shared: bool = False) -> None:
    """Serve the socket ``fd``, or those that come over it."""
    collect_rarely()
    return_memory()
    for signum in (signal.SIGINT, signal.SIGTERM):
        signal.signal(signum, signal.SIG_IGN)
    # Otherwise the tracker's own children keep the socket open.
    os.set_inheritable(fd, False)  # noqa: FBT003  # the signature of the standard library
    threading.Thread(
        target=_watch_parent, args=(fd,), name="otel-rl-writer-parent", daemon=True
    ).start()
    if shared:
        with socket.socket(fileno=fd) as control:
            serve_many(control)
        return
    with Connection(fd) as connection:
        serve(connection)


if __name__ == "__main__":
    main(int(sys.argv[1]), shared="shared" in sys.argv[2:])
    skip_last_collections()
