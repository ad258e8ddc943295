"""One run, from its batches to its rows: its open data, its knowledge, and its storage.

    batches ─ read, take ─> add ─> open steps and windows ─ close ─> rows ─ commit ─> Commit

A run has no clock and no I/O of its own: time is an argument. The whole state of a ``Run`` is
stored in the same transaction as its rows. Beside the state are logs that only grow, such as that
of the accepted single points. A run whose commit failed is forgotten, and loaded again as of its
last commit.
"""

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Final, Self

from otel_rl.bridge.counters import (
    ArchiveDrop,
    Counter,
    Counters,
    SampleDrop,
    StateFault,
    ValueFold,
)
from otel_rl.bridge.journal.log import Appended, Log
from otel_rl.bridge.journal.runs import Commit, SavedRun
from otel_rl.bridge.journal.state import (
    StateRefused,
    decode,
    decode_keys,
    encode,
    encode_keys,
    refusing,
)
from otel_rl.bridge.rows.archived_points import ArchivedPoints
from otel_rl.bridge.rows.history import HistoryWriter
from otel_rl.bridge.rows.intake import PointIntake
from otel_rl.bridge.rows.liveness import Liveness
from otel_rl.bridge.rows.messages import (
    DataWarning,
    DroppedPoints,
    Finding,
    NewFindings,
    RunMetadata,
    of_overflowed,
    of_sampled,
    of_spans,
    of_units,
)
from otel_rl.bridge.rows.rollouts import Rollouts
from otel_rl.bridge.rows.row_maker import Closed, RowMaker
from otel_rl.bridge.rows.run_batches import RunBatches
from otel_rl.bridge.rows.run_counts import RunCounts, SampleCounts
from otel_rl.bridge.rows.run_values import STANDING_METRICS, ChangeThrottle, RunValues
from otel_rl.bridge.rows.series.series_table import StreamTable
from otel_rl.bridge.rows.series.table_state import TableState
from otel_rl.bridge.rows.settings import AlignSettings
from otel_rl.bridge.rows.spans import SpanWindow
from otel_rl.bridge.rows.step_analysis import MAX_PLACES, StepAnalysis
from otel_rl.bridge.rows.steps.step_closing import Check, ClosedStep
from otel_rl.bridge.rows.steps.step_rows import OpenSteps
from otel_rl.bridge.rows.stored_run import PausableClock, StoredRun, StoredState
from otel_rl.bridge.rows.turn import Turn
from otel_rl.bridge.rows.window_rows import ClosedWindow
from otel_rl.bridge.rows.worker_reports import WorkerReports
from otel_rl.records import (
    Attempt,
    Decoded,
    Description,
    Device,
    ExperimentKey,
    ExperimentStatus,
    Offset,
    RoleStanding,
    Row,
    WorkerFailure,
)

_log = logging.getLogger(__name__)

_NS_PER_S: Final = 1_000_000_000

_UNRECOGNISED: Final = "repeated samples are not recognised"
_UNJOINED: Final = "late samples make rows of their own"
_UNEXPLAINED: Final = "steps go unexplained"
_UNDESCRIBED: Final = "they are described again"
_UNSHOWN: Final = "the page lacks those in flight until they make progress"

_NO_METRICS = (
    *("otel_rl.", "hw.", "system.", "rl.host.", "rl.goodput."),
    *(name for name, _ in STANDING_METRICS),
)
"""Prefixes of metrics that a run has without any of its program."""


class Run:
    """State of one run. One thread uses it.

    Rows are numbered without gaps. Within one call of ``close`` they are in order of event time.

    Args:
        kept: The stored run; None for a new one.

    Attributes:
        intake: Open steps, windows and tables, with their series and workers.
        row_maker: Makes numbered rows, and catalogues their keys.
        clock: The bridge's clock without its downtime.
        rest_ns: Time of the call of ``close`` that left complete rows for the next one; 0 if none
            are left.
        launched: Process id of the command that the bridge was started for, if any.
        epoch: The ownership epoch in which the run was loaded, see ``Ownership``.
        used_ns: Time at which the run last had batches.
        state_bytes: Size of the state at the last commit.
        logged_failures: Failures of the run's workers that the log has already.
        logged_failure_ns: Time of the last failure in the log.
        told_crash: The failure that ended the run, as the log has it.
        progress: Time of the newest stored history by the bridge's clock, and the newest step then;
            None before any history. Any thread may read it.
    """

    def __init__(
        self,
        settings: AlignSettings | None = None,
        *,
        key: ExperimentKey | None = None,
        counters: Counters | None = None,
        kept: StoredRun | None = None,
    ) -> None:
        self.key = ExperimentKey("") if key is None else key
        self.counts = RunCounts(counters or Counters(), self.key)
        self.intake = PointIntake(settings or AlignSettings())
        self.row_maker = RowMaker(self.intake)
        self.span_window = SpanWindow()
        self.findings = NewFindings()
        self.clock = PausableClock()
        self.liveness = Liveness()
        self._throttle = ChangeThrottle()
        # Arrival of the last sample of each uncommitted row, by ``clock``.
        self._arrived_ns: list[int] = []
        self.metadata = RunMetadata()
        # Event time of the latest row.
        self._newest_ns = 0
        has_exports = False if kept is None else kept.state.is_watching
        self.batches = RunBatches()
        if kept is not None:
            self._restore(kept)
        self._values = RunValues(self.intake, self.liveness, self._throttle, self.row_maker.keys)
        self.reports = WorkerReports(self.intake, self.liveness, has_exports=has_exports)
        self.counts.loaded(self.sample_counts)
        self.rest_ns = 0
        self.launched: int | None = None
        self.epoch = self.used_ns = 0
        self.state_bytes = 0
        self.archive_room: Callable[[], bool] | None = None
        self.logged_failures: Sequence[WorkerFailure] = ()
        self.logged_failure_ns = 0
        self.told_crash = ""
        self.progress: tuple[int, int] | None = None

    @classmethod
    def load(
        cls,
        key: ExperimentKey,
        saved: SavedRun,
        settings: AlignSettings,
        *,
        counters: Counters,
        epoch: int,
        now_ns: int,
        archive_room: Callable[[], bool] | None = None,
        is_one_launch: bool = False,
    ) -> Self:
        """Resume a run from the run store; damaged or refused state is counted and left out.

        Args:
            epoch: The ownership epoch, read before ``saved`` was.
            archive_room: Tells whether the journal has room for values that wait for the archive;
                None without an archive.
            is_one_launch: Whether all workers are of the one launch that the bridge is for.
        """
        if saved.fault is not None:
            counters.add(Counter.STATES_LOST, reason=saved.fault, run=key)
        kept = None
        if saved.state is not None:
            what = f"The state of {key} in the journal is"
            lost = f"open steps are lost, and {_UNRECOGNISED}"
            with _counting_refusals(counters, key, what, lost), refusing():
                kept = cls(
                    settings, key=key, counters=counters, kept=decode(saved.state, StoredRun)
                )
        run = kept or cls(settings, key=key, counters=counters)
        run.epoch, run.used_ns, run.reports.is_one_launch = epoch, now_ns, is_one_launch
        run.row_maker.next_number = saved.next_row
        run.go_on(now_ns)
        logs: Sequence[tuple[str, Iterable[bytes], Callable[[bytes], None], str]] = (
            ("Points", saved.log(Log.DEDUP), run.restore_dedup, _UNRECOGNISED),
            (
                "Steps",
                saved.log(Log.STEPS) if kept is not None else (),
                run.restore_steps,
                _UNJOINED,
            ),
            ("Spans", saved.log(Log.SPANS), run.restore_spans, _UNEXPLAINED),
            ("Keys", saved.log(Log.KEYS), run.restore_keys, _UNDESCRIBED),
            ("Rollouts", saved.log(Log.IN_FLIGHT), run.restore_rollouts, _UNSHOWN),
        )
        for name, bodies, restore, lost in logs:
            what = f"{name} of {key} in the journal are"
            for body in bodies:
                with _counting_refusals(counters, key, what, lost):
                    restore(body)
        run.intake.steps.is_restored()
        run.counts.loaded(run.sample_counts)
        run.batches.lost_ns = saved.lost_ns
        run.logged_failures = run.failures
        if archive_room is not None:
            run.intake.archived = ArchivedPoints()
            run.archive_room = archive_room
        return run

    # Add: batches come in.

    def clock_is(self, now_ns: int) -> None:
        """Set the bridge's clock, which may go back, also while older batches are read."""
        self.intake.axis.clock_is(self.clock.clock_is(now_ns))

    def go_on(self, now_ns: int) -> None:
        """Skip the bridge's downtime until ``now_ns``: downtime does not make workers late."""
        self.clock.go_on(now_ns)
        self.liveness.resume(self.clock.resumed_ns)

    def take(self, is_over: Callable[[], bool], part_points: int, now_ns: int) -> None:
        """Take in read batches, in parts of about ``part_points``, until the turn is over."""
        for part, received_ns in self.batches.take(is_over, part_points, now_ns):
            self.add(part, received_ns=received_ns)
            left_out = self.metadata.add(part.announcements)
            self.counts.add(Counter.SAMPLES_DROPPED, left_out, SampleDrop.TOO_MANY_CONFIG_KEYS)

    def add(self, decoded: Decoded, *, received_ns: int) -> None:
        """Add a decoded batch, or one part of it; the parts of a batch come one after another."""
        intake = self.intake
        arrived_ns, received_ns = received_ns, self.clock.at(received_ns)
        if self.batches.begun is None:
            intake.series.make_room(intake.settings, received_ns)
        has_points, is_new = self.batches.begun or (False, False)
        taken = self.sample_counts.taken
        times_ns = [export.time_ns for export in decoded.exports if export.time_ns]
        intake.first_ns = min([*times_ns, intake.first_ns or arrived_ns])
        self.reports.look_at_clocks(decoded.exports, arrived_ns)
        intake.add_all(decoded.points, received_ns)
        for sample in decoded.samples:
            intake.add_sample(sample, received_ns)
        self.span_window.missing.mark(decoded.sampled)
        if decoded.spans:
            intake.history.spanned(
                self.span_window.recent.new_of(decoded.spans), intake.axis.steps.at, arrived_ns
            )
        self.sample_counts.spans_too_old += self.span_window.add(
            decoded.spans, intake.settings, received_ns
        )
        has_points = has_points or bool(decoded.points)
        is_new = is_new or self.sample_counts.taken > taken
        self.batches.begun = (has_points, is_new) if decoded.has_more else None
        is_new = is_new or not has_points
        self.reports.add(
            decoded.exports,
            is_new=is_new,
            arrived_ns=arrived_ns,
            received_ns=received_ns,
            newest_ns=self._newest_ns,
        )
        self.reports.add_departures(decoded.departures, received_ns)

    def end(self, *, failed: bool, by: str | None = None) -> None:
        self.liveness.end(self.intake.series.workers.states, failed=failed, by=by)

    # Close: rows come out.

    def close(
        self,
        now_ns: int,
        *,
        everything: bool = False,
        report: Mapping[str, float] | None = None,
        turn: Turn | None = None,
    ) -> list[Row]:
        """Remove and return every row that is complete as of ``now_ns`` by the bridge's clock.

        Args:
            everything: Also close incomplete rows, because no more data will come.
            turn: Complete rows are left once the turn is over, and ``rest_ns`` is set; None for a
                turn without an end.
            report: The bridge's report, by tracker key. The report goes into the last complete row;
                with ``everything``, into a row of its own if there is none.
        """
        intake, turn = self.intake, turn or Turn()
        clock_ns, now_ns = now_ns, self.clock.at(now_ns)
        self.reports.look(now_ns)
        intake.rollouts.end_lost(intake.series.workers.states, clock_ns)
        numeric = self._close_numeric(now_ns, clock_ns, turn, everything=everything)
        tables = intake.tables.close(intake.settings, now_ns, everything=everything, turn=turn)
        analyses = self._close_analyses(now_ns, everything=everything)
        self.rest_ns = clock_ns if turn.has_rest else 0
        self._values.add_to(
            numeric,
            report or {},
            newest_ns=self._newest_ns,
            clock_ns=clock_ns,
            now_ns=now_ns,
            everything=everything,
        )
        self.reports.has_exports &= not everything
        newest_ns = max([self._newest_ns, *(row.time_ns for row in numeric)]) or clock_ns
        messages = self._take_messages(newest_ns)
        return self._rows([*numeric, *tables, *analyses, *messages])

    def close_surplus(self, now_ns: int, turn: Turn | None = None) -> list[Row]:
        """Remove and return open rows beyond the bounds, in the middle of a batch.

        The progress of the batch's workers is known only at its end, and so are complete rows.
        """
        turn, intake = turn or Turn(), self.intake
        steps = self._close_steps(self.clock.at(now_ns), turn, only_surplus=True)
        windows = intake.windows.close_surplus(intake.series, intake.settings, turn)
        self.rest_ns = now_ns if turn.has_rest else 0
        numeric: list[ClosedStep | ClosedWindow] = [*steps, *windows]
        return self._rows([row for row in numeric if row.values])

    def _close_steps(
        self,
        now_ns: int,
        turn: Turn,
        *,
        everything: bool = False,
        only_surplus: bool = False,
    ) -> list[ClosedStep]:
        intake = self.intake
        steps = intake.steps.close(
            Check(
                table=intake.series,
                settings=intake.settings,
                now_ns=now_ns,
                standings=self.liveness.roles(),
                leader=intake.axis.leader,
                launched=self.launched,
                everything=everything,
                only_surplus=only_surplus,
                turn=turn,
            )
        )
        intake.sample_counts.count_late(sum(step.late for step in steps))
        return steps

    def _close_numeric(
        self, now_ns: int, clock_ns: int, turn: Turn, *, everything: bool
    ) -> list[ClosedStep | ClosedWindow]:
        intake = self.intake
        steps = self._close_steps(now_ns, turn, everything=everything)
        intake.goodput.follow(intake.steps.attempts.begun, intake.axis.steps)
        windows = intake.windows.close(
            intake.series,
            intake.settings,
            now_ns,
            clock_ns=clock_ns,
            everything=everything,
            turn=turn,
        )
        # Their steps are those of the leader's times.
        if shift_ns := intake.series.workers.shift_of(intake.axis.leader):
            windows = [replace(row, time_ns=row.time_ns - shift_ns) for row in windows]
        numeric: list[ClosedStep | ClosedWindow] = [*steps, *windows]
        return [row for row in numeric if row.values]

    def _close_analyses(self, now_ns: int, *, everything: bool) -> Sequence[StepAnalysis]:
        """Remove and return the analyses of steps whose spans are complete."""

        def missed() -> Mapping[str, tuple[int, int]]:
            found = {
                worker.instance: state.silent_ns(now_ns, is_over=everything)
                for worker, state in self.intake.series.workers.states.items()
            }
            return {instance: silent for instance, silent in found.items() if silent is not None}

        window = self.span_window
        was_crowded = bool(window.crowded_role)
        analyses = window.close(
            self.intake.axis.role,
            self.intake.settings,
            now_ns,
            missed,
            self.intake.axis.steps.values,
            everything=everything,
        )
        if analyses and window.sampled and not self.intake.has_told_sampled:
            self.intake.has_told_sampled = True
            self.intake.warnings.append(of_sampled(window.sampled, analyses[-1].time_ns))
        if analyses and not was_crowded and window.crowded_role:
            end_ns = analyses[-1].time_ns
            self.intake.warnings.append(of_spans(window.crowded_role, MAX_PLACES, end_ns))
        return analyses

    def add_finding(self, finding: Finding) -> None:
        """Add a diagnosis' finding; for a new fault, keep spans of before and after its begin."""
        since = finding.causes[0].get("since_step") if finding.causes else None
        if self.findings.add(finding) and isinstance(since, int):
            self.span_window.found(since, self.intake.axis.role)

    def _take_messages(self, newest_ns: int) -> Sequence[Finding | DataWarning]:
        """Remove and return findings and warnings, dated at the run's newest time."""
        intake = self.intake
        findings = self.findings.take()
        warnings, intake.warnings = intake.warnings, []
        warnings += of_units(intake.series.keys.take_unit_changes(), newest_ns)
        warnings += of_overflowed(intake.series.keys, self.intake.settings, newest_ns)
        return [*findings, *warnings]

    def _rows(self, closed: list[Closed]) -> list[Row]:
        closed.sort(key=lambda row: row.time_ns)
        self._arrived_ns += [
            row.received_ns
            for row in closed
            if isinstance(row, ClosedStep | ClosedWindow) and row.received_ns
        ]
        if closed:
            self._newest_ns = max(self._newest_ns, closed[-1].time_ns)
        return [row for one in closed for row in self.row_maker.rows(one)]

    # Commit: what the journal gets, and what follows once that is durable.

    def commit(
        self,
        rows: Sequence[Row],
        description: Description | None,
        now_ns: int,
        *,
        everything: bool = False,
    ) -> Commit:
        """Return all changes since the last commit, with the present state."""
        intake, recent = self.intake, self.span_window.recent
        history = self.take_history(now_ns, everything=everything)
        taken = self.batches.commit()
        # Before the state, which includes what the logs forget.
        dedup = self.take_dedup()
        steps = intake.steps.take_log()
        chosen = self.span_window.chosen.take_log()
        open_ns = intake.rollouts.kept.open_ns
        rollouts = intake.rollouts.take_finished(now_ns, intake.settings.max_rollout_bytes)
        in_flight = intake.rollouts.take_open(now_ns)
        state = encode(self.stored())
        self.state_bytes = len(state)
        keys = self.row_maker.keys.take()
        archive = [] if intake.archived is None else intake.archived.take()
        if archive and self.archive_room is not None and not self.archive_room():
            unarchived = sum(samples for samples, _ in archive)
            self.counts.add(Counter.ARCHIVE_DROPPED, unarchived, ArchiveDrop.NO_ROOM)
            archive = []
        return Commit(
            key=self.key,
            rows=rows,
            next_row=self.row_maker.next_number,
            state=state,
            taken=taken,
            is_open=self.is_watching,
            added={
                Log.DEDUP: dedup,
                Log.STEPS: steps,
                Log.SPANS: recent.take_log(),
                Log.CHOSEN: chosen,
                Log.HISTORY: history,
                Log.ROLLOUTS: rollouts,
                Log.IN_FLIGHT: in_flight,
                Log.KEYS: (now_ns, encode_keys(keys)) if keys else None,
            },
            forgotten={
                Log.DEDUP: intake.series.memory.forgotten_ns,
                Log.STEPS: intake.steps.logs.forgotten,
                Log.SPANS: recent.forgotten_ns,
                Log.HISTORY: intake.history.kept.forgotten_ns,
                Log.ROLLOUTS: intake.rollouts.kept.forgotten_ns,
                Log.IN_FLIGHT: 0 if in_flight is None else open_ns,
            },
            description=description,
            roles=self.liveness.roles(),
            epoch=self.epoch,
            archive=archive,
            step=self.step,
        )

    def committed(self, now_ns: int, team: str) -> Mapping[str, DroppedPoints]:
        """Add the committed counts and delays to the bridge's counters.

        Args:
            now_ns: Time of the commit, by the bridge's clock.

        Returns:
            By worker, the points dropped by the series limit since the previous commit.
        """
        series, counts = self.intake.series, self.counts
        counts.add(Counter.VALUES_FOLDED, series.newly_folded, ValueFold.ATTRIBUTES)
        series.newly_folded = 0
        rollouts = self.intake.rollouts
        counts.add(Counter.VALUES_FOLDED, rollouts.newly_folded, ValueFold.ROLLOUTS)
        counts.add(Counter.SAMPLES_DROPPED, rollouts.newly_unshown, SampleDrop.TOO_MANY_IN_FLIGHT)
        counts.add(Counter.SAMPLES_DROPPED, rollouts.newly_forgotten, SampleDrop.OLD_ROLLOUT)
        rollouts.newly_folded = rollouts.newly_unshown = rollouts.newly_forgotten = 0
        lost, self.batches.lost = self.batches.lost, 0
        if lost:
            counts.add(Counter.SAMPLES_DROPPED, lost, SampleDrop.RUN_REMOVED)
            _log.warning(
                "%s was removed from the journal after its end, and %d samples came that may be in "
                "it: they are dropped.",
                self.key,
                lost,
            )
        counts.committed(self.sample_counts)
        if self._arrived_ns:
            now_ns = self.clock.at(now_ns)
            delays_s = [(now_ns - at_ns) / _NS_PER_S for at_ns in self._arrived_ns]
            counts.delayed(delays_s, team)
            self._arrived_ns = []
        dropped, self.intake.dropped = self.intake.dropped, {}
        return dropped

    def unload(self) -> None:
        """Give uncommitted counts back to the bridge's counters; the run must not be used again."""
        self.counts.give_back()

    def take_history(self, now_ns: int, *, everything: bool = False) -> Appended | None:
        intake = self.intake
        return intake.history.take(
            now_ns,
            intake.axis.step_at(now_ns),
            intake.series.workers.states,
            intake.series.workers.names(),
            intake.settings.max_history_bytes,
            everything=everything,
            failures=self.failures,
            status=self.status or "",
            attempt=intake.steps.attempts.newest,
        )

    def take_dedup(self) -> Appended | None:
        """Return the single points accepted since the last call; None if there are none."""
        series = self.intake.series
        most, ended_ns = self.intake.settings.max_remembered, series.ended.unknown_through_ns
        return series.memory.take_log(most, ended_ns)

    # What is known of the run.

    @property
    def is_open(self) -> bool:
        intake = self.intake
        parts = (intake.steps, intake.windows, intake.tables, self.span_window)
        is_told = not (self.findings.waiting or intake.warnings)
        return not is_told or any(part.is_open for part in parts)

    @property
    def has_more(self) -> bool:
        """Return whether ``close`` has more to do at once."""
        return self.rest_ns > 0 or self.span_window.has_more

    @property
    def is_watching(self) -> bool:
        """Return whether time alone may close a row: samples wait, or a worker may be lost.

        After everything was closed, return False until the next export.
        """
        return self.is_open or (self.reports.has_exports and self.liveness.has_living)

    @property
    def has_metrics(self) -> bool:
        """Return whether a worker has reported metrics beside its standing and its machine's."""
        if self.span_window.newest_step is not None:
            return True
        groups = self.intake.series.keys.groups
        return any(not group.name.startswith(_NO_METRICS) for group in groups)

    @property
    def status(self) -> ExperimentStatus | None:
        """Return the experiment's status by its workers' state; None before the first export."""
        return self.liveness.status()

    @property
    def step(self) -> int | None:
        """Return the newest step, from spans if no metric has one; None before the first."""
        newest = self.intake.axis.steps.newest
        return self.span_window.newest_step if newest is None else newest

    @property
    def attempts(self) -> Sequence[Attempt]:
        return self.intake.steps.attempts.with_rows

    @property
    def failures(self) -> Sequence[WorkerFailure]:
        return self.liveness.failures(self.intake.axis.steps.at)

    @property
    def roles(self) -> Mapping[str, RoleStanding]:
        return self.liveness.roles()

    @property
    def devices(self) -> Mapping[str, Device]:
        return self.intake.series.devices.devices

    @property
    def sample_counts(self) -> SampleCounts:
        return self.intake.sample_counts

    def describe(self) -> Description:
        return self.metadata.describe(self.status, self.devices, self.failures, self.attempts)

    def report(self, gauges: Mapping[str, float]) -> Mapping[str, float]:
        return self.counts.report(self.sample_counts, gauges)

    # The run as it is stored.

    def stored(self) -> StoredRun:
        """Return the state for the journal, without the settings.

        The result shares the containers of the run: encode it before the run changes.
        """
        intake = self.intake
        state = StoredState(
            next_number=self.row_maker.next_number,
            sample_counts=intake.sample_counts,
            counts=self.counts.of_run,
            newest_ns=self._newest_ns,
            table=intake.series.state.stored(),
            axis=intake.axis,
            steps=intake.steps.stored(),
            attempts=intake.steps.attempts,
            windows=intake.windows,
            tables=intake.tables,
            spans=self.span_window,
            history=intake.history.kept,
            findings=self.findings,
            warnings=intake.warnings,
            dropped=intake.dropped,
            has_told_shared=intake.has_told_shared,
            has_told_sampled=intake.has_told_sampled,
            clock=self.clock,
            liveness=self.liveness,
            throttle=self._throttle,
            is_watching=self.reports.has_exports,
            begun=self.batches.begun,
            goodput=intake.goodput,
            first_ns=intake.first_ns,
            rollouts=intake.rollouts.kept,
        )
        return StoredRun(state, self.metadata, self.batches.cut)

    def _restore(self, stored: StoredRun) -> None:
        """Take over a stored state. Bad state may raise any error, see ``refusing``."""
        kept, intake = stored.state, self.intake
        self.metadata = stored.metadata
        if stored.cut is not None:
            self.batches.cut = Offset(stored.cut[0]), stored.cut[1]
        intake.sample_counts = kept.sample_counts
        intake.series = StreamTable(TableState.restored(kept.table))
        intake.axis = kept.axis
        intake.steps, intake.windows = OpenSteps(kept.steps, kept.attempts), kept.windows
        intake.tables = kept.tables
        groups = len(intake.series.keys.groups)
        intake.steps.check(groups)
        intake.steps.find_workers(intake.series.workers.states)
        intake.windows.check(groups)
        intake.tables.check()
        intake.history = HistoryWriter(kept.history)
        intake.warnings, intake.dropped = kept.warnings, kept.dropped
        intake.has_told_shared = kept.has_told_shared
        intake.has_told_sampled = kept.has_told_sampled
        intake.first_ns = kept.first_ns
        intake.rollouts = Rollouts(kept.rollouts)
        intake.goodput = kept.goodput
        kept.liveness.check(intake.series.workers.states)
        self.row_maker.next_number = kept.next_number
        self.span_window, self.findings, self.clock = kept.spans, kept.findings, kept.clock
        self.liveness, self._throttle = kept.liveness, kept.throttle
        self.counts.of_run = kept.counts
        self._newest_ns = kept.newest_ns
        self.batches.begun = kept.begun

    def restore_dedup(self, body: bytes) -> None:
        self.intake.series.memory.restore(body, self.intake.settings.max_remembered)

    def restore_steps(self, body: bytes) -> None:
        self.intake.steps.restore_log(body, len(self.intake.series.keys.groups))

    def restore_keys(self, body: bytes) -> None:
        self.row_maker.keys.restore(decode_keys(body))

    def restore_rollouts(self, body: bytes) -> None:
        self.intake.rollouts.restore_open(body)

    def restore_spans(self, body: bytes) -> None:
        too_old = self.span_window.recent.restore(body, self.intake.settings)
        self.sample_counts.spans_too_old += too_old


@contextmanager
def _counting_refusals(
    counters: Counters, key: ExperimentKey, what: str, lost: str
) -> Iterator[None]:
    """Count and log state that the block refuses, and go on without that state."""
    try:
        yield
    except StateRefused as exc:
        counters.add(Counter.STATES_LOST, reason=StateFault.REFUSED, run=key)
        _log.error(  # the error's message holds the remedy
            "%s refused: %s. No bridge of this version has written that; %s. Find out who else "
            "can write to the journal.",
            what,
            exc,
            lost,
        )
