"""What counters and histograms count in each step, as exemplars of the SDK's own points (ADR 15).

    counter.add ----> the SDK's sum, and its reservoir: a sum for each step       training threads
    export ---------> the sums of ended steps are exemplars of the point          exporter thread

The step of a count is that of its attribute ``rl.loop.iteration``; else the ``otel_rl.step`` block
in its context, else the block opened last in the process. Counts outside of any step are in the
totals only.
"""

import math
import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import islice
from time import time_ns
from typing import Final, cast
from weakref import ref

from opentelemetry import metrics
from opentelemetry.context import Context, get_current
from opentelemetry.sdk.metrics import Exemplar, ExemplarReservoir
from opentelemetry.sdk.metrics.export import (
    ExponentialHistogram,
    ExponentialHistogramDataPoint,
    MetricsData,
)
from opentelemetry.sdk.metrics.view import View
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from opentelemetry.util.types import Attributes

from otel_rl.semconv.names import (
    OTEL_RL_STEP_COUNT,
    OTEL_RL_STEP_DURATION,
    OTEL_RL_STEP_SHARE,
    RL_LOOP_ITERATION,
)
from otel_rl.worker.drops import DropReason
from otel_rl.worker.guard import Guard
from otel_rl.worker.step_context import StepScope, scope_in
from otel_rl.worker.tensors import as_step

_MAX_STEPS: Final = 1024
"""Steps of a series between two exports: some ten thousand a second without one for 0.1 s."""

_MAX_OPEN: Final = 1024
"""Step blocks that are open at a time, and steps that only attributes of counts name."""

_MAX_ZEROS: Final = 1 << 16
"""Steps of series with measurements of 0 between two exports."""

_MAX_MEASUREMENTS: Final = 1024
"""Exemplars of a histogram's series in an export: a point stays under 100 kB."""

_Histogram = tuple[InstrumentationScope, str, frozenset[tuple[str, object]]]
"""Scope, name and attributes of a histogram's series."""

Zeros = dict[tuple[_Histogram, int], tuple[int, int]]
"""Number of measurements of 0, and the time of the last one in ns, by series and step."""

EndCounts = Callable[[int], float | None]
"""Ends a step at a time in ns. Returns the tokens that were counted in it; None for none."""


class AllBut(set[str]):
    """Set of every string except the given ones, with which a View drops attributes."""

    def __init__(self, *dropped: str) -> None:
        super().__init__()
        self._dropped = frozenset(dropped)

    def __contains__(self, key: object) -> bool:
        return key not in self._dropped


class Step:
    """A training step that counts may belong to.

    Attributes:
        number: Number of the step; None once the step is forgotten.
        begun_ns: Time at which the step began; 0 if unknown.
        ended_ns: Latest end of the step so far.
        is_open: Whether the step's block has not ended.
        tokens: Tokens by which the utilization of the model is computed.
    """

    __slots__ = ("begun_ns", "ended_ns", "is_open", "number", "tokens")

    def __init__(self, number: int, begun_ns: int = 0, *, is_open: bool = False) -> None:
        self.number: int | None = number
        self.begun_ns = self.ended_ns = begun_ns
        self.is_open = is_open
        self.tokens: float | None = None


class Steps:
    """Steps of a process. Any thread may read and change them.

    Attributes:
        current: Step of counts that name no step and are in no block; None outside of steps.
        ended_count: Number of the steps that have ended.
    """

    def __init__(self, guard: Guard) -> None:
        self.guard = guard
        self.forget()

    def forget(self) -> None:
        """Start over in a forked child, because the parent reports its steps."""
        # _lock guards changes of everything below.
        self._lock = threading.RLock()
        self.current: Step | None = None
        self._open: dict[StepScope, tuple[Step, ref[object]]] = {}
        self._explicit: dict[int, Step] = {}
        self._explicit_ns = 0  # time of the last count that has told its step
        self._has_blocks = False
        self._ended: deque[Step] = deque(maxlen=_MAX_STEPS)  # those that ended last
        self.ended_count = 0
        self._zeros: Zeros = {}

    def open(self, scope: StepScope, begun_ns: int, owner: object) -> EndCounts:
        """Begin the step of a block. Returns the function that ends the step.

        If ``owner``, the block, is deleted before its end, the step is forgotten.
        """
        step = Step(scope.number, begun_ns, is_open=True)
        with self._lock:
            self._has_blocks = True
            self._open[scope] = step, ref(owner)
            if len(self._open) > _MAX_OPEN:
                self._abandon(next(iter(self._open)))
            self.current = step
        return partial(self._close, scope)

    def _close(self, scope: StepScope, ended_ns: int) -> float | None:
        with self._lock:
            if scope not in self._open:
                return None
            step = self._leave(scope)
            step.ended_ns = max(step.begun_ns, ended_ns)
            self._ended.append(step)
            self.ended_count += 1
            return step.tokens

    def abandon_orphans(self) -> None:
        """Forget the steps whose thread or task has ended within the block."""
        with self._lock:
            for scope in [scope for scope, (_, owner) in self._open.items() if owner() is None]:
                self._abandon(scope)

    def _abandon(self, scope: StepScope) -> None:
        self._leave(scope).number = None

    def _leave(self, scope: StepScope) -> Step:
        step, _ = self._open.pop(scope)
        step.is_open = False
        self.current = next((step for step, _ in reversed(self._open.values())), None)
        return step

    def ended_since(self, count: int) -> tuple[Sequence[Step], int]:
        """Return the steps that ended after the first ``count``, and the total of ended steps.

        If there are many, only the last ones are returned.
        """
        with self._lock:
            new = min(self.ended_count - count, len(self._ended))
            return [*islice(self._ended, len(self._ended) - new, None)], self.ended_count

    def of(self, attributes: Attributes, context: Context | None) -> Step | None:
        """Return the step that a count belongs to, if any."""
        if attributes and RL_LOOP_ITERATION in attributes:
            return self._explicit_step(attributes[RL_LOOP_ITERATION])
        if self.current is None:
            return None
        scope = scope_in(context)
        while scope is not None:
            found = self._open.get(scope)
            if found is not None:
                return found[0]
            scope = scope.outer
        return self.current

    def _explicit_step(self, given: object) -> Step | None:
        number = as_step(given)
        if number is None:
            return None
        with self._lock:
            for step, _ in self._open.values():
                if step.number == number:
                    return step
            found = self._explicit.get(number)
            if found is None:
                # Beside blocks its begin is unknown.
                found = Step(number, 0 if self._has_blocks else self._explicit_ns)
                self._explicit[number] = found
                if len(self._explicit) > _MAX_OPEN:
                    del self._explicit[next(iter(self._explicit))]
            found.ended_ns = self._explicit_ns = time_ns()
            return found

    def add_tokens(self, amount: float, attributes: Attributes, context: Context) -> None:
        with self._lock:
            step = self.of(attributes, context)
            if step is not None:
                step.tokens = (step.tokens or 0) + amount

    def measured_zero(
        self,
        scope: InstrumentationScope,
        name: str,
        series: Attributes,
        attributes: Attributes,
        context: Context | None,
    ) -> None:
        """Keep a histogram's measurement of 0, which the SDK offers to no reservoir."""
        step = self.of(attributes, context or get_current())
        if step is not None and step.number is not None:
            where = scope, name.lower(), frozenset((series or {}).items())
            self._add_zeros((where, step.number), 1, time_ns())

    def take_zeros(self) -> Zeros:
        """Remove and return the measurements of 0 so far."""
        with self._lock:
            taken, self._zeros = self._zeros, {}
        return taken

    def zeros_left(self, zeros: Zeros, since_ns: int) -> None:
        """Keep measurements of 0 that have found no point, for the next export.

        Those from before ``since_ns`` are dropped: the SDK does not export their series.
        """
        for where, (count, measured_ns) in zeros.items():
            if measured_ns >= since_ns:
                self._add_zeros(where, count, measured_ns)
            else:
                self._lose_zeros(count)

    def _add_zeros(self, where: tuple[_Histogram, int], count: int, measured_ns: int) -> None:
        with self._lock:
            has_room = where in self._zeros or len(self._zeros) < _MAX_ZEROS
            if has_room:
                before, before_ns = self._zeros.get(where, (0, 0))
                self._zeros[where] = before + count, max(before_ns, measured_ns)
        if not has_room:
            self._lose_zeros(count)

    def _lose_zeros(self, count: int) -> None:
        self.guard.drop(
            DropReason.BUFFER_FULL,
            "Measurements of 0 of a histogram are in its totals only and at no step: there are too "
            "many series or steps. Use fewer attributes, or shorten the export interval.",
            count,
        )

    def lost(self, steps: int) -> None:
        """Count sums of steps that have no room."""
        self.guard.drop(
            DropReason.BUFFER_FULL,
            f"More than {_MAX_STEPS} steps ended between two exports; the counts of the oldest are "
            "in the totals only. Shorten the export interval.",
            steps,
        )


def add_zeros(zeros: Zeros, data: MetricsData) -> None:
    """Add measurements of 0 to the SDK's collected points, as exemplars."""
    if not zeros:
        return
    steps: dict[_Histogram, list[int]] = {}
    for where, step in zeros:
        steps.setdefault(where, []).append(step)
    for scope, name, point in _histogram_points(data):
        where = scope, name.lower(), frozenset((point.attributes or {}).items())
        for step in steps.pop(where, ()):
            count, measured_ns = zeros.pop((where, step))
            marks = {RL_LOOP_ITERATION: step, OTEL_RL_STEP_COUNT: count}
            # The list is that of our reservoir.
            cast("list[Exemplar]", point.exemplars).append(Exemplar(marks, 0, measured_ns))


def _histogram_points(
    data: MetricsData,
) -> Iterator[tuple[InstrumentationScope, str, ExponentialHistogramDataPoint]]:
    for resource in data.resource_metrics:
        for part in resource.scope_metrics:
            for metric in part.metrics:
                if isinstance(metric.data, ExponentialHistogram):
                    for point in metric.data.data_points:
                        yield part.scope, metric.name, point


def views_of(steps: Steps) -> Sequence[View]:
    """Return the Views of a provider whose points contain the counts of steps.

    The step is not an attribute of a series, which it would make anew every step. Levels, such as
    those of an up-down counter, have no exemplars. The provider must keep exemplars.
    """
    made: dict[type, Callable[..., ExemplarReservoir]] = {
        metrics.Counter: partial(SumsOfSteps, steps),
        metrics.Histogram: partial(MeasurementsInSteps, steps),
        metrics.UpDownCounter: NoExemplars,
        metrics.ObservableCounter: NoExemplars,
        metrics.ObservableUpDownCounter: NoExemplars,
        metrics.ObservableGauge: NoExemplars,
    }
    return [
        View(
            instrument_type=kind,
            attribute_keys=AllBut(RL_LOOP_ITERATION),
            # The SDK annotates one dict and passes keywords.
            exemplar_reservoir_factory=lambda _, make=make: make,  # type: ignore[misc]
        )
        for kind, make in made.items()
    ]


class NoExemplars(ExemplarReservoir):
    """Reservoir of instruments without counts."""

    def __init__(self, **kwargs: object) -> None:
        del kwargs

    def offer(
        self, value: float, time_unix_nano: int, attributes: Attributes, context: Context
    ) -> None:
        """Keep nothing."""

    def collect(self, point_attributes: Attributes) -> list[Exemplar]:
        """Return nothing."""
        del point_attributes
        return []


class SumsOfSteps(ExemplarReservoir):
    """Reservoir of a counter's series: its exemplars are its sums in ended steps.

    A series that did not grow in a step has a sum of 0 there, so that a chart is not drawn through
    its last values. During the first step of a series, an exemplar without a step announces sums.
    """

    def __init__(self, steps: Steps, **kwargs: object) -> None:
        del kwargs
        self._steps = steps
        # _lock guards everything below: threads offer while the exporter collects.
        self._lock = threading.Lock()
        self._sums: dict[Step, float] = {}
        self._in_pieces: Step | None = None  # that of the newest exemplar, which may go on
        self._told = steps.ended_count
        self._before_ns = time_ns()
        self._is_announced = self._has_grown = False

    def offer(
        self, value: float, time_unix_nano: int, attributes: Attributes, context: Context
    ) -> None:
        """Add an amount to the step that it belongs to, if any."""
        del time_unix_nano
        step = self._steps.of(attributes, context)
        if step is None:
            return
        with self._lock:
            self._sums[step] = self._sums.get(step, 0) + value
            if len(self._sums) > _MAX_STEPS:
                del self._sums[next(iter(self._sums))]
                self._steps.lost(1)

    def collect(self, point_attributes: Attributes) -> list[Exemplar]:
        """Return the sums of the steps that have ended, and of steps that counts name so far."""
        del point_attributes
        with self._lock:
            ended, self._told = self._steps.ended_since(self._told)
            for step in ended:
                if step in self._sums:
                    self._has_grown = True
                elif (
                    self._has_grown and step is not self._in_pieces and len(self._sums) < _MAX_STEPS
                ):
                    self._sums[step] = 0
            sums, self._sums = self._sums, {}
            closed: list[Step] = []
            for step, value in sums.items():
                if step.is_open:
                    self._sums[step] = value
                elif step.number is not None:
                    closed.append(step)
            # The exemplars of a series tile time in this order.
            closed.sort(key=lambda step: step.ended_ns)
            if closed:
                self._in_pieces, self._has_grown = closed[-1], True
            found = [self._exemplar(step, sums[step]) for step in closed]
            if found:
                self._is_announced = True
            elif self._sums and not self._is_announced:
                self._is_announced = True
                found.append(Exemplar({OTEL_RL_STEP_SHARE: 0}, 0, time_ns()))
            return found

    def _exemplar(self, step: Step, value: float) -> Exemplar:
        before_ns = self._before_ns
        self._before_ns = end_ns = max(step.ended_ns, before_ns + 1)
        marks = {RL_LOOP_ITERATION: step.number, OTEL_RL_STEP_SHARE: end_ns - before_ns}
        if 0 < step.begun_ns < end_ns:
            marks[OTEL_RL_STEP_DURATION] = end_ns - step.begun_ns
        return Exemplar(marks, value, end_ns)


_Measured = tuple[float, int, int]
"""(mean, number, time of the last) of measurements."""


class MeasurementsInSteps(ExemplarReservoir):
    """Reservoir of a histogram's series: its exemplars are the measurements in steps.

    If there are more than fit into a point, neighbours are joined to their mean: the count, the sum
    and the extremes stay as they are, and a quantile lies between two neighbours.
    """

    def __init__(self, steps: Steps, **kwargs: object) -> None:
        del kwargs
        self._steps = steps
        # _lock guards everything below: threads offer while the exporter collects.
        self._lock = threading.Lock()
        self._measured: dict[int, list[_Measured]] = {}

    def offer(
        self, value: float, time_unix_nano: int, attributes: Attributes, context: Context
    ) -> None:
        """Keep a measurement if it belongs to a step."""
        step = self._steps.of(attributes, context)
        if step is None or step.number is None:
            return
        with self._lock:
            measured = self._measured.get(step.number)
            if measured is None:
                measured = self._measured[step.number] = []
                if len(self._measured) > _MAX_STEPS:
                    del self._measured[next(iter(self._measured))]
                    self._steps.lost(1)
            measured.append((value, 1, time_unix_nano))
            if len(measured) > 2 * _MAX_MEASUREMENTS:
                measured[:] = _joined(measured, _MAX_MEASUREMENTS)

    def collect(self, point_attributes: Attributes) -> list[Exemplar]:
        """Return what was measured in steps since the last call."""
        del point_attributes
        with self._lock:
            found, self._measured = self._measured, {}
        most = max(2, _MAX_MEASUREMENTS // max(1, len(found)))
        exemplars: list[Exemplar] = []
        for step, measured in found.items():
            for value, count, measured_ns in _joined(measured, most):
                marks = {RL_LOOP_ITERATION: step}
                # The first one has its number anyway, so that a receiver knows what they are.
                if count != 1 or not exemplars:
                    marks[OTEL_RL_STEP_COUNT] = count
                exemplars.append(Exemplar(marks, value, measured_ns))
        return exemplars


def _joined(measured: list[_Measured], most: int) -> list[_Measured]:
    """Return at most ``most`` values: neighbours are joined evenly, and the extremes stay."""
    if len(measured) <= most:
        return measured
    smallest, *between, largest = sorted(measured)
    # Two runs side by side have more than half of this, so there are at most two less than most.
    room = 2 * sum(count for _, count, _ in between) / max(1, most - 2)
    runs: list[list[_Measured]] = []
    held = math.inf
    for one in between:
        held += one[1]
        if held > room:
            runs.append([])
            held = one[1]
        runs[-1].append(one)
    return [smallest, *map(_mean, runs), largest]


def _mean(run: Sequence[_Measured]) -> _Measured:
    count = sum(number for _, number, _ in run)
    total = sum(value * number for value, number, _ in run)
    return total / count, count, max(measured_ns for _, _, measured_ns in run)
