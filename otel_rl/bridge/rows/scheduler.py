"""Makes rows from the batches in the spool. One thread runs it; time is an argument.

    spool ─ read ─> decode ─> align ─> run store ─> notify
            (a share of each run)  (one transaction for all of them)

Runs take turns, so that none delays another, and fail separately: a failed run is rolled back to
its last commit and retried later, while the others go on.

A turn ends after a slice of time, also in the middle of a batch or of its rows, where the run's
next turn resumes. Rows that were closed before that, because of the bounds on open data, are
committed with the position in the batch: so after a crash no point is taken twice.

A commit writes the whole state of a run. So taken batches that completed no row stay in the spool
for a while, and after a crash they are taken again into the state of the last commit.
"""

import logging
import time
from collections import deque
from collections.abc import Callable, Collection, Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from otel_rl.bridge.counters import Counter, Counters, SampleDrop, Where
from otel_rl.bridge.journal.interface import Ownership, SoleOwner
from otel_rl.bridge.journal.log import Log
from otel_rl.bridge.journal.runs import Commit, RunStore
from otel_rl.bridge.journal.spool import Spool, Spooled
from otel_rl.bridge.rows import messages
from otel_rl.bridge.rows.messages import CRASH, TOLD, DroppedPoints, Finding, News
from otel_rl.bridge.rows.run import Run
from otel_rl.bridge.rows.run_batches import RunBatches
from otel_rl.bridge.rows.settings import AlignSettings
from otel_rl.bridge.rows.turn import Turn
from otel_rl.errors import JournalError, LeaseLost
from otel_rl.records import (
    PART,
    Description,
    ExperimentKey,
    ExperimentStatus,
    Offset,
    Row,
    WorkerFailure,
)

_log = logging.getLogger(__name__)

_news_log = logging.getLogger(f"{__name__}.news")
_ends_log = logging.getLogger(f"{__name__}.ends")
"""News of runs: the report at the end of a command says them, too."""

_data_log = logging.getLogger(messages.__name__)
"""What rows say of their data: the report at the end of a command does not say it again."""

NO_METRIC_HINT: Final = (
    "Its workers reported liveness, but no metric. Did the program end before it logged, "
    "log to another library only, or log values that are no numbers? "
    "See `otel-rl help troubleshooting`."
)

_NS_PER_S: Final = 1_000_000_000

_READ_BYTES: Final = 8 << 20
"""Read in one round, over all runs: enough to share a commit, few enough for prompt rows."""

_MOST_LARGE: Final = 2
"""Large batches that are in progress at a time, see ``RunBatches.next_is_large``."""

_ROUND_S: Final = 0.5
"""Seconds of all turns of a round: its rows are then committed."""

_ROW_VALUES: Final = 10_000
"""Approximate number of a run's values that become rows in one turn. The turn's clock sees that
they are closed; to number and to store them takes several times as long."""

_UNCOMMITTED_BYTES: Final = 4 << 20
"""Batches without a row are committed at this size, or at that of the run's state if it is larger,
since a commit writes the state: after a crash they are read again."""

_IDLE_NS: Final = 600 * _NS_PER_S
"""A run that is silent for this long, with nothing open, is only in the run store."""

_FEW_RUNS: Final = 64
_NS_PER_LOOK: Final = 2_000_000
_MOST_LOOK_NS: Final = _NS_PER_S
"""Time alone closes rows and ends workers, so runs without news are looked at, too. A look takes
0.2 ms: of a few runs in each round, of more so rarely that looks take a tenth of the time, and a
row that time closes is a second later at most."""

_RETRY_NS: Final = _NS_PER_S
"""After a failure that is not a batch's fault: a bug, a damaged page of the journal."""

_LOG_EVERY_NS: Final = 60 * _NS_PER_S
"""What is retried every second, and workers that fail again and again, are worth a line a
minute."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Around:
    """What the scheduler asks the rest of the bridge, and what it reports to the bridge.

    Attributes:
        dropped: Called with the points over a run's series limit, by worker, once that is
            committed.
        gauges: Returns the gauges of a run's report, by tracker key.
        archive_room: Tells whether the journal has room for values that wait for the archive; None
            without an archive.
        is_one_launch: Whether all workers belong to one launch.
        told: Called with news of a run once they are committed.
    """

    notify: Callable[[ExperimentKey], None] = lambda _: None
    dropped: Callable[[ExperimentKey, Mapping[str, DroppedPoints]], None] = lambda *_: None
    gauges: Callable[[ExperimentKey], Mapping[str, float]] = lambda _: {}
    tenant: Callable[[ExperimentKey], str] = lambda _: ""
    team: Callable[[ExperimentKey], str] = lambda _: ""
    owners: Ownership = field(default_factory=SoleOwner)
    archive_room: Callable[[], bool] | None = None
    is_one_launch: bool = False
    told: Callable[[ExperimentKey, News], None] = lambda *_: None


@dataclass(frozen=True, slots=True, kw_only=True)
class Pace:
    """Length of turns, and intervals of actions that do not depend on the data.

    Attributes:
        report_interval_s: Interval of the bridge's reports in a run.
        commit_every_s: Longest time for which batches without a row stay uncommitted.
        slice_s: Longest turn in seconds; other runs wait for the rest of one turn and one more
            turn.
        part: Approximate points of a batch that are taken, and values that become rows, before the
            turn checks the time.
        clock_s: Monotonic clock in seconds that ends turns and rounds.
    """

    report_interval_s: float = 10.0
    commit_every_s: float = 0.0
    slice_s: float = 0.25
    part: int = PART
    clock_s: Callable[[], float] = time.monotonic


class Rotation:
    """Alternates between tenants; within a tenant, the run with the oldest turn is next.

    A new run follows the present ones, so that many new runs do not delay old ones. One thread
    calls the methods.
    """

    def __init__(self, tenant: Callable[[ExperimentKey], str]) -> None:
        self._tenant = tenant
        # Number of the last turn of each run, and of each tenant.
        self._runs: dict[ExperimentKey, int] = {}
        self._tenants: dict[str, int] = {}
        self._turns = 0
        # Runs without a turn since the last complete rotation.
        self._left: set[ExperimentKey] = set()

    @property
    def is_complete(self) -> bool:
        """Return whether all runs have had a turn since this last returned True."""
        return not self._left

    def turns(self, keys: Iterable[ExperimentKey]) -> Iterator[ExperimentKey]:
        """Yield each of ``keys`` once. Keys that are not consumed come first the next time."""
        keys = dict.fromkeys(keys)
        self._runs = {key: self._runs.get(key, self._turns) for key in keys}
        self._left = self._left.intersection(keys) or set(keys)
        queues: dict[str, deque[ExperimentKey]] = {}
        for key in sorted(keys, key=self._runs.__getitem__):
            queues.setdefault(self._tenant(key), deque()).append(key)
        self._tenants = {tenant: self._tenants.get(tenant, 0) for tenant in queues}
        waiting = deque(sorted(queues, key=self._tenants.__getitem__))
        while waiting:
            tenant = waiting.popleft()
            key = queues[tenant].popleft()
            self._turns += 1
            self._runs[key] = self._tenants[tenant] = self._turns
            self._left.discard(key)
            yield key
            if queues[tenant]:
                waiting.append(tenant)


@dataclass(slots=True)
class _Trouble:
    """Failure state of a run.

    Attributes:
        failed_ns: Time of the failure, which a pause follows.
        suspect: Batch that failed last; if it fails again, it is set aside.
    """

    failed_ns: int = 0
    suspect: Offset | None = None


@dataclass(slots=True)
class _Round:
    """Work prepared in a round, and whether more work may be ready at once."""

    commits: list[Commit] = field(default_factory=list)
    has_more: bool = False


class Scheduler:
    """Only reader of the spool and writer of the run store, for the runs that this bridge owns.

    One thread calls the methods; methods that any thread may call say so. Those copy or change a
    dict in one step of the interpreter.
    """

    def __init__(
        self,
        spool: Spool,
        run_store: RunStore,
        settings: AlignSettings,
        counters: Counters,
        *,
        around: Around | None = None,
        pace: Pace | None = None,
    ) -> None:
        self._spool = spool
        self._run_store = run_store
        self._settings = settings
        self._counters = counters
        self._around = around or Around()
        self._pace = pace or Pace()
        self.launched: int | None = None
        self._report_ns = int(self._pace.report_interval_s * _NS_PER_S)
        self._epoch = self._around.owners.epoch
        self._loaded: dict[ExperimentKey, Run] = {}
        # Runs to be loaded in the next round although no batch waits.
        self._unloaded: dict[ExperimentKey, None] = {}
        self._troubles: dict[ExperimentKey, _Trouble] = {}
        # Findings of any thread, and those that are in no commit yet.
        self._findings: dict[ExperimentKey, Finding] = {}
        self._uncommitted_findings: dict[ExperimentKey, Finding] = {}
        self._without_metrics: set[ExperimentKey] = set()
        self._rotation = Rotation(self._around.tenant)
        # Whether a run had more data in its turn since the last complete rotation.
        self._has_more = False
        self._looked_ns = self._logged_ns = 0
        self._called_s = self._pace.clock_s()  # when it was the present call's ``now_ns``
        for key in run_store.open_runs():
            if self._epoch(key) is not None:
                self.begin(key)

    def round(self, now_ns: int) -> bool:
        """Make rows of a share of the waiting batches, and of everything complete by ``now_ns``.

        If there are many runs, as many have a turn as time allows; the others follow in the next
        rounds.

        Returns:
            Whether more work may be ready at once.

        Raises:
            JournalError: There is no room for the rows, or the journal is unreachable. The batches
                wait; the caller tries again later.
        """
        self._called_s = self._pace.clock_s()
        return self._round(now_ns, time_passes=True)

    def _round(self, now_ns: int, *, time_passes: bool) -> bool:
        end_s = self._pace.clock_s() + _ROUND_S
        self._leave_lost()
        waiting = {key: None for key in self._spool.waiting() if self._epoch(key) is not None}
        share_bytes = _READ_BYTES // max(1, len(waiting))
        looks = self._looks_at_silent(now_ns)
        done = _Round()
        was_behind = False
        for key in self._rotation.turns([*waiting, *self._unloaded, *self._loaded]):
            # The rows of a run that keeps up wait neither for the turn nor for the transaction of
            # one that is far behind, and are due by the time of their own turn.
            is_behind = self._is_behind(key)
            if is_behind != was_behind and done.commits:
                self._commit(done.commits, now_ns)
                done.commits.clear()
            was_behind = is_behind
            if self._is_paused(key, now_ns):
                self.begin(key)
                continue
            if not looks and self._is_silent(key, waiting):
                continue
            try:
                self._advance(
                    key,
                    share_bytes if key in waiting else 0,
                    turn=self._turn(len(waiting)),
                    now_ns=self._passed_ns(now_ns) if time_passes else now_ns,
                    done=done,
                )
            except LeaseLost:
                self._leave(key)
            except JournalError:
                self._go_back(key, *(commit.key for commit in done.commits))
                raise
            except Exception:  # noqa: BLE001  # the others go on; counted
                self._set_back(key, now_ns)
            if self._pace.clock_s() >= end_s:
                break
        self._commit(done.commits, now_ns)
        self._has_more |= done.has_more
        if not self._rotation.is_complete:
            return True
        has_more, self._has_more = self._has_more, False
        return has_more

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
            failed: Whether ended workers without an exit report count as failed. None where workers
                may go on without this bridge.
            by: Name of the signal that ended the workers; None if none is known.
            is_over: Asked after each round. If it returns True, waiting batches and open steps are
                left to the next bridge.

        Raises:
            JournalError: There is no room for the rows, or the journal is unreachable. The next
                bridge makes the rows again.
        """
        self._called_s = self._pace.clock_s()
        for trouble in self._troubles.values():
            trouble.failed_ns = 0
        goes_on: Collection[ExperimentKey] = ()
        while self._round(now_ns, time_passes=False):
            if is_over():
                goes_on = {*self._spool.waiting()}
                break
        commits = []
        for key in [key for key in self._loaded if key not in goes_on]:
            try:
                run = self._loaded[key]
                if failed is not None:
                    run.end(failed=failed, by=by)
                report = run.report(self._around.gauges(key))
                if not run.counts.has_changed(report):
                    report = {}
                rows = run.close(now_ns, everything=True, report=report)
                description = self._news(key, run)
                if rows or run.batches.taken or description is not None:
                    commits.append(run.commit(rows, description, now_ns, everything=True))
            except Exception:  # noqa: BLE001  # as above
                self._set_back(key, now_ns)
        self._commit(commits, now_ns)

    def go_on(self, now_ns: int) -> None:
        """Skip the bridge's downtime until ``now_ns``, which must not make workers seem lost."""
        for run in self._loaded.values():
            run.go_on(now_ns)

    # What any thread may ask, and add.

    def experiments(self) -> Collection[ExperimentKey]:
        """Return the runs that are in memory or will be loaded. Any thread may call it."""
        return [*self.begun(), *self._spool.waiting()]

    def begun(self) -> Collection[ExperimentKey]:
        """Return the runs of ``experiments`` that had a turn. Any thread may call it."""
        return [*self._loaded, *self._unloaded]

    def progress(self, key: ExperimentKey) -> tuple[int, int] | None:
        """Return ``Run.progress``; None if the run is not in memory. Any thread may call it."""
        run = self._loaded.get(key)
        return None if run is None else run.progress

    @property
    def without_metrics(self) -> Sequence[ExperimentKey]:
        return sorted(self._without_metrics)

    def begin(self, key: ExperimentKey) -> None:
        """Load the run in the next round: a run without news may have open steps, too.

        Any thread may call it.
        """
        self._unloaded[key] = None

    def add_finding(self, key: ExperimentKey, finding: Finding) -> None:
        """Add a finding of a diagnosis to the run in the next round, or at the end.

        Any thread may call it.
        """
        self._findings[key] = finding
        self.begin(key)

    def let_go(self, keys: Iterable[ExperimentKey]) -> None:
        """Forget that these runs had no metrics. Any thread may call it."""
        for key in keys:
            self._without_metrics.discard(key)

    # A turn of one run.

    def _passed_ns(self, now_ns: int) -> int:
        """Return the present time, if ``now_ns`` was the time of the present call."""
        return now_ns + int((self._pace.clock_s() - self._called_s) * _NS_PER_S)

    def _is_behind(self, key: ExperimentKey) -> bool:
        """Return whether a run left batches or complete rows to its next turn."""
        run = self._loaded.get(key)
        return run is not None and (run.batches.has_more or bool(run.rest_ns))

    def _turn(self, waiting: int) -> Turn:
        """Begin a turn of one of ``waiting`` runs."""
        clock_s = self._pace.clock_s
        end_s = clock_s() + min(self._pace.slice_s, _ROUND_S / max(1, waiting))
        return Turn(self._pace.part, _ROW_VALUES, lambda: clock_s() >= end_s)

    def _advance(
        self,
        key: ExperimentKey,
        max_bytes: int,
        *,
        turn: Turn,
        now_ns: int,
        done: _Round,
    ) -> None:
        run = self._load(key, now_ns)
        run.clock_is(now_ns)
        run.launched = self.launched
        self._pass_on_finding(key, run)
        batches = run.batches
        has_more = batches.has_more or max_bytes > 0
        if not run.rest_ns:  # else its complete rows come first, as nothing else bounds them
            if not batches.unread:
                batches.reads_on = False
                if max_bytes:
                    self._read(key, run, max_bytes)
            if batches.unread:
                run.used_ns = now_ns
                if not self._take(key, run, turn.is_over, now_ns):
                    done.has_more = True
                    return
            elif not batches.taken and self._is_idle(run, now_ns):
                self._uncommitted_findings.pop(key, None)
                self._unload(key)
                return
            has_more = batches.has_more
        is_due = self._is_due(run, now_ns, has_more=has_more)
        if not has_more:
            self._troubles.pop(key, None)
        done.has_more |= has_more
        # In a backlog the bridge's clock is far ahead of the data that it reads.
        clock_ns = run.rest_ns or (batches.heard_ns if has_more else now_ns)
        rows: Sequence[Row]
        description: Description | None = None
        if batches.parts is not None:
            rows = run.close_surplus(clock_ns, turn)
        else:
            rows = ()
            if self._run_store.has_room_for_begun(key):
                rows = self._close(key, run, turn, clock_ns=clock_ns, now_ns=now_ns)
                done.has_more |= run.has_more
            description = self._news(key, run)
        if rows or is_due or description is not None:
            done.commits.append(run.commit(rows, description, clock_ns))
        elif batches.parts is None and not batches.taken:
            self._uncommitted_findings.pop(key, None)

    def _close(
        self, key: ExperimentKey, run: Run, turn: Turn, *, clock_ns: int, now_ns: int
    ) -> Sequence[Row]:
        """Make rows of what is complete by ``clock_ns``, with a report of the run if it is due."""
        is_reported = run.counts.is_due(now_ns, self._report_ns)
        report = run.report(self._around.gauges(key)) if is_reported else {}
        rows = run.close(clock_ns, report=report, turn=turn)
        if rows and report:
            run.counts.written(report, now_ns)
        return rows

    def _read(self, key: ExperimentKey, run: Run, max_bytes: int) -> None:
        """Read the next batches of a run: valid ones, or one damaged one."""
        batches = run.batches
        if batches.cut is not None:
            begun = self._spool.one(key, batches.cut[0])
            if begun is not None:
                batches.unread.append(begun)
                batches.reads_on = True
                return
            batches.leave_begun()
        if not self._run_store.has_room(key):
            return
        spooled = self._spool.read(key, max_bytes=max_bytes, but=batches.taken)
        batches.read(spooled, max_bytes)

    def _take(self, key: ExperimentKey, run: Run, is_over: Callable[[], bool], now_ns: int) -> bool:
        """Take in read batches until the turn is over. Returns whether rows may result."""
        batches = run.batches
        if batches.unread[0].is_damaged:
            self._set_aside(key, batches.unread.popleft(), SampleDrop.DAMAGED)
            return False
        if not self._may_begin(batches):
            return False
        try:
            run.take(is_over, self._pace.part, now_ns)
        except Exception:  # noqa: BLE001  # counted and logged once it fails again
            bad, trouble = batches.unread[0], self._troubles.setdefault(key, _Trouble())
            self._go_back(key)
            if trouble.suspect == bad.offset:
                self._set_aside(key, bad, SampleDrop.UNDECODABLE)
            trouble.suspect = bad.offset
            return False
        return True

    def _may_begin(self, batches: RunBatches) -> bool:
        """Return whether the next batch may begin: few large ones are in progress at a time."""
        if batches.parts is not None or not batches.next_is_large:
            return True
        others = (one.batches for one in self._loaded.values() if one.batches is not batches)
        large = sum(other.parts is not None and other.next_is_large for other in others)
        return large < _MOST_LARGE

    def _is_due(self, run: Run, now_ns: int, *, has_more: bool) -> bool:
        """Return whether batches that completed no row must be committed now."""
        batches = run.batches
        if batches.parts is not None or not batches.taken:
            return False
        # In a backlog the state may be as large as all batches that were taken since its beginning.
        if has_more and batches.taken_bytes < run.state_bytes:
            return False
        return batches.taken_bytes >= max(_UNCOMMITTED_BYTES, run.state_bytes) or _has_passed(
            int(self._pace.commit_every_s * _NS_PER_S), batches.taken_ns, now_ns
        )

    def _news(self, key: ExperimentKey, run: Run) -> Description | None:
        description = run.describe()
        has_ended = description.status not in {None, ExperimentStatus.RUNNING}
        if not has_ended or run.has_metrics:
            self._without_metrics.discard(key)
        elif key not in self._without_metrics:
            self._without_metrics.add(key)
            _ends_log.warning("%s ended with no metric. %s", key, NO_METRIC_HINT)
        return None if description == self._run_store.description(key) else description

    def _pass_on_finding(self, key: ExperimentKey, run: Run) -> None:
        if key in self._findings:
            self._uncommitted_findings[key] = self._findings.pop(key)
        if key in self._uncommitted_findings:  # no news, unless the last attempt was rolled back
            run.add_finding(self._uncommitted_findings[key])

    # Commits.

    def _commit(self, commits: Sequence[Commit], now_ns: int) -> None:
        """Commit all runs in one transaction, or each run by itself if one is refused.

        Raises:
            JournalError: There is no room for the rows, or the journal is unreachable. The runs are
                rolled back.
        """
        if not commits:
            return
        try:
            self._run_store.commit(commits)
        except LeaseLost as exc:
            self._refused(commits, now_ns, exc)
        except JournalError:
            self._go_back(*(commit.key for commit in commits))
            # Only the answer may be lost, with the rows stored.
            for commit in commits:
                self._around.notify(commit.key)
            raise
        except Exception as exc:  # noqa: BLE001  # counted
            self._refused(commits, now_ns, exc)
        else:
            stored_ns = self._passed_ns(now_ns)
            for commit in commits:
                self._committed(commit, stored_ns)

    def _refused(self, commits: Sequence[Commit], now_ns: int, exc: Exception) -> None:
        """Commit each run by itself, to spare the others; a single run is put into trouble."""
        if len(commits) > 1:
            for place, commit in enumerate(commits):
                try:
                    self._commit([commit], now_ns)
                except JournalError:
                    self._go_back(*(later.key for later in commits[place + 1 :]))
                    raise
            return
        key = commits[0].key
        if isinstance(exc, LeaseLost):
            self._leave(key)
        else:
            self._set_back(key, now_ns)

    def _committed(self, commit: Commit, now_ns: int) -> None:
        run = self._loaded[commit.key]
        self._uncommitted_findings.pop(commit.key, None)
        dropped = run.committed(now_ns, self._around.team(commit.key))
        if dropped:
            self._around.dropped(commit.key, dropped)
        step = run.step
        history = commit.added.get(Log.HISTORY)
        if history is not None and step is not None:
            run.progress = history[0], step
        if commit.description is not None:
            crash = _log_failures(commit.key, run, commit.description)
            if crash is not None and not crash.is_interrupt:
                of = (str(crash.worker), crash.step, crash.time_ns)
                self._around.told(commit.key, News(CRASH, *of, crash.as_crash))
        for news in run.findings.take_news():
            self._around.told(commit.key, news)
        for row in commit.rows:
            for label in TOLD.intersection(row.labels) if row.labels else ():
                _data_log.warning("%s: %s", commit.key, row.labels[label])
        self._counters.add(Counter.ROWS_CREATED, len(commit.rows))
        if commit.rows or commit.description is not None:
            self._around.notify(commit.key)

    # Which runs are in memory.

    def _load(self, key: ExperimentKey, now_ns: int) -> Run:
        """Return a run, loading it if needed. Raises LeaseLost if another bridge owns it."""
        run = self._loaded.get(key)
        if run is None:
            epoch = self._epoch(key)  # before its progress is read
            if epoch is None:
                raise LeaseLost(f"{key} belongs to another bridge.")
            run = self._loaded[key] = Run.load(
                key,
                self._run_store.saved(key),
                self._settings,
                counters=self._counters,
                epoch=epoch,
                now_ns=now_ns,
                archive_room=self._around.archive_room,
                is_one_launch=self._around.is_one_launch,
            )
        self._unloaded.pop(key, None)
        return run

    def _unload(self, key: ExperimentKey) -> None:
        run = self._loaded.pop(key, None)
        if run is not None:
            run.unload()

    def _go_back(self, *keys: ExperimentKey) -> None:
        """Forget the uncommitted state of these runs, and load them again in the next round."""
        for key in keys:
            self.begin(key)
            self._unload(key)

    def _leave_lost(self) -> None:
        """Leave the runs that are not owned any more, or are owned again in another epoch."""
        lost = [key for key, run in self._loaded.items() if self._epoch(key) != run.epoch]
        lost += [key for key in [*self._unloaded] if self._epoch(key) is None]
        for key in lost:
            self._leave(key)

    def _leave(self, key: ExperimentKey) -> None:
        """Forget a run that another bridge owns; if this bridge owns it again, load it anew."""
        self._unload(key)
        for kept in (self._unloaded, self._troubles, self._findings, self._uncommitted_findings):
            kept.pop(key, None)
        if self._epoch(key) is not None:
            self.begin(key)

    def _looks_at_silent(self, now_ns: int) -> bool:
        """Return whether this round also visits the runs without news."""
        n = len(self._loaded)
        pause_ns = min(n * _NS_PER_LOOK, _MOST_LOOK_NS)
        looks = n <= _FEW_RUNS or _has_passed(pause_ns, self._looked_ns, now_ns)
        if looks:
            self._looked_ns = now_ns
        return looks

    def _is_silent(self, key: ExperimentKey, waiting: Container[ExperimentKey]) -> bool:
        run = self._loaded.get(key)
        if run is None or key in waiting or key in self._unloaded:
            return False
        return not (run.batches.unread or run.has_more)

    def _is_idle(self, run: Run, now_ns: int) -> bool:
        return now_ns - run.used_ns > _IDLE_NS and not run.is_watching

    # What goes wrong with a run delays no other.

    def _is_paused(self, key: ExperimentKey, now_ns: int) -> bool:
        trouble = self._troubles.get(key)
        return trouble is not None and not _has_passed(_RETRY_NS, trouble.failed_ns, now_ns)

    def _set_back(self, key: ExperimentKey, now_ns: int) -> None:
        """Roll a run back to its last commit, and pause it for a while.

        Call it in an ``except``.
        """
        self._go_back(key)
        self._troubles.setdefault(key, _Trouble()).failed_ns = now_ns
        self._counters.add(Counter.EXCEPTIONS, reason=Where.DRAIN)
        if self._may_log(now_ns):
            _log.exception("Making rows of %s failed; its batches are kept, retrying.", key)

    def _set_aside(self, key: ExperimentKey, one: Spooled, reason: SampleDrop) -> None:
        """Set an unreadable batch aside. With ``UNDECODABLE``, call it in an ``except``."""
        self._spool.set_aside(key, one.offset)
        self._troubles.pop(key, None)
        self._counters.add(Counter.SAMPLES_DROPPED, reason=reason, run=key)
        if reason is SampleDrop.DAMAGED:
            message = "Batch %d of %s is damaged in the journal and was set aside. Check the disk."
            _log.error(message, one.offset, key)
        else:
            _log.exception(
                "Batch %d of %s cannot be made into rows and was set aside. Please report this.",
                one.offset,
                key,
            )

    def _may_log(self, now_ns: int) -> bool:
        if not _has_passed(_LOG_EVERY_NS, self._logged_ns, now_ns):
            return False
        self._logged_ns = now_ns
        return True


def _log_failures(key: ExperimentKey, run: Run, description: Description) -> WorkerFailure | None:
    """Log a run's end by a failure, and its workers' failures; of a crash loop only the last one.

    Returns:
        The failure that ended the run, if that is news; else None.
    """
    logged, run.logged_failures = run.logged_failures, description.failures
    words = "" if description.crash is None else description.crash.as_crash
    if words:
        is_news = words != run.told_crash
        if is_news:
            _ends_log.warning("%s %s", key, words)
        run.told_crash = words
        return description.crash if is_news else None
    news = [one for one in description.failures if one not in logged]
    if news and _has_passed(_LOG_EVERY_NS, run.logged_failure_ns, news[-1].time_ns):
        run.logged_failure_ns = news[-1].time_ns
        _news_log.warning("%s: %s", key, news[-1])
    return None


def _has_passed(duration_ns: int, since_ns: int, now_ns: int) -> bool:
    """Return whether a duration has passed; also True if the clock was set back."""
    return not 0 <= now_ns - since_ns < duration_ns
