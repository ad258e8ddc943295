"""Meter of a worker: makes each instrument once."""

from collections.abc import Callable, Sequence
from typing import Protocol, TypeVar, cast

from opentelemetry.metrics import (
    CallbackT,
    Counter,
    Histogram,
    Instrument,
    Meter,
    NoOpMeter,
    ObservableCounter,
    ObservableGauge,
    ObservableUpDownCounter,
    UpDownCounter,
    _Gauge,
)
from opentelemetry.sdk.util.instrumentation import InstrumentationScope

from otel_rl.worker.guard import Guard
from otel_rl.worker.metrics.backing import Backing, Instrumented, instrument_name
from otel_rl.worker.metrics.buffer import Buffer
from otel_rl.worker.metrics.gauge import BufferedGauge
from otel_rl.worker.metrics.instruments import (
    BoundCounter,
    BoundHistogram,
    BoundObservableCounter,
    BoundObservableGauge,
    BoundObservableUpDownCounter,
    BoundUpDownCounter,
    Rebindable,
    plain_callbacks,
)
from otel_rl.worker.metrics.step_shares import StepShares
from otel_rl.worker.otlp.gauges import Stream
from otel_rl.worker.otlp.observed import ObservedKind
from otel_rl.worker.otlp.step_shares import ShareStream

__all__ = ["BufferedMeter", "Provider"]

InstrumentT = TypeVar("InstrumentT", bound=Instrument)


class Provider(Instrumented, Protocol):
    """Provider, as its meters need it."""

    @property
    def buffer(self) -> Buffer:
        """Buffer of the gauges."""
        ...

    @property
    def guard(self) -> Guard:
        """Counts losses and catches errors."""
        ...

    @property
    def steps(self) -> StepShares:
        """Counts of the step in progress."""
        ...


class BufferedMeter(Meter):
    """Makes each instrument once. An instrument that the SDK refuses is a no-op, with a warning."""

    def __init__(self, scope: InstrumentationScope, provider: Provider) -> None:
        super().__init__(scope.name, scope.version, scope.schema_url)
        self._scope = scope
        self._provider = provider
        self._backing = Backing(scope, provider)
        self._no_op = NoOpMeter(scope.name, scope.version, scope.schema_url)
        # Written with setdefault only, which is atomic: two threads get the same instrument.
        self._instruments: dict[tuple[str, ...], Instrument] = {}

    def rebind(self) -> None:
        """Replace the SDK instrument behind every instrument."""
        for instrument in tuple(self._instruments.values()):
            with self._provider.guard:
                if isinstance(instrument, BufferedGauge):
                    self._backing.mirror_gauge(instrument)
                elif isinstance(instrument, Rebindable):
                    instrument.rebind()

    def create_gauge(self, name: str, unit: str = "", description: str = "") -> _Gauge:
        """Create a gauge that sends every measurement. Accepts any non-empty name."""

        def make() -> BufferedGauge:
            stream = Stream(self._scope, instrument_name(name), unit or "", description or "")
            provider = self._provider
            gauge = BufferedGauge(stream, provider.buffer, provider.guard, provider.steps)
            self._backing.mirror_gauge(gauge)
            return gauge

        key = ("gauge", name, unit, description)
        return self._once(key, make, lambda: self._no_op.create_gauge(name))

    def create_counter(self, name: str, unit: str = "", description: str = "") -> Counter:
        """Create the SDK's counter, cumulative."""

        def make() -> BoundCounter:
            return BoundCounter(
                lambda: self._backing.records(
                    lambda meter: meter.create_counter(name, unit, description).add
                ),
                self._provider.guard,
                self._provider.steps,
                ShareStream(self._scope, name, unit or "", description or "", is_histogram=False),
            )

        key = ("counter", name, unit, description)
        return self._once(key, make, lambda: self._no_op.create_counter(name))

    def create_up_down_counter(
        self, name: str, unit: str = "", description: str = ""
    ) -> UpDownCounter:
        """Create the SDK's up-down counter, cumulative."""

        def make() -> BoundUpDownCounter:
            return BoundUpDownCounter(
                lambda: self._backing.records(
                    lambda meter: meter.create_up_down_counter(name, unit, description).add
                ),
                self._provider.guard,
                name,
            )

        key = ("up_down_counter", name, unit, description)
        return self._once(key, make, lambda: self._no_op.create_up_down_counter(name))

    def create_histogram(
        self,
        name: str,
        unit: str = "",
        description: str = "",
        *,
        explicit_bucket_boundaries_advisory: Sequence[float] | None = None,
    ) -> Histogram:
        """Create the SDK's histogram, delta; exponential unless explicit buckets are advised."""
        buckets = explicit_bucket_boundaries_advisory

        def make() -> BoundHistogram:
            return BoundHistogram(
                lambda: self._backing.records(
                    lambda meter: (
                        meter.create_histogram(
                            name, unit, description, explicit_bucket_boundaries_advisory=buckets
                        ).record
                    ),
                    advised=buckets is not None,
                ),
                self._provider.guard,
                self._provider.steps,
                ShareStream(self._scope, name, unit or "", description or "", is_histogram=True),
            )

        key = ("histogram", name, unit, description)
        return self._once(key, make, lambda: self._no_op.create_histogram(name))

    def create_observable_counter(
        self,
        name: str,
        callbacks: Sequence[CallbackT] | None = None,
        unit: str = "",
        description: str = "",
    ) -> ObservableCounter:
        """Create the SDK's observable counter, cumulative; read once per export."""
        plain = plain_callbacks(callbacks, self._provider.guard)

        def make() -> BoundObservableCounter:
            self._backing.observe_own(ObservedKind.COUNTER, name, plain, unit, description)
            return BoundObservableCounter(
                lambda: self._backing.observes(
                    lambda meter: meter.create_observable_counter(name, plain, unit, description)
                )
            )

        key = ("observable_counter", name, unit, description)
        return self._once(key, make, lambda: self._no_op.create_observable_counter(name))

    def create_observable_gauge(
        self,
        name: str,
        callbacks: Sequence[CallbackT] | None = None,
        unit: str = "",
        description: str = "",
    ) -> ObservableGauge:
        """Create the SDK's observable gauge; read once per export."""
        plain = plain_callbacks(callbacks, self._provider.guard)

        def make() -> BoundObservableGauge:
            self._backing.observe_own(ObservedKind.GAUGE, name, plain, unit, description)
            return BoundObservableGauge(
                lambda: self._backing.observes(
                    lambda meter: meter.create_observable_gauge(name, plain, unit, description)
                )
            )

        key = ("observable_gauge", name, unit, description)
        return self._once(key, make, lambda: self._no_op.create_observable_gauge(name))

    def create_observable_up_down_counter(
        self,
        name: str,
        callbacks: Sequence[CallbackT] | None = None,
        unit: str = "",
        description: str = "",
    ) -> ObservableUpDownCounter:
        """Create the SDK's observable up-down counter; read once per export."""
        plain = plain_callbacks(callbacks, self._provider.guard)

        def make() -> BoundObservableUpDownCounter:
            self._backing.observe_own(ObservedKind.UP_DOWN_COUNTER, name, plain, unit, description)
            return BoundObservableUpDownCounter(
                lambda: self._backing.observes(
                    lambda meter: meter.create_observable_up_down_counter(
                        name, plain, unit, description
                    )
                )
            )

        key = ("observable_up_down_counter", name, unit, description)
        return self._once(key, make, lambda: self._no_op.create_observable_up_down_counter(name))

    def _once(
        self,
        key: tuple[str, str, str, str],
        make: Callable[[], InstrumentT],
        no_op: Callable[[], InstrumentT],
    ) -> InstrumentT:
        """Return the instrument of ``key``: made at the first call, then always the same."""
        kind, name, unit, description = key
        try:
            # Names are case-insensitive; the spelling of the first one is kept.
            found = self._instruments.get((kind, name.lower(), unit, description))
            if found is None:
                found = self._instruments.setdefault(
                    (kind, name.lower(), unit, description), make()
                )
            return cast("InstrumentT", found)
        except Exception as error:  # noqa: BLE001  # the SDK raises bare Exceptions on bad names
            self._provider.guard.warn(
                "instrument",
                f"The {kind} {name!r} cannot be made ({error}). It records nothing. "
                "Use up to 255 letters, digits and _ . - / after a letter.",
            )
            return no_op()
