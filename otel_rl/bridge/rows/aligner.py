"""Aligns points in any order into numbered rows: open steps and windows of one experiment.

No clock and no I/O of its own: time is an argument. The whole state of an ``Aligner`` is stored in
the same transaction as its rows. Beside it are logs that only grow, such as that of the accepted
single points.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

from otel_rl.bridge.rows.batch_limit import BatchLimit
from otel_rl.bridge.rows.history.step_analysis import MAX_PLACES, StepAnalysis
from otel_rl.bridge.rows.open_run.run_logs import RunLogs
from otel_rl.bridge.rows.open_run.run_standing import RunStanding
from otel_rl.bridge.rows.open_run.run_state import RunState
from otel_rl.bridge.rows.open_run.run_values import RunValues
from otel_rl.bridge.rows.open_run.worker_reports import (
    add_departures,
    add_exports,
    look_at_clocks,
)
from otel_rl.bridge.rows.reports.data_warnings import (
    DataWarning,
    of_overflowed,
    of_sampled,
    of_spans,
    of_units,
)
from otel_rl.bridge.rows.reports.finding_rows import Finding
from otel_rl.bridge.rows.row_maker import Closed
from otel_rl.bridge.rows.settings import AlignSettings
from otel_rl.bridge.rows.steps.step_closing import ClosedStep
from otel_rl.bridge.rows.window_rows import ClosedWindow
from otel_rl.records import Decoded, Row

__all__ = ["AlignSettings", "Aligner"]

_NS_PER_S = 1_000_000_000


class Aligner:
    """Turns the points of one experiment into rows.

    Rows are numbered without gaps. Within one call of ``close`` they are in order of event time.

    Args:
        settings: Of a new run.
        state: Of a run that goes on; it has its own settings.

    Attributes:
        state: Stored with the rows.
        logs: Stored beside it.
        standing: Facts of the run, for its readers.
        findings: Findings of a diagnosis, for the run.
        row_maker: Numbers the rows, and catalogues their keys.
        sample_counts: Counts of the samples, since the experiment began.
        counts: Other counts of the experiment, stored with its state; by name and reason.
        has_more: Whether ``close`` left complete rows for the next call.
    """

    def __init__(
        self, settings: AlignSettings | None = None, *, state: RunState | None = None
    ) -> None:
        self.state = state = state or RunState.new(settings or AlignSettings())
        self.standing = RunStanding(state)
        self.logs = RunLogs(state, self.standing)
        self.findings = state.findings
        self.row_maker = state.row_maker
        self.sample_counts = state.intake.sample_counts
        self.counts = state.counts
        self.has_more = False
        self._intake = state.intake
        self._values = RunValues(state)

    @property
    def settings(self) -> AlignSettings:
        """Return the settings."""
        return self._intake.settings

    @settings.setter
    def settings(self, settings: AlignSettings) -> None:
        """Replace them, e.g. after a restart with another configuration."""
        self._intake.settings = settings

    def go_on(self, now_ns: int) -> None:
        """Skip the bridge's downtime until ``now_ns``: it does not count toward lateness."""
        self.state.clock.go_on(now_ns)
        self.state.liveness.resume(self.state.clock.resumed_ns)

    def clock_is(self, now_ns: int) -> None:
        """Set the bridge's clock, also while older batches are read; it may be set back."""
        self._intake.axis.clock_is(self.state.clock.clock_is(now_ns))

    def launched_is(self, pid: int | None) -> None:
        """Set the process id of the command that the bridge was started for: it has no others."""
        self._intake.steps.launched = pid

    def add(self, decoded: Decoded, *, received_ns: int) -> None:
        """Add a batch, or a part of it.

        Args:
            decoded: Of this experiment. Parts of a batch come one after another.
            received_ns: Arrival of the batch, by the bridge's clock.
        """
        state, intake = self.state, self._intake
        arrived_ns, received_ns = received_ns, state.clock.at(received_ns)
        if state.begun is None:
            intake.series.make_room(intake.settings, received_ns)
        has_points, is_new = state.begun or (False, False)
        taken = intake.sample_counts.taken
        times_ns = [export.time_ns for export in decoded.exports if export.time_ns]
        intake.first_ns = min([*times_ns, intake.first_ns or arrived_ns])
        look_at_clocks(state, decoded.exports, arrived_ns)
        intake.add_all(decoded.points, received_ns)
        for sample in decoded.samples:
            intake.add_sample(sample, received_ns)
        state.span_window.missing.mark(decoded.sampled)
        if decoded.spans:
            intake.history.spanned(
                state.span_window.recent.new_of(decoded.spans), intake.axis.steps.at, arrived_ns
            )
        intake.sample_counts.spans_too_old += state.span_window.add(
            decoded.spans, intake.settings, received_ns
        )
        has_points = has_points or bool(decoded.points)
        is_new = is_new or intake.sample_counts.taken > taken
        state.begun = (has_points, is_new) if decoded.has_more else None
        is_new = is_new or not has_points
        add_exports(
            state, decoded.exports, is_new=is_new, arrived_ns=arrived_ns, received_ns=received_ns
        )
        add_departures(state, decoded.departures, received_ns)

    def end(self, *, failed: bool, by: str | None = None) -> None:
        """End all leases, as all workers have ended.

        Args:
            failed: Whether workers without an exit report have failed.
            by: Signal that ended them; None if none is known.
        """
        self.state.liveness.end(self._intake.series.workers.states, failed=failed, by=by)

    def close_surplus(self, now_ns: int) -> list[Row]:
        """Remove and return open rows beyond the bounds. For the middle of a batch.

        The progress of its workers is known at its end, and complete rows only then.

        Args:
            now_ns: The bridge's clock.
        """
        intake = self._intake
        steps = intake.steps.close_surplus(
            intake.series,
            intake.settings,
            self.state.clock.at(now_ns),
            self.state.liveness.roles(),
            intake.axis.leader,
        )
        intake.sample_counts.count_late(sum(step.late for step in steps))
        windows = intake.windows.close_surplus(intake.series, intake.settings)
        numeric: list[ClosedStep | ClosedWindow] = [*steps, *windows]
        return self._rows([row for row in numeric if row.values])

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
            at_most: Approximate number of values; ``has_more`` is set if some were left.
            report: The bridge's report, by tracker key. It goes into the last complete row; with
                ``everything``, into a row of its own if there is none.
        """
        state, intake, room = self.state, self._intake, BatchLimit(at_most)
        clock_ns, now_ns = now_ns, state.clock.at(now_ns)
        self._look_at_workers(now_ns)
        numeric = self._close_numeric(now_ns, clock_ns, room, everything=everything)
        tables = intake.tables.close(intake.settings, now_ns, everything=everything, room=room)
        analyses = self._close_analyses(now_ns, everything=everything)
        self.has_more = room.is_used_up or state.span_window.has_more
        self._values.add_to(
            numeric, report or {}, clock_ns=clock_ns, now_ns=now_ns, everything=everything
        )
        state.is_watching = state.is_watching and not everything
        newest_ns = max([state.newest_ns, *(row.time_ns for row in numeric)]) or clock_ns
        messages = self._take_messages(newest_ns)
        dips = self._values.take_dips()
        return self._rows([*numeric, *dips, *tables, *analyses, *messages])

    def _look_at_workers(self, now_ns: int) -> None:
        """Check the liveness of workers, and forget those that ended long ago."""
        table, lease_ns = self._intake.series, int(self.settings.lease_s * _NS_PER_S)
        table.workers.compare_clocks(self.settings)
        for worker in table.workers.states.values():
            worker.clock_is(now_ns)
        self.state.liveness.look(table.workers.states, lease_ns=lease_ns, now_ns=now_ns)
        self.state.is_over = self.state.liveness.has_ended
        table.forget(self.settings, now_ns)

    def _close_numeric(
        self, now_ns: int, clock_ns: int, room: BatchLimit, *, everything: bool
    ) -> list[ClosedStep | ClosedWindow]:
        """Remove and return the complete steps and windows that have a value."""
        intake = self._intake
        steps = intake.steps.close(
            intake.series,
            intake.settings,
            now_ns,
            everything=everything,
            standings=self.state.liveness.roles(),
            room=room,
            leader=intake.axis.leader,
            is_coarse=self.row_maker.is_coarse,
        )
        intake.sample_counts.count_late(sum(step.late for step in steps))
        intake.goodput.follow(intake.steps.attempts.begun, intake.axis.steps)
        windows = intake.windows.close(
            intake.series,
            intake.settings,
            now_ns,
            clock_ns=clock_ns,
            everything=everything,
            room=room,
        )
        # Their steps are those of the leader's times.
        if shift_ns := intake.series.workers.shift_of(intake.axis.leader):
            windows = [replace(row, time_ns=row.time_ns - shift_ns) for row in windows]
        numeric: list[ClosedStep | ClosedWindow] = [*steps, *windows]
        return [row for row in numeric if row.values]

    def _close_analyses(self, now_ns: int, *, everything: bool) -> Sequence[StepAnalysis]:
        """Remove and return the analyses of steps whose spans are complete."""

        def missed() -> Mapping[str, tuple[int, int]]:
            """Return the instances of workers whose last spans may be missing, and time ranges."""
            found = {
                worker.instance: state.silent_ns(now_ns, is_over=everything)
                for worker, state in self._intake.series.workers.states.items()
            }
            return {instance: silent for instance, silent in found.items() if silent is not None}

        window = self.state.span_window
        was_crowded = bool(window.crowded_role)
        analyses = window.close(
            self._intake.axis.role,
            self.settings,
            now_ns,
            missed,
            lambda: self._intake.axis.steps.values,
            everything=everything,
        )
        if analyses and window.sampled and not self._intake.has_told_sampled:
            self._intake.has_told_sampled = True
            self._intake.warnings.append(of_sampled(window.sampled, analyses[-1].time_ns))
        if analyses and not was_crowded and window.crowded_role:
            end_ns = analyses[-1].time_ns
            self._intake.warnings.append(of_spans(window.crowded_role, MAX_PLACES, end_ns))
        return analyses

    def _take_messages(self, newest_ns: int) -> Sequence[Finding | DataWarning]:
        """Remove and return notes for the run, at its newest time."""
        intake = self._intake
        findings = self.state.findings.take()
        warnings, intake.warnings = intake.warnings, []
        warnings += of_units(intake.series.keys.take_unit_changes(), newest_ns)
        warnings += of_overflowed(intake.series.keys, self.settings, newest_ns)
        return [*findings, *warnings]

    def _rows(self, closed: list[Closed]) -> list[Row]:
        """Return the closed rows, in order of time."""
        closed.sort(key=lambda row: row.time_ns)
        if closed:
            self.state.newest_ns = max(self.state.newest_ns, closed[-1].time_ns)
        return [row for one in closed for row in self.row_maker.rows(one)]
