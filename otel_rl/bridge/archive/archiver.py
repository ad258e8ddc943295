"""Writes waiting values of the journal to Parquet files: ``<directory>/<run id>/<file>.parquet``.

journal ─ parts of a file ─> child process ─ temporary file, sync, rename ─> parts are removed

A file's name is made from the journal's identity and a number that the journal gives only once. A
second write of a file, after a crash or on another bridge, gives the same values and name.
"""

import contextlib
import json
import logging
import math
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import IO, Final, NamedTuple

from otel_rl.bridge.counters import ArchiveDrop, Counter, Counters, Where
from otel_rl.bridge.journal.archive_store import ArchiveStore, UnarchivedRun
from otel_rl.bridge.private_files import UMASK
from otel_rl.errors import JournalError, LeaseLost
from otel_rl.records import ExperimentKey
from otel_rl.run_id import run_id

# Arrow loads pandas and numpy where they are installed, and needs neither for Parquet files. pandas
# would take as much CPU as all else that a process does for a small file, numpy a quarter.
_MAIN: Final = """
import sys
sys.modules |= {"numpy": None, "pandas": None}
from otel_rl.bridge.archive.file_writer import main
sys.exit(main())
"""

FILE_WRITER: Final = ("-P", "-c", _MAIN)
"""Arguments of Python for a process that writes files, see ``file_writer``."""

_log = logging.getLogger(__name__)

_LOOK_EVERY_S: Final = 1.0

FILE_BYTES: Final = 16 << 20
"""Bytes of parts in a file: about half a million values, and twice as much memory of the child."""

_FILES_AT_ONCE: Final = 100
"""Files of each kind of one child process. Its answers must fit into a pipe."""

_SETTLED_NS: Final = 30_000_000_000
"""Age of values after which it is known whether a new attempt has begun with them."""

_TIMEOUT_S: Final = 300.0
"""Time of one child process, on a machine that has other work."""

_FIRST_PAUSE_S: Final = 5.0
_LONGEST_PAUSE_S: Final = 300.0

_LOG_EVERY_S: Final = 60.0


class ArchiveUnwritable(Exception):
    """The child process could not write a file; its text is the reason."""


class _File(NamedTuple):
    """A file that the child process is asked to write."""

    key: ExperimentKey
    number: int


class _Child(NamedTuple):
    """A child process, with the messages that it prints."""

    process: "subprocess.Popen[bytes]"
    errors: IO[bytes]


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
        self._process: subprocess.Popen[bytes] | None = None
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
        process = self._process
        if process is not None:
            process.kill()
        self._thread.join()

    def write_all(self) -> int:
        """Write all waiting values. Returns the number of values.

        Raises:
            ArchiveUnwritable: A file cannot be written.
            JournalError: The journal is unreachable or full.
        """
        files = self._begin(self._store.waiting())
        if not files:
            return 0
        written = 0
        with self._child() as child:
            while files and not self._is_given_up:
                written += self._write(files, child)
                files = self._begin(self._store.waiting())
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
            # A child process costs more than a look: none for values that are all too new.
            if files := self._begin(due, settled_ns):
                with self._child() as child:
                    self._write(files, child)
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

    def _begin(
        self, due: Sequence[UnarchivedRun], made_through_ns: int | None = None
    ) -> Sequence[_File]:
        """Decide the next file of each run, for as many runs as one process may write."""
        through = () if made_through_ns is None else (made_through_ns,)
        begin = self._store.begin_file
        found = ((run.key, begin(run.key, FILE_BYTES, *through)) for run in due[:_FILES_AT_ONCE])
        return [_File(key, number) for key, number in found if number is not None]

    def _write(self, files: Sequence[_File], child: _Child) -> int:
        process = child.process
        assert process.stdin is not None
        assert process.stdout is not None
        damaged = 0
        timer = threading.Timer(_TIMEOUT_S, process.kill)
        timer.start()
        try:
            with contextlib.suppress(BrokenPipeError):  # its answers list what is written
                for file in files:
                    damaged += self._send(file, process.stdin)
                process.stdin.flush()
            lines = [line for _ in files if (line := process.stdout.readline())]
        finally:
            timer.cancel()
        failure = ""
        written = 0
        for file, line in zip(files, lines, strict=False):
            answer = json.loads(line)
            if "error" in answer:
                failure = failure or answer["error"]
                continue
            self._store.end_file(file.key, file.number)
            self._counters.add(Counter.ARCHIVE_WRITTEN, answer["values"])
            written += answer["values"]
        if failure or len(lines) < len(files):
            raise ArchiveUnwritable(failure or _reason(child))
        if damaged:
            self._counters.add(Counter.ARCHIVE_DROPPED, damaged, reason=ArchiveDrop.DAMAGED)
            _log.error(
                "%d values that waited for the archive are damaged in the journal and left out. "
                "Check the disk.",
                damaged,
            )
        return written

    @contextlib.contextmanager
    def _child(self) -> Iterator[_Child]:
        """Start a child process that ``join`` may kill; it has ended after the context."""
        with _child() as child:
            self._process = child.process
            try:
                yield child
            finally:
                self._process = None

    def _send(self, file: _File, stdin: IO[bytes]) -> int:
        """Give a file to the child process. Returns the number of damaged values."""
        run = run_id(file.key.experiment, file.key.trial)
        path = self._directory / run / f"{self._store.identity[:8]}-{file.number:012}.parquet"
        head = {
            "path": str(path.absolute()),
            "experiment": _encodable(file.key.experiment),
            "trial": _encodable(file.key.trial),
            "attempts": [(one.number, one.since_ns) for one in self._store.attempts(file.key)],
        }
        stdin.write(json.dumps(head).encode() + b"\n")
        damaged = 0
        for part in self._store.parts(file.key, file.number):
            if part.body is None:
                damaged += part.samples
                continue
            stdin.write(len(part.body).to_bytes(8, "big"))
            stdin.write(part.body)
        stdin.write(bytes(8))
        return damaged


@contextlib.contextmanager
def _child() -> Iterator[_Child]:
    """Start the child process; it has ended after the context."""
    with (
        tempfile.TemporaryFile() as errors,
        subprocess.Popen(  # noqa: S603  # our own interpreter and module
            [sys.executable, *FILE_WRITER],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=errors,
            start_new_session=True,  # a Ctrl-C is for the bridge
            umask=UMASK,
        ) as process,
    ):
        try:
            yield _Child(process, errors)
        except BaseException:
            process.kill()
            raise
        finally:
            if process.stdin is not None:
                with contextlib.suppress(BrokenPipeError):
                    process.stdin.close()


def _encodable(name: str) -> str:
    return name.encode(errors="replace").decode()


def _reason(child: _Child) -> str:
    child.errors.seek(0)
    lines = child.errors.read().decode(errors="replace").strip().splitlines()
    last = lines[-1] if lines else "no message"
    return f"its process ended with {child.process.wait()} ({last})"
