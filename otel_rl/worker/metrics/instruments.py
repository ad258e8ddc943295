"""Instruments that a program holds, before those of the SDK.

A handle outlives the SDK's instrument: after a fork the sums belong to the parent, so the child
gets a new SDK, and user code keeps what it has.
"""

import math
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from typing import ClassVar, Final

from opentelemetry.context import Context, get_current
from opentelemetry.metrics import (
    CallbackOptions,
    CallbackT,
    Counter,
    Histogram,
    Instrument,
    Observation,
    UpDownCounter,
)
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from opentelemetry.util.types import Attributes, AttributeValue

from otel_rl.semconv.names import RL_LOOP_ITERATION
from otel_rl.worker.drops import DropReason
from otel_rl.worker.guard import Guard
from otel_rl.worker.metrics.gauges import without_step
from otel_rl.worker.metrics.step_counts import Steps
from otel_rl.worker.tensors import NotANumber, as_step, hold, number

__all__ = [
    "CounterHandle",
    "Handle",
    "HistogramHandle",
    "Record",
    "TokenCounterHandle",
    "UpDownCounterHandle",
    "plain_callbacks",
]

Record = Callable[[float, Attributes, Context | None], None]
"""``add`` or ``record`` of an instrument of the SDK."""


class Handle(Instrument):
    """Counter or histogram of the SDK. Never raises.

    Args:
        scope: Of the instrument.
        name: Of the instrument.
        guard: Counts amounts that cannot be recorded.
        steps: Of the process.
    """

    verb: ClassVar[str] = "add"
    """How the SDK's instrument records."""

    _lowest: float = 0.0

    def __init__(self, scope: InstrumentationScope, name: str, guard: Guard, steps: Steps) -> None:
        self._guard = guard
        self._scope = scope
        self._steps = steps
        self._name = name

    def bind(self, record: Record) -> None:
        """Record in this instrument of the SDK from now on."""
        self._record_in_sdk = record

    def count(
        self, amount: float, attributes: Attributes = None, context: Context | None = None
    ) -> None:
        """Record an amount."""
        try:
            plain = _addable(amount, self._lowest, self._name, self._guard)
            if plain is None:
                return
            if attributes and RL_LOOP_ITERATION in attributes:
                attributes = self._with_plain_step(attributes)
            self._record_in_sdk(plain, attributes, context)
            self._recorded(plain, attributes, context)
        except Exception as error:  # noqa: BLE001  # nothing may raise into training code
            self._guard.caught(error)

    def _with_plain_step(self, attributes: Mapping[str, AttributeValue]) -> Attributes:
        """Return the attributes with an ``int`` as step: of another integer the SDK makes text."""
        given = attributes[RL_LOOP_ITERATION]
        step = as_step(given)
        if step is given:
            return attributes
        if step is None:
            self._guard.drop(
                DropReason.BAD_STEP,
                f"{self._name}: the step is no integer (got {given!r}). What is counted is in the "
                "totals only.",
            )
            return without_step(attributes)
        return {**attributes, RL_LOOP_ITERATION: step}

    def _recorded(self, amount: float, attributes: Attributes, context: Context | None) -> None:
        """Note what the SDK has recorded, where that is needed."""


class CounterHandle(Handle, Counter):
    """Counter of a program."""

    add = Handle.count


class TokenCounterHandle(CounterHandle):
    """Counter from whose steps the utilization of the model is computed."""

    def _recorded(self, amount: float, attributes: Attributes, context: Context | None) -> None:
        self._steps.add_tokens(amount, attributes, context or get_current())


class UpDownCounterHandle(Handle, UpDownCounter):
    """Up-down counter of a program."""

    _lowest = -math.inf
    add = Handle.count


class HistogramHandle(Handle, Histogram):
    """Histogram of a program."""

    verb = "record"
    record = Handle.count

    def _recorded(self, amount: float, attributes: Attributes, context: Context | None) -> None:
        if not amount:
            self._steps.measured_zero(
                self._scope, self._name, without_step(attributes), attributes, context
            )


def _addable(amount: object, lowest: float, name: str, guard: Guard) -> float | None:
    """Convert the amount for the SDK; None, counted, if it cannot be added.

    The SDK drops such amounts too, but uncounted and with a log line for each.
    """
    plain = amount if isinstance(amount, int | float) else number(hold(amount))
    if isinstance(plain, NotANumber):
        guard.not_a_number(name, plain.description)
        return None
    # False for NaN too.
    if lowest <= plain < math.inf and plain > -math.inf:
        return plain
    guard.drop(
        DropReason.NOT_ADDABLE,
        f"{name}: a counter or histogram cannot take {plain}. It is dropped. "
        "Use a gauge for values that may be NaN, an up-down counter for values that may fall.",
    )
    return None


def plain_callbacks(
    callbacks: Sequence[CallbackT] | None, guard: Guard
) -> list[Callable[[CallbackOptions], Iterable[Observation]]]:
    """Wrap callbacks in functions that never raise and can be registered repeatedly.

    The API also accepts generators; the SDK starts them on registration, which works only once.
    """
    return [
        _Callback(_generated(callback) if isinstance(callback, Generator) else callback, guard)
        for callback in callbacks or ()
    ]


class _Callback:
    """Callback whose failure is logged once a minute, not at every export."""

    def __init__(
        self, callback: Callable[[CallbackOptions], Iterable[Observation]], guard: Guard
    ) -> None:
        self._callback = callback
        self._guard = guard

    def __call__(self, options: CallbackOptions) -> Iterable[Observation]:
        try:
            return [
                observed for found in self._callback(options) for observed in self._plain(found)
            ]
        except Exception as error:  # noqa: BLE001  # a failing sensor must not stop the export
            self._guard.warn("callback", "A metric callback failed; it has no value.", error=error)
            return ()

    def _plain(self, found: Observation) -> Iterable[Observation]:
        """Yield the observation with a number of Python; nothing, counted, if it has none."""
        value: object = found.value
        if isinstance(value, int | float):
            yield found
            return
        plain = number(hold(value))
        if isinstance(plain, NotANumber):
            self._guard.not_a_number("the value of a metric callback", plain.description)
        else:
            yield Observation(plain, found.attributes, found.context)


_START: Final = object()


def _generated(
    generator: Generator[Iterable[Observation], CallbackOptions, None],
) -> Callable[[CallbackOptions], Iterable[Observation]]:
    """Return a function around a generator callback."""
    started: list[object] = []

    def observe(options: CallbackOptions) -> Iterable[Observation]:
        try:
            if not started:
                started.append(_START)
                next(generator)
            return generator.send(options)
        except StopIteration:
            return ()

    return observe
