"""Replays of kept runs, for ``otel-rl replay``: where rows come from, and many runs at a time."""

import contextlib
import itertools
import os
import tempfile
import threading
import time
from collections.abc import Callable, Collection, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final

from otel_rl.bridge.config import BridgeSettings
from otel_rl.bridge.delivery.manager import DeliverySettings, RunState, RunStatus
from otel_rl.bridge.delivery.tracker import backend
from otel_rl.bridge.journal.reader import journals_below
from otel_rl.bridge.journal.runs import RunStore
from otel_rl.bridge.journal.sqlite import SqliteJournal
from otel_rl.bridge.replay.replay import ReadOnlyJournal, Replay, Replayed, StoredRun
from otel_rl.bridge.stages import delivery_settings
from otel_rl.cli.find_run import FoundRun
from otel_rl.cli.standard_streams import say
from otel_rl.errors import JournalError
from otel_rl.plurals import many
from otel_rl.records import ExperimentKey

if TYPE_CHECKING:
    from otel_rl.bridge.replay.archived_run import ArchiveFiles

__all__ = [
    "ReplayJob",
    "ReplayJobs",
    "ReplaySource",
    "archive_place",
    "archive_places",
    "has_first_row",
    "of_archive",
    "of_journal",
]


def archive_place(settings: BridgeSettings, data: Path) -> Path:
    return settings.archive.directory or data / "archive"


def archive_places(settings: BridgeSettings) -> Sequence[Path]:
    found = {
        archive_place(settings, data) for data in (settings.data, *journals_below(settings.data))
    }
    return sorted(found)


GoesOn = Callable[[float], bool]
"""Is called now and then with the share that was read; False ends the work."""

_NO_BOUND: Final = 1 << 62  # but the disk's: rows are removed with the directory


@dataclass(frozen=True, slots=True)
class ReplaySource:
    """One run that is kept somewhere.

    Attributes:
        key: Its name there.
        directory: The data directory that it belongs to; None for a database.
        mark: Returns a value that changes when there are more rows. Cheap.
        open: Returns its rows, for the length of a context. Raises JournalError if they cannot be
            read.
        is_archive: Whether they are made again from the files of an archive.
    """

    key: ExperimentKey
    directory: Path | None
    mark: Callable[[], tuple[int, str]]
    open: Callable[[contextlib.ExitStack, GoesOn], StoredRun]
    is_archive: bool


def of_journal(found: FoundRun, settings: BridgeSettings) -> ReplaySource:
    def opened(stack: contextlib.ExitStack, _: GoesOn) -> StoredRun:
        if found.directory is not None:
            store = RunStore(ReadOnlyJournal(found.directory))
        else:
            store = RunStore(stack.enter_context(contextlib.closing(settings.journal_place.open())))
        return StoredRun(store, found.key)

    of = found.overview
    mark = of.rows, of.description.status.value
    return ReplaySource(found.key, found.directory, lambda: mark, opened, is_archive=False)


def of_archive(files: "ArchiveFiles", settings: BridgeSettings) -> ReplaySource:
    """Return a run of an archive, ``<data>/archive/<run id>`` or where the files were copied to.

    Its rows are made again in a temporary directory.
    """
    from otel_rl.bridge.replay.archived_run import archived_run, identity_of  # need pyarrow

    def opened(stack: contextlib.ExitStack, goes_on: GoesOn) -> StoredRun:
        scratch = stack.enter_context(tempfile.TemporaryDirectory(prefix="otel-rl-replay-"))
        journal = SqliteJournal(Path(scratch), max_bytes=_NO_BOUND)
        stack.callback(journal.close)
        return archived_run(files, journal, settings.rows, goes_on)

    place = files.directory.absolute().parent
    data = place.parent if place.name == "archive" else settings.data
    return ReplaySource(
        files.key,
        data,
        lambda: (files.values, identity_of(files, settings.rows)),
        opened,
        is_archive=True,
    )


def has_first_row(source: ReplaySource) -> bool:
    with contextlib.ExitStack() as stack, contextlib.suppress(JournalError):
        return source.open(stack, lambda _: True).first == 0
    return False


_NEWS_S: Final = 5.0
_LOOK_S: Final = 0.2


@dataclass(slots=True)
class ReplayJob:
    """A run on its way to a tracker.

    Attributes:
        found: The run.
        tracker: Name of the tracker.
        key: Name of the run there.
        replay: None before it begins.
        is_known: Whether an earlier replay has finished it.
        share_read: Share of the archive's values that was read, before there are rows.
    """

    found: ReplaySource
    tracker: str
    key: ExperimentKey
    replay: Replay | None = None
    is_known: bool = False
    share_read: float = 0.0

    def __str__(self) -> str:
        own = "" if self.key == self.found.key else f" as {self.key}"
        return f"{self.found.key}{own}"


@dataclass(slots=True)
class ReplayJobs:
    """The jobs of one command.

    Attributes:
        settings: Of the bridge.
        jobs: In order.
        at_once: How many at the same time.
        replayed: What earlier replays have finished.
        done: Number of jobs that are over.
        known: Those of them that an earlier replay had finished.
        failed: Number of those that lack rows.
    """

    settings: BridgeSettings
    jobs: Sequence[ReplayJob]
    at_once: int
    replayed: Replayed
    done: int = 0
    known: int = 0
    failed: int = 0
    _stopping: threading.Event = field(default_factory=threading.Event)

    def run(self) -> None:
        """Write the runs; after an interruption the writers are ended at once."""
        waiting = iter(self.jobs)
        going: dict[Future[RunStatus | None], ReplayJob] = {}
        news_s = time.monotonic() + _NEWS_S
        with ThreadPoolExecutor(self.at_once, thread_name_prefix="otel-rl-replay") as pool:
            try:
                while True:
                    for job in itertools.islice(waiting, self.at_once - len(going)):
                        going[pool.submit(self._write, job)] = job
                    if not going:
                        return
                    over, _ = wait(going, timeout=_LOOK_S, return_when=FIRST_COMPLETED)
                    for future in over:
                        self._note(going.pop(future), future)
                    if time.monotonic() >= news_s:
                        news_s = time.monotonic() + _NEWS_S
                        self._report(going.values())
            finally:
                self._stopping.set()
                for job in going.values():
                    if job.replay is not None:
                        job.replay.kill()

    def _write(self, job: ReplayJob) -> RunStatus | None:
        if self._stopping.is_set():
            return None
        found = job.found
        mark = found.mark()
        if self.replayed.has(found.directory, job.tracker, job.key, mark):
            job.is_known = True
            return None
        with contextlib.ExitStack() as stack:
            source = found.open(stack, partial(self._goes_on, job))
            job.replay = Replay(source, job.key, self._delivery(job), self.settings.stop_timeout_s)
            status = job.replay.run()
        if status is None or _is_complete(status, source.end):
            self.replayed.note(found.directory, job.tracker, job.key, mark)
        return status

    def _goes_on(self, job: ReplayJob, share_read: float) -> bool:
        job.share_read = share_read
        return not self._stopping.is_set()

    def _delivery(self, job: ReplayJob) -> DeliverySettings:
        """Return the settings: files are where users of the tracker expect them."""
        settings = self.settings
        if job.found.directory is not None:  # whose locks keep a bridge and a replay apart
            settings = settings.model_copy(update={"data": job.found.directory})
        given = delivery_settings(settings, job.tracker)
        home = backend(job.tracker).home(os.environ)
        if home is not None and self.settings.tracker.directory is None:
            return replace(given, directory=home)
        return given

    def _note(self, job: ReplayJob, future: "Future[RunStatus | None]") -> None:
        self.done += 1
        try:
            status = future.result()
        except JournalError as exc:
            self.failed += 1
            say(f"run {job}: {exc}")
            return
        if job.is_known:
            self.known += 1
        elif status is None:
            say(f"run {job}: has no rows")
        elif job.replay is not None and _is_complete(status, job.replay.source.end):
            rows = job.replay.source.end
            say(f"run {job}: {many(rows, 'row')} in {job.tracker}: {status.location}")
        else:
            self.failed += 1
            say(f"run {job}: {many(status.safe_row, 'row')} in {job.tracker}. {status.last_error}")

    def _report(self, going: Collection[ReplayJob]) -> None:
        parts = []
        for job in going:
            status = None if job.replay is None else job.replay.status()
            if status is None:
                parts.append(f"{job}: reading its values, {job.share_read:.0%}")
            elif job.replay is not None:
                why = f" ({status.last_error})" if status.last_error else ""
                parts.append(
                    f"{job}: {status.next_row} of {many(job.replay.source.end, 'row')}{why}"
                )
        say(f"{self.done} of {many(len(self.jobs), 'run')}; {'; '.join(parts)}")


def _is_complete(status: RunStatus, rows: int) -> bool:
    return status.state is RunState.FINISHED and status.next_row >= rows
