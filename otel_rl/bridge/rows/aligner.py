"""Aligns points in any order into numbered rows: open steps and windows of one experiment.

No clock and no I/O of its own: time is an argument. The whole state of an ``Aligner`` is stored in
the same transaction as its rows. Beside it is the log of accepted single points, which only grows.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Self

from otel_rl.bridge.journal.formats import state_format as wire
from otel_rl.bridge.rows.dedup.dedup_log import DedupLog
from otel_rl.bridge.rows.goodput.goodput import Goodput
from otel_rl.bridge.rows.history.archived_points import ArchivedPoints
from otel_rl.bridge.rows.history.history_writer import HistoryRecords, HistoryWriter
from otel_rl.bridge.rows.history.span_window import SpanLog, SpanWindow
from otel_rl.bridge.rows.intake.export_intake import add_points
from otel_rl.bridge.rows.intake.point_intake import PointIntake
from otel_rl.bridge.rows.key_catalogue import TIME
from otel_rl.bridge.rows.liveness import Liveness
from otel_rl.bridge.rows.pausable_clock import PausableClock
from otel_rl.bridge.rows.reports.change_throttle import ChangeThrottle
from otel_rl.bridge.rows.reports.data_warnings import (
    DataWarning,
    DroppedPoints,
    of_overflowed,
    of_units,
)
from otel_rl.bridge.rows.reports.finding_rows import Finding
from otel_rl.bridge.rows.reports.sample_counts import SampleCounts
from otel_rl.bridge.rows.row_maker import STANDING_METRICS, Closed, RowMaker
from otel_rl.bridge.rows.series.series_table import StreamTable
from otel_rl.bridge.rows.series.streams import WorkerStanding
from otel_rl.bridge.rows.settings import AlignSettings
from otel_rl.bridge.rows.steps.step_axis import StepAxis
from otel_rl.bridge.rows.steps.step_rows import ClosedStep, OpenSteps
from otel_rl.bridge.rows.table_rows import OpenTables
from otel_rl.bridge.rows.turns.batch_limit import BatchLimit
from otel_rl.bridge.rows.window_rows import ClosedWindow, OpenWindows
from otel_rl.records import (
    Attempt,
    Decoded,
    Device,
    ExperimentStatus,
    KeySpec,
    RoleStanding,
    Row,
    WorkerFailure,
)

__all__ = ["AlignSettings", "Aligner", "DedupLog", "HistoryRecords", "SampleCounts", "SpanLog"]

_NS_PER_S = 1_000_000_000

_NO_METRICS = ("otel_rl.", "hw.", "system.", "rl.goodput.", *(name for name, _ in STANDING_METRICS))
"""Prefixes of metrics that a run has without any of its program."""


class Aligner:
    """Turns the points of one experiment into rows.

    Rows are numbered from ``next_number`` without gaps. Within one call of ``close`` they are in
    order of event time.

    Attributes:
        settings: May be replaced at any time, e.g. after a restart with another configuration.
        next_number: Number of the next row.
        sample_counts: Counts of the samples, since the experiment began.
        counts: Other counts of the experiment, stored with its state; by name and reason.
        has_more: Whether ``close`` left complete rows for the next call.
        archived: Receives every accepted value; None without an archive.
    """

    # Of the batch that is taken in parts: whether it had points so far, and new ones.
    _begun: tuple[bool, bool] | None = None
    has_more = False

    def __init__(self, settings: AlignSettings | None = None) -> None:
        self.counts: dict[tuple[str, str], int] = {}
        self._newest_ns = 0  # event time of the latest row
        self._intake = PointIntake(settings or AlignSettings())
        self._row_maker = RowMaker(self._intake)
        self._span_window = SpanWindow()
        self._findings: list[Finding] = []
        self._told: tuple[str, ...] | None = None
        self._clock = PausableClock()
        self._liveness = Liveness()
        self._throttle = ChangeThrottle()
        self._is_watching = False

    @property
    def settings(self) -> AlignSettings:
        """Return the settings."""
        return self._intake.settings

    @settings.setter
    def settings(self, settings: AlignSettings) -> None:
        self._intake.settings = settings

    @property
    def next_number(self) -> int:
        """Return the number of the next row."""
        return self._row_maker.next_number

    @next_number.setter
    def next_number(self, number: int) -> None:
        self._row_maker.next_number = number

    @property
    def sample_counts(self) -> SampleCounts:
        """Return the counts of the samples."""
        return self._intake.sample_counts

    @property
    def archived(self) -> ArchivedPoints | None:
        """Return what receives every accepted value."""
        return self._intake.archived

    @archived.setter
    def archived(self, archived: ArchivedPoints | None) -> None:
        self._intake.archived = archived

    def go_on(self, now_ns: int) -> None:
        """Skip the bridge's downtime until ``now_ns``: it does not count toward lateness."""
        self._clock.go_on(now_ns)

    def clock_is(self, now_ns: int) -> None:
        """Set the bridge's clock, also while older batches are read; it may be set back."""
        self._intake.axis.clock_is(self._clock.clock_is(now_ns))

    def add(self, decoded: Decoded, *, received_ns: int) -> None:
        """Add a batch, or a part of it.

        Args:
            decoded: Of this experiment. Parts of a batch come one after another.
            received_ns: Arrival of the batch, by the bridge's clock.
        """
        arrived_ns, received_ns = received_ns, self._clock.at(received_ns)
        if self._begun is None:
            self._intake.series.make_room(self.settings, received_ns)
        has_points, is_new = self._begun or (False, False)
        taken = self.sample_counts.taken
        add_points(self._intake, decoded.points, received_ns)
        for sample in decoded.samples:
            self._intake.add_sample(sample, received_ns)
        if decoded.spans:
            self._intake.history.spanned(
                self._span_window.new_of(decoded.spans), self._intake.axis.step_at
            )
        self.sample_counts.spans_too_old += self._span_window.add(
            decoded.spans, self.settings, received_ns
        )
        has_points, is_new = (
            has_points or bool(decoded.points),
            is_new or self.sample_counts.taken > taken,
        )
        self._begun = (has_points, is_new) if decoded.has_more else None
        is_new = is_new or not has_points
        settle_ns = int(self.settings.settle_s * _NS_PER_S)
        for export in decoded.exports:
            worker = self._intake.series.lease(export.worker, self.settings)
            if worker is not None:
                self._is_watching = True
                worker.sends_exit_report = worker.sends_exit_report or export.sends_exit_report
                self._liveness.heard(export.worker, worker, export.time_ns, received_ns)
                is_held = (
                    export.worker.index is not None and worker.standing is WorkerStanding.ALIVE
                )
                self._intake.goodput.heard(worker, export.time_ns, is_held=is_held)
                # A repeat shows neither the progress of its worker nor its clock.
                event_ns = export.time_ns if is_new or export.time_ns > worker.event_ns else 0
                # A clock that has stood still is no measure of another.
                self._intake.history.exported(worker, event_ns, arrived_ns)
                worker.exported(received_ns=received_ns, event_ns=event_ns, settle_ns=settle_ns)
        for departure in decoded.departures:
            worker = self._intake.series.lease(departure.worker, self.settings)
            if worker is not None:
                self._liveness.left(departure, worker, received_ns)
                if worker.standing is WorkerStanding.LEFT:
                    self._intake.goodput.left(worker)

    def leave_batch(self) -> None:
        """Abandon the rest of the batch that is taken in parts."""
        self._begun = None

    def tell(self, finding: Finding) -> None:
        """Add a finding to the run, if it is news."""
        if finding.subject != self._told and (finding.causes or self._told is not None):
            self._told = finding.subject
            self._findings.append(finding)

    @property
    def is_open(self) -> bool:
        """Return whether some samples are in no row yet."""
        parts = (self._intake.steps, self._intake.windows, self._intake.tables, self._span_window)
        return bool(self._findings or self._intake.warnings) or any(part.is_open for part in parts)

    @property
    def is_watching(self) -> bool:
        """Return whether time alone may close a row: samples wait, or a worker may be lost.

        After everything was closed, False until the next export.
        """
        return self.is_open or (self._is_watching and self._liveness.has_living)

    @property
    def status(self) -> ExperimentStatus | None:
        """Return the status of the experiment by its workers; None before the first export."""
        return self._liveness.status()

    @property
    def step(self) -> int | None:
        """Return the newest step; None before the first."""
        return self._intake.axis.steps.values[-1] if self._intake.axis.steps.values else None

    @property
    def attempts(self) -> Sequence[Attempt]:
        """Return the last attempts after the first, in order, that have a row."""
        return self._intake.steps.attempts.with_rows

    @property
    def failures(self) -> Sequence[WorkerFailure]:
        """Return the last failures of workers, in order."""
        return self._liveness.failures(self._intake.axis.steps.at)

    @property
    def has_metrics(self) -> bool:
        """Return whether a worker has reported a metric besides its standing and its machine's."""
        return any(not group.name.startswith(_NO_METRICS) for group in self._intake.series.groups)

    @property
    def roles(self) -> Mapping[str, RoleStanding]:
        """Return the standing of each role at the last close."""
        return self._liveness.roles()

    @property
    def devices(self) -> Mapping[str, Device]:
        """Return the GPUs and hosts that workers report, by the prefix of their keys."""
        return self._intake.series.devices

    @property
    def forgotten_ns(self) -> int:
        """Return the time up to which no log by ``newest_ns`` is needed any more."""
        return self._intake.series.forgotten_ns

    def take_dropped(self) -> Mapping[str, DroppedPoints]:
        """Return, by worker, the points dropped by the series limit since the last call."""
        dropped, self._intake.dropped = self._intake.dropped, {}
        return dropped

    def take_log(self) -> DedupLog | None:
        """Return the single points accepted since the last call; None if there are none."""
        return self._intake.series.take_log(self.settings)

    def restore(self, body: bytes) -> None:
        """Restore the points of a ``DedupLog``, after ``from_wire``.

        Raises:
            StateRefused: It is something else.
        """
        self._intake.series.restore(body, self.settings)

    @property
    def spans_forgotten_ns(self) -> int:
        """Return the time up to which no span log by ``newest_ns`` is needed any more."""
        return self._span_window.forgotten_ns

    def take_spans(self) -> SpanLog | None:
        """Return the spans since the last call; None if there are none."""
        return self._span_window.take_log()

    def restore_spans(self, body: bytes) -> None:
        """Restore the spans of a ``SpanLog``, after ``from_wire``.

        Raises:
            StateRefused: It is something else.
        """
        self.sample_counts.spans_too_old += self._span_window.restore(body, self.settings)

    @property
    def history_forgotten_ns(self) -> int:
        """Return the time up to which no history by ``newest_ns`` is needed any more."""
        return self._intake.history.forgotten_ns

    def take_history(self, now_ns: int, *, everything: bool = False) -> HistoryRecords | None:
        """Return the history records since the last call.

        Args:
            now_ns: The bridge's clock.
            everything: Also the most recent ones.
        """
        step = self._intake.axis.step_at(now_ns)
        room, table = self.settings.max_history_bytes, self._intake.series
        return self._intake.history.take(
            now_ns,
            step,
            table.workers,
            table.names(),
            room,
            everything=everything,
            failures=self.failures,
            status=self.status or "",
            attempt=self._intake.steps.attempts.newest,
        )

    def take_thinned(self) -> int:
        """Return the number of values that the bound on rows has left out, since the last call."""
        thinned, self._row_maker.thinned = self._row_maker.thinned, 0
        return thinned

    def take_keys(self) -> Sequence[KeySpec]:
        """Return the keys that were in a row for the first time, since the last call."""
        return self._row_maker.keys.take()

    def restore_keys(self, keys: Iterable[KeySpec]) -> None:
        """Restore the keys that were taken before, after ``from_wire``."""
        self._row_maker.keys.restore(keys)

    def end(self, *, failed: bool) -> None:
        """End all leases, as all workers have ended.

        Args:
            failed: Whether workers without an exit report have failed.
        """
        self._liveness.end(self._intake.series.workers, failed=failed)

    def close_surplus(self, now_ns: int) -> list[Row]:
        """Remove and return what is open beyond the bounds. For the middle of a batch.

        The progress of its workers is known at its end, and complete rows only then.

        Args:
            now_ns: The bridge's clock.
        """
        now_ns = self._clock.at(now_ns)
        steps = self._intake.steps.close_surplus(
            self._intake.series,
            self.settings,
            now_ns,
            self._liveness.roles(),
            self._intake.axis.leader,
        )
        self.sample_counts.count_late(sum(step.late for step in steps))
        windows = self._intake.windows.close_surplus(self._intake.series, self.settings)
        closed: list[ClosedStep | ClosedWindow] = [*steps, *windows]
        closed = sorted((row for row in closed if row.values), key=lambda row: row.time_ns)
        if closed:
            self._newest_ns = max(self._newest_ns, closed[-1].time_ns)
        return [row for one in closed for row in self._row_maker.rows(one)]

    def close(
        self,
        now_ns: int,
        *,
        everything: bool = False,
        report: Mapping[str, float] | None = None,
        at_most: float = math.inf,
    ) -> list[Row]:
        """Remove and return every row that is complete as of ``now_ns`` by the bridge's clock.

        Args:
            now_ns: The bridge's clock.
            everything: Also close incomplete rows: no more data will come.
            at_most: Approximate number of values; ``has_more`` tells whether some were left.
            report: The bridge's report, by tracker key. It goes into the last complete row; with
                ``everything``, into a row of its own if there is none.
        """
        room = BatchLimit(at_most)
        clock_ns, now_ns = now_ns, self._clock.at(now_ns)
        for worker in self._intake.series.workers.values():
            worker.clock_is(now_ns)
        lease_ns = int(self.settings.lease_s * _NS_PER_S)
        self._liveness.look(self._intake.series.workers, lease_ns=lease_ns, now_ns=now_ns)
        self._intake.series.forget(self.settings, now_ns)
        steps = self._intake.steps.close(
            self._intake.series,
            self.settings,
            now_ns,
            everything=everything,
            standings=self._liveness.roles(),
            room=room,
            leader=self._intake.axis.leader,
        )
        self.sample_counts.count_late(sum(step.late for step in steps))
        self._intake.goodput.follow(self._intake.steps.attempts.begun, self._intake.axis.steps)
        windows = self._intake.windows.close(
            self._intake.series, self.settings, now_ns, everything=everything, room=room
        )
        tables = self._intake.tables.close(self.settings, now_ns, everything=everything, room=room)
        self.has_more = room.is_used_up
        explained = self._span_window.close(
            self._intake.axis.role,
            self.settings,
            now_ns,
            lambda: self._missed(now_ns, is_over=everything),
            everything=everything,
        )
        self.has_more |= self._span_window.has_more
        numeric: list[ClosedStep | ClosedWindow] = [*steps, *windows]
        numeric = [row for row in numeric if row.values]
        if report and everything and not numeric and self._newest_ns:
            numeric = [ClosedWindow(self._newest_ns, {})]
        standings = self._row_maker.standings(self._liveness.roles())
        if self._throttle.needs_a_row(standings, now_ns, everything=everything) and not numeric:
            numeric = [ClosedWindow(max(self._newest_ns, clock_ns), {})]
        if numeric:
            latest = max(numeric, key=lambda row: row.time_ns)
            # One wide row costs a tracker less than two.
            self._row_maker.keys.note(report or {}, TIME, self._intake.series.find)
            latest.values.update(report or {})
            latest.values.update(self._throttle.take(standings, now_ns))
            is_over = everything or not self._liveness.has_living
            goodput = self._row_maker.goodput(self._intake.goodput.take(now_ns, is_over=is_over))
            self._row_maker.keys.note(goodput, TIME, self._intake.series.find)
            latest.values.update(goodput)
        self._is_watching = self._is_watching and not everything
        closed: list[Closed]
        findings, self._findings = self._findings, []
        warnings, self._intake.warnings = self._intake.warnings, []
        newest_ns = max([self._newest_ns, *(row.time_ns for row in numeric)]) or clock_ns
        warnings += of_units(self._intake.series.take_unit_changes(), newest_ns)
        warnings += of_overflowed(self._intake.series.take_overflowed(), newest_ns)
        closed = [
            *numeric,
            *self._row_maker.dips(self._liveness.take_dips()),
            *tables,
            *explained,
            *findings,
            *warnings,
        ]
        closed.sort(key=lambda row: row.time_ns)
        if closed:
            self._newest_ns = max(self._newest_ns, closed[-1].time_ns)
        return [row for one in closed for row in self._row_maker.rows(one)]

    def to_wire(self) -> wire.Aligner:
        """Return the state for the journal, without the settings.

        It shares the containers of the aligner: encode it before the aligner changes.
        """
        return wire.Aligner(
            self.next_number,
            self.sample_counts.to_wire(),
            [(name, reason, n) for (name, reason), n in self.counts.items()],
            self._newest_ns,
            self._intake.series.to_wire(),
            self._intake.axis.to_wire(),
            self._intake.steps.to_wire(),
            self._intake.windows.to_wire(),
            self._intake.tables.to_wire(),
            self._span_window.to_wire(),
            self._intake.history.to_wire(),
            [finding.to_wire() for finding in self._findings],
            self._told,
            [warning.to_wire() for warning in self._intake.warnings],
            self._intake.dropped,
            self._intake.has_told_shared,
            self._clock.to_wire(),
            self._liveness.to_wire(),
            self._throttle.to_wire(),
            self._is_watching,
            self._begun,
            self._intake.steps.attempts.to_wire(),
            self._intake.goodput.to_wire(),
        )

    @classmethod
    def from_wire(cls, kept: wire.Aligner, settings: AlignSettings | None = None) -> Self:
        """Undo ``to_wire``.

        Raises:
            Exception: It is none that ``to_wire`` has given, see ``wire.refusing``.
        """
        aligner = cls(settings)
        aligner.next_number = kept.next_number
        aligner._intake.sample_counts = SampleCounts.from_wire(kept.sample_counts)
        aligner.counts = {(name, reason): n for name, reason, n in kept.counts}
        aligner._newest_ns = kept.newest_ns
        aligner._intake.series = StreamTable.from_wire(kept.table)
        groups = len(aligner._intake.series.groups)
        aligner._intake.axis = StepAxis.from_wire(kept.axis)
        aligner._intake.steps = OpenSteps.from_wire(
            kept.steps, groups=groups, attempts=kept.attempts
        )
        aligner._intake.windows = OpenWindows.from_wire(kept.windows, groups=groups)
        aligner._intake.tables = OpenTables.from_wire(kept.tables)
        aligner._span_window = SpanWindow.from_wire(kept.spans)
        aligner._intake.history = HistoryWriter.from_wire(kept.history)
        aligner._findings = [Finding.from_wire(finding) for finding in kept.findings]
        aligner._told = kept.told
        aligner._intake.warnings = [DataWarning.from_wire(warning) for warning in kept.warnings]
        aligner._intake.dropped = {
            worker: DroppedPoints(*one) for worker, one in kept.dropped.items()
        }
        aligner._intake.has_told_shared = kept.is_told_shared
        aligner._clock = PausableClock.from_wire(kept.clock)
        aligner._liveness = Liveness.from_wire(kept.liveness, aligner._intake.series.workers)
        aligner._throttle = ChangeThrottle.from_wire(kept.throttle)
        aligner._is_watching = kept.is_watching
        aligner._begun = kept.begun
        aligner._intake.goodput = Goodput.from_wire(kept.goodput)
        return aligner

    def _missed(self, now_ns: int, *, is_over: bool) -> Mapping[str, tuple[int, int]]:
        """Return the instances of workers whose last spans may be missing, with time ranges."""
        found = {
            worker.instance: state.unheard_ns(now_ns, is_over=is_over)
            for worker, state in self._intake.series.workers.items()
        }
        return {instance: unheard for instance, unheard in found.items() if unheard is not None}
