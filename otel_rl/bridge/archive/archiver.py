"""Writes waiting values of the journal to Parquet files: ``<directory>/<run id>/<file>.parquet``.

journal ─ parts of a file ─> child process ─ temporary file, sync, rename ─> parts are removed

A file's name is made from the journal's identity and a number that the journal gives only once. A
second write of a file, after a crash or on another bridge, gives the same values and name.
"""

import contextlib
import json
import logging
import math
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Final

from otel_rl.bridge.child_process import ChildProcess, ProcessEnded
from otel_rl.bridge.counters import ArchiveDrop, Counter, Counters, Where
from otel_rl.bridge.journal.archive_store import ArchiveStore, UnarchivedRun
from otel_rl.errors import JournalError, LeaseLost
from otel_rl.records import ExperimentKey
from otel_rl.run_id import run_id

MODULE: Final = "otel_rl.bridge.archive"
"""Module of the process that writes files, see ``file_writer``."""

_log = logging.getLogger(__name__)

HEAD: Final = b"h"
"""Begins a question of the child process: the ``FileHead`` of the next file, as JSON."""

PART: Final = b"p"
"""Begins the question with a part of the file."""

WRITE: Final = b"w"
"""Question after the last part. The answer is JSON: the number of values, or an error."""

_LOOK_EVERY_S: Final = 1.0

FILE_BYTES: Final = 16 << 20
"""Bytes of parts in a file: about half a million values, and twice as much memory of the child."""

_SETTLED_NS: Final = 30_000_000_000
"""Age of values after which it is known whether a new attempt has begun with them."""

_TIMEOUT_S: Final = 300.0
"""Time of one file in the child process, on a machine that has other work."""

_FIRST_PAUSE_S: Final = 5.0
_LONGEST_PAUSE_S: Final = 300.0

_LOG_EVERY_S: Final = 60.0


class ArchiveUnwritable(Exception):
    """The child process could not write a file; its text is the reason."""


class Archiver:
    """Thread that writes the archive files of the runs that this bridge owns.

    Args:
        every_s: Longest time in seconds that a value waits.
        max_waiting_bytes: Bytes beyond which no more values may wait, over all runs.
    """

    def __init__(
        self,
        store: ArchiveStore,
        directory: Path,
        *,
        every_s: float,
        max_waiting_bytes: int,
        counters: Counters,
        clock_ns: Callable[[], int] = time.time_ns,
    ) -> None:
        self._store = store
        self._directory = directory
        self._every_ns = int(every_s * 1e9)
        self._max_waiting_bytes = max_waiting_bytes
        self._counters = counters
        self._clock_ns = clock_ns
        self._is_full = False
        self._retry_s = -math.inf
        self._pause_s = 0.0
        self._logged_s = -math.inf
        self._stopping = threading.Event()
        self._process = ChildProcess(MODULE)
        self._is_given_up = False
        self._thread = threading.Thread(target=self._run, name="otel-rl-archive", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def has_room(self) -> bool:
        """Return whether more values may wait. Any thread may call it."""
        return not self._is_full

    def finish(self) -> None:
        """Begin to write all waiting values, because no more will come."""
        self._stopping.set()

    def join(self, timeout_s: float) -> None:
        """Wait until all values are written, at most ``timeout_s``.

        The rest stays in the journal.
        """
        if not self._thread.is_alive():
            return
        self._thread.join(timeout_s)
        if self._thread.is_alive():
            _log.warning(
                "The archive is not complete, values wait in the journal. The next start writes "
                "them, or `otel-rl finish`."
            )
        self._is_given_up = True
        self._process.kill()
        self._thread.join()

    def write_all(self) -> int:
        """Write all waiting values. Returns the number of values.

        Raises:
            ArchiveUnwritable: A file cannot be written.
            JournalError: The journal is unreachable or full.
        """
        written = 0
        try:
            while not self._is_given_up:
                values = self._write(self._store.waiting())
                if values is None:
                    break
                written += values
        finally:
            self._process.end()
        return written

    def _run(self) -> None:
        while True:
            is_last = self._stopping.wait(_LOOK_EVERY_S)
            with self._failures_counted():
                if is_last:
                    self.write_all()
                else:
                    self._look()
            if is_last:
                return

    def _look(self) -> None:
        size = self._store.size()
        self._is_full = size > self._max_waiting_bytes
        if not size or time.monotonic() < self._retry_s:
            return
        is_much = 2 * size > self._max_waiting_bytes
        oldest_ns = self._clock_ns() - self._every_ns
        due = [run for run in self._store.waiting() if is_much or run.oldest_ns <= oldest_ns]
        if due:
            settled_ns = self._clock_ns() - min(_SETTLED_NS, self._every_ns // 2)
            try:
                self._write(due, settled_ns)
            finally:
                self._process.end()
            self._pause_s = 0.0
            self._is_full = self._store.size() > self._max_waiting_bytes

    @contextlib.contextmanager
    def _failures_counted(self) -> Iterator[None]:
        """Catch and count failures; values go on waiting, and are retried after a pause."""
        try:
            yield
        except LeaseLost as exc:
            _log.debug("Another bridge continues a run's archive: %s", exc)
        except JournalError as exc:
            level = logging.WARNING if self._stopping.is_set() else logging.DEBUG
            _log.log(level, "The journal is unreachable, values wait for the archive: %s", exc)
        except ArchiveUnwritable as exc:
            self._wait_longer()
            if not self._is_given_up and self._may_log():
                _log.warning(
                    "The archive cannot be written, values wait in the journal: %s. Free disk "
                    "space, or set archive.directory.",
                    exc,
                )
        except Exception:  # noqa: BLE001  # runs go on without an archive; counted
            self._wait_longer()
            self._counters.add(Counter.EXCEPTIONS, reason=Where.ARCHIVE)
            if self._may_log():
                _log.exception("Writing the archive failed; values wait in the journal.")

    def _wait_longer(self) -> None:
        self._pause_s = min(max(2 * self._pause_s, _FIRST_PAUSE_S), _LONGEST_PAUSE_S)
        self._retry_s = time.monotonic() + self._pause_s

    def _may_log(self) -> bool:
        if time.monotonic() - self._logged_s < _LOG_EVERY_S:
            return False
        self._logged_s = time.monotonic()
        return True

    def _write(
        self, due: Sequence[UnarchivedRun], made_through_ns: int | None = None
    ) -> int | None:
        """Write the next file of each run. The first file starts the child process.

        Returns:
            The number of values; None if there is no file to write.

        Raises:
            ArchiveUnwritable: A file cannot be written; those of other runs are, if possible.
        """
        through = () if made_through_ns is None else (made_through_ns,)
        written: int | None = None
        failure = ""
        for run in due:
            number = self._store.begin_file(run.key, FILE_BYTES, *through)
            if number is None:
                continue
            answer = self._write_file(run.key, number)
            if "error" in answer:
                failure = failure or answer["error"]
                continue
            self._store.end_file(run.key, number)
            self._counters.add(Counter.ARCHIVE_WRITTEN, answer["values"])
            written = (written or 0) + answer["values"]
        if failure:
            raise ArchiveUnwritable(failure)
        return written

    def _write_file(self, key: ExperimentKey, number: int) -> dict[str, Any]:
        """Let the child process write a file, and return its answer."""
        run = run_id(key.experiment, key.trial)
        path = self._directory / run / f"{self._store.identity[:8]}-{number:012}.parquet"
        head = {
            "path": str(path.absolute()),
            "experiment": _encodable(key.experiment),
            "trial": _encodable(key.trial),
            "attempts": [(one.number, one.since_ns) for one in self._store.attempts(key)],
        }
        damaged = 0
        try:
            self._process.answer(HEAD + json.dumps(head).encode(), _TIMEOUT_S)
            for part in self._store.parts(key, number):
                if part.body is None:
                    damaged += part.samples
                else:
                    self._process.answer(PART + part.body, _TIMEOUT_S)
            answer: dict[str, Any] = json.loads(self._process.answer(WRITE, _TIMEOUT_S))
        except (ProcessEnded, OSError) as exc:  # or it took too long, or cannot be started
            raise ArchiveUnwritable(str(exc)) from exc
        if damaged:
            self._counters.add(Counter.ARCHIVE_DROPPED, damaged, reason=ArchiveDrop.DAMAGED)
            _log.error(
                "%d values that waited for the archive are damaged in the journal and left out. "
                "Check the disk.",
                damaged,
            )
        return answer


def _encodable(name: str) -> str:
    return name.encode(errors="replace").decode()
