"""Takes decoded points, in any order, into the open steps, windows and tables of a run.

    gauges   ─ streams ─> recognised ────────────────> archived ─> recorded ─> folded in
    others   ─ stream ──> recognised ─> increment ──> archived ─> recorded ─> folded in

Each stage handles the gauges of a request by the column. A repeated point is recognised; a new one
is counted, archived, recorded for a diagnosis, and folded in.
"""

import itertools
import math
from collections.abc import Callable, Iterable, Sequence
from operator import itemgetter
from typing import Any, Final, NamedTuple, cast

from otel_rl.bridge.otlp.columns import REPEATED, SIBLING, Columns, JoinedColumns, OtherPoint
from otel_rl.bridge.rows.archived_points import ArchivedPoints
from otel_rl.bridge.rows.dedup.series_dedup import NO_STEP
from otel_rl.bridge.rows.goodput import TIMED, Goodput
from otel_rl.bridge.rows.history import HistoryWriter
from otel_rl.bridge.rows.messages import DataWarning, DroppedPoints, of_dropped, of_shared, of_torn
from otel_rl.bridge.rows.rollouts import Rollouts
from otel_rl.bridge.rows.run_counts import SampleCounts
from otel_rl.bridge.rows.series.cumulative import CounterStream, HistogramStream
from otel_rl.bridge.rows.series.key_groups import GroupIdentity
from otel_rl.bridge.rows.series.series_table import StreamTable
from otel_rl.bridge.rows.series.streams import Stream, WorkerState
from otel_rl.bridge.rows.series.table_state import SAMPLES
from otel_rl.bridge.rows.settings import AlignSettings
from otel_rl.bridge.rows.steps.step_axis import StepAxis, is_integral
from otel_rl.bridge.rows.steps.step_rows import OpenSteps
from otel_rl.bridge.rows.table_rows import OpenTables
from otel_rl.bridge.rows.window_rows import OpenWindows
from otel_rl.records import (
    CONSOLE,
    STACKS,
    Buckets,
    HistogramPoint,
    Point,
    Series,
    SummaryPoint,
    SumPoint,
    Temporality,
    TextSample,
)
from otel_rl.semconv import names
from otel_rl.semconv.spec import Instrument, Reduction

_LOOKED_AT: Final = TIMED | {names.RL_POLICY_VERSION}
"""Metrics that more than their key is made of."""

_MOST_STEPS: Final = 8
"""Steps of one export that a diagnosis is told apart; loops of milliseconds make more."""

# The start of a delta is kept like a step, and may be any number of 64 bits.
_MAX_DELTA_NS: Final = (1 << 63) - 1

# Earlier starts are none, or leave no room for several amounts.
_OLDEST_START_NS: Final = 1_000


class _Measured(NamedTuple):
    """Measurements of gauges in columns, see ``Columns``, each with its stream."""

    streams: Sequence[Stream]
    series: Sequence[Series]
    steps: Sequence[int | None]
    times_ns: Sequence[int]
    values: Sequence[float]
    starts_ns: Sequence[int]
    ends_ns: Sequence[int]

    def of(self, choose: Callable[[Sequence[Any]], Sequence[Any]]) -> "_Measured":
        return _Measured(*map(choose, self))


class PointIntake:
    """Takes in the points of one run. The run takes closed rows out of its parts.

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
        self.archived: ArchivedPoints | None = None
        self.warnings: list[DataWarning] = []
        self.dropped: dict[str, DroppedPoints] = {}
        self.has_told_shared = False
        self.has_told_sampled = False
        self.first_ns = 0

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
            if columns.series:
                self._add_gauges(columns, received_ns)
            for point in columns.others:
                self._add_other(point, received_ns)

    def _add_other(self, point: OtherPoint, received_ns: int) -> None:
        stream = self._stream(point.series, point.time_ns)
        if stream is None:
            return
        self.sample_counts.taken += 1
        match point:
            case SummaryPoint():
                self._add_summary(stream, point, received_ns)
            case SumPoint() | HistogramPoint() if point.is_share:
                self._add_share(stream, point, received_ns)
            case SumPoint() if point.series.instrument is not Instrument.COUNTER:
                self._add_level(stream, point, received_ns)
            case SumPoint():
                self._add_count(stream, point, received_ns)
            case HistogramPoint():
                self._add_histogram(stream, point, received_ns)

    def _stream(self, series: Series, time_ns: int) -> Stream | None:
        """Return the stream of a series; None if it has no room, so that a sample is dropped."""
        stream = self.series.stream(series, self.settings)
        if stream is not None:
            return stream
        if not self.sample_counts.too_many_series:
            self.warnings.append(of_dropped(series, self.settings, time_ns))
        self.sample_counts.too_many_series += 1
        before = self.dropped.get(series.worker.instance, DroppedPoints(0, series.name))
        self.dropped[series.worker.instance] = before._replace(points=before.points + 1)
        return None

    # Gauges.

    def _add_gauges(self, columns: Columns, received_ns: int) -> None:
        found = self.series.known(columns.series)
        if None in found:
            for place, stream in enumerate(found):
                if stream is None:
                    found[place] = self._stream(columns.series[place], columns.times_ns[place])
        measured = _Measured(
            cast("Sequence[Stream]", found),
            columns.series,
            columns.steps,
            columns.times_ns,
            columns.values,
            columns.starts_ns,
            columns.ends_ns,
        )
        if None in found:
            has_room = [stream is not None for stream in found]
            measured = measured.of(lambda column: [*itertools.compress(column, has_room)])
        self.sample_counts.taken += len(measured.streams)
        self._add_measured(measured, received_ns)

    def _add_measured(self, measured: _Measured, received_ns: int) -> None:
        """Take in the new ones among measurements that are counted."""
        is_new = self._recognised(measured)
        if not all(is_new):
            measured = measured.of(lambda column: [*itertools.compress(column, is_new)])
        if measured.streams:
            self._take_in(measured, received_ns)

    # For every measurement of a run: few calls.
    def _recognised(self, measured: _Measured) -> Sequence[bool]:  # one loop
        """Record measurements. Returns which of them are new."""
        counts, memory = self.sample_counts, self.series.memory
        forgotten_ns = memory.forgotten_ns
        is_new = list[bool]()
        drop, is_taken = counts.drop_as_duplicate, True
        singles, changes = list[tuple[int, int, int]](), list[tuple[int, int, int, int, float]]()
        for stream, _, step, time_ns, value, start_ns, end_ns in zip(*measured, strict=True):
            seen = stream.seen
            at_ns = end_ns if end_ns > 0 else time_ns
            tiles = start_ns > 0 and end_ns > 0
            if end_ns == SIBLING:
                pass
            elif at_ns <= stream.unknown_through_ns or (at_ns <= forgotten_ns and not tiles):
                drop, is_taken = counts.drop_as_too_old, False
            elif tiles:
                drop, is_taken = counts.drop_as_duplicate, seen.take_interval(start_ns, end_ns)
            elif end_ns == REPEATED:
                assert step is not None  # only steps are repeated
                drop = counts.drop_as_duplicate
                is_taken = seen.known_changes().take(step, start_ns, time_ns, value)
                if is_taken:
                    changes.append((stream.number, step, start_ns, time_ns, value))
            else:
                marked = NO_STEP if step is None or end_ns > 0 else step
                drop, is_taken = counts.drop_as_duplicate, seen.take_time(at_ns, marked)
                if is_taken:
                    singles.append((stream.number, at_ns, marked))
            if not is_taken:
                drop(1)
            is_new.append(is_taken)
        if singles:
            memory.took_times(*zip(*singles, strict=True))
        if changes:
            memory.took_changes(*zip(*changes, strict=True))
        return is_new

    def _take_in(self, measured: _Measured, received_ns: int) -> None:
        """Take in new measurements; there is at least one."""
        streams, steps = measured.streams, measured.steps
        if self.archived is not None:
            numbers = [stream.number for stream in streams]
            self.archived.measured(
                numbers, measured.series, measured.times_ns, measured.values, steps
            )
        start, n = 0, len(streams)
        if steps.count(steps[0]) == n and len({stream.worker for stream in streams}) == 1:
            self._add_run(measured, steps[0], received_ns)
            return
        are_told_apart = len({*steps}) <= _MOST_STEPS
        for end in range(1, n + 1):
            if (
                end == n
                or steps[end] != steps[start]
                or streams[end].worker is not streams[start].worker
            ):
                told = steps[start if are_told_apart else -1]
                self._add_run(measured.of(itemgetter(slice(start, end))), told, received_ns)
                start = end

    def _add_run(self, measured: _Measured, told: int | None, received_ns: int) -> None:
        """Take in new measurements of one worker in one step, or without a step.

        Args:
            told: Step for which a diagnosis gets them.
        """
        streams, step, times_ns = measured.streams, measured.steps[0], measured.times_ns
        worker, groups = streams[0].worker, [stream.group for stream in streams]
        keys = [group.key for group in groups]
        self.history.measured.add_export(keys, worker, told, measured.values)
        named = [place for place, group in enumerate(groups) if group.name in _LOOKED_AT]
        for place in named:
            # A stock SDK repeats a measurement in every export, unless it has a step.
            is_told_once = step is not None or measured.starts_ns[place] > 0
            if groups[place].name in TIMED and is_told_once:
                self.goodput.measured(streams[place], (measured.values[place],), (times_ns[place],))
        if step is None:
            self.sample_counts.late += self.windows.add_each(
                streams, measured.values, times_ns, received_ns, self.settings
            )
        else:
            self.sample_counts.late += self.steps.add_each(
                streams, step, measured.values, times_ns, received_ns, self.settings
            )
            if self.axis.leads(worker, received_ns, is_step=True):
                self.axis.steps.observe(zip(times_ns, itertools.repeat(step)))
        for place in named:
            if groups[place].name == names.RL_POLICY_VERSION:
                self._observe_version(worker, measured.values[place], times_ns[place], received_ns)

    def _observe_version(
        self, worker: WorkerState, version: float, time_ns: int, received_ns: int
    ) -> None:
        if self.axis.leads(worker, received_ns, is_step=False) and is_integral(version):
            self.axis.versions.observe([(time_ns, int(version))])

    def _add_level(self, stream: Stream, point: SumPoint, received_ns: int) -> None:
        """Add a point of an up-down counter as a level, at its step if it has one."""
        is_delta = point.temporality is Temporality.DELTA
        value, start_ns, end_ns = point.value, 0, 0
        is_repeated = point.step is not None and not is_delta
        if is_repeated:
            # A start after the point's own time is none.
            start_ns, end_ns = point.start_ns * (point.start_ns <= point.time_ns), REPEATED
        elif not self._is_new_point(stream, point):
            return
        else:
            value = stream.level = stream.level + value if is_delta else value
        level = _Measured(
            (stream,),
            (point.series,),
            (point.step,),
            (point.time_ns,),
            (value,),
            (start_ns,),
            (end_ns,),
        )
        (self._add_measured if is_repeated else self._take_in)(level, received_ns)

    # Counters, histograms and summaries.

    def _is_new(
        self, stream: Stream, point: OtherPoint, *, step: int | None = None, delta_ns: int = 0
    ) -> bool:
        """Record a point. Returns whether it is new.

        Points of different steps have the same time if they were collected together. So have deltas
        that a Collector has joined; then the start of each delta, ``delta_ns``, tells them apart.
        """
        if point.covers is None:
            return True
        start_ns, end_ns = point.covers
        if self.series.is_unknown(stream, end_ns, single=not start_ns):
            self.sample_counts.drop_as_too_old(1)
            return False
        if start_ns:
            is_new = stream.seen.take_interval(start_ns, end_ns)
        else:
            is_new = self.series.memory.take_time(stream.number, end_ns, delta_ns or step)
        if not is_new:
            self.sample_counts.drop_as_duplicate(1)
        return is_new

    def _is_new_point(self, stream: Stream, point: SumPoint | HistogramPoint) -> bool:
        is_delta = point.temporality is Temporality.DELTA and point.step is None
        delta_ns = min(point.start_ns, _MAX_DELTA_NS) if is_delta else 0
        return self._is_new(stream, point, step=point.step, delta_ns=delta_ns)

    def _is_new_delta(
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
            return self._is_new_point(stream, point)
        place = known.place_of(point.start_ns, point.time_ns, _amount(point))
        if place is None:
            self.sample_counts.drop_as_duplicate(1)
            return False
        return self._is_new(stream, point, delta_ns=start_ns - place)

    def _add_count(self, stream: Stream, point: SumPoint, received_ns: int) -> None:
        is_delta = point.temporality is Temporality.DELTA
        if is_delta and not self._is_new_delta(stream, stream.counter, point):
            return
        counter = stream.counter
        is_known = counter is not None and counter.time_ns > 0
        is_counted = counter is None and self._is_counted(point)
        if counter is None:
            is_before = is_counted or self._is_before_the_run(point)
            counter = CounterStream.counted(point) if is_before else CounterStream()
            if is_counted:
                self.sample_counts.drop_as_too_old(1)
            stream.counter = counter
        increment = counter.advance(point)
        self._look_for_shared(counter, point)
        is_new = increment is not None or not (is_known or is_counted)
        if self.archived is not None and is_new:
            self.archived.counted(stream.number, point)
        if increment is not None:
            self.history.measured.add(stream, (increment.value,))
            self.goodput.counted(stream.group, increment.value)
            self.sample_counts.late += self.windows.add_increment(
                stream, increment, point.time_ns, received_ns, self.settings
            )
        elif is_known:
            self.sample_counts.drop_as_duplicate(1)

    def _add_share(
        self, stream: Stream, point: SumPoint | HistogramPoint, received_ns: int
    ) -> None:
        """Add a step's share of counts. Other points have the counts too, so they enter no total.

        A share without a step announces that shares will follow.
        """
        stream.has_shares()
        if point.step is None or not self._is_new(stream, point, step=point.step):
            return
        if self.archived is not None:
            if isinstance(point, SumPoint):
                self.archived.counted(stream.number, point)
            else:
                self.archived.distributed(stream.number, point)
        self.sample_counts.late += self.steps.add_share(stream, point.step, point, received_ns)
        if self.axis.leads(stream.worker, received_ns, is_step=True):
            self.axis.steps.observe([(point.time_ns, point.step)])

    def _add_histogram(self, stream: Stream, point: HistogramPoint, received_ns: int) -> None:
        is_delta = point.temporality is Temporality.DELTA
        if is_delta and not self._is_new_delta(stream, stream.histogram, point):
            return
        before_ns = stream.histogram.time_ns if stream.histogram is not None else 0
        is_counted = stream.histogram is None and self._is_counted(point)
        if stream.histogram is None:
            is_before = is_counted or self._is_before_the_run(point)
            stream.histogram = HistogramStream.counted(point) if is_before else HistogramStream()
            if is_counted:
                self.sample_counts.drop_as_too_old(1)
        new = stream.histogram.advance(point)
        self._look_for_shared(stream.histogram, point)
        is_duplicate = new is None and not is_delta and point.time_ns <= before_ns
        if self.archived is not None and not (is_duplicate or is_counted):
            self.archived.distributed(stream.number, point)
        if new is not None:
            if new.count and new.total is not None:
                self.history.measured.add(stream, (new.total / new.count,))
            self.sample_counts.late += self.windows.add_distribution(
                stream, new, received_ns, self.settings
            )
        elif is_duplicate:
            self.sample_counts.drop_as_duplicate(1)

    def _look_for_shared(
        self, stream: CounterStream | HistogramStream, point: SumPoint | HistogramPoint
    ) -> None:
        """Warn once about processes that run at the same time under one name."""
        if point.step is not None:
            return
        if point.temporality is Temporality.DELTA:
            stream.note_interval(point.start_ns, point.time_ns, _amount(point))
        if self.has_told_shared:
            return
        if stream.is_torn:
            self.has_told_shared = True
            self.warnings.append(of_torn(point.series, point.time_ns))
        elif (len(stream.lives) > 1 or stream.overlaps) and stream.is_shared:
            self.has_told_shared = True
            self.warnings.append(of_shared(point.series, point.time_ns))

    def _is_before_the_run(self, point: OtherPoint) -> bool:
        """Return whether a series' first point has counts from before the run: a scrape may."""
        return point.is_scraped and _is_cumulative(point) and 0 < point.start_ns < self.first_ns

    def _is_counted(self, point: OtherPoint) -> bool:
        """Return whether a series' first point may have counts that are in the totals already."""
        return _is_cumulative(point) and self.series.ended.counts_again(point.start_ns)

    def _add_summary(self, stream: Stream, point: SummaryPoint, received_ns: int) -> None:
        """Add a summary's quantiles. They cannot be merged: the worst worker's stands for the role.

        Add the mean and count, too, since the summary of a Python program has no quantiles.
        """
        if not self._is_new(stream, point, step=point.step):
            return
        if self.archived is not None:
            self.archived.summarized(stream.number, point)
        for quantile, value in point.quantiles:
            # Without recent measurements it is NaN. One that has measured NaN has a sum of NaN.
            if math.isnan(value) and not math.isnan(point.total):
                continue
            part = self._part(stream, point, f"/p{quantile * 100:g}", Reduction.MAX)
            if part is not None:
                self.sample_counts.late += self.windows.add_each(
                    (part,), (value,), (point.time_ns,), received_ns, self.settings
                )
        counts = _counts_of(point)
        if stream.histogram is None:
            is_before = self._is_counted(point) or self._is_before_the_run(point)
            stream.histogram = HistogramStream.counted(counts) if is_before else HistogramStream()
        new = stream.histogram.advance(counts)
        part = None if new is None else self._part(stream, point, "/mean", Reduction.MEAN)
        if new is not None and part is not None:
            self.sample_counts.late += self.windows.add_distribution(
                part, new, received_ns, self.settings
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

    # Text.

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


def _amount(point: SumPoint | HistogramPoint) -> float:
    if isinstance(point, SumPoint):
        return point.value
    return point.count if point.total is None else point.total


def _is_cumulative(point: OtherPoint) -> bool:
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
