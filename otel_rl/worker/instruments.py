"""Instruments that outlive the SDK provider behind them.

After a fork the SDK's sums belong to the parent, so the child gets a new SDK provider. User code
keeps its instruments, so these stand between: ``rebind`` makes the SDK instrument anew.
"""

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

__all__ = [
    "BoundCounter",
    "BoundHistogram",
    "BoundObservableCounter",
    "BoundObservableGauge",
    "BoundObservableUpDownCounter",
    "BoundUpDownCounter",
    "Rebindable",
    "plain_callbacks",
]


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
        guard: Catches what the SDK raises on values that are no numbers.
    """

    def __init__(self, make: Callable[[], Counter | UpDownCounter], guard: Guard) -> None:
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
            self._sdk.add(amount, attributes, context)
        except Exception as error:  # noqa: BLE001  # nothing may raise into training code
            _refused(self._guard, amount, error)


class BoundCounter(_AddInstrument, Counter):
    """An SDK counter behind a stable face. Never raises."""


class BoundUpDownCounter(_AddInstrument, UpDownCounter):
    """An SDK up-down counter behind a stable face. Never raises."""


class BoundHistogram(Histogram):
    """An SDK histogram behind a stable face. Never raises.

    Args:
        make: Creates the SDK instrument; called again after a fork.
        guard: Catches what the SDK raises on values that are no numbers.
    """

    def __init__(self, make: Callable[[], Histogram], guard: Guard) -> None:
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
            self._sdk.record(amount, attributes, context)
        except Exception as error:  # noqa: BLE001  # nothing may raise into training code
            _refused(self._guard, amount, error)


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


def plain_callbacks(
    callbacks: Sequence[CallbackT] | None,
) -> list[Callable[[CallbackOptions], Iterable[Observation]]]:
    """Callbacks as functions that may be registered any number of times.

    The API also takes generators; the SDK starts them on registration, which only works once.
    """
    return [
        _Generated(callback) if isinstance(callback, Generator) else callback
        for callback in callbacks or ()
    ]


def _refused(guard: Guard, amount: object, error: Exception) -> None:
    """Count what the SDK raised on: mostly amounts that are no numbers."""
    if isinstance(amount, int | float):
        guard.caught(error)
    else:
        guard.drop(
            DropReason.NOT_A_NUMBER,
            f"A counter or histogram takes numbers (got {type(amount).__name__}). It is dropped.",
        )


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
