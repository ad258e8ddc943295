"""Points in any order to numbered rows: the open steps and windows of one experiment.

No clock and no I/O of its own: time comes in as an argument. The whole state of an ``Aligner`` can
be pickled, so that it is kept in the same transaction as the rows that it made.
"""

from collections.abc import Sequence
from typing import cast

from otel_rl.bridge.align.axis import StepAxis, is_integral
from otel_rl.bridge.align.series import Stream
from otel_rl.bridge.align.settings import AlignSettings
from otel_rl.bridge.align.steps import ClosedStep, OpenSteps
from otel_rl.bridge.align.streams import StreamTable
from otel_rl.bridge.align.windows import ClosedWindow, OpenWindows
from otel_rl.bridge.cumulative import CounterStream, HistogramStream
from otel_rl.records import (
    Decoded,
    HistogramPoint,
    Measurements,
    Point,
    Row,
    Series,
    SummaryPoint,
    SumPoint,
    Temporality,
)
from otel_rl.semconv import names
from otel_rl.semconv.spec import Instrument, Reduction

__all__ = ["AlignSettings", "Aligner"]

_NS_PER_S = 1_000_000_000


class Aligner:
    """Turns the points of one experiment into rows.

    Rows are numbered from ``next_number`` without gaps. Within one call of ``close`` they come in
    order of event time.

    Attributes:
        settings: May be replaced at any time, e.g. after a restart with another configuration.
        next_number: The number that the next row gets.
        late: Samples that came after their row was closed.
        refused_series: Points that were dropped because the experiment has ``max_series`` series.
    """

    def __init__(self, settings: AlignSettings | None = None) -> None:
        self.settings = settings or AlignSettings()
        self.next_number = 0
        self.late = 0
        self.refused_series = 0
        self._table = StreamTable()
        self._axis = StepAxis()
        self._steps = OpenSteps()
        self._windows = OpenWindows()

    def add(self, decoded: Decoded, *, received_ns: int) -> None:
        """Fold in what one batch says.

        Args:
            decoded: Of this experiment.
            received_ns: When the batch arrived, by the bridge's clock.
        """
        self._table.make_room(self.settings, received_ns)
        for point in decoded.points:
            self._add(point, received_ns)
        settle_ns = int(self.settings.settle_s * _NS_PER_S)
        for export in decoded.exports:
            self._table.worker(export.worker).exported(
                received_ns=received_ns, event_ns=export.time_ns, settle_ns=settle_ns
            )

    def close(self, now_ns: int, *, everything: bool = False) -> list[Row]:
        """Take out every row that is complete as of ``now_ns`` by the bridge's clock.

        Args:
            now_ns: The bridge's clock.
            everything: Close what is open, complete or not: nothing more will come.
        """
        self._table.forget(self.settings, now_ns)
        steps = self._steps.close(self._table, self.settings, now_ns, everything=everything)
        windows = self._windows.close(self._table, self.settings, now_ns, everything=everything)
        closed: list[ClosedStep | ClosedWindow] = [*steps, *windows]
        closed.sort(key=lambda row: row.time_ns)
        return [self._row(row) for row in closed if row.values]

    def _row(self, closed: ClosedStep | ClosedWindow) -> Row:
        version = self._axis.version_at(closed.time_ns)
        if isinstance(closed, ClosedStep):
            step = closed.step
            if closed.version is not None and closed.role == self._axis.role:
                version = closed.version
        else:
            step = self._axis.step_at(closed.time_ns)
        number = self.next_number
        self.next_number += 1
        return Row(number, step, closed.time_ns, closed.values, version)

    def _add(self, point: Point, received_ns: int) -> None:
        match point:
            case Measurements():
                self._add_measurements(point, received_ns)
            case SumPoint():
                self._add_sum(point, received_ns)
            case HistogramPoint():
                self._add_histogram(point, received_ns)
            case SummaryPoint():
                self._add_summary(point, received_ns)

    def _stream(self, series: Series, instrument: Instrument, points: int = 1) -> Stream | None:
        stream = self._table.stream(series, self.settings, instrument=instrument)
        if stream is None:
            self.refused_series += points
        return stream

    def _add_measurements(self, measured: Measurements, received_ns: int) -> None:
        stream = self._stream(measured.series, Instrument.GAUGE, len(measured.values))
        if stream is None:
            return
        steps, values, times_ns = measured.steps, measured.values, measured.times_ns
        timed = steps.count(None)
        if not timed:
            self._add_steps(stream, cast("Sequence[int]", steps), values, times_ns, received_ns)
        elif timed == len(steps):
            self.late += self._windows.add_levels(
                stream, values, times_ns, received_ns, self.settings
            )
        else:
            for has_step in (True, False):
                self._add_measurements(_part(measured, has_step=has_step), received_ns)
            return
        if measured.series.name == names.RL_POLICY_VERSION and self._leads(stream):
            self._axis.versions.observe(
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
        self.late += self._steps.add(stream, steps, values, times_ns, received_ns, self.settings)
        if self._leads(stream):
            self._axis.steps.observe(zip(times_ns, steps, strict=True))

    def _leads(self, stream: Stream) -> bool:
        return self._axis.leads(stream.worker.role, stream.worker.label)

    def _add_sum(self, point: SumPoint, received_ns: int) -> None:
        instrument = Instrument.COUNTER if point.monotonic else Instrument.UP_DOWN_COUNTER
        stream = self._stream(point.series, instrument)
        if stream is None:
            return
        if point.monotonic:
            counter = stream.counter
            if counter is None:
                counter = CounterStream()
                if self._is_counted(point):
                    counter = CounterStream(point.start_ns, point.time_ns, point.value)
                stream.counter = counter
            increment = counter.advance(point)
            if increment is not None:
                self.late += self._windows.add_increment(
                    stream, increment, point.time_ns, received_ns, self.settings
                )
            return
        if point.temporality is Temporality.DELTA:
            stream.level += point.value
        else:
            stream.level = point.value
        self.late += self._windows.add_levels(
            stream, [stream.level], [point.time_ns], received_ns, self.settings
        )

    def _add_histogram(self, point: HistogramPoint, received_ns: int) -> None:
        stream = self._stream(point.series, Instrument.HISTOGRAM)
        if stream is None:
            return
        if stream.histogram is None:
            stream.histogram = HistogramStream()
            if self._is_counted(point):
                buckets = {(lower, upper): n for lower, upper, n in point.buckets}
                stream.histogram = HistogramStream(
                    point.start_ns, point.time_ns, point.count, point.total, buckets
                )
        new = stream.histogram.advance(point)
        if new is not None:
            self.late += self._windows.add_distribution(stream, new, received_ns, self.settings)

    def _is_counted(self, point: SumPoint | HistogramPoint) -> bool:
        """Whether the first point of a series may repeat what the totals have."""
        is_cumulative = point.temporality is Temporality.CUMULATIVE
        return is_cumulative and self._table.counts_again(point.start_ns)

    def _add_summary(self, point: SummaryPoint, received_ns: int) -> None:
        """Quantiles cannot be merged: the worst worker's stands for the role."""
        stream = self._stream(point.series, Instrument.GAUGE)
        if stream is None:
            return
        for quantile, value in point.quantiles:
            group = self._table.group(
                stream.worker.role,
                point.series.name,
                point.series.attributes,
                Reduction.MAX,
                suffix=f"/p{quantile * 100:g}",
            )
            part = Stream(stream.number, stream.worker, group)
            self.late += self._windows.add_levels(
                part, [value], [point.time_ns], received_ns, self.settings
            )


def _part(measured: Measurements, *, has_step: bool) -> Measurements:
    """The measurements that have a step, or those that have none."""
    rows = zip(measured.times_ns, measured.values, measured.steps, strict=True)
    times_ns, values, steps = zip(
        *(row for row in rows if (row[2] is not None) is has_step), strict=True
    )
    return Measurements(measured.series, times_ns, values, steps)
