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
    "BoundCounter",
    "BoundHistogram",
    "BoundObservableCounter",
    "BoundObservableGauge",
    "BoundObservableUpDownCounter",
    "BoundUpDownCounter",
    "Rebindable",
    "RecordFunction",
    "plain_callbacks",
]


RecordFunction = Callable[[float, Attributes, Context | None], None]
"""``add`` or ``record`` of an instrument."""


@runtime_checkable
class Rebindable(Protocol):
    """Holder of an SDK instrument that can be replaced."""

    def rebind(self) -> None:
        """Make the SDK instrument again, from the provider's present SDK."""
        ...


class _Synchronous:
    """Base of counters and histograms.

    Args:
        make: Creates the SDK instrument; called again after a fork.
        guard: Counts amounts that cannot be recorded.
        name: Of the instrument, for messages.
    """

    def __init__(self, make: Callable[[], RecordFunction], guard: Guard, name: str) -> None:
        self._make = make
        self._guard = guard
        self._name = name
        self._record_in_sdk = make()

    def rebind(self) -> None:
        """See ``Rebindable``."""
        self._record_in_sdk = self._make()


class BoundUpDownCounter(_Synchronous, UpDownCounter):
    """Stable wrapper of an SDK up-down counter. Never raises."""

    def add(
        self, amount: float, attributes: Attributes = None, context: Context | None = None
    ) -> None:
        """See ``opentelemetry.metrics.UpDownCounter.add``."""
        try:
            addable = _addable(amount, -math.inf, self._name, self._guard)
            if addable is not None:
                self._record_in_sdk(addable, attributes, context)
        except Exception as error:  # noqa: BLE001  # nothing may raise into training code
            self._guard.caught(error)


class _CountsSteps(_Synchronous):
    """Base of the instruments that count in the step in progress, too.

    Args:
        make: See ``_Synchronous``.
        guard: See ``_Synchronous``.
        steps: Of the process.
        stream: Its shares of steps on the wire.
    """

    def __init__(
        self,
        make: Callable[[], RecordFunction],
        guard: Guard,
        steps: StepShares,
        stream: ShareStream,
    ) -> None:
        super().__init__(make, guard, stream.name)
        self._steps = steps
        self._stream = stream

    def count(
        self, amount: float, attributes: Attributes = None, context: Context | None = None
    ) -> None:
        """Record an amount in the total, and in its step if it has one."""
        try:
            addable = _addable(amount, 0.0, self._name, self._guard)
            if addable is None:
                return
            self._record_in_sdk(addable, attributes, context)
            if self._steps.current is not None or (attributes and RL_LOOP_ITERATION in attributes):
                self._steps.count(self._stream, addable, attributes)
        except Exception as error:  # noqa: BLE001  # nothing may raise into training code
            self._guard.caught(error)


class BoundCounter(_CountsSteps, Counter):
    """Stable wrapper of an SDK counter. Never raises."""

    add = _CountsSteps.count


class BoundHistogram(_CountsSteps, Histogram):
    """Stable wrapper of an SDK histogram. Never raises."""

    record = _CountsSteps.count


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
