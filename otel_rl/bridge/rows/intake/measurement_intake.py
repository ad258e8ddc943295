"""Takes in measurements of gauges: rows with many series, and sequences of one series."""

import itertools
import operator
from collections.abc import Callable, Iterable, Sequence
from operator import itemgetter
from typing import Any, Final, NamedTuple, cast

from otel_rl.bridge.otlp.columns import REPEATED, Columns
from otel_rl.bridge.rows.dedup.series_dedup import NO_STEP
from otel_rl.bridge.rows.goodput import TIMED
from otel_rl.bridge.rows.intake.intake_state import IntakeState
from otel_rl.bridge.rows.series.streams import Stream, WorkerState
from otel_rl.bridge.rows.steps.step_axis import is_integral
from otel_rl.records import Measurements, Series
from otel_rl.semconv import names

_LOOKED_AT: Final = TIMED | {names.RL_POLICY_VERSION}
"""Metrics that more than their key is made of."""


class _Rows(NamedTuple):
    series: Sequence[Series]
    streams: Sequence[Stream]
    steps: Sequence[int | None]
    times_ns: Sequence[int]
    values: Sequence[float]
    starts_ns: Sequence[int]

    def of(self, choose: Callable[[Sequence[Any]], Sequence[Any]]) -> "_Rows":
        return _Rows(*map(choose, self))


class MeasurementIntake:
    """Takes in each measurement once, into its step or into windows."""

    def __init__(self, to: IntakeState) -> None:
        self._to = to

    def add_rows(self, columns: Columns, received_ns: int) -> None:
        """Take in the new measurements among those in columns.

        Each stage handles a whole column: find streams, recognise repeats, archive, record, fold
        in.
        """
        if not columns.series:
            return
        streams = self._streams(columns)
        is_new = self._recognised(columns, streams)
        rows = _Rows(
            columns.series,
            cast("Sequence[Stream]", streams),
            columns.steps,
            columns.times_ns,
            columns.values,
            columns.starts_ns,
        )
        if not all(is_new):
            rows = rows.of(lambda column: [*itertools.compress(column, is_new)])
        if not rows.streams:
            return
        if self._to.archived is not None:
            numbers = [stream.number for stream in rows.streams]
            self._to.archived.measured_each(
                numbers, rows.series, rows.times_ns, rows.values, rows.steps
            )
        start, n = 0, len(rows.streams)
        is_one = rows.steps.count(rows.steps[0]) == n and len(_workers(rows.streams)) == 1
        for end in [n] if is_one else range(1, n + 1):
            if (
                end == n
                or rows.steps[end] != rows.steps[start]
                or rows.streams[end].worker is not rows.streams[start].worker
            ):
                self._add_run(
                    rows if is_one else rows.of(itemgetter(slice(start, end))), received_ns
                )
                start = end

    def _streams(self, columns: Columns) -> Sequence[Stream | None]:
        streams = self._to.series.known(columns.series)
        self._to.sample_counts.taken += len(streams) - streams.count(None)
        if None in streams:
            for place, stream in enumerate(streams):
                if stream is None:
                    streams[place] = self._to.stream(
                        columns.series[place], 1, columns.times_ns[place]
                    )
        return streams

    # For every measurement of a run: few calls.
    def _recognised(  # one loop
        self, columns: Columns, streams: Sequence[Stream | None]
    ) -> Sequence[bool]:
        counts, memory = self._to.sample_counts, self._to.series.memory
        forgotten_ns = memory.forgotten_ns
        is_new = list[bool]()
        singles, changes = list[tuple[int, int, int]](), list[tuple[int, int, int, int, float]]()
        for stream, (_, step, time_ns, value, start_ns, end_ns) in zip(
            streams, columns.rows(), strict=True
        ):
            if stream is None:
                is_new.append(False)
                continue
            seen = stream.seen
            at_ns = end_ns if end_ns > 0 else time_ns
            tiles = start_ns > 0 and end_ns > 0
            if at_ns <= stream.unknown_through_ns or (at_ns <= forgotten_ns and not tiles):
                counts.drop_as_too_old(1)
                is_new.append(False)
                continue
            if tiles:
                is_taken = seen.take_interval(start_ns, end_ns)
            elif end_ns == REPEATED:
                assert step is not None  # only steps are repeated
                is_taken = seen.known_changes().take(step, start_ns, time_ns, value)
                if is_taken:
                    changes.append((stream.number, step, start_ns, time_ns, value))
            else:
                marked = NO_STEP if step is None or end_ns > 0 else step
                is_taken = seen.take_time(at_ns, marked)
                if is_taken:
                    singles.append((stream.number, at_ns, marked))
            if not is_taken:
                counts.drop_as_duplicate(1)
            is_new.append(is_taken)
        if singles:
            memory.took_times(*zip(*singles, strict=True))
        if changes:
            memory.took_changes(*zip(*changes, strict=True))
        return is_new

    def _add_run(self, rows: "_Rows", received_ns: int) -> None:
        """Take in new measurements of one worker in one step, or without a step."""
        to, streams, step = self._to, rows.streams, rows.steps[0]
        worker, groups = streams[0].worker, [stream.group for stream in streams]
        keys = tuple([group.key for group in groups])
        to.history.measured.add_export(keys, worker, step, rows.values)
        named = [place for place, group in enumerate(groups) if group.name in _LOOKED_AT]
        for place in named:
            # A stock SDK repeats a measurement in every export, unless it has a step.
            is_told_once = step is not None or rows.starts_ns[place] > 0
            if groups[place].name in TIMED and is_told_once:
                to.goodput.measured(streams[place], (rows.values[place],), (rows.times_ns[place],))
        if step is None:
            to.sample_counts.count_late(
                to.windows.add_each(streams, rows.values, rows.times_ns, received_ns, to.settings)
            )
        else:
            to.sample_counts.count_late(
                to.steps.add_each(
                    streams, step, rows.values, rows.times_ns, received_ns, to.settings
                )
            )
            if to.axis.leads(worker, received_ns, is_step=True):
                to.axis.steps.observe(zip(rows.times_ns, itertools.repeat(step)))
        for place in named:
            if groups[place].name == names.RL_POLICY_VERSION:
                version, time_ns = rows.values[place], rows.times_ns[place]
                self._observe_version(worker, (version,), (time_ns,), received_ns)

    def add(self, stream: Stream, measured: Measurements, received_ns: int) -> None:
        """Take in the new measurements among those of one series."""
        if measured.covers is not None:
            if self._to.is_new(stream, measured.covers, len(measured.values)):
                self.add_new(stream, measured, received_ns)
            return
        if measured.told_since_ns is not None:
            if self._is_change(stream, measured, measured.told_since_ns):
                self.add_new(stream, measured, received_ns)
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
        self.add_new(stream, measured, received_ns)

    def _is_new_alone(self, stream: Stream, time_ns: int, step: int | None) -> bool:
        if self._to.series.is_unknown(stream, time_ns, single=True):
            self._to.sample_counts.drop_as_too_old(1)
            return False
        if self._to.series.memory.take_time(stream.number, time_ns, step):
            return True
        self._to.sample_counts.drop_as_duplicate(1)
        return False

    def _is_change(self, stream: Stream, measured: Measurements, since_ns: int) -> bool:
        """Return whether a step's single value differs from the value reported before."""
        time_ns, value, step = measured.times_ns[0], measured.values[0], measured.steps[0]
        assert step is not None  # only steps are repeated
        if self._to.series.is_unknown(stream, time_ns, single=True):
            self._to.sample_counts.drop_as_too_old(1)
            return False
        if self._to.series.memory.take_change(stream.number, (step, since_ns, time_ns), value):
            return True
        self._to.sample_counts.drop_as_duplicate(1)
        return False

    def add_new(self, stream: Stream, measured: Measurements, received_ns: int) -> None:
        if self._to.archived is not None:
            self._to.archived.measured(stream.number, measured)
        self._to.history.measured.add(stream, measured.values, _steps_of(measured))
        if stream.group.name in TIMED and _is_told_once(measured):
            self._to.goodput.measured(stream, measured.values, measured.times_ns)
        self._fold(stream, measured, received_ns)

    def _fold(self, stream: Stream, measured: Measurements, received_ns: int) -> None:
        steps, values, times_ns = measured.steps, measured.values, measured.times_ns
        timed = steps.count(None)
        if not timed:
            self._add_steps(stream, cast("Sequence[int]", steps), values, times_ns, received_ns)
        elif timed == len(steps):
            self._to.sample_counts.count_late(
                self._to.windows.add_levels(
                    stream, values, times_ns, received_ns, self._to.settings
                )
            )
        else:
            has_step = [step is not None for step in steps]
            self._fold(stream, _part(measured, has_step), received_ns)
            self._fold(stream, _part(measured, map(operator.not_, has_step)), received_ns)
            return
        if measured.series.name == names.RL_POLICY_VERSION:
            self._observe_version(stream.worker, values, times_ns, received_ns)

    def _observe_version(
        self,
        worker: WorkerState,
        values: Sequence[float],
        times_ns: Sequence[int],
        received_ns: int,
    ) -> None:
        if self._to.axis.leads(worker, received_ns, is_step=False):
            self._to.axis.versions.observe(
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
        self._to.sample_counts.count_late(
            self._to.steps.add(stream, steps, values, times_ns, received_ns, self._to.settings)
        )
        if self._to.axis.leads(stream.worker, received_ns, is_step=True):
            self._to.axis.steps.observe(zip(times_ns, steps, strict=True))


def _workers(streams: Sequence[Stream]) -> set[WorkerState]:
    return {stream.worker for stream in streams}


def _steps_of(measured: Measurements) -> Sequence[int | None]:
    return () if measured.steps[0] is None else measured.steps


def _is_told_once(measured: Measurements) -> bool:
    """Return whether the sender reports a measurement only once. A stock SDK repeats gauges."""
    covers = measured.covers
    return measured.steps[0] is not None or (covers is not None and covers.start_ns != 0)


def _part(measured: Measurements, selected: Iterable[bool]) -> Measurements:
    rows = zip(measured.times_ns, measured.values, measured.steps, strict=True)
    times_ns, values, steps = zip(*itertools.compress(rows, selected), strict=True)
    return Measurements(measured.series, times_ns, values, steps)
