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

import logging
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from otel_rl.bridge.counters import (
    CommitRefusal,
    Counter,
    Counters,
    SampleDrop,
    Where,
)
from otel_rl.bridge.journal.commit import Commit
from otel_rl.bridge.journal.leases.ownership import Ownership, SoleOwner
from otel_rl.bridge.journal.run_store import RunStore
from otel_rl.bridge.journal.spool import Spool, Spooled
from otel_rl.bridge.rows.aligner import AlignSettings
from otel_rl.bridge.rows.loaded_run import LoadedRun, load_run
from otel_rl.bridge.rows.reports.bridge_report import BridgeReport
from otel_rl.bridge.rows.reports.data_warnings import TOLD, DroppedPoints
from otel_rl.bridge.rows.reports.finding_rows import Finding
from otel_rl.bridge.rows.turns.turn_length import Slices, Turn
from otel_rl.bridge.rows.turns.turn_order import Rotation
from otel_rl.errors import JournalError, LeaseLost, ShareUsedUp
from otel_rl.records import (
    PART,
    Description,
    ExperimentKey,
    ExperimentStatus,
    Row,
)

__all__ = ["NO_METRIC_HINT", "RowProcessor"]

_log = logging.getLogger(__name__)

NO_METRIC_HINT = (
    "Its workers reported liveness, but no metric. Did the program end before it logged, "
    "log to another library only, or log values that are no numbers? "
    "See docs/quickstart.md#a-run-with-no-metric."
)

_NS_PER_S = 1_000_000_000

# Bytes read in one round, over all runs: enough to share a commit, few enough for prompt rows.
_READ_BYTES = 8 << 20

# One turn of one experiment: others wait at most for the rest of it and one more.
_SLICE_S = 0.25
_SLICE_PARTS = 32

# Approximate number of values that become rows in one transaction.
_ROW_VALUES = 100_000

# Large batches that are in progress at a time, see ``LoadedRun.next_is_large``.
_MOST_LARGE = 2

# Batches without a row are committed at this size: after a crash they are read again.
_UNCOMMITTED_BYTES = 4 << 20

# After a failure that is not a batch's fault: a bug, a damaged page of the journal, a used-up
# share.
_RETRY_NS = 1 * _NS_PER_S

# Failures are retried every second; they are worth one line a minute.
_LOG_EVERY_NS = 60 * _NS_PER_S

# Workers that fail again and again are worth as many.
_LOG_FAILURES_NS = 60 * _NS_PER_S

# An experiment that is silent for this long, with nothing open, is only in the run store.
_IDLE_NS = 600 * _NS_PER_S


@dataclass(slots=True)
class _Trouble:
    """Failure state of an experiment.

    Attributes:
        failed_ns: Time of the failure; a pause follows.
        one_by_one: Its batches are read one at a time, to find the faulty one.
    """

    failed_ns: int = 0
    one_by_one: bool = False


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
        commit_every_s: Longest time for which batches without a row stay uncommitted.
        clock_s: Monotonic clock, in seconds, by which turns and rounds end.
        slice_s: Most seconds of a turn.
        slice_parts: Most parts of batches in a turn.
        part: Approximate points of a part.
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
        commit_every_s: float = 0.0,
        clock_s: Callable[[], float] = time.monotonic,
        slice_s: float = _SLICE_S,
        slice_parts: int = _SLICE_PARTS,
        part: int = PART,
    ) -> None:
        self._part = part
        self._slices = Slices(slice_s, slice_parts, clock_s)
        self._rotation = Rotation(tenant)
        # Whether a run had more data in its turn since the last complete rotation.
        self._has_more = False
        self._archive_room = archive_room
        self._dropped = dropped
        self._spool = spool
        self._run_store = run_store
        self._settings = settings
        self._counters = counters
        self._notify = notify
        self._commit_every_ns = int(commit_every_s * _NS_PER_S)
        self._report_interval_ns = int(report_interval_s * _NS_PER_S)
        self._gauges = gauges
        self._owners = owners or SoleOwner()
        self._runs: dict[ExperimentKey, LoadedRun] = {}
        self._troubles: dict[ExperimentKey, _Trouble] = {}
        self._logged_ns = 0
        # Loaded in the next round although no batch waits.
        self._unloaded: dict[ExperimentKey, None] = {}
        # Findings of any thread, and those of this thread that are in no commit yet.
        self._findings: dict[ExperimentKey, Finding] = {}
        self._untold: dict[ExperimentKey, Finding] = {}
        self._empty: set[ExperimentKey] = set()
        for key in run_store.open_runs():
            if self._owners.epoch(key) is not None:
                self.begin(key)

    def begin(self, key: ExperimentKey) -> None:
        """Load the run in the next round: a silent one has open steps, too.

        Any thread may call it.
        """
        self._unloaded[key] = None

    def tell(self, key: ExperimentKey, finding: Finding) -> None:
        """Add a finding to the run, in the next round or at the end.

        Any thread may call it.
        """
        self._findings[key] = finding
        self.begin(key)

    def experiments(self) -> Collection[ExperimentKey]:
        """Return the experiments in memory or about to be. Any thread may call it."""
        # Each dict is copied in one step of the interpreter, so it cannot change meanwhile.
        return [*self._runs, *self._unloaded, *self._spool.waiting()]

    @property
    def without_metrics(self) -> Collection[ExperimentKey]:
        """Return ended runs without any metric of their program, sorted."""
        return sorted(self._empty)

    def let_go(self, keys: Iterable[ExperimentKey]) -> None:
        """Forget ended runs that are not in use. Any thread may call it."""
        for key in keys:
            self._empty.discard(key)

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
        self._leave_lost()
        waiting = {
            key: None for key in self._spool.waiting() if self._owners.epoch(key) is not None
        }
        share_bytes = _READ_BYTES // max(1, len(waiting))
        done = _Round()
        end_s = self._slices.end_of_round_s()
        for key in self._rotation.turns([*waiting, *self._unloaded, *self._runs]):
            trouble = self._troubles.get(key)
            if trouble is not None and not _has_passed(_RETRY_NS, trouble.failed_ns, now_ns):
                self._unloaded[key] = None
                continue
            try:
                turn = self._slices.turn(len(waiting))
                self._advance(key, share_bytes if key in waiting else 0, turn, now_ns, done)
            except LeaseLost:
                self._leave(key)
            except JournalError:
                self._go_back(key, *(commit.key for commit in done.commits))
                raise
            except Exception:  # noqa: BLE001  # the others go on; counted
                self._set_back(key, now_ns)
            if self._slices.clock_s() >= end_s:
                break
        self._commit(done.commits, now_ns)
        self._has_more |= done.has_more
        if not self._rotation.is_complete:
            return True
        has_more, self._has_more = self._has_more, False
        return has_more

    def go_on(self, now_ns: int) -> None:
        """Skip the bridge's downtime until ``now_ns``: it does not count toward lost workers."""
        for run in self._runs.values():
            run.aligner.go_on(now_ns)

    def finish(
        self,
        now_ns: int,
        *,
        failed: bool | None = None,
        is_over: Callable[[], bool] = lambda: False,
    ) -> None:
        """Make rows of everything that waits or is open: no more data will come.

        Args:
            now_ns: The bridge's clock.
            failed: For ended workers, whether those without an exit report have failed. None where
                workers may go on without this bridge.
            is_over: Asked after each round. If so, what waits is left to the next bridge, with the
                open steps of its runs.

        Raises:
            JournalError: No room for the rows, or the journal is unreachable. The next bridge makes
                them again.
        """
        for trouble in self._troubles.values():
            trouble.failed_ns = 0
        goes_on: Collection[ExperimentKey] = ()
        while self.round(now_ns):
            if is_over():
                goes_on = {*self._spool.waiting()}
                break
        commits = []
        for key in [key for key in self._runs if key not in goes_on]:
            try:
                run = self._runs[key]
                if failed is not None:
                    run.aligner.end(failed=failed)
                report = run.report_values(self._gauges(key))
                if not run.report.is_news(report):
                    report = {}
                rows = run.aligner.close(now_ns, everything=True, report=report)
                description = self._news(key, run)
                if rows or run.taken or description is not None:
                    history = run.aligner.logs.take_history(now_ns, everything=True)
                    commits.append(run.take_commit(rows, description, history))
            except Exception:  # noqa: BLE001  # as above
                self._set_back(key, now_ns)
        self._commit(commits, now_ns)

    def _advance(
        self, key: ExperimentKey, max_bytes: int, turn: Turn, now_ns: int, done: _Round
    ) -> None:
        run = self._load(key, now_ns)
        run.aligner.clock_is(now_ns)
        self._tell(key, run)
        if not run.unread:
            run.reads_on = False
            if max_bytes:
                self._read(key, run, max_bytes)
        if run.unread:
            run.used_ns = now_ns
            if not self._take_what_is_sound(key, run, turn, now_ns):
                done.has_more = True
                return
        elif not run.taken and self._is_idle(run, now_ns):
            self._untold.pop(key, None)
            self._unload(key)
            return
        has_more = run.reads_on or bool(run.unread)
        is_due = self._is_due(key, run, now_ns)
        if not has_more:
            self._troubles.pop(key, None)
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
                run.report.told(report, now_ns)
            description = self._news(key, run)
        if rows or is_due or description is not None:
            history = run.aligner.logs.take_history(clock_ns)
            done.commits.append(run.take_commit(rows, description, history))
        elif run.parts is None and not run.taken:
            self._untold.pop(key, None)

    def _is_due(self, key: ExperimentKey, run: LoadedRun, now_ns: int) -> bool:
        """Return whether batches are to be committed without a row."""
        if run.parts is not None or not run.taken:
            return False
        trouble = self._troubles.get(key)
        return (
            run.taken_bytes >= _UNCOMMITTED_BYTES
            or _has_passed(self._commit_every_ns, run.taken_ns, now_ns)
            # Or the faulty one would not be told from those before it.
            or (trouble is not None and trouble.one_by_one)
        )

    def _tell(self, key: ExperimentKey, run: LoadedRun) -> None:
        """Add a finding to a run, until it is committed."""
        if key in self._findings:
            self._untold[key] = self._findings.pop(key)
        if key in self._untold:  # no news, unless the last attempt was rolled back
            run.aligner.findings.tell(self._untold[key])

    def _take_what_is_sound(
        self, key: ExperimentKey, run: LoadedRun, turn: Turn, now_ns: int
    ) -> bool:
        """Take read batches until the turn is over. Returns whether rows may result."""
        if run.unread[0].is_damaged:
            self._set_aside(key, run.unread.popleft(), SampleDrop.DAMAGED)
            return False
        if not self._may_begin(run):
            return False
        try:
            run.take(turn, self._part, now_ns)
        except Exception:  # noqa: BLE001  # counted and logged once the bad batch is found
            bad = run.unread[0]
            is_one = len(run.unread) + len(run.taken) == 1
            self._go_back(key)
            if is_one:
                self._set_aside(key, bad, SampleDrop.UNDECODABLE)
            else:
                self._troubles[key] = _Trouble(one_by_one=True)
            return False
        return True

    def _may_begin(self, run: LoadedRun) -> bool:
        """Return whether there is memory for the next batch: large ones are bounded in number."""
        if run.parts is not None or not run.next_is_large:
            return True
        others = (other for other in self._runs.values() if other is not run)
        large = sum(other.parts is not None and other.next_is_large for other in others)
        return large < _MOST_LARGE

    def _read(self, key: ExperimentKey, run: LoadedRun, max_bytes: int) -> None:
        """Read the next batches, valid ones or one damaged one."""
        if run.cut is not None:
            begun = self._spool.one(key, run.cut[0])
            if begun is not None:
                run.unread.append(begun)
                run.reads_on = True
                return
            run.cut = None
            run.aligner.leave_batch()
        if not self._run_store.has_room(key):
            return
        trouble = self._troubles.get(key)
        if trouble is not None and trouble.one_by_one:
            max_bytes = 1  # a read returns at least one batch
        spooled = self._spool.read(key, max_bytes=max_bytes, but=run.taken)
        run.read(spooled, max_bytes)

    def _load(self, key: ExperimentKey, now_ns: int) -> LoadedRun:
        run = self._runs.get(key)
        if run is None:
            epoch = self._owners.epoch(key)  # before its progress is read
            if epoch is None:
                raise LeaseLost(f"{key} belongs to another bridge.")
            run = self._runs[key] = load_run(
                key,
                self._run_store.saved(key),
                self._settings,
                self._counters,
                BridgeReport(self._report_interval_ns),
                epoch=epoch,
                now_ns=now_ns,
                archive_room=self._archive_room,
            )
            self._unloaded.pop(key, None)
        return run

    def _is_idle(self, run: LoadedRun, now_ns: int) -> bool:
        return now_ns - run.used_ns > _IDLE_NS and not run.aligner.standing.is_watching

    def _news(self, key: ExperimentKey, run: LoadedRun) -> Description | None:
        """Return the run's description, if it differs from the run store's."""
        description = run.describe()
        self._look_for_metrics(key, run, description.status)
        return None if description == self._run_store.description(key) else description

    def _look_for_metrics(
        self, key: ExperimentKey, run: LoadedRun, status: ExperimentStatus | None
    ) -> None:
        """Warn about an ended run without metrics."""
        if status in {None, ExperimentStatus.RUNNING} or run.aligner.standing.has_metrics:
            self._empty.discard(key)
        elif key not in self._empty:
            self._empty.add(key)
            _log.warning("%s ended with no metric. %s", key, NO_METRIC_HINT)

    def _commit(self, commits: Sequence[Commit], now_ns: int) -> None:
        if not commits:
            return
        try:
            self._run_store.commit(commits)
        except LeaseLost:
            if len(commits) == 1:
                self._leave(commits[0].key)
            else:
                self._commit_each(commits, now_ns)
            return
        except ShareUsedUp as exc:
            if len(commits) == 1:
                self._wait_for_room(commits[0].key, now_ns, exc)
            else:
                self._commit_each(commits, now_ns)
            return
        except JournalError:
            self._go_back(*(commit.key for commit in commits))
            # Only the answer may be lost, with the rows stored.
            for commit in commits:
                self._notify(commit.key)
            raise
        except Exception:  # noqa: BLE001  # counted; then each by itself, to spare the others
            if len(commits) == 1:
                self._set_back(commits[0].key, now_ns)
            else:
                self._commit_each(commits, now_ns)
            return
        for commit in commits:
            self._committed(commit)

    def _commit_each(self, commits: Sequence[Commit], now_ns: int) -> None:
        for place, commit in enumerate(commits):
            try:
                self._commit([commit], now_ns)
            except JournalError:
                self._go_back(*(later.key for later in commits[place + 1 :]))
                raise

    def _committed(self, commit: Commit) -> None:
        run = self._runs[commit.key]
        self._untold.pop(commit.key, None)
        dropped = run.aligner.logs.take_dropped()
        if dropped:
            self._dropped(commit.key, dropped)
        run.committed()
        if commit.description is not None:
            self._log_failures(commit.key, run, commit.description)
        for row in commit.rows:
            for label in TOLD.intersection(row.labels) if row.labels else ():
                _log.warning("%s: %s", commit.key, row.labels[label])
        self._counters.add(Counter.ROWS_CREATED, len(commit.rows))
        if commit.rows or commit.description is not None:
            self._notify(commit.key)

    def _log_failures(self, key: ExperimentKey, run: LoadedRun, description: Description) -> None:
        """Log the end of a run by a failure, and failures of workers, in a crash loop the last."""
        told, run.told_failures = run.told_failures, description.failures
        words = "" if description.crash is None else description.crash.as_crash
        if words:
            if words != run.told_crash:
                _log.warning("%s %s", key, words)
            run.told_crash = words
            return
        news = [one for one in description.failures if one not in told]
        if news and _has_passed(_LOG_FAILURES_NS, run.logged_failure_ns, news[-1].time_ns):
            run.logged_failure_ns = news[-1].time_ns
            _log.warning("%s: %s", key, news[-1])

    def _set_back(self, key: ExperimentKey, now_ns: int) -> None:
        """Roll an experiment back to its last commit, and pause it."""
        self._go_back(key)
        trouble = self._troubles.setdefault(key, _Trouble())
        trouble.failed_ns = now_ns
        self._counters.add(Counter.EXCEPTIONS, reason=Where.DRAIN)
        if _has_passed(_LOG_EVERY_NS, self._logged_ns, now_ns):
            self._logged_ns = now_ns
            _log.exception("Making rows of %s failed; its batches are kept and tried again.", key)

    def _wait_for_room(self, key: ExperimentKey, now_ns: int, exc: ShareUsedUp) -> None:
        """Pause a run whose tenant has no room for its rows."""
        self._go_back(key)
        self._troubles.setdefault(key, _Trouble()).failed_ns = now_ns
        self._counters.add(Counter.COMMITS_REFUSED, reason=CommitRefusal.SHARE_USED_UP, run=key)
        if _has_passed(_LOG_EVERY_NS, self._logged_ns, now_ns):
            self._logged_ns = now_ns
            _log.warning("Rows of %s cannot be kept, its batches wait: %s", key, exc)

    def _go_back(self, *keys: ExperimentKey) -> None:
        """Forget uncommitted state of these runs, and load them again in the next round."""
        for key in keys:
            self._unloaded[key] = None
            self._unload(key)

    def _leave_lost(self) -> None:
        """Forget the runs that are no longer owned, or owned again in another epoch."""
        for key, run in [*self._runs.items()]:
            if self._owners.epoch(key) != run.epoch:
                self._leave(key)
        for key in [*self._unloaded]:
            if self._owners.epoch(key) is None:
                self._leave(key)

    def _leave(self, key: ExperimentKey) -> None:
        """Forget a run that another bridge owns; if it is owned here again, load it anew."""
        self._unload(key)
        self._troubles.pop(key, None)
        self._findings.pop(key, None)
        self._untold.pop(key, None)
        self._unloaded.pop(key, None)
        if self._owners.epoch(key) is not None:
            self._unloaded[key] = None

    def _unload(self, key: ExperimentKey) -> None:
        run = self._runs.pop(key, None)
        if run is not None:
            run.unload()

    def _set_aside(self, key: ExperimentKey, one: Spooled, reason: SampleDrop) -> None:
        """Set an unreadable batch aside."""
        self._spool.set_aside(key, one.offset)
        self._troubles.pop(key, None)
        self._counters.add(Counter.SAMPLES_DROPPED, reason=reason, run=key)
        if reason is SampleDrop.DAMAGED:
            _log.error(
                "Batch %d of %s is damaged in the journal and was set aside. Check the disk.",
                one.offset,
                key,
            )
        else:
            _log.exception(
                "Batch %d of %s cannot be made into rows and was set aside. Please report this.",
                one.offset,
                key,
            )


def _has_passed(duration_ns: int, since_ns: int, now_ns: int) -> bool:
    """Return whether this time has passed; True if the clock was set back."""
    return not 0 <= now_ns - since_ns < duration_ns
