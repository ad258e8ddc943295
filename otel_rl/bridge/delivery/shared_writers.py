"""Writer processes that several runs share, for trackers that are safe in threads. ADR 25.

    run A --socket--> thread \
    run B --socket--> thread  > one process
    ...                      /

Runs share the process and nothing else: each has its own socket, thread, tracker and lock. When the
process dies, each of its runs is opened again and resumes at the tracker's position. The run that
may be the cause, because it had a request in the process or did not leave it when told, then gets a
process of its own, until one of those has ended in order.
"""

import contextlib
import os
import select
import socket
import subprocess
import threading
import time
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Final

from otel_rl.bridge.delivery.tracker_interface import RunInfo, writer_file
from otel_rl.bridge.delivery.writer_process import (
    Channel,
    OwnProcess,
    end_process,
    start_process,
)
from otel_rl.errors import TrackerUnavailable

__all__ = ["SharedHost", "SharedWriters"]

_LEAVE_S: Final = 2.0
"""How long a killed run may take for the rows in its hands, before its process is killed."""

_MAX_SUSPECTS: Final = 16
"""Runs with a process of their own: when a machine has no memory left, many are suspected."""

_EXIT_S: Final = 15.0  # of an empty process; only a hanging one reaches it

_HUNG_UP: Final = getattr(select, "POLLRDHUP", 0) | select.POLLHUP  # the former on Linux only


class SharedWriters:
    """The shared writer processes of one tracker. Any thread may call any method.

    Args:
        tracker: Its name.
        runs_per_process: Runs of a process at a time.
        leave_s: How long a killed run may take for the rows in its hands.
    """

    def __init__(self, tracker: str, runs_per_process: int, *, leave_s: float = _LEAVE_S) -> None:
        self.tracker = tracker
        self.leave_s = leave_s
        self._limit = runs_per_process
        # _lock guards everything below.
        self._lock = threading.Lock()
        self._processes: list[_SharedProcess] = []
        self._suspects: dict[str, None] = {}  # ids of runs, longest ago first

    @property
    def pids(self) -> list[int]:
        """Return the ids of the shared processes."""
        with self._lock:
            return [one.process.pid for one in self._processes]

    def host(self) -> "SharedHost":
        """Return a host for one opening of a run."""
        return SharedHost(self)

    def is_suspect(self, run_id: str) -> bool:
        """Return whether the run gets a process of its own."""
        with self._lock:
            return run_id in self._suspects

    def suspect(self, run_id: str) -> None:
        """Give the run a process of its own when it is opened again."""
        with self._lock:
            self._suspects.pop(run_id, None)
            self._suspects[run_id] = None
            if len(self._suspects) > _MAX_SUSPECTS:
                del self._suspects[next(iter(self._suspects))]

    def clear(self, run_id: str) -> None:
        """Let the run share a process again."""
        with self._lock:
            self._suspects.pop(run_id, None)

    def join(self, run: RunInfo) -> "_SharedProcess":
        """Take a place in a process that has one, else in a new one."""
        with self._lock:
            for one in self._processes:
                if one.runs < self._limit and one.process.poll() is None:
                    break
            else:
                one = _SharedProcess(self.tracker, run)
                self._processes.append(one)
            one.runs += 1
            return one

    def leave(self, one: "_SharedProcess") -> None:
        """Give the place back; the last run ends the process."""
        with self._lock:
            one.runs -= 1
            is_empty = not one.runs
            if is_empty:
                self._processes.remove(one)
        if is_empty:
            one.end()


class _SharedProcess:
    """One process.

    Args:
        tracker: Of all its runs.
        run: The first one, whose tracker settings all share.
    """

    def __init__(self, tracker: str, run: RunInfo) -> None:
        self.log = writer_file(run, "log").with_name(f"shared.{tracker}.log")
        self.runs = 0
        self._control, theirs = socket.socketpair()
        self._control.settimeout(_EXIT_S)
        with theirs:
            self.process: subprocess.Popen[bytes] = start_process(
                tracker, dict(run.attributes), self.log, theirs, shared=True
            )

    def connect(self) -> socket.socket:
        """Return our end of a new run's socket.

        Raises:
            TrackerUnavailable: The process has died or takes no more.
        """
        ours, theirs = socket.socketpair()
        with theirs:
            try:
                socket.send_fds(self._control, [b"."], [theirs.fileno()])
            except OSError as exc:
                ours.close()
                raise TrackerUnavailable(f"The writer process takes no run: {exc}.") from exc
        return ours

    def kill(self) -> None:
        """End it at once, with all its runs."""
        end_process(self.process)

    def end(self) -> None:
        """End it in order: it has no run."""
        self._control.close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(_EXIT_S)
        self.kill()


class SharedHost:
    """Host of one opening of a run: a shared process, or one of its own for a suspect."""

    def __init__(self, writers: SharedWriters) -> None:
        self._writers = writers
        self._run_id = ""
        # _lock guards everything below.
        self._lock = threading.Lock()
        self._killed = False
        self._process: _SharedProcess | None = None
        self._socket: socket.socket | None = None
        self._own: OwnProcess | None = None

    @property
    def pid(self) -> int | None:
        """See ``WriterHost``."""
        if self._own is not None:
            return self._own.pid
        return self._process.process.pid if self._process is not None else None

    @property
    def log(self) -> Path:
        """See ``WriterHost``."""
        if self._own is not None:
            return self._own.log
        return self._process.log if self._process is not None else Path()

    def start(self, run: RunInfo, /) -> Channel:
        """See ``WriterHost``."""
        with self._lock:
            self._run_id = run.run_id
            if self._killed:
                raise TrackerUnavailable("The bridge is stopping.")
            if self._writers.is_suspect(run.run_id):
                self._own = OwnProcess(self._writers.tracker)
                return self._own.start(run)
            self._process = self._writers.join(run)
            self._socket = self._process.connect()
            return Connection(os.dup(self._socket.fileno()))

    def lost(self) -> None:
        """See ``WriterHost``: the run may be the cause."""
        with self._lock:
            if not self._killed:
                self._writers.suspect(self._run_id)

    def closed(self) -> None:
        """See ``WriterHost``."""
        with self._lock:
            own, ours = self._own, self._socket.dup() if self._socket is not None else None
        if own is not None:
            own.closed()
            self._writers.clear(self._run_id)
        if ours is not None:
            with ours:
                _wait_for_end(ours, _EXIT_S)

    def kill(self) -> None:
        """End the run's writer. Rows in its hands may take ``leave_s``, then the process is killed.

        The other runs of a killed process are opened again.
        """
        with self._lock:
            self._killed = True
            if self._own is not None:
                self._own.kill()
            process, self._process = self._process, None
            if process is None:
                return
            if self._socket is not None:
                self._leave(process, self._socket)
                self._socket.close()
                self._socket = None
        self._writers.leave(process)

    def _leave(self, process: _SharedProcess, ours: socket.socket) -> None:
        with contextlib.suppress(OSError):  # the other end is gone
            ours.shutdown(socket.SHUT_WR)
        if not _wait_for_end(ours, self._writers.leave_s):
            self._writers.suspect(self._run_id)
            process.kill()


def _wait_for_end(
    ours: socket.socket, timeout_s: float, *, clock_s: Callable[[], float] = time.monotonic
) -> bool:
    """Wait until the other end is closed, and return whether it is. Reads nothing."""
    poll = select.poll()
    poll.register(ours.fileno(), getattr(select, "POLLRDHUP", 0))
    deadline_s = clock_s() + timeout_s
    while (left_s := deadline_s - clock_s()) > 0:
        if any(events & _HUNG_UP for _, events in poll.poll(left_s * 1000)):
            return True
    return False
