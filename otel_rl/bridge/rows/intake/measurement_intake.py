"""Takes the measurements of gauges."""

import itertools
import operator
from collections.abc import Iterable, Sequence
from typing import cast

from otel_rl.bridge.rows.goodput.goodput import TIMED
from otel_rl.bridge.rows.intake.intake_state import IntakeState
from otel_rl.bridge.rows.series.streams import Stream
from otel_rl.bridge.rows.steps.step_axis import is_integral
from otel_rl.records import Measurements
from otel_rl.semconv import names

__all__ = ["MeasurementIntake"]


class MeasurementIntake:
    """Takes each measurement once, into its step or into windows.

    Args:
        to: What it is taken into.
    """

    def __init__(self, to: IntakeState) -> None:
        self._to = to

    def add(self, stream: Stream, measured: Measurements, received_ns: int) -> None:
        """Take the measurements of a point that are new."""
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
        """Return whether the single value of a step differs from its reported one."""
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
        """Take measurements that are new."""
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
        if measured.series.name == names.RL_POLICY_VERSION and self._to.axis.leads(
            stream.worker, received_ns, is_step=False
        ):
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
