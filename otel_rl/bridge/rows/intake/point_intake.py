"""Takes in points in any order, into the open steps, windows and tables of an experiment.

A repeated point is recognised; a new point is counted, archived and folded in, in that order.
"""

import math
from collections.abc import Iterable, Sequence

from otel_rl.bridge.otlp.columns import Columns, JoinedColumns
from otel_rl.bridge.rows.intake.intake_state import IntakeState
from otel_rl.bridge.rows.intake.measurement_intake import MeasurementIntake
from otel_rl.bridge.rows.intake.total_intake import TotalIntake
from otel_rl.bridge.rows.series.key_groups import GroupIdentity
from otel_rl.bridge.rows.series.streams import Stream
from otel_rl.bridge.rows.series.table_state import SAMPLES
from otel_rl.bridge.rows.settings import AlignSettings
from otel_rl.records import (
    CONSOLE,
    STACKS,
    HistogramPoint,
    Measurements,
    Point,
    SummaryPoint,
    SumPoint,
    TextSample,
)
from otel_rl.semconv import names
from otel_rl.semconv.spec import Reduction


class PointIntake(IntakeState):
    """Takes in the points of one experiment. The aligner takes closed rows out of its parts."""

    def __init__(self, settings: AlignSettings) -> None:
        super().__init__(settings)
        self._measurements = MeasurementIntake(self)
        self._totals = TotalIntake(self, self._measurements)

    def add(self, point: Point, received_ns: int) -> None:
        self.add_all([point], received_ns)

    def add_all(self, points: Sequence[Point], received_ns: int) -> None:
        """Take in points that arrived at ``received_ns`` (the bridge's clock), gauges by column."""
        parts: Iterable[Columns]
        if isinstance(points, JoinedColumns):
            parts = points.parts
        else:
            parts = [points if isinstance(points, Columns) else Columns.of(points)]
        for columns in parts:
            self._measurements.add_rows(columns, received_ns)
            for point in columns.others:
                self._add(point, received_ns)

    def _add(self, point: Point, received_ns: int) -> None:
        if isinstance(point, Measurements):
            samples, time_ns = len(point.values), max(point.times_ns)
        else:
            samples, time_ns = 1, point.time_ns
        stream = self.stream(point.series, samples, time_ns)
        match point:
            case _ if stream is None:
                pass
            case Measurements():
                self._measurements.add(stream, point, received_ns)
            case SumPoint():
                self._totals.add_sum(stream, point, received_ns)
            case HistogramPoint():
                self._totals.add_histogram(stream, point, received_ns)
            case SummaryPoint():
                self._add_summary(stream, point, received_ns)

    def add_sample(self, sample: TextSample, received_ns: int) -> None:
        table, role, name = self.series, sample.worker.role, sample.table
        attributes = ((names.RL_SAMPLE_TABLE, name),)
        worker = table.workers.lease(sample.worker, self.settings)
        identity = GroupIdentity(role, name, attributes, Reduction.LAST)
        is_own = sample.is_console or sample.is_progress
        has_room = is_own or table.keys.has_room_for(identity, self.settings)
        if worker is None or not has_room:
            self.sample_counts.too_many_series += 1
        elif sample.time_ns <= table.memory.forgotten_ns:
            self.sample_counts.too_old += 1
        elif not table.memory.take_time(SAMPLES, sample.time_ns, sample.digest):
            self.sample_counts.duplicate += 1
        else:
            self.sample_counts.taken += 1
            if sample.is_progress:
                self.rollouts.progress(sample, worker)
                return
            key = CONSOLE if sample.is_console else table.keys.group(identity).key
            if not self.tables.add(sample, worker, key, received_ns):
                self.rollouts.newly_folded += 1
            if not sample.is_console and name != STACKS:
                self.rollouts.finish(sample, worker, key)

    def _add_summary(self, stream: Stream, point: SummaryPoint, received_ns: int) -> None:
        """Add a summary's quantiles. They cannot be merged: the worst worker's stands for the role.

        Add the mean and count, too, since the summary of a Python program has no quantiles.
        """
        if not self.is_new(stream, point.covers, step=point.step):
            return
        if self.archived is not None:
            self.archived.summarized(stream.number, point)
        for quantile, value in point.quantiles:
            # Without recent measurements it is NaN. One that has measured NaN has a sum of NaN.
            if math.isnan(value) and not math.isnan(point.total):
                continue
            part = self._part(stream, point, f"/p{quantile * 100:g}", Reduction.MAX)
            if part is not None:
                self.sample_counts.count_late(
                    self.windows.add_levels(
                        part, [value], [point.time_ns], received_ns, self.settings
                    )
                )
        new = self._totals.new_in_summary(stream, point)
        part = None if new is None else self._part(stream, point, "/mean", Reduction.MEAN)
        if new is not None and part is not None:
            self.sample_counts.count_late(
                self.windows.add_distribution(part, new, received_ns, self.settings)
            )

    def _part(
        self, stream: Stream, point: SummaryPoint, suffix: str, reduction: Reduction
    ) -> Stream | None:
        """Return the stream of a summary's value; None, and counted, if there is no room."""
        role, name = stream.worker.role, point.series.name + suffix
        extra = ("count",) if reduction is Reduction.MEAN else ()
        identity = GroupIdentity(role, name, stream.group.attributes, reduction, extra=extra)
        if not self.series.keys.has_room_for(identity, self.settings):
            self.sample_counts.too_many_series += 1
            return None
        group = self.series.keys.group(identity, suffix=suffix)
        return Stream(stream.number, stream.worker, group)
