"""Instruments behind those of a meter: the SDK's, and copies for readers of the program."""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Protocol, TypeVar

from opentelemetry.metrics import Meter
from opentelemetry.sdk.util.instrumentation import InstrumentationScope

from otel_rl.worker.drops import DropReason
from otel_rl.worker.guard import Guard
from otel_rl.worker.late_copies import LateCopies
from otel_rl.worker.metrics.expander import MAX_NAME_LENGTH, SCOPE_NAME
from otel_rl.worker.metrics.gauge import BufferedGauge
from otel_rl.worker.metrics.instruments import RecordFunction
from otel_rl.worker.metrics.own_observables import Callbacks, OwnObservables
from otel_rl.worker.otlp.gauges import Stream
from otel_rl.worker.otlp.observed import ObservedKind

if TYPE_CHECKING:
    from otel_rl.worker.metrics.mirror import Mirror
    from otel_rl.worker.metrics.sdk_meters import SdkMeters

__all__ = ["Backing", "Instrumented", "instrument_name"]

MadeT = TypeVar("MadeT")


class Instrumented(Protocol):
    """Provider, as its meters need it."""

    @property
    def own(self) -> OwnObservables:
        """Observable instruments of otel_rl itself."""
        ...

    @property
    def mirrors(self) -> "Sequence[Mirror]":
        """Copies of the instruments for readers of the program."""
        ...

    @property
    def late_copies(self) -> LateCopies:
        """Values for those readers that a device has yet to compute."""
        ...

    @property
    def guard(self) -> Guard:
        """Catches errors."""
        ...

    @property
    def sdk(self) -> "SdkMeters":
        """Present SDK of counters and histograms."""
        ...


class Backing:
    """Creates the instruments behind those of one meter.

    Args:
        scope: Scope of the meter.
        provider: Its provider.
    """

    def __init__(self, scope: InstrumentationScope, provider: Instrumented) -> None:
        self._scope = scope
        self._provider = provider

    def records(
        self, create: Callable[[Meter], RecordFunction], *, advised: bool = False
    ) -> RecordFunction:
        """Create a counter or histogram, ``advised`` if it has explicit buckets."""
        own = create(self._provider.sdk.meter(self._scope, advised=advised))
        copies = self._copies(create)
        if not copies:
            return own
        from otel_rl.worker.metrics.mirror import recorded_in

        return recorded_in(own, copies, self._provider.guard)

    def observes(self, create: Callable[[Meter], object]) -> None:
        """Create an observable instrument."""
        if self._scope.name != SCOPE_NAME:
            create(self._provider.sdk.meter(self._scope))
        self._copies(create)

    def observe_own(
        self, kind: ObservedKind, name: str, callbacks: Callbacks, unit: str, description: str
    ) -> None:
        """Read the callbacks without the SDK, if they are otel_rl's own."""
        if self._scope.name == SCOPE_NAME:
            stream = Stream(self._scope, instrument_name(name), unit or "", description or "")
            self._provider.own.add(stream, kind, callbacks)

    def mirror_gauge(self, gauge: BufferedGauge) -> None:
        """Copy a gauge for the readers of the program, if there are any."""
        mirrors = self._provider.mirrors
        if not mirrors:
            return
        try:
            meters = [mirror.meter(self._scope) for mirror in mirrors]
            gauge.show_in(meters, self._provider.late_copies)
        except Exception as error:  # noqa: BLE001  # a bare one; the run takes more names
            guard = self._provider.guard
            guard.drops.add(DropReason.NOT_COPIED)
            guard.warn("copy", "Metric readers of the program do not get a gauge.", error=error)

    def _copies(self, create: Callable[[Meter], MadeT]) -> list[MadeT]:
        """Create the instrument for the readers of the program."""
        return [create(mirror.meter(self._scope)) for mirror in self._provider.mirrors]


def instrument_name(name: object) -> str:
    """Return the name.

    Raises:
        ValueError: It is no text, empty or too long.
    """
    if isinstance(name, str) and name.strip() and len(name) <= MAX_NAME_LENGTH:
        return name
    raise ValueError(f"a name must be text of 1 to {MAX_NAME_LENGTH} characters")
