"""State of a run between its points and its rows, in memory and in the journal."""

from dataclasses import dataclass, field

from otel_rl.bridge.journal.state import Count, Int64, Stored
from otel_rl.bridge.rows.goodput.goodput import Goodput
from otel_rl.bridge.rows.history.history_writer import HistoryWriter, KeptHistory
from otel_rl.bridge.rows.history.span_window import SpanWindow
from otel_rl.bridge.rows.intake.point_intake import PointIntake
from otel_rl.bridge.rows.liveness.liveness import Liveness
from otel_rl.bridge.rows.pausable_clock import PausableClock
from otel_rl.bridge.rows.reports.change_throttle import ChangeThrottle
from otel_rl.bridge.rows.reports.data_warnings import DataWarning, DroppedPoints
from otel_rl.bridge.rows.reports.finding_rows import NewFindings
from otel_rl.bridge.rows.reports.run_metadata import RunMetadata
from otel_rl.bridge.rows.reports.sample_counts import SampleCounts
from otel_rl.bridge.rows.row_maker import RowMaker
from otel_rl.bridge.rows.series.series_table import StreamTable
from otel_rl.bridge.rows.series.table_state import StoredTable, TableState
from otel_rl.bridge.rows.settings import AlignSettings
from otel_rl.bridge.rows.steps.attempts import Attempts
from otel_rl.bridge.rows.steps.role_steps import RoleSteps
from otel_rl.bridge.rows.steps.step_axis import StepAxis
from otel_rl.bridge.rows.steps.step_rows import OpenSteps
from otel_rl.bridge.rows.table_rows import OpenTables
from otel_rl.bridge.rows.window_rows import OpenWindows

__all__ = ["RunState", "StoredRun", "StoredState"]


class StoredState(Stored, kw_only=True):
    """State of a run in the journal; see ``RunState``."""

    next_number: Count
    sample_counts: SampleCounts
    counts: dict[tuple[str, str], int]
    newest_ns: Int64
    table: StoredTable
    axis: StepAxis
    steps: dict[str, RoleSteps]
    attempts: Attempts
    windows: OpenWindows
    tables: OpenTables
    spans: SpanWindow
    history: KeptHistory
    findings: NewFindings
    warnings: list[DataWarning]
    dropped: dict[str, DroppedPoints]
    has_told_shared: bool
    has_told_sampled: bool
    clock: PausableClock
    liveness: Liveness
    throttle: ChangeThrottle
    is_watching: bool
    begun: tuple[bool, bool] | None
    goodput: Goodput
    first_ns: Int64


class StoredRun(Stored):
    """A run in the journal.

    Attributes:
        state: For its next rows.
        metadata: From its announcements.
        cut: A batch that is taken in part, and how many of its points, samples and spans are.
    """

    state: StoredState
    metadata: RunMetadata
    cut: tuple[Int64, Count] | None


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

    def stored(self) -> StoredState:
        """Return the state for the journal, without the settings.

        It shares the containers of the state: encode it before that changes.
        """
        intake = self.intake
        return StoredState(
            next_number=self.row_maker.next_number,
            sample_counts=intake.sample_counts,
            counts=self.counts,
            newest_ns=self.newest_ns,
            table=intake.series.state.stored(),
            axis=intake.axis,
            steps=intake.steps.stored(),
            attempts=intake.steps.attempts,
            windows=intake.windows,
            tables=intake.tables,
            spans=self.span_window.stored(),
            history=intake.history.kept,
            findings=self.findings,
            warnings=intake.warnings,
            dropped=intake.dropped,
            has_told_shared=intake.has_told_shared,
            has_told_sampled=intake.has_told_sampled,
            clock=self.clock,
            liveness=self.liveness,
            throttle=self.throttle,
            is_watching=self.is_watching,
            begun=self.begun,
            goodput=intake.goodput,
            first_ns=intake.first_ns,
        )

    @classmethod
    def restored(cls, kept: StoredState, settings: AlignSettings) -> "RunState":
        """Undo ``stored``.

        Raises:
            Exception: It is none that ``stored`` has given, see ``refusing``.
        """
        intake = _intake(kept, settings)
        kept.liveness.check(intake.series.workers.states)
        is_over = kept.liveness.has_ended
        return cls(
            intake,
            RowMaker(intake, kept.next_number),
            kept.spans,
            kept.findings,
            kept.clock,
            kept.liveness,
            kept.throttle,
            kept.counts,
            kept.newest_ns,
            kept.is_watching,
            kept.begun,
            is_over=is_over,
            was_over=is_over,
        )


def _intake(kept: StoredState, settings: AlignSettings) -> PointIntake:
    intake = PointIntake(settings)
    intake.sample_counts = kept.sample_counts
    intake.series = StreamTable(TableState.restored(kept.table))
    intake.axis = kept.axis
    intake.steps, intake.windows = OpenSteps(kept.steps, kept.attempts), kept.windows
    intake.tables = kept.tables
    groups = len(intake.series.keys.groups)
    intake.steps.check(groups)
    intake.windows.check(groups)
    intake.tables.check()
    intake.history = HistoryWriter(kept.history)
    intake.warnings, intake.dropped = kept.warnings, kept.dropped
    intake.has_told_shared = kept.has_told_shared
    intake.has_told_sampled = kept.has_told_sampled
    intake.first_ns = kept.first_ns
    intake.goodput = kept.goodput
    return intake
