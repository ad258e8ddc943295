"""Many replays of stored runs at a time, for ``otel-rl replay``."""

import contextlib
import itertools
import os
import threading
import time
from collections.abc import Collection, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field, replace
from typing import Final

from otel_rl.bridge.config import BridgeSettings
from otel_rl.bridge.delivery.manager import DeliverySettings, RunState, RunStatus
from otel_rl.bridge.delivery.tracker import backend
from otel_rl.bridge.journal.runs import RunStore
from otel_rl.bridge.replay import ReadOnlyJournal, Replay, StoredRun
from otel_rl.bridge.stages import delivery_settings
from otel_rl.cli.find_run import FoundRun
from otel_rl.cli.replayed import Replayed
from otel_rl.cli.standard_streams import say
from otel_rl.errors import JournalError
from otel_rl.plurals import many
from otel_rl.records import ExperimentKey

__all__ = ["ReplayJob", "ReplayJobs"]

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
    """

    found: FoundRun
    tracker: str
    key: ExperimentKey
    replay: Replay | None = None
    is_known: bool = False

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
        directory, of = job.found.directory, job.found.overview
        mark = f"{of.rows} {of.description.status.value}"
        if self.replayed.has(directory, job.tracker, job.key, mark):
            job.is_known = True
            return None
        with contextlib.ExitStack() as stack:
            journal = (
                ReadOnlyJournal(directory)
                if directory is not None
                else stack.enter_context(contextlib.closing(self.settings.journal_place.open()))
            )
            source = StoredRun(RunStore(journal), job.found.key)
            job.replay = Replay(source, job.key, self._delivery(job), self.settings.stop_timeout_s)
            status = job.replay.run()
        if status is None or _is_complete(status, source.end):
            self.replayed.note(directory, job.tracker, job.key, mark)
        return status

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
            if status is not None and job.replay is not None:
                why = f" ({status.last_error})" if status.last_error else ""
                parts.append(
                    f"{job}: {status.next_row} of {many(job.replay.source.end, 'row')}{why}"
                )
        say(f"{self.done} of {many(len(self.jobs), 'run')}; {'; '.join(parts)}")


def _is_complete(status: RunStatus, rows: int) -> bool:
    return status.state is RunState.FINISHED and status.next_row >= rows
