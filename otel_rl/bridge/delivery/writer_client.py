"""Parent side of a writer process: a Tracker that forwards its calls."""

import contextlib
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Sequence
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Self, TypeVar

from otel_rl.bridge.delivery.tracker_interface import RunInfo, WriterTimeouts, writer_file
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
from otel_rl.errors import TrackerRejected, TrackerUnavailable
from otel_rl.records import Description, Row

__all__ = ["WriterProcess"]

# Only a hanging writer reaches these, like those of ``WriterTimeouts``.
_WRITE_TIMEOUT_S = 300.0  # a tracker may block while its own buffer is full
_FLUSH_GRACE_S = 60.0
_EXIT_TIMEOUT_S = 15.0

_ReplyT = TypeVar("_ReplyT", bound=Reply)


class WriterProcess:
    """Runs a tracker in a process of its own. Use it once, as a context manager.

    In addition to a Tracker's errors, every method raises TrackerUnavailable if the process has
    died or does not answer in time. After any error, leave the context and start another: a process
    whose tracker library has failed is in an unknown state. Leaving ends the process, even if it is
    busy.

    ``kill`` may be called from any thread, at any time; everything else from one.
    """

    def __init__(self, tracker: str) -> None:
        self._tracker = tracker
        # _lock guards the start of the process against ``kill``.
        self._lock = threading.Lock()
        self._killed = False
        self._process: subprocess.Popen[bytes] | None = None
        self._connection: Connection[Request, Reply] | None = None
        self._location = ""
        self._log = Path()
        self._patience = WriterTimeouts()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.kill()
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    @property
    def pid(self) -> int | None:
        """Return the pid of the process, or None before ``open``."""
        return self._process.pid if self._process else None

    def open(self, run: RunInfo, /) -> int:
        """Start the process and open the run in it."""
        self._patience = backend(self._tracker).patience(dict(run.attributes))
        self._start(run)
        ready = self._ask(Open(self._tracker, run), Ready, timeout_s=self._patience.open_s)
        self._location = ready.location
        return ready.next_row

    def write(self, rows: Sequence[Row], /) -> None:
        """Hand over rows; returns when the tracker has taken them."""
        self._ask(Write(rows), Written, timeout_s=_WRITE_TIMEOUT_S)

    def describe(self, description: Description, /) -> None:
        """See ``Tracker.describe``."""
        self._ask(Describe(description), Described, timeout_s=_WRITE_TIMEOUT_S)

    def flush(self, *, timeout_s: float) -> int | None:
        """See ``Tracker.flush``."""
        return self._ask(Flush(timeout_s), Flushed, timeout_s=timeout_s + _FLUSH_GRACE_S).safe_row

    def location(self) -> str:
        """See ``Tracker.location``."""
        return self._location

    def close(self, *, exit_code: int) -> int | None:
        """Finish the run and wait for the process to end."""
        closed = self._ask(Close(exit_code), Closed, timeout_s=self._patience.close_s)
        if self._process:
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(_EXIT_TIMEOUT_S)
        return closed.safe_row

    def kill(self) -> None:
        """End the process and its children at once. Idempotent."""
        with self._lock:
            self._killed = True
            process = self._process
        if process is None:
            return
        if process.poll() is None:
            # It leads a process group of its own, which includes the tracker's helpers.
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(process.pid, signal.SIGKILL)
        process.wait()

    def _start(self, run: RunInfo) -> None:
        ours, theirs = socket.socketpair()
        environment = {
            name: value
            for name, value in backend(self._tracker)
            .environment(os.environ, dict(run.attributes))
            .items()
            # These configure the bridge's own telemetry, and hold passwords and tokens; a tracker
            # library may have telemetry, too.
            if not name.startswith("OTEL_")
        }
        self._log = writer_file(run, "log")
        with theirs, self._log.open("ab") as log, self._lock:
            if self._killed:
                ours.close()
                raise TrackerUnavailable("The bridge is stopping.")
            self._process = subprocess.Popen(  # noqa: S603  # our own interpreter and module
                # -P: a wandb.py in the user's working directory is not the tracker.
                [
                    sys.executable,
                    "-P",
                    "-m",
                    "otel_rl.bridge.delivery.writer_main",
                    str(theirs.fileno()),
                ],
                pass_fds=[theirs.fileno()],
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                # Signals of the terminal go to the bridge alone, which then closes the run.
                start_new_session=True,
            )
        self._connection = Connection(ours.detach())

    def _ask(self, request: Request, expected: type[_ReplyT], *, timeout_s: float) -> _ReplyT:
        if self._connection is None:
            raise TrackerUnavailable("The run is not open.")
        try:
            self._connection.send(request)
            if not self._connection.poll(timeout_s):
                raise TrackerUnavailable(
                    f"The tracker {self._tracker} did not answer in {timeout_s:.0f} s.",
                    hint=f"Its messages are in {self._log}.",
                )
            reply = self._connection.recv()
        except (EOFError, OSError) as exc:
            raise TrackerUnavailable(
                f"The writer process of {self._tracker} died.",
                hint=f"Its last messages are in {self._log}.",
            ) from exc
        match reply:
            case Unavailable(message, hint):
                raise TrackerUnavailable(message, hint=hint)
            case Rejected(message, hint):
                raise TrackerRejected(message, hint=hint)
        if not isinstance(reply, expected):
            raise TrackerUnavailable(f"The writer process answered {type(reply).__name__}.")
        return reply
