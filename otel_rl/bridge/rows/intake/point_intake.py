"""Takes points in any order into the open steps, windows and tables of one experiment.

Each point is recognised when it comes again, counted, archived and folded in, in this order.
"""

import itertools
import operator
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import cast

from otel_rl.bridge.rows.goodput.goodput import TIMED, Goodput
from otel_rl.bridge.rows.history.archived_points import ArchivedPoints
from otel_rl.bridge.rows.history.history_writer import HistoryWriter
from otel_rl.bridge.rows.intake.export_plans import ExportPlans
from otel_rl.bridge.rows.reports.data_warnings import (
    DataWarning,
    DroppedPoints,
    of_dropped,
    of_shared,
)
from otel_rl.bridge.rows.reports.sample_counts import SampleCounts
from otel_rl.bridge.rows.series.cumulative import CounterStream, HistogramStream
from otel_rl.bridge.rows.series.key_groups import GroupIdentity
from otel_rl.bridge.rows.series.series_table import StreamTable
from otel_rl.bridge.rows.series.streams import Stream
from otel_rl.bridge.rows.series.table_state import SAMPLES
from otel_rl.bridge.rows.settings import AlignSettings
from otel_rl.bridge.rows.steps.step_axis import StepAxis, is_integral
from otel_rl.bridge.rows.steps.step_rows import OpenSteps
from otel_rl.bridge.rows.table_rows import OpenTables
from otel_rl.bridge.rows.window_rows import OpenWindows
from otel_rl.records import (
    CONSOLE,
    Covered,
    HistogramPoint,
    Measurements,
    Point,
    SummaryPoint,
    SumPoint,
    Temporality,
    TextSample,
)
from otel_rl.semconv import names
from otel_rl.semconv.spec import Instrument, Reduction

__all__ = ["PointIntake"]


class PointIntake:
    """Takes the points of one experiment. The aligner takes closed rows out of its parts.

    Attributes:
        settings: May be replaced at any time.
        sample_counts: Counts of the samples, since the experiment began.
        series: Streams, workers and tracker keys.
        axis: Times of steps and policy versions.
        steps: Open steps.
        windows: Open windows.
        tables: Open tables.
        history: Of who measured what.
        goodput: Account of the time of all workers.
        plans: Streams of the exports of known shapes.
        archived: Receives every accepted value; None without an archive.
        warnings: About the data, until they are in a row.
        dropped: Points without room for their series, by worker.
        has_told_shared: Whether a warning about processes with one name was given.
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
        self.history = HistoryWriter()
        self.goodput = Goodput()
        self.plans = ExportPlans()
        self.warnings: list[DataWarning] = []
        self.dropped: dict[str, DroppedPoints] = {}
        self.has_told_shared = False

    def add(self, point: Point, received_ns: int) -> None:
        """Take a point that arrived at ``received_ns`` by the bridge's clock."""
        samples = len(point.values) if isinstance(point, Measurements) else 1
        stream = self.series.stream(point.series, self.settings)
        if stream is None:
            self._drop_new_series(point, samples)
            return
        self.sample_counts.taken += samples
        match point:
            case Measurements():
                self._add_measurements(stream, point, received_ns)
            case SumPoint():
                self._add_sum(stream, point, received_ns)
            case HistogramPoint():
                self._add_histogram(stream, point, received_ns)
            case SummaryPoint():
                self._add_summary(stream, point, received_ns)

    def _drop_new_series(self, point: Point, samples: int) -> None:
        series = point.series
        if not self.sample_counts.too_many_series:
            latest_ns = max(point.times_ns) if isinstance(point, Measurements) else point.time_ns
            self.warnings.append(of_dropped(series, self.settings, latest_ns))
        self.sample_counts.too_many_series += samples
        before = self.dropped.get(series.worker.instance, DroppedPoints(0, series.name))
        self.dropped[series.worker.instance] = before._replace(points=before.points + 1)

    def _is_new(
        self,
        stream: Stream,
        covers: Covered | None,
        samples: int = 1,
        *,
        step: int | None = None,
    ) -> bool:
        """Record a point. Returns whether it is new.

        Points of different steps have one time if they were collected together.
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
            is_new = self.series.memory.take_time(stream.number, end_ns, step)
        if not is_new:
            self.sample_counts.drop_as_duplicate(samples)
        return is_new

    def _add_measurements(self, stream: Stream, measured: Measurements, received_ns: int) -> None:
        if measured.covers is not None:
            if self._is_new(stream, measured.covers, len(measured.values)):
                self._fold_in(stream, measured, received_ns)
            return
        if measured.told_since_ns is not None:
            if self._is_change(stream, measured, measured.told_since_ns):
                self._fold_in(stream, measured, received_ns)
            return
        # Measurements of one point are distinct, even with equal times of a coarse clock.
        siblings: set[tuple[int, int | None]] = set()
        is_new = []
        for mark in zip(measured.times_ns, measured.steps, strict=True):
            is_new.append(mark in siblings or self._is_new_alone(stream, *mark))
            if is_new[-1]:
                siblings.add(mark)
        if not all(is_new):
            if not any(is_new):
                return
            measured = _part(measured, is_new)
        self._fold_in(stream, measured, received_ns)

    def _is_new_alone(self, stream: Stream, time_ns: int, step: int | None) -> bool:
        if self.series.is_unknown(stream, time_ns, single=True):
            self.sample_counts.drop_as_too_old(1)
            return False
        if self.series.memory.take_time(stream.number, time_ns, step):
            return True
        self.sample_counts.drop_as_duplicate(1)
        return False

    def _is_change(self, stream: Stream, measured: Measurements, since_ns: int) -> bool:
        """Return whether the single value of a step differs from its reported one."""
        time_ns, value, step = measured.times_ns[0], measured.values[0], measured.steps[0]
        assert step is not None  # only steps are repeated
        if self.series.is_unknown(stream, time_ns, single=True):
            self.sample_counts.drop_as_too_old(1)
            return False
        if self.series.memory.take_change(stream.number, (step, since_ns, time_ns), value):
            return True
        self.sample_counts.drop_as_duplicate(1)
        return False

    def _fold_in(self, stream: Stream, measured: Measurements, received_ns: int) -> None:
        if self.archived is not None:
            self.archived.measured(stream.number, measured)
        self.history.measured(stream, measured.values, _steps_of(measured))
        if stream.group.name in TIMED and _is_told_once(measured):
            self.goodput.measured(stream, measured.values, measured.times_ns)
        self._fold(stream, measured, received_ns)

    def _fold(self, stream: Stream, measured: Measurements, received_ns: int) -> None:
        steps, values, times_ns = measured.steps, measured.values, measured.times_ns
        timed = steps.count(None)
        if not timed:
            self._add_steps(stream, cast("Sequence[int]", steps), values, times_ns, received_ns)
        elif timed == len(steps):
            self.sample_counts.count_late(
                self.windows.add_levels(stream, values, times_ns, received_ns, self.settings)
            )
        else:
            has_step = [step is not None for step in steps]
            self._fold(stream, _part(measured, has_step), received_ns)
            self._fold(stream, _part(measured, map(operator.not_, has_step)), received_ns)
            return
        if measured.series.name == names.RL_POLICY_VERSION and self.axis.leads(
            stream.worker, received_ns, is_step=False
        ):
            self.axis.versions.observe(
                (time_ns, int(value))
                for time_ns, value in zip(times_ns, values, strict=True)
                if is_integral(value)
            )

    def _add_steps(
        self,
        stream: Stream,
        steps: Sequence[int],
        values: Sequence[float],
        times_ns: Sequence[int],
        received_ns: int,
    ) -> None:
        self.sample_counts.count_late(
            self.steps.add(stream, steps, values, times_ns, received_ns, self.settings)
        )
        if self.axis.leads(stream.worker, received_ns, is_step=True):
            self.axis.steps.observe(zip(times_ns, steps, strict=True))

    def add_sample(self, sample: TextSample, received_ns: int) -> None:
        """Take a text sample that arrived at ``received_ns`` by the bridge's clock."""
        table, role, name = self.series, sample.worker.role, sample.table
        attributes = ((names.RL_SAMPLE_TABLE, name),)
        worker = table.workers.lease(sample.worker, self.settings)
        identity = GroupIdentity(role, name, attributes, Reduction.LAST)
        has_room = sample.is_console or table.keys.has_room_for(identity, self.settings)
        if worker is None or not has_room:
            self.sample_counts.too_many_series += 1
        elif sample.time_ns <= table.memory.forgotten_ns:
            self.sample_counts.too_old += 1
        elif not table.memory.take_time(SAMPLES, sample.time_ns, sample.digest):
            self.sample_counts.duplicate += 1
        else:
            self.sample_counts.taken += 1
            key = CONSOLE if sample.is_console else table.keys.group(identity).key
            self.tables.add(sample, worker, key, received_ns)

    def _add_sum(self, stream: Stream, point: SumPoint, received_ns: int) -> None:
        if point.is_share:
            self._add_share(stream, point, received_ns)
            return
        is_delta = point.temporality is Temporality.DELTA
        if point.series.instrument is not Instrument.COUNTER:
            self._add_level(stream, point, received_ns)
            return
        if is_delta and not self._is_new(stream, point.covers, step=point.step):
            return
        counter = stream.counter
        is_known = counter is not None and counter.time_ns > 0
        is_counted = counter is None and self._is_counted(point)
        if counter is None:
            counter = CounterStream()
            if is_counted:
                counter = CounterStream.counted(point)
                self.sample_counts.drop_as_too_old(1)
            stream.counter = counter
        increment = counter.advance(point)
        self._look_for_shared(counter, point)
        is_new = increment is not None or not (is_known or is_counted)
        if self.archived is not None and is_new:
            self.archived.counted(stream.number, point)
        if increment is not None:
            self.history.measured(stream, [increment.value])
            self.goodput.counted(stream.group, increment.value)
            self.sample_counts.count_late(
                self.windows.add_increment(
                    stream, increment, point.time_ns, received_ns, self.settings
                )
            )
        elif is_known:
            self.sample_counts.drop_as_duplicate(1)

    def _add_share(
        self, stream: Stream, point: SumPoint | HistogramPoint, received_ns: int
    ) -> None:
        """Add a step's share of counts. Other points have them, too, so it is in no total.

        One without a step says that there will be shares.
        """
        stream.has_shares()
        if point.step is None:
            return
        if not self._is_new(stream, point.covers, step=point.step):
            return
        if self.archived is not None:
            if isinstance(point, SumPoint):
                self.archived.counted(stream.number, point)
            else:
                self.archived.distributed(stream.number, point)
        self.sample_counts.count_late(self.steps.add_share(stream, point.step, point, received_ns))
        if self.axis.leads(stream.worker, received_ns, is_step=True):
            self.axis.steps.observe([(point.time_ns, point.step)])

    def _add_level(self, stream: Stream, point: SumPoint, received_ns: int) -> None:
        """Add a point of an up-down counter: a level, at its step if it has one."""
        is_delta = point.temporality is Temporality.DELTA
        level = Measurements(
            point.series,
            [point.time_ns],
            [point.value],
            [point.step],
            told_since_ns=None if point.step is None else point.start_ns,
        )
        if level.told_since_ns is not None and not is_delta:
            self._add_measurements(stream, level, received_ns)
            return
        if not self._is_new(stream, point.covers, step=point.step):
            return
        stream.level = stream.level + point.value if is_delta else point.value
        self._fold_in(stream, replace(level, values=[stream.level]), received_ns)

    def _add_histogram(self, stream: Stream, point: HistogramPoint, received_ns: int) -> None:
        if point.is_share:
            self._add_share(stream, point, received_ns)
            return
        is_delta = point.temporality is Temporality.DELTA
        if is_delta and not self._is_new(stream, point.covers, step=point.step):
            return
        before_ns = stream.histogram.time_ns if stream.histogram is not None else 0
        is_counted = stream.histogram is None and self._is_counted(point)
        if stream.histogram is None:
            stream.histogram = HistogramStream()
            if is_counted:
                stream.histogram = HistogramStream.counted(point)
                self.sample_counts.drop_as_too_old(1)
        new = stream.histogram.advance(point)
        self._look_for_shared(stream.histogram, point)
        is_duplicate = new is None and not is_delta and point.time_ns <= before_ns
        if self.archived is not None and not (is_duplicate or is_counted):
            self.archived.distributed(stream.number, point)
        if new is not None:
            if new.count and new.total is not None:
                self.history.measured(stream, [new.total / new.count])
            self.sample_counts.count_late(
                self.windows.add_distribution(stream, new, received_ns, self.settings)
            )
        elif is_duplicate:
            self.sample_counts.drop_as_duplicate(1)

    def _look_for_shared(
        self, stream: CounterStream | HistogramStream, point: SumPoint | HistogramPoint
    ) -> None:
        """Warn once about concurrent processes with one name."""
        if len(stream.lives) < 2 or point.step is not None or self.has_told_shared:
            return
        if stream.is_shared:
            self.has_told_shared = True
            self.warnings.append(of_shared(point.series, point.time_ns))

    def _is_counted(self, point: SumPoint | HistogramPoint) -> bool:
        """Return whether the first point of a series may repeat a part of the totals."""
        is_cumulative = point.temporality is Temporality.CUMULATIVE
        return is_cumulative and self.series.ended.counts_again(point.start_ns)

    def _add_summary(self, stream: Stream, point: SummaryPoint, received_ns: int) -> None:
        """Add quantiles, which cannot be merged: the worst worker's stands for the role."""
        if not self._is_new(stream, point.covers, step=point.step):
            return
        if self.archived is not None:
            self.archived.summarized(stream.number, point)
        role, name, attributes = stream.worker.role, point.series.name, point.series.attributes
        for quantile, value in point.quantiles:
            suffix = f"/p{quantile * 100:g}"
            identity = GroupIdentity(role, name + suffix, attributes, Reduction.MAX)
            if not self.series.keys.has_room_for(identity, self.settings):
                self.sample_counts.too_many_series += 1
                continue
            group = self.series.keys.group(identity, suffix=suffix)
            part = Stream(stream.number, stream.worker, group)
            self.sample_counts.count_late(
                self.windows.add_levels(part, [value], [point.time_ns], received_ns, self.settings)
            )


def _steps_of(measured: Measurements) -> Sequence[int | None]:
    return () if measured.steps[0] is None else measured.steps


def _is_told_once(measured: Measurements) -> bool:
    """Return whether the sender does not repeat a measurement in every export.

    A stock SDK does, with the time of the export, unless the measurement has a step.
    """
    covers = measured.covers
    return measured.steps[0] is not None or (covers is not None and covers.start_ns != 0)


def _part(measured: Measurements, selected: Iterable[bool]) -> Measurements:
    """Return the selected measurements, at least one."""
    rows = zip(measured.times_ns, measured.values, measured.steps, strict=True)
    times_ns, values, steps = zip(*itertools.compress(rows, selected), strict=True)
    return Measurements(measured.series, times_ns, values, steps)
