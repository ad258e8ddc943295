"""Instruments that outlive the SDK provider behind them.

After a fork the SDK's sums belong to the parent, so the child gets a new SDK provider. User code
keeps its instruments, and ``rebind`` makes the SDK instruments behind them anew. Counters and
histograms also count in the step in progress, see ``step_shares.py``.
"""

import math
from collections.abc import Callable, Generator, Iterable, Sequence
from typing import Protocol, runtime_checkable

from opentelemetry.context import Context
from opentelemetry.metrics import (
    CallbackOptions,
    CallbackT,
    Counter,
    Histogram,
    ObservableCounter,
    ObservableGauge,
    ObservableUpDownCounter,
    Observation,
    UpDownCounter,
)
from opentelemetry.util.types import Attributes

from otel_rl.semconv.names import RL_LOOP_ITERATION
from otel_rl.worker.drops import DropReason
from otel_rl.worker.guard import Guard
from otel_rl.worker.metrics.step_shares import StepShares
from otel_rl.worker.otlp.step_shares import ShareStream
from otel_rl.worker.tensors import NotANumber, hold, number

__all__ = [
    "Adds",
    "BoundCounter",
    "BoundHistogram",
    "BoundObservableCounter",
    "BoundObservableGauge",
    "BoundObservableUpDownCounter",
    "BoundUpDownCounter",
    "Rebindable",
    "Records",
    "plain_callbacks",
]


class Adds(Protocol):
    """Instrument with ``add``."""

    def add(
        self, amount: float, attributes: Attributes = None, context: Context | None = None
    ) -> None:
        """See ``opentelemetry.metrics.Counter.add``."""
        ...


class Records(Protocol):
    """Instrument with ``record``."""

    def record(
        self, amount: float, attributes: Attributes = None, context: Context | None = None
    ) -> None:
        """See ``opentelemetry.metrics.Histogram.record``."""
        ...


@runtime_checkable
class Rebindable(Protocol):
    """Holder of an SDK instrument that can be replaced."""

    def rebind(self) -> None:
        """Make the SDK instrument again, from the provider's present SDK."""
        ...


class _AddInstrument:
    """Base of the two instruments with ``add``.

    Args:
        make: Creates the SDK instrument; called again after a fork.
        guard: Counts amounts that cannot be added.
    """

    lowest = 0.0

    def __init__(self, make: Callable[[], Adds], guard: Guard, name: str) -> None:
        self._make = make
        self._guard = guard
        self._name = name
        self._sdk = make()

    def rebind(self) -> None:
        self._sdk = self._make()

    def add(
        self,
        amount: float,
        attributes: Attributes = None,
        context: Context | None = None,
    ) -> None:
        try:
            addable = _addable(amount, self.lowest, self._name, self._guard)
            if addable is not None:
                self._sdk.add(addable, attributes, context)
        except Exception as error:  # noqa: BLE001  # nothing may raise into training code
            self._guard.caught(error)


class BoundCounter(_AddInstrument, Counter):
    """Stable wrapper of an SDK counter. Never raises.

    Args:
        make: Creates the SDK instrument; called again after a fork.
        guard: Counts amounts that cannot be added.
        steps: Of the process.
        stream: Its shares of steps on the wire.
    """

    def __init__(
        self, make: Callable[[], Adds], guard: Guard, steps: StepShares, stream: ShareStream
    ) -> None:
        super().__init__(make, guard, stream.name)
        self._steps = steps
        self._stream = stream

    def add(
        self,
        amount: float,
        attributes: Attributes = None,
        context: Context | None = None,
    ) -> None:
        """See ``opentelemetry.metrics.Counter.add``."""
        try:
            addable = _addable(amount, 0.0, self._stream.name, self._guard)
            if addable is None:
                return
            self._sdk.add(addable, attributes, context)
            if self._steps.current is not None or (attributes and RL_LOOP_ITERATION in attributes):
                self._steps.count(self._stream, addable, attributes)
        except Exception as error:  # noqa: BLE001  # nothing may raise into training code
            self._guard.caught(error)


class BoundUpDownCounter(_AddInstrument, UpDownCounter):
    """Stable wrapper of an SDK up-down counter. Never raises."""

    lowest = -math.inf


class BoundHistogram(Histogram):
    """Stable wrapper of an SDK histogram. Never raises.

    Args:
        make: Creates the SDK instrument; called again after a fork.
        guard: Counts amounts that cannot be recorded.
        steps: Of the process.
        stream: Its shares of steps on the wire.
    """

    def __init__(
        self, make: Callable[[], Records], guard: Guard, steps: StepShares, stream: ShareStream
    ) -> None:
        self._make = make
        self._guard = guard
        self._steps = steps
        self._stream = stream
        self._sdk = make()

    def rebind(self) -> None:
        """See ``Rebindable``."""
        self._sdk = self._make()

    def record(
        self,
        amount: float,
        attributes: Attributes = None,
        context: Context | None = None,
    ) -> None:
        """See ``opentelemetry.metrics.Histogram.record``."""
        try:
            addable = _addable(amount, 0.0, self._stream.name, self._guard)
            if addable is None:
                return
            self._sdk.record(addable, attributes, context)
            if self._steps.current is not None or (attributes and RL_LOOP_ITERATION in attributes):
                self._steps.count(self._stream, addable, attributes)
        except Exception as error:  # noqa: BLE001  # nothing may raise into training code
            self._guard.caught(error)


class _Observable:
    """Base of the observables: the SDK instrument lives in its provider and is never called."""

    def __init__(self, make: Callable[[], object]) -> None:
        self._make = make
        make()

    def rebind(self) -> None:
        self._make()


class BoundObservableCounter(_Observable, ObservableCounter):
    """SDK observable counter that is made again after a fork."""


class BoundObservableUpDownCounter(_Observable, ObservableUpDownCounter):
    """SDK observable up-down counter that is made again after a fork."""


class BoundObservableGauge(_Observable, ObservableGauge):
    """SDK observable gauge that is made again after a fork."""


def _addable(amount: object, lowest: float, name: str, guard: Guard) -> float | None:
    """Convert the amount for the SDK; None, counted, if it cannot be added.

    The SDK drops such amounts too, but uncounted and with a log line for each.
    """
    plain = amount if isinstance(amount, int | float) else number(hold(amount))
    if isinstance(plain, NotANumber):
        guard.drop(
            DropReason.NOT_A_NUMBER,
            f"{name}: a counter or histogram takes numbers (got {plain.description}). "
            "It is dropped.",
        )
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
        _Callback(_Generated(callback) if isinstance(callback, Generator) else callback, guard)
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
            return list(self._callback(options))
        except Exception as error:  # noqa: BLE001  # a failing sensor must not stop the export
            self._guard.warn("callback", "A metric callback failed; it has no value.", error=error)
            return ()


class _Generated:
    """Function around a generator callback."""

    def __init__(self, generator: Generator[Iterable[Observation], CallbackOptions, None]) -> None:
        self._generator = generator
        self._started = False

    def __call__(self, options: CallbackOptions) -> Iterable[Observation]:
        try:
            if not self._started:
                self._started = True
                next(self._generator)
            return self._generator.send(options)
        except StopIteration:
            return ()
