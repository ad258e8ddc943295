"""State of the intake of one experiment's points."""

from otel_rl.bridge.rows.archived_points import ArchivedPoints
from otel_rl.bridge.rows.goodput import Goodput
from otel_rl.bridge.rows.history import HistoryWriter
from otel_rl.bridge.rows.messages import DataWarning, DroppedPoints, of_dropped
from otel_rl.bridge.rows.rollouts import Rollouts
from otel_rl.bridge.rows.run_counts import SampleCounts
from otel_rl.bridge.rows.series.series_table import StreamTable
from otel_rl.bridge.rows.series.streams import Stream
from otel_rl.bridge.rows.settings import AlignSettings
from otel_rl.bridge.rows.steps.step_axis import StepAxis
from otel_rl.bridge.rows.steps.step_rows import OpenSteps
from otel_rl.bridge.rows.table_rows import OpenTables
from otel_rl.bridge.rows.window_rows import OpenWindows
from otel_rl.records import Covered, Series


class IntakeState:
    """Open steps, windows and tables of one experiment, and the series known so far.

    Attributes:
        settings: Settings of the rows; they may be replaced at any time.
        sample_counts: Counts of samples since the experiment began.
        axis: Times of steps and policy versions.
        rollouts: Rollouts in flight, and ended ones until they are stored.
        history: History of which worker measured what.
        archived: Receives every accepted value; None without an archive.
        warnings: Warnings about the data that are in no row yet.
        dropped: Number of points dropped as their series had no room, by worker.
        has_told_shared: Whether a warning about several processes with one name was given.
        has_told_sampled: Whether a warning about spans that are dropped on the way was given.
        first_ns: Earliest time of an export, by its sender's clock; 0 before the first.
    """

    archived: ArchivedPoints | None = None

    def __init__(self, settings: AlignSettings) -> None:
        self.settings = settings
        self.sample_counts = SampleCounts()
        self.series = StreamTable()
        self.axis = StepAxis()
        self.steps = OpenSteps()
        self.windows = OpenWindows()
        self.tables = OpenTables()
        self.rollouts = Rollouts()
        self.history = HistoryWriter()
        self.goodput = Goodput()
        self.warnings: list[DataWarning] = []
        self.dropped: dict[str, DroppedPoints] = {}
        self.has_told_shared = False
        self.has_told_sampled = False
        self.first_ns = 0

    def stream(self, series: Series, samples: int, time_ns: int) -> Stream | None:
        """Return the stream of a series; None if it has no room, so that samples are dropped."""
        stream = self.series.stream(series, self.settings)
        if stream is not None:
            self.sample_counts.taken += samples
            return stream
        if not self.sample_counts.too_many_series:
            self.warnings.append(of_dropped(series, self.settings, time_ns))
        self.sample_counts.too_many_series += samples
        before = self.dropped.get(series.worker.instance, DroppedPoints(0, series.name))
        self.dropped[series.worker.instance] = before._replace(points=before.points + 1)
        return None

    def is_new(
        self,
        stream: Stream,
        covers: Covered | None,
        samples: int = 1,
        *,
        step: int | None = None,
        delta_ns: int = 0,
    ) -> bool:
        """Record a point. Returns whether it is new.

        Points of different steps have the same time if they were collected together. So have deltas
        that a Collector has joined; then the start of each delta, ``delta_ns``, tells them apart.
        """
        if covers is None:
            return True
        start_ns, end_ns = covers
        if self.series.is_unknown(stream, end_ns, single=not start_ns):
            self.sample_counts.drop_as_too_old(samples)
            return False
        if start_ns:
            is_new = stream.seen.take_interval(start_ns, end_ns)
        else:
            is_new = self.series.memory.take_time(stream.number, end_ns, delta_ns or step)
        if not is_new:
            self.sample_counts.drop_as_duplicate(samples)
        return is_new
