"""Writers, each of which drives the tracker of one run for one opening.

A tracker library has global state: a library that hangs, exits or dies must harm only its own run.
So it runs in a process of its own (``writer_main.py``), which can be killed. Our own trackers that
only write files need no process: the thread that delivers the run drives them (ADR 25).
"""

import contextlib
import os
import signal
import subprocess
import threading
from abc import ABC, abstractmethod
from collections.abc import Sequence
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, Self

from otel_rl.bridge.child_process import start
from otel_rl.bridge.delivery.tracker import RunInfo, WriterTimeouts, backend, writer_file
from otel_rl.bridge.delivery.writer_main import Opening
from otel_rl.bridge.private_files import open_private
from otel_rl.errors import TrackerRejected, TrackerUnavailable
from otel_rl.records import Description, Row

# Only a hanging writer reaches these, like those of ``WriterTimeouts``.
_WRITE_TIMEOUT_S = 300.0  # a tracker may block while its own buffer is full
_FLUSH_GRACE_S = 60.0
_EXIT_TIMEOUT_S = 15.0

_MODULE = "otel_rl.bridge.delivery.writer_main"


class Writer(ABC):
    """Tracker of one run for one opening, which any thread can kill. It is a context manager.

    The methods of ``Tracker`` do here what they do there. Each may also raise TrackerUnavailable,
    because the writer was killed, has died or does not answer. After any error, leave the context
    and begin with another writer: a tracker library that has failed is in an unknown state.
    """

    def __init__(self, tracker: str) -> None:
        self._tracker = tracker
        self._location = ""
        self._timeouts = WriterTimeouts()
        self._killed = False

    def __enter__(self) -> Self:
        return self

    @abstractmethod
    def __exit__(self, *exc_info: object) -> None:
        """End the writer, even if it is busy."""

    @abstractmethod
    def kill(self) -> None:
        """End the writer at once. Any thread may call this, at any time, and repeatedly."""

    @abstractmethod
    def _ask(self, method: str, *arguments: object, timeout_s: float) -> Any:  # see ``Opening``
        """Call a method of the tracker, see ``Opening.do``. The first method is ``open``."""

    def open(self, run: RunInfo, /) -> int:
        self._timeouts = backend(self._tracker).patience(dict(run.attributes))
        next_row, self._location = self._ask(
            "open", self._tracker, run, timeout_s=self._timeouts.open_s
        )
        return int(next_row)

    def write(self, rows: Sequence[Row], /) -> None:
        self._ask("write", rows, timeout_s=_WRITE_TIMEOUT_S)

    def describe(self, description: Description, /) -> None:
        self._ask("describe", description, timeout_s=_WRITE_TIMEOUT_S)

    def flush(self, *, timeout_s: float) -> int | None:
        row: int | None = self._ask("flush", timeout_s, timeout_s=timeout_s + _FLUSH_GRACE_S)
        return row

    def location(self) -> str:
        return self._location

    def close(self, *, exit_code: int) -> int | None:
        row: int | None = self._ask("close", exit_code, timeout_s=self._timeouts.close_s)
        return row


class WriterInBridge(Writer):
    """Runs a tracker in the thread of its run's delivery.

    ``kill`` refuses every further call, and releases the run even if the delivery never calls
    again, because it waits for the journal. A call in progress ends first: a disk that hangs holds
    that call, its thread and the lock of the run, and nothing else. Whoever opens the run next
    waits for the lock.
    """

    def __init__(self, tracker: str) -> None:
        super().__init__(tracker)
        # _in_use guards what follows. Who does not get it at once leaves the rest to its holder.
        self._in_use = threading.Lock()
        self._opening = Opening()

    def __exit__(self, *exc_info: object) -> None:
        self._killed = True
        self._let_go()

    def kill(self) -> None:
        self._killed = True
        # In a thread, because a disk that hangs holds up the closing of files, too.
        threading.Thread(target=self._let_go, name="otel-rl-writer-kill", daemon=True).start()

    def _ask(self, method: str, *arguments: object, timeout_s: float) -> Any:  # noqa: ARG002  # a disk cannot be bounded
        try:
            with self._in_use:
                if self._killed:
                    raise TrackerUnavailable("The bridge is stopping.")
                return self._opening.do(method, arguments)
        finally:
            if self._killed:
                self._let_go()

    def _let_go(self) -> None:
        if self._in_use.acquire(blocking=False):
            try:
                self._opening.let_go()
            finally:
                self._in_use.release()


class WriterProcess(Writer):
    """Runs a tracker in another process, which ``open`` starts and which ends with the context."""

    def __init__(self, tracker: str) -> None:
        super().__init__(tracker)
        self._connection: Connection[Any, Any] | None = None
        self._log = Path()
        # _lock guards the start of the process against ``kill``.
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None

    def __exit__(self, *exc_info: object) -> None:
        self.kill()
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    @property
    def pid(self) -> int | None:
        return self._process.pid if self._process else None

    def open(self, run: RunInfo, /) -> int:
        self._log = writer_file(run, "log")
        environment = {
            name: value
            for name, value in backend(self._tracker)
            .environment(os.environ, dict(run.attributes))
            .items()
            # These configure the bridge's own telemetry, and hold passwords and tokens; a tracker
            # library may have telemetry, too.
            if not name.startswith("OTEL_")
        }
        with self._lock, open(self._log, "ab", opener=open_private) as output:
            if self._killed:
                raise TrackerUnavailable("The bridge is stopping.")
            self._process, self._connection = start(_MODULE, environment=environment, output=output)
        return super().open(run)

    def close(self, *, exit_code: int) -> int | None:
        row = super().close(exit_code=exit_code)
        if self._process:
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(_EXIT_TIMEOUT_S)
        return row

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

    def _ask(self, method: str, *arguments: object, timeout_s: float) -> Any:
        connection = self._connection  # ``__exit__`` of another thread may take it away
        if connection is None:
            raise TrackerUnavailable("The run is not open.")
        try:
            connection.send((method, arguments))
            if not connection.poll(timeout_s):
                raise TrackerUnavailable(
                    f"The tracker {self._tracker} did not answer in {timeout_s:.0f} s.",
                    hint=f"Its messages are in {self._log}.",
                )
            outcome, *answer = connection.recv()
        except (EOFError, OSError) as exc:
            raise TrackerUnavailable(
                f"The writer process of {self._tracker} died.",
                hint=f"Its last messages are in {self._log}.",
            ) from exc
        if outcome == "rejected":
            raise TrackerRejected(answer[0], hint=answer[1])
        if outcome == "unavailable":
            raise TrackerUnavailable(answer[0], hint=answer[1])
        return answer[0]
