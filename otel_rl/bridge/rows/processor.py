"""Makes rows of the batches in the spool. Synchronous: one thread, and time is an argument.

    spool ─ read ─> decode ─> align ─> run store ─> notify
            (a share of each experiment)  (one transaction for all of them)

Experiments take turns, so that one does not delay another, and fail separately: a failed one is
rolled back and retried later, while the others go on.

A turn ends after a slice of time or of work, also in the middle of a batch, where the run's next
turn resumes. Rows closed before that, because of the bounds on open data, are committed with the
position in the batch: so after a crash nothing is taken twice.

A commit writes the whole state of a run. So batches without a row stay in the spool for a while
after they were taken, and after a crash they are taken again into the state of the last commit.
"""

import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field

from otel_rl.bridge.counters import Counters
from otel_rl.bridge.journal.commit import Commit
from otel_rl.bridge.journal.leases.ownership import Ownership, SoleOwner
from otel_rl.bridge.journal.run_store import RunStore
from otel_rl.bridge.journal.spool import Spool
from otel_rl.bridge.rows.loaded_run import LoadedRun, load_run
from otel_rl.bridge.rows.reports.bridge_report import BridgeReport
from otel_rl.bridge.rows.reports.data_warnings import DroppedPoints
from otel_rl.bridge.rows.rounds.batch_reading import BatchReading
from otel_rl.bridge.rows.rounds.elapsed import has_passed
from otel_rl.bridge.rows.rounds.finding_queue import FindingQueue
from otel_rl.bridge.rows.rounds.loaded_runs import LoadedRuns
from otel_rl.bridge.rows.rounds.row_commits import RowCommits
from otel_rl.bridge.rows.rounds.run_troubles import RunTroubles
from otel_rl.bridge.rows.rounds.runs_without_metrics import RunsWithoutMetrics
from otel_rl.bridge.rows.rounds.silent_runs import SilentRuns
from otel_rl.bridge.rows.settings import AlignSettings
from otel_rl.bridge.rows.turns.turn_length import Slices, Turn
from otel_rl.bridge.rows.turns.turn_order import Rotation
from otel_rl.errors import JournalError, LeaseLost
from otel_rl.records import PART, Description, ExperimentKey, Row

__all__ = ["RowProcessor"]

_NS_PER_S = 1_000_000_000

# Bytes read in one round, over all runs: enough to share a commit, few enough for prompt rows.
_READ_BYTES = 8 << 20

# One turn of one experiment: others wait at most for the rest of it and one more.
_SLICE_S = 0.25
_SLICE_PARTS = 32

# Approximate number of values that become rows in one transaction.
_ROW_VALUES = 100_000

# Batches without a row are committed at this size, or at that of the run's state if it is larger,
# since a commit writes the state: after a crash they are read again.
_UNCOMMITTED_BYTES = 4 << 20

# An experiment that is silent for this long, with nothing open, is only in the run store.
_IDLE_NS = 600 * _NS_PER_S


@dataclass(slots=True)
class _Round:
    """Work prepared in a round, and whether more may be ready at once."""

    commits: list[Commit] = field(default_factory=list)
    has_more: bool = False


class RowProcessor:
    """Only reader of the spool and writer of the run store, for the runs that this bridge owns.

    Args:
        spool: Source of batches.
        run_store: Destination of rows.
        settings: Of the alignment.
        counters: Of the bridge.
        notify: Called with each run that has new rows.
        report_interval_s: Interval of the bridge's reports in a run.
        gauges: Returns the gauges of a report, by tracker key.
        owners: Tells which runs this bridge owns.
        dropped: Called with points over a run's series limit, by worker, once that is committed.
        tenant: Returns the name of a run's tenant.
        archive_room: Tells whether the journal has room for values that wait for the archive; None
            without an archive.
        is_one_launch: Whether all workers are of one launch.
        commit_every_s: Longest time for which batches without a row stay uncommitted.
        launched: Returns the process id of the command that the bridge was started for, if any.
        clock_s: Monotonic clock, in seconds, by which turns and rounds end.
        slice_s: Most seconds of a turn.
        slice_parts: Most parts of batches in a turn.
        part: Approximate points of a part.

    Attributes:
        runs: Those in memory, or to be loaded.
        findings: Findings of a diagnosis, for their runs.
        without_metrics: Ended runs without any metric of their program.
    """

    def __init__(
        self,
        spool: Spool,
        run_store: RunStore,
        *,
        settings: AlignSettings,
        counters: Counters,
        notify: Callable[[ExperimentKey], None],
        report_interval_s: float = 10.0,
        gauges: Callable[[ExperimentKey], Mapping[str, float]] = lambda _: {},
        owners: Ownership | None = None,
        dropped: Callable[[ExperimentKey, Mapping[str, DroppedPoints]], None] = lambda *_: None,
        tenant: Callable[[ExperimentKey], str] = lambda _: "",
        archive_room: Callable[[], bool] | None = None,
        is_one_launch: bool = False,
        commit_every_s: float = 0.0,
        launched: Callable[[], int | None] = lambda: None,
        clock_s: Callable[[], float] = time.monotonic,
        slice_s: float = _SLICE_S,
        slice_parts: int = _SLICE_PARTS,
        part: int = PART,
    ) -> None:

        def load(key: ExperimentKey, epoch: int, now_ns: int) -> LoadedRun:
            return load_run(
                key,
                run_store.saved(key),
                settings,
                counters,
                BridgeReport(int(report_interval_s * _NS_PER_S)),
                epoch=epoch,
                now_ns=now_ns,
                archive_room=archive_room,
                is_one_launch=is_one_launch,
            )

        self._slices = Slices(slice_s, slice_parts, clock_s)
        self._rotation = Rotation(tenant)
        # Whether a run had more data in its turn since the last complete rotation.
        self._has_more = False
        self._spool = spool
        self._run_store = run_store
        self._commit_every_ns = int(commit_every_s * _NS_PER_S)
        self._gauges = gauges
        self._launched = launched
        self._owners = owners or SoleOwner()
        self.runs = LoadedRuns(self._owners, load)
        self._silent = SilentRuns(self.runs)
        self.findings = FindingQueue(self.runs)
        self.without_metrics = RunsWithoutMetrics()
        self._troubles = RunTroubles(self.runs, self.findings, spool, counters)
        self._batches = BatchReading(spool, run_store, self.runs, self._troubles, part)
        self._commits = RowCommits(
            run_store,
            self.runs,
            self.findings,
            self._troubles,
            counters,
            notify=notify,
            dropped=dropped,
        )
        for key in run_store.open_runs():
            if self._owners.epoch(key) is not None:
                self.runs.begin(key)

    def experiments(self) -> Collection[ExperimentKey]:
        """Return the experiments in memory or about to be. Any thread may call it."""
        return [*self.begun(), *self._spool.waiting()]

    def begun(self) -> Collection[ExperimentKey]:
        """Return those of ``experiments`` that had a turn. Any thread may call it."""
        # Each dict is copied in one step of the interpreter, so it cannot change meanwhile.
        return [*self.runs.loaded, *self.runs.unloaded]

    def progress(self, key: ExperimentKey) -> tuple[int, int] | None:
        """Return ``LoadedRun.progress``; None if it is not in memory. Any thread may call it."""
        run = self.runs.loaded.get(key)
        return None if run is None else run.progress

    def round(self, now_ns: int) -> bool:
        """Make rows of a share of the waiting batches, and of what is complete by ``now_ns``.

        Of many experiments, as many have a turn as there is time for; the others follow in the next
        rounds.

        Returns:
            Whether more may be ready at once.

        Raises:
            JournalError: No room for the rows, or the journal is unreachable. The batches wait; try
                again in a while.
        """
        self._troubles.leave(*self.runs.lost())
        waiting = {
            key: None for key in self._spool.waiting() if self._owners.epoch(key) is not None
        }
        share_bytes = _READ_BYTES // max(1, len(waiting))
        self._silent.begin(waiting, now_ns)
        done = _Round()
        end_s = self._slices.end_of_round_s()
        for key in self._rotation.turns([*waiting, *self.runs.unloaded, *self.runs.loaded]):
            if self._troubles.is_paused(key, now_ns):
                self.runs.begin(key)
                continue
            if self._silent.leaves_out(key):
                continue
            try:
                turn = self._slices.turn(len(waiting))
                self._advance(key, share_bytes if key in waiting else 0, turn, now_ns, done)
            except LeaseLost:
                self._troubles.leave(key)
            except JournalError:
                self.runs.go_back(key, *(commit.key for commit in done.commits))
                raise
            except Exception:  # noqa: BLE001  # the others go on; counted
                self._troubles.set_back(key, now_ns)
            if self._slices.clock_s() >= end_s:
                break
        self._commits.commit(done.commits, now_ns)
        self._has_more |= done.has_more
        if not self._rotation.is_complete:
            return True
        has_more, self._has_more = self._has_more, False
        return has_more

    def go_on(self, now_ns: int) -> None:
        """Skip the bridge's downtime until ``now_ns``: it does not count toward lost workers."""
        for run in self.runs.loaded.values():
            run.aligner.go_on(now_ns)

    def finish(
        self,
        now_ns: int,
        *,
        failed: bool | None = None,
        by: str | None = None,
        is_over: Callable[[], bool] = lambda: False,
    ) -> None:
        """Make rows of everything that waits or is open: no more data will come.

        Args:
            now_ns: The bridge's clock.
            failed: For ended workers, whether those without an exit report have failed. None where
                workers may go on without this bridge.
            by: Signal that ended them; None if none is known.
            is_over: Asked after each round. If so, what waits is left to the next bridge, with the
                open steps of its runs.

        Raises:
            JournalError: No room for the rows, or the journal is unreachable. The next bridge makes
                them again.
        """
        self._troubles.end_pauses()
        goes_on: Collection[ExperimentKey] = ()
        while self.round(now_ns):
            if is_over():
                goes_on = {*self._spool.waiting()}
                break
        commits = []
        for key in [key for key in self.runs.loaded if key not in goes_on]:
            try:
                run = self.runs.loaded[key]
                if failed is not None:
                    run.aligner.end(failed=failed, by=by)
                report = run.report_values(self._gauges(key))
                if not run.report.has_changed(report):
                    report = {}
                rows = run.aligner.close(now_ns, everything=True, report=report)
                description = self._news(key, run)
                if rows or run.taken or description is not None:
                    history = run.aligner.logs.take_history(now_ns, everything=True)
                    commits.append(run.take_commit(rows, description, history))
            except Exception:  # noqa: BLE001  # as above
                self._troubles.set_back(key, now_ns)
        self._commits.commit(commits, now_ns)

    def _advance(
        self, key: ExperimentKey, max_bytes: int, turn: Turn, now_ns: int, done: _Round
    ) -> None:
        run = self.runs.load(key, now_ns)
        run.aligner.clock_is(now_ns)
        run.aligner.launched_is(self._launched())
        self.findings.pass_on(key, run)
        if not run.unread:
            run.reads_on = False
            if max_bytes:
                self._batches.read(key, run, max_bytes)
        if run.unread:
            run.used_ns = now_ns
            if not self._batches.take(key, run, turn, now_ns):
                done.has_more = True
                return
        elif not run.taken and self._is_idle(run, now_ns):
            self.findings.stored(key)
            self.runs.unload(key)
            return
        has_more = run.reads_on or bool(run.unread)
        is_due = self._is_due(key, run, now_ns, has_more=has_more)
        if not has_more:
            self._troubles.is_over(key)
        done.has_more |= has_more
        # In a backlog the bridge's clock is far ahead of the data that it reads.
        clock_ns = run.heard_ns if has_more else now_ns
        rows: Sequence[Row]
        description: Description | None = None
        if run.parts is not None:
            rows = run.aligner.close_surplus(clock_ns)
        else:
            report = run.report_values(self._gauges(key)) if run.report.is_due(now_ns) else {}
            rows = run.aligner.close(clock_ns, report=report, at_most=_ROW_VALUES)
            done.has_more |= run.aligner.has_more
            if rows and report:
                run.report.written(report, now_ns)
            description = self._news(key, run)
        if rows or is_due or description is not None:
            history = run.aligner.logs.take_history(clock_ns)
            done.commits.append(run.take_commit(rows, description, history))
        elif run.parts is None and not run.taken:
            self.findings.stored(key)

    def _is_due(self, key: ExperimentKey, run: LoadedRun, now_ns: int, *, has_more: bool) -> bool:
        """Return whether batches are to be committed without a row."""
        if run.parts is not None or not run.taken:
            return False
        # Or the faulty one would not be distinguished from those before it.
        if self._troubles.is_one_by_one(key):
            return True
        # In a backlog the state may be as large as all batches that were taken since its beginning.
        if has_more and run.taken_bytes < run.state_bytes:
            return False
        return run.taken_bytes >= max(_UNCOMMITTED_BYTES, run.state_bytes) or has_passed(
            self._commit_every_ns, run.taken_ns, now_ns
        )

    def _is_idle(self, run: LoadedRun, now_ns: int) -> bool:
        return now_ns - run.used_ns > _IDLE_NS and not run.aligner.standing.is_watching

    def _news(self, key: ExperimentKey, run: LoadedRun) -> Description | None:
        """Return the run's description, if it differs from the run store's."""
        description = run.describe()
        self.without_metrics.look(key, run, description.status)
        return None if description == self._run_store.description(key) else description
