"""Instruments that outlive the SDK provider behind them.

After a fork the SDK's sums belong to the parent, so the child gets a new SDK provider. User code
keeps its instruments, so these stand between: ``rebind`` makes the SDK instrument anew.
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

from otel_rl.worker.drops import DropReason
from otel_rl.worker.guard import Guard
from otel_rl.worker.values import NotANumber, hold, number

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
    """An instrument with ``add``."""

    def add(
        self, amount: float, attributes: Attributes = None, context: Context | None = None
    ) -> None:
        """See ``opentelemetry.metrics.Counter.add``."""
        ...


class Records(Protocol):
    """An instrument with ``record``."""

    def record(
        self, amount: float, attributes: Attributes = None, context: Context | None = None
    ) -> None:
        """See ``opentelemetry.metrics.Histogram.record``."""
        ...


@runtime_checkable
class Rebindable(Protocol):
    """Something that holds an SDK instrument and can hold another."""

    def rebind(self) -> None:
        """Make the SDK instrument again, from the provider's present SDK."""
        ...


class _AddInstrument:
    """Shared by the two instruments with ``add``.

    Args:
        make: Creates the SDK instrument; called again after a fork.
        guard: Counts amounts that cannot be added.
    """

    lowest = 0.0

    def __init__(self, make: Callable[[], Adds], guard: Guard) -> None:
        self._make = make
        self._guard = guard
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
            addable = _addable(amount, self.lowest, self._guard)
            if addable is not None:
                self._sdk.add(addable, attributes, context)
        except Exception as error:  # noqa: BLE001  # nothing may raise into training code
            self._guard.caught(error)


class BoundCounter(_AddInstrument, Counter):
    """An SDK counter behind a stable face. Never raises."""


class BoundUpDownCounter(_AddInstrument, UpDownCounter):
    """An SDK up-down counter behind a stable face. Never raises."""

    lowest = -math.inf


class BoundHistogram(Histogram):
    """An SDK histogram behind a stable face. Never raises.

    Args:
        make: Creates the SDK instrument; called again after a fork.
        guard: Counts amounts that cannot be recorded.
    """

    def __init__(self, make: Callable[[], Records], guard: Guard) -> None:
        self._make = make
        self._guard = guard
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
            addable = _addable(amount, 0.0, self._guard)
            if addable is not None:
                self._sdk.record(addable, attributes, context)
        except Exception as error:  # noqa: BLE001  # nothing may raise into training code
            self._guard.caught(error)


class _Observable:
    """Shared by the observables: the SDK instrument lives in its provider, nobody calls it."""

    def __init__(self, make: Callable[[], object]) -> None:
        self._make = make
        make()

    def rebind(self) -> None:
        self._make()


class BoundObservableCounter(_Observable, ObservableCounter):
    """An SDK observable counter that comes back after a fork."""


class BoundObservableUpDownCounter(_Observable, ObservableUpDownCounter):
    """An SDK observable up-down counter that comes back after a fork."""


class BoundObservableGauge(_Observable, ObservableGauge):
    """An SDK observable gauge that comes back after a fork."""


def _addable(amount: object, lowest: float, guard: Guard) -> float | None:
    """The amount as the SDK takes it, or None if it cannot be added and was counted.

    The SDK drops such amounts too, but uncounted and with a log line for each.
    """
    plain = amount if isinstance(amount, int | float) else number(hold(amount))
    if isinstance(plain, NotANumber):
        guard.drop(
            DropReason.NOT_A_NUMBER,
            f"A counter or histogram takes numbers (got {plain.description}). It is dropped.",
        )
        return None
    # False for NaN too.
    if lowest <= plain < math.inf and plain > -math.inf:
        return plain
    guard.drop(
        DropReason.NOT_ADDABLE,
        f"A counter or histogram cannot take {plain}. It is dropped. "
        "Use a gauge for what may be NaN, and an up-down counter for what may fall.",
    )
    return None


def plain_callbacks(
    callbacks: Sequence[CallbackT] | None, guard: Guard
) -> list[Callable[[CallbackOptions], Iterable[Observation]]]:
    """Callbacks as functions that never raise and may be registered any number of times.

    The API also takes generators; the SDK starts them on registration, which only works once.
    """
    return [
        _Callback(_Generated(callback) if isinstance(callback, Generator) else callback, guard)
        for callback in callbacks or ()
    ]


class _Callback:
    """A callback whose failure is logged once a minute, not at every export."""

    def __init__(
        self, callback: Callable[[CallbackOptions], Iterable[Observation]], guard: Guard
    ) -> None:
        self._callback = callback
        self._guard = guard

    def __call__(self, options: CallbackOptions) -> Iterable[Observation]:
        try:
            return list(self._callback(options))
        except Exception as error:  # noqa: BLE001  # one sensor must not cost the export
            self._guard.warn("callback", "A metric callback failed; it has no value.", error=error)
            return ()


class _Generated:
    """A generator callback as a function."""

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
