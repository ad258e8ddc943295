"""Makes rows of what waits in the spool. Synchronous: one thread, and time is an argument.

    spool ─ read ─> decode ─> align ─> ledger ─> notify
            (a share of each experiment)  (one transaction for all of them)

Experiments take turns, so that the backlog of one does not delay another, and fail apart: what goes
wrong with one is undone and tried again later, while the others go on.
"""

import dataclasses
import logging
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field

from otel_rl.bridge.about import About
from otel_rl.bridge.align import Aligner, AlignSettings, History, Tally
from otel_rl.bridge.align.finding import Finding
from otel_rl.bridge.align.remarks import TOLD, Dropped
from otel_rl.bridge.counters import Counter, Counters, SampleDrop, StateFault, Where
from otel_rl.bridge.decode import decode
from otel_rl.bridge.journal.owners import Owners, SoleOwner
from otel_rl.bridge.ledger import Commit, Ledger, Saved
from otel_rl.bridge.report import Report
from otel_rl.bridge.spool import Spool, Spooled
from otel_rl.bridge.unpickle import StateRefused
from otel_rl.errors import JournalError, LeaseLost
from otel_rl.records import Description, ExperimentKey, ExperimentStatus, Offset, Row

__all__ = ["NO_METRIC_HINT", "Drain"]

_log = logging.getLogger(__name__)

NO_METRIC_HINT = (
    "Its workers said that they live, and measured nothing. Did the program end before it logged, "
    "log to another library only, or log values that are no numbers? "
    "See docs/quickstart.md#a-run-with-no-metric."
)

_NS_PER_S = 1_000_000_000

# What one round reads, of all: enough to share a commit, little enough to see rows soon.
_READ_BYTES = 8 << 20

# After a failure that is not a batch's fault: a bug, a damaged page of the journal.
_RETRY_NS = 1 * _NS_PER_S

# What goes wrong is tried again every second; it is worth one line a minute.
_LOG_EVERY_NS = 60 * _NS_PER_S

# An experiment that has been silent for so long, and has nothing open, is in the ledger only.
_IDLE_NS = 600 * _NS_PER_S


@dataclass(frozen=True, slots=True)
class _State:
    """What is kept of an experiment with its rows, to go on from.

    Attributes:
        aligner: Its open steps and windows.
        about: What was announced of it.
    """

    aligner: Aligner
    about: About

    @property
    def is_whole(self) -> bool:
        """Whether it is what it should be, though anybody may have written it."""
        aligner, about = getattr(self, "aligner", None), getattr(self, "about", None)
        return isinstance(aligner, Aligner) and isinstance(about, About)


@dataclass(slots=True)
class _Run:
    """An experiment in memory. What it knows beyond the ledger is not yet committed.

    Attributes:
        aligner: Its open steps and windows.
        about: What was announced of it.
        report: What the run is told of the bridge.
        counted: How much of the aligner's tally is in the bridge's counters.
        used_ns: When it last had batches.
        epoch: The turn in which it was loaded, see ``Owners``.
        uncommitted: What was taken from the bridge's counters for the aligner's, since the commit.
        left_out: What of the announcements there was no room for, since the commit.
    """

    aligner: Aligner
    about: About
    report: Report
    counted: Tally
    used_ns: int = 0
    epoch: int = 0
    uncommitted: dict[tuple[str, str], int] = field(default_factory=dict)
    left_out: int = 0


@dataclass(slots=True)
class _Trouble:
    """What is remembered of an experiment with which something went wrong.

    Attributes:
        failed_ns: It is left alone for a moment after that.
        one_by_one: Its batches are read one at a time, to find the one that is at fault.
    """

    failed_ns: int = 0
    one_by_one: bool = False


@dataclass(slots=True)
class _Round:
    """What a round has prepared, and whether there is more to do at once."""

    commits: list[Commit] = field(default_factory=list)
    has_more: bool = False


class Drain:
    """The one reader of the spool and writer of the ledger, for the runs that this bridge owns.

    Args:
        spool: Where batches wait.
        ledger: Where rows go.
        settings: How samples become rows.
        counters: Of the bridge.
        notify: Told of each run that has new rows.
        report_interval_s: How often a run is told what the bridge says of itself.
        gauges: What a report says besides counts, by tracker key.
        owners: Says which runs those are.
        dropped: Told of points that a run has no room for, by worker, once that is committed.
    """

    def __init__(
        self,
        spool: Spool,
        ledger: Ledger,
        *,
        settings: AlignSettings,
        counters: Counters,
        notify: Callable[[ExperimentKey], None],
        report_interval_s: float = 10.0,
        gauges: Callable[[ExperimentKey], Mapping[str, float]] = lambda _: {},
        owners: Owners | None = None,
        dropped: Callable[[ExperimentKey, Mapping[str, Dropped]], None] = lambda *_: None,
    ) -> None:
        self._dropped = dropped
        self._spool = spool
        self._ledger = ledger
        self._settings = settings
        self._counters = counters
        self._notify = notify
        self._report_interval_ns = int(report_interval_s * _NS_PER_S)
        self._gauges = gauges
        self._owners = owners or SoleOwner()
        self._runs: dict[ExperimentKey, _Run] = {}
        self._troubles: dict[ExperimentKey, _Trouble] = {}
        self._logged_ns = 0
        # Loaded in the next round although no batch waits.
        self._unloaded: dict[ExperimentKey, None] = {}
        # What any thread has told, and what of it is in no commit yet: that is the drain's own.
        self._findings: dict[ExperimentKey, Finding] = {}
        self._untold: dict[ExperimentKey, Finding] = {}
        self._empty: set[ExperimentKey] = set()
        for key in ledger.open_runs():
            if self._owners.epoch(key) is not None:
                self.begin(key)

    def begin(self, key: ExperimentKey) -> None:
        """Load the run in the next round: a silent one has open steps, too.

        Any thread may call it.
        """
        self._unloaded[key] = None

    def tell(self, key: ExperimentKey, finding: Finding) -> None:
        """Let the run know what was found out about it, in the next round or at the end.

        Any thread may call it.
        """
        self._findings[key] = finding
        self.begin(key)

    def experiments(self) -> Collection[ExperimentKey]:
        """Those that take memory, or wait to do so. Any thread may call it."""
        # Each dict is copied in one step of the interpreter, so it cannot change meanwhile.
        return [*self._runs, *self._unloaded, *self._spool.waiting()]

    @property
    def without_metrics(self) -> Collection[ExperimentKey]:
        """Runs that have ended and have no metric of their program, sorted."""
        return sorted(self._empty)

    def round(self, now_ns: int) -> bool:
        """Make rows of a share of what waits, and of what is complete by ``now_ns``.

        Returns:
            Whether there may be more to do at once.

        Raises:
            JournalError: No room for the rows, or the journal is away. The batches wait; try again
                in a while.
        """
        self._leave_lost()
        waiting = [key for key in self._spool.waiting() if self._owners.epoch(key) is not None]
        share_bytes = _READ_BYTES // max(1, len(waiting))
        done = _Round()
        for key in dict.fromkeys([*waiting, *self._unloaded, *self._runs]):
            trouble = self._troubles.get(key)
            if trouble is not None and not _has_passed(_RETRY_NS, trouble.failed_ns, now_ns):
                self._unloaded[key] = None
                continue
            try:
                self._advance(key, share_bytes if key in waiting else 0, now_ns, done)
            except LeaseLost:
                self._leave(key)
            except JournalError:
                self._go_back(key, *(commit.key for commit in done.commits))
                raise
            except Exception:  # noqa: BLE001  # one experiment's trouble is not the others'; counted
                self._set_back(key, now_ns)
        self._commit(done.commits, now_ns)
        return done.has_more

    def go_on(self, now_ns: int) -> None:
        """The bridge was held up until ``now_ns``: nobody is missed for what it could not hear."""
        for run in self._runs.values():
            run.aligner.go_on(now_ns)

    def finish(self, now_ns: int, *, failed: bool | None = None) -> None:
        """Make rows of everything that waits or is open, complete or not: nothing more will come.

        Args:
            now_ns: The bridge's clock.
            failed: Of workers that are known to be gone, whether those that have said no goodbye
                did not end well. None where they may go on without this bridge.

        Raises:
            JournalError: No room for the rows, or the journal is away. They are made again by the
                next bridge.
        """
        for trouble in self._troubles.values():
            trouble.failed_ns = 0
        while self.round(now_ns):
            pass
        commits = []
        for key in [*self._runs]:
            try:
                run = self._runs[key]
                if failed is not None:
                    run.aligner.end(failed=failed)
                report = self._report(key, run)
                if not run.report.is_news(report):
                    report = {}
                rows = run.aligner.close(now_ns, everything=True, report=report)
                description = self._news(key, run)
                if rows or description is not None:
                    history = run.aligner.take_history(now_ns, everything=True)
                    commits.append(self._prepared(key, run, rows, (), description, history))
            except Exception:  # noqa: BLE001  # as above
                self._set_back(key, now_ns)
        self._commit(commits, now_ns)

    def _advance(self, key: ExperimentKey, max_bytes: int, now_ns: int, done: _Round) -> None:
        run = self._load(key, now_ns)
        if key in self._findings:
            self._untold[key] = self._findings.pop(key)
        if key in self._untold:  # again, if the last time was undone; if not, it is no news
            run.aligner.tell(self._untold[key])
        spooled, has_more = self._read(key, max_bytes) if max_bytes else ([], False)
        if spooled:
            run.used_ns = now_ns
            if spooled[0].is_damaged:
                self._set_aside(key, spooled[0], SampleDrop.DAMAGED)
                done.has_more = True
                return
            try:
                for one in spooled:
                    decoded = decode(one.batch)
                    run.aligner.add(decoded, received_ns=one.batch.received_ns)
                    run.left_out += run.about.add(decoded.announcements)
            except Exception:  # noqa: BLE001  # counted and logged once the bad batch is found
                self._go_back(key)
                done.has_more = True
                if len(spooled) > 1:
                    self._troubles[key] = _Trouble(one_by_one=True)
                else:
                    self._set_aside(key, spooled[0], SampleDrop.UNDECODABLE)
                return
        elif self._is_idle(run, now_ns):
            self._untold.pop(key, None)
            self._unload(key)
            return
        if not has_more:
            self._troubles.pop(key, None)
        done.has_more |= has_more
        # In a backlog the bridge's clock is far ahead of the data that it reads.
        clock_ns = spooled[-1].batch.received_ns if has_more else now_ns
        report = self._report(key, run) if run.report.is_due(now_ns) else {}
        rows = run.aligner.close(clock_ns, report=report)
        if rows and report:
            run.report.told(report, now_ns)
        description = self._news(key, run)
        if rows or spooled or description is not None:
            taken = [one.offset for one in spooled]
            history = run.aligner.take_history(clock_ns)
            done.commits.append(self._prepared(key, run, rows, taken, description, history))
        else:
            self._untold.pop(key, None)

    def _read(self, key: ExperimentKey, max_bytes: int) -> tuple[Sequence[Spooled], bool]:
        """The next batches, sound ones or one damaged one, and whether there may be more."""
        if not self._ledger.has_room(key):
            return [], False
        trouble = self._troubles.get(key)
        if trouble is not None and trouble.one_by_one:
            max_bytes = 1  # a read returns at least one batch
        spooled = self._spool.read(key, max_bytes=max_bytes)
        for place, one in enumerate(spooled):
            if one.is_damaged:
                return spooled[: max(1, place)], True
        return spooled, sum(len(one.batch.payload) for one in spooled) >= max_bytes

    def _load(self, key: ExperimentKey, now_ns: int) -> _Run:
        run = self._runs.get(key)
        if run is None:
            epoch = self._owners.epoch(key)  # before a look at what it has come to
            if epoch is None:
                raise LeaseLost(f"{key} belongs to another bridge.")
            saved = self._ledger.saved(key)
            state = self._state(key, saved)
            aligner = state.aligner
            aligner.next_number = saved.next_row
            aligner.settings = self._settings
            aligner.go_on(now_ns)
            for body in saved.seen:
                aligner.restore(body)
            for body in saved.spans:
                self._restore_trail(key, aligner, body)
            report = Report(self._report_interval_ns)
            counted = dataclasses.replace(aligner.tally)
            run = _Run(aligner, state.about, report, counted, now_ns, epoch)
            self._runs[key] = run
            self._unloaded.pop(key, None)
        return run

    def _state(self, key: ExperimentKey, saved: Saved) -> _State:
        state, fault = saved.state, saved.fault
        if isinstance(state, _State) and state.is_whole:
            return state
        if state is not None:
            fault = StateFault.REFUSED
            _log.error(
                "The state of %s in the journal is refused: it is something else. No bridge of "
                "this version has written it. Find out who else can write to the journal.",
                key,
            )
        if fault is not None:
            self._counters.add(Counter.STATES_LOST, reason=fault, run=key)
        return _State(Aligner(), About())

    def _restore_trail(self, key: ExperimentKey, aligner: Aligner, body: bytes) -> None:
        try:
            aligner.restore_trail(body)
        except StateRefused as exc:
            self._counters.add(Counter.STATES_LOST, reason=StateFault.REFUSED, run=key)
            _log.error(  # it is the sentence that says what to do
                "Spans of %s in the journal are refused: %s. No bridge of this version has written "
                "them; steps go unexplained. Find out who else can write to the journal.",
                key,
                exc,
            )

    def _is_idle(self, run: _Run, now_ns: int) -> bool:
        return now_ns - run.used_ns > _IDLE_NS and not run.aligner.is_watching

    def _report(self, key: ExperimentKey, run: _Run) -> Mapping[str, float]:
        aligner = run.aligner
        for name, n in self._counters.take_run(key).items():
            aligner.counts[name] = aligner.counts.get(name, 0) + n
            run.uncommitted[name] = run.uncommitted.get(name, 0) + n
        return run.report.values(aligner.tally, aligner.counts, self._gauges(key))

    def _news(self, key: ExperimentKey, run: _Run) -> Description | None:
        """What the run is, if that is not what the ledger says."""
        description = run.about.describe(run.aligner.status, run.aligner.devices)
        self._look_for_metrics(key, run, description.status)
        return None if description == self._ledger.description(key) else description

    def _look_for_metrics(
        self, key: ExperimentKey, run: _Run, status: ExperimentStatus | None
    ) -> None:
        """Say of a run that has ended that it is empty; nobody would look for it later."""
        if status in {None, ExperimentStatus.RUNNING} or run.aligner.has_metrics:
            self._empty.discard(key)
        elif key not in self._empty:
            self._empty.add(key)
            _log.warning("%s ended with no metric. %s", key, NO_METRIC_HINT)

    def _prepared(
        self,
        key: ExperimentKey,
        run: _Run,
        rows: Sequence[Row],
        taken: Sequence[Offset],
        description: Description | None,
        history: History | None,
    ) -> Commit:
        aligner = run.aligner
        return Commit(
            key,
            rows,
            aligner.next_number,
            _State(aligner, run.about),
            taken,
            aligner.is_watching,
            aligner.take_log(),
            aligner.forgotten_ns,
            description,
            aligner.take_trail(),
            aligner.spans_forgotten_ns,
            history,
            aligner.history_forgotten_ns,
            aligner.roles,
            run.epoch,
        )

    def _commit(self, commits: Sequence[Commit], now_ns: int) -> None:
        if not commits:
            return
        try:
            self._ledger.commit(commits)
        except LeaseLost:
            if len(commits) == 1:
                self._leave(commits[0].key)
            else:
                self._commit_each(commits, now_ns)
            return
        except JournalError:
            self._go_back(*(commit.key for commit in commits))
            # The answer may be what was lost, and the rows are there.
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
        dropped = run.aligner.take_dropped()
        if dropped:
            self._dropped(commit.key, dropped)
        tally, counted = run.aligner.tally, run.counted
        for counter, reason, now, before in (
            (Counter.SAMPLES_TAKEN, None, tally.taken, counted.taken),
            (Counter.SAMPLES_LATE, None, tally.late, counted.late),
            (Counter.SAMPLES_DUPLICATE, None, tally.duplicate, counted.duplicate),
            (
                Counter.SAMPLES_DROPPED,
                SampleDrop.TOO_MANY_SERIES,
                tally.too_many_series,
                counted.too_many_series,
            ),
            (Counter.SAMPLES_DROPPED, SampleDrop.TOO_OLD, tally.too_old, counted.too_old),
            (Counter.SPANS_TOO_OLD, None, tally.spans_too_old, counted.spans_too_old),
        ):
            self._counters.add(counter, now - before, reason=reason)
        run.counted = dataclasses.replace(tally)
        run.uncommitted = {}
        self._counters.add(
            Counter.SAMPLES_DROPPED,
            run.left_out,
            reason=SampleDrop.TOO_MANY_CONFIG_KEYS,
            run=commit.key,
        )
        run.left_out = 0
        for row in commit.rows:
            for label in TOLD.intersection(row.labels) if row.labels else ():
                _log.warning("%s: %s", commit.key, row.labels[label])
        self._counters.add(Counter.ROWS_CREATED, len(commit.rows))
        if commit.rows or commit.description is not None:
            self._notify(commit.key)

    def _set_back(self, key: ExperimentKey, now_ns: int) -> None:
        """Go back to what is committed of an experiment, and leave it alone for a moment."""
        self._go_back(key)
        trouble = self._troubles.setdefault(key, _Trouble())
        trouble.failed_ns = now_ns
        self._counters.add(Counter.EXCEPTIONS, reason=Where.DRAIN)
        if _has_passed(_LOG_EVERY_NS, self._logged_ns, now_ns):
            self._logged_ns = now_ns
            _log.exception("Making rows of %s failed; its batches are kept and tried again.", key)

    def _go_back(self, *keys: ExperimentKey) -> None:
        """Forget what is not committed of these, and load them again in the next round."""
        for key in keys:
            self._unloaded[key] = None
            self._unload(key)

    def _leave_lost(self) -> None:
        """Forget the runs that are not ours any more, or are again, in another turn."""
        for key, run in [*self._runs.items()]:
            if self._owners.epoch(key) != run.epoch:
                self._leave(key)
        for key in [*self._unloaded]:
            if self._owners.epoch(key) is None:
                self._leave(key)

    def _leave(self, key: ExperimentKey) -> None:
        """Forget a run that another bridge goes on with; if it is ours again, load it anew."""
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
            self._counters.give_back_run(key, run.uncommitted)

    def _set_aside(self, key: ExperimentKey, one: Spooled, reason: SampleDrop) -> None:
        """Keep a batch that cannot be read out of everybody's way."""
        self._ledger.set_aside(key, one.offset)
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
    """Whether that much time has passed; also if the clock was set back, to wait for nothing."""
    return not 0 <= now_ns - since_ns < duration_ns
