"""Takes in the points of counters, up-down counters and histograms."""

from dataclasses import replace
from typing import Final

from otel_rl.bridge.rows.intake.intake_state import IntakeState
from otel_rl.bridge.rows.intake.measurement_intake import MeasurementIntake
from otel_rl.bridge.rows.messages import of_shared, of_torn
from otel_rl.bridge.rows.series.cumulative import CounterStream, HistogramStream
from otel_rl.bridge.rows.series.streams import Stream
from otel_rl.records import (
    Buckets,
    HistogramPoint,
    Measurements,
    SummaryPoint,
    SumPoint,
    Temporality,
)
from otel_rl.semconv.spec import Instrument

_Total = SumPoint | HistogramPoint | SummaryPoint

# The start of a delta is kept like a step, and may be any number of 64 bits.
_MAX_DELTA_NS: Final = (1 << 63) - 1

# Earlier starts are none, or leave no room for several amounts.
_OLDEST_START_NS: Final = 1_000


class TotalIntake:
    """Takes in the increments of each total, and levels as measurements."""

    def __init__(self, to: IntakeState, measurements: MeasurementIntake) -> None:
        self._to = to
        self._measurements = measurements

    def add_sum(self, stream: Stream, point: SumPoint, received_ns: int) -> None:
        if point.is_share:
            self._add_share(stream, point, received_ns)
            return
        is_delta = point.temporality is Temporality.DELTA
        if point.series.instrument is not Instrument.COUNTER:
            self._add_level(stream, point, received_ns)
            return
        if is_delta and not self._is_new_total(stream, stream.counter, point):
            return
        counter = stream.counter
        is_known = counter is not None and counter.time_ns > 0
        is_counted = counter is None and self._is_counted(point)
        if counter is None:
            is_before = is_counted or self._is_before_the_run(point)
            counter = CounterStream.counted(point) if is_before else CounterStream()
            if is_counted:
                self._to.sample_counts.drop_as_too_old(1)
            stream.counter = counter
        increment = counter.advance(point)
        self._look_for_shared(counter, point)
        is_new = increment is not None or not (is_known or is_counted)
        if self._to.archived is not None and is_new:
            self._to.archived.counted(stream.number, point)
        if increment is not None:
            self._to.history.measured.add(stream, [increment.value])
            self._to.goodput.counted(stream.group, increment.value)
            self._to.sample_counts.count_late(
                self._to.windows.add_increment(
                    stream, increment, point.time_ns, received_ns, self._to.settings
                )
            )
        elif is_known:
            self._to.sample_counts.drop_as_duplicate(1)

    def _add_share(
        self, stream: Stream, point: SumPoint | HistogramPoint, received_ns: int
    ) -> None:
        """Add a step's share of counts. Other points have the counts too, so they enter no total.

        A share without a step announces that shares will follow.
        """
        stream.has_shares()
        if point.step is None:
            return
        if not self._to.is_new(stream, point.covers, step=point.step):
            return
        if self._to.archived is not None:
            if isinstance(point, SumPoint):
                self._to.archived.counted(stream.number, point)
            else:
                self._to.archived.distributed(stream.number, point)
        self._to.sample_counts.count_late(
            self._to.steps.add_share(stream, point.step, point, received_ns)
        )
        if self._to.axis.leads(stream.worker, received_ns, is_step=True):
            self._to.axis.steps.observe([(point.time_ns, point.step)])

    def _add_level(self, stream: Stream, point: SumPoint, received_ns: int) -> None:
        """Add a point of an up-down counter as a level, at its step if it has one."""
        is_delta = point.temporality is Temporality.DELTA
        level = Measurements(
            point.series,
            [point.time_ns],
            [point.value],
            [point.step],
            # A start after the point's own time is none.
            told_since_ns=None
            if point.step is None
            else point.start_ns * (point.start_ns <= point.time_ns),
        )
        if level.told_since_ns is not None and not is_delta:
            self._measurements.add(stream, level, received_ns)
            return
        if not self._is_new(stream, point):
            return
        stream.level = stream.level + point.value if is_delta else point.value
        self._measurements.add_new(stream, replace(level, values=[stream.level]), received_ns)

    def add_histogram(self, stream: Stream, point: HistogramPoint, received_ns: int) -> None:
        if point.is_share:
            self._add_share(stream, point, received_ns)
            return
        is_delta = point.temporality is Temporality.DELTA
        if is_delta and not self._is_new_total(stream, stream.histogram, point):
            return
        before_ns = stream.histogram.time_ns if stream.histogram is not None else 0
        is_counted = stream.histogram is None and self._is_counted(point)
        if stream.histogram is None:
            is_before = is_counted or self._is_before_the_run(point)
            stream.histogram = HistogramStream.counted(point) if is_before else HistogramStream()
            if is_counted:
                self._to.sample_counts.drop_as_too_old(1)
        new = stream.histogram.advance(point)
        self._look_for_shared(stream.histogram, point)
        is_duplicate = new is None and not is_delta and point.time_ns <= before_ns
        if self._to.archived is not None and not (is_duplicate or is_counted):
            self._to.archived.distributed(stream.number, point)
        if new is not None:
            if new.count and new.total is not None:
                self._to.history.measured.add(stream, [new.total / new.count])
            self._to.sample_counts.count_late(
                self._to.windows.add_distribution(stream, new, received_ns, self._to.settings)
            )
        elif is_duplicate:
            self._to.sample_counts.drop_as_duplicate(1)

    def new_in_summary(self, stream: Stream, point: SummaryPoint) -> HistogramPoint | None:
        """Return the count and sum that a summary gained since its last point; None for no gain."""
        if stream.histogram is None:
            is_before = self._is_counted(point) or self._is_before_the_run(point)
            whole = _counts_of(point)
            stream.histogram = HistogramStream.counted(whole) if is_before else HistogramStream()
        return stream.histogram.advance(_counts_of(point))

    def _look_for_shared(
        self, stream: CounterStream | HistogramStream, point: SumPoint | HistogramPoint
    ) -> None:
        """Warn once about processes that run at the same time under one name."""
        if point.step is not None:
            return
        if point.temporality is Temporality.DELTA:
            stream.note_interval(point.start_ns, point.time_ns, _amount(point))
        if self._to.has_told_shared:
            return
        if stream.is_torn:
            self._to.has_told_shared = True
            self._to.warnings.append(of_torn(point.series, point.time_ns))
        elif (len(stream.lives) > 1 or stream.overlaps) and stream.is_shared:
            self._to.has_told_shared = True
            self._to.warnings.append(of_shared(point.series, point.time_ns))

    def _is_new(self, stream: Stream, point: SumPoint | HistogramPoint) -> bool:
        is_delta = point.temporality is Temporality.DELTA and point.step is None
        delta_ns = min(point.start_ns, _MAX_DELTA_NS) if is_delta else 0
        return self._to.is_new(stream, point.covers, step=point.step, delta_ns=delta_ns)

    def _is_new_total(
        self,
        stream: Stream,
        known: CounterStream | HistogramStream | None,
        point: SumPoint | HistogramPoint,
    ) -> bool:
        """Return whether a delta is new. Deltas of one interval are new if their amounts differ.

        The second delta of an interval is stored as if it were one nanosecond longer.
        """
        start_ns = min(point.start_ns, _MAX_DELTA_NS)
        if point.step is not None or known is None or start_ns <= _OLDEST_START_NS:
            return self._is_new(stream, point)
        place = known.place_of(point.start_ns, point.time_ns, _amount(point))
        if place is None:
            self._to.sample_counts.drop_as_duplicate(1)
            return False
        return self._to.is_new(stream, point.covers, delta_ns=start_ns - place)

    def _is_before_the_run(self, point: _Total) -> bool:
        """Return whether a series' first point has counts from before the run: a scrape may."""
        is_cumulative = _is_cumulative(point)
        return point.is_scraped and is_cumulative and 0 < point.start_ns < self._to.first_ns

    def _is_counted(self, point: _Total) -> bool:
        """Return whether a series' first point may have counts that are in the totals already."""
        return _is_cumulative(point) and self._to.series.ended.counts_again(point.start_ns)


def _amount(point: SumPoint | HistogramPoint) -> float:
    if isinstance(point, SumPoint):
        return point.value
    return point.count if point.total is None else point.total


def _is_cumulative(point: _Total) -> bool:
    return isinstance(point, SummaryPoint) or point.temporality is Temporality.CUMULATIVE


def _counts_of(point: SummaryPoint) -> HistogramPoint:
    return HistogramPoint(
        point.series,
        point.start_ns,
        point.time_ns,
        Temporality.CUMULATIVE,
        point.count,
        point.total,
        None,
        None,
        Buckets((), ()),
        step=point.step,
    )
