"""State of a run between its points and its rows, in memory and in the journal."""

from dataclasses import dataclass, field

from otel_rl.bridge.journal.formats import state_format as wire
from otel_rl.bridge.rows.goodput.goodput import Goodput
from otel_rl.bridge.rows.history.history_writer import HistoryWriter
from otel_rl.bridge.rows.history.span_window import SpanWindow
from otel_rl.bridge.rows.intake.point_intake import PointIntake
from otel_rl.bridge.rows.liveness.liveness import Liveness
from otel_rl.bridge.rows.pausable_clock import PausableClock
from otel_rl.bridge.rows.reports.change_throttle import ChangeThrottle
from otel_rl.bridge.rows.reports.data_warnings import DataWarning, DroppedPoints
from otel_rl.bridge.rows.reports.finding_rows import Finding, NewFindings
from otel_rl.bridge.rows.reports.sample_counts import SampleCounts
from otel_rl.bridge.rows.row_maker import RowMaker
from otel_rl.bridge.rows.series.series_table import StreamTable
from otel_rl.bridge.rows.series.table_state import TableState
from otel_rl.bridge.rows.settings import AlignSettings
from otel_rl.bridge.rows.steps.step_axis import StepAxis
from otel_rl.bridge.rows.steps.step_rows import OpenSteps
from otel_rl.bridge.rows.table_rows import OpenTables
from otel_rl.bridge.rows.window_rows import OpenWindows

__all__ = ["RunState"]


@dataclass(slots=True)
class RunState:
    """Everything that the next rows of a run depend on.

    Attributes:
        intake: Open steps, windows and tables, with their series and workers.
        row_maker: Numbers rows.
        span_window: Recent spans.
        findings: Findings that are in no row yet.
        clock: The bridge's clock without its downtime.
        liveness: Which workers live.
        throttle: Of the standings of the roles.
        counts: Counts of the run besides those of its samples, by name and reason.
        newest_ns: Event time of the latest row.
        is_watching: Whether there was an export since everything was closed.
        begun: Of the batch that is taken in parts: whether it had points so far, and new ones.
        is_over: Whether all workers had ended at the last check, and none came since.
        was_over: Whether that was so when it was loaded, too.
        is_one_launch: Whether all workers are of the one launch that the bridge is for.
    """

    intake: PointIntake
    row_maker: RowMaker
    span_window: SpanWindow
    findings: NewFindings
    clock: PausableClock
    liveness: Liveness
    throttle: ChangeThrottle
    counts: dict[tuple[str, str], int] = field(default_factory=dict)
    newest_ns: int = 0
    is_watching: bool = False
    begun: tuple[bool, bool] | None = None
    is_over: bool = False
    was_over: bool = False
    is_one_launch: bool = False

    @classmethod
    def new(cls, settings: AlignSettings) -> "RunState":
        """Return the state of a run without any point."""
        intake = PointIntake(settings)
        return cls(
            intake,
            RowMaker(intake),
            SpanWindow(),
            NewFindings(),
            PausableClock(),
            Liveness(),
            ChangeThrottle(),
        )

    def leave_batch(self) -> None:
        """Abandon the rest of the batch that is taken in parts."""
        self.begun = None

    def to_wire(self) -> wire.Aligner:
        """Return the state for the journal, without the settings.

        It shares the containers of the state: encode it before that changes.
        """
        intake = self.intake
        return wire.Aligner(
            self.row_maker.next_number,
            intake.sample_counts.to_wire(),
            [(name, reason, n) for (name, reason), n in self.counts.items()],
            self.newest_ns,
            intake.series.state.to_wire(),
            intake.axis.to_wire(),
            intake.steps.to_wire(),
            intake.windows.to_wire(),
            intake.tables.to_wire(),
            self.span_window.to_wire(),
            intake.history.to_wire(),
            [finding.to_wire() for finding in self.findings.waiting],
            self.findings.last_subject,
            [warning.to_wire() for warning in intake.warnings],
            intake.dropped,
            intake.has_told_shared,
            self.clock.to_wire(),
            self.liveness.to_wire(),
            self.throttle.to_wire(),
            self.is_watching,
            self.begun,
            intake.steps.attempts.to_wire(),
            intake.goodput.to_wire(),
            intake.has_told_sampled,
            intake.first_ns,
        )

    @classmethod
    def from_wire(cls, kept: wire.Aligner, settings: AlignSettings) -> "RunState":
        """Undo ``to_wire``.

        Raises:
            Exception: It is none that ``to_wire`` has given, see ``wire.refusing``.
        """
        intake = _intake(kept, settings)
        liveness = Liveness.from_wire(kept.liveness, intake.series.workers.states)
        is_over = liveness.has_ended
        return cls(
            intake,
            RowMaker(intake, kept.next_number),
            SpanWindow.from_wire(kept.spans),
            NewFindings([Finding.from_wire(finding) for finding in kept.findings], kept.told),
            PausableClock.from_wire(kept.clock),
            liveness,
            ChangeThrottle.from_wire(kept.throttle),
            {(name, reason): n for name, reason, n in kept.counts},
            kept.newest_ns,
            kept.is_watching,
            kept.begun,
            is_over=is_over,
            was_over=is_over,
        )


def _intake(kept: wire.Aligner, settings: AlignSettings) -> PointIntake:
    intake = PointIntake(settings)
    intake.sample_counts = SampleCounts.from_wire(kept.sample_counts)
    intake.series = StreamTable(TableState.from_wire(kept.table))
    groups = len(intake.series.keys.groups)
    intake.axis = StepAxis.from_wire(kept.axis)
    intake.steps = OpenSteps.from_wire(kept.steps, groups=groups, attempts=kept.attempts)
    intake.windows = OpenWindows.from_wire(kept.windows, groups=groups)
    intake.tables = OpenTables.from_wire(kept.tables)
    intake.history = HistoryWriter.from_wire(kept.history)
    intake.warnings = [DataWarning.from_wire(warning) for warning in kept.warnings]
    intake.dropped = {worker: DroppedPoints(*one) for worker, one in kept.dropped.items()}
    intake.has_told_shared = kept.is_told_shared
    intake.has_told_sampled = kept.is_told_sampled
    # Of a journal that does not tell it, no count is before the run.
    intake.first_ns = kept.first_ns or (1 if kept.newest_ns else 0)
    intake.goodput = Goodput.from_wire(kept.goodput)
    return intake
