"""Meter of a worker: gauges of its own, and handles of the SDK's other instruments.

A handle outlives the SDK's instrument: after a fork the sums belong to the parent, so the child
gets a new SDK, and user code keeps what it has.
"""

import math
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from typing import Final, Protocol, TypeVar, cast

from opentelemetry.context import Context, get_current
from opentelemetry.metrics import (
    CallbackOptions,
    CallbackT,
    Counter,
    Histogram,
    Instrument,
    Meter,
    NoOpMeter,
    ObservableCounter,
    ObservableGauge,
    ObservableUpDownCounter,
    Observation,
    UpDownCounter,
    _Gauge,
)
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from opentelemetry.util.types import Attributes, AttributeValue

from otel_rl.semconv.names import RL_LOOP_ITERATION, RL_TRAIN_TOKENS
from otel_rl.worker.drops import DropReason
from otel_rl.worker.guard import Guard
from otel_rl.worker.late_copies import LateCopies
from otel_rl.worker.metrics.gauges import (
    MAX_NAME_LENGTH,
    Buffer,
    BufferedGauge,
    Stream,
    without_step,
)
from otel_rl.worker.metrics.step_counts import Steps
from otel_rl.worker.tensors import NotANumber, as_step, hold, number

__all__ = ["BufferedMeter"]

InstrumentT = TypeVar("InstrumentT", bound=Instrument)

_Record = Callable[[float, Attributes, Context | None], None]
"""``add`` or ``record`` of an instrument."""


class Provider(Protocol):
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
    def steps(self) -> Steps:
        """Steps of the process."""
        ...

    @property
    def late_copies(self) -> LateCopies:
        """Values for readers of the program that a device has yet to compute."""
        ...

    def sdk_meter(self, scope: InstrumentationScope) -> Meter:
        """Return the present meter of the SDK."""
        ...

    def copies(self, scope: InstrumentationScope) -> Sequence[Meter]:
        """Return the meters of the SDK in which the program's own readers see a copy."""
        ...


class BufferedMeter(Meter):
    """Makes each instrument once. An instrument that the SDK refuses is a no-op, with a warning."""

    def __init__(self, scope: InstrumentationScope, provider: Provider) -> None:
        super().__init__(scope.name, scope.version, scope.schema_url)
        self._scope = scope
        self._provider = provider
        self._no_op = NoOpMeter(scope.name, scope.version, scope.schema_url)
        # Written with setdefault only, which is atomic: two threads get the same instrument.
        self._instruments: dict[tuple[str, ...], tuple[Instrument, Callable[[], object]]] = {}

    def rebind(self) -> None:
        """Put every instrument before the present ones of the SDK."""
        for _, bind in tuple(self._instruments.values()):
            with self._provider.guard:
                bind()

    def create_gauge(self, name: str, unit: str = "", description: str = "") -> _Gauge:
        """Create a gauge that sends every measurement. Accepts any non-empty name."""

        def make() -> tuple[BufferedGauge, Callable[[], object]]:
            if not name.strip() or len(name) > MAX_NAME_LENGTH:
                raise ValueError(f"a name must be text of 1 to {MAX_NAME_LENGTH} characters")
            stream = Stream(self._scope, name, unit or "", description or "")
            provider = self._provider
            gauge = BufferedGauge(stream, provider.buffer, provider.guard, provider.steps)
            self._copy_gauge(gauge, stream)
            return gauge, lambda: self._copy_gauge(gauge, stream)

        no_op = self._no_op.create_gauge
        return self._once(("gauge", name, unit, description), make, lambda: no_op(str(name)))

    def _copy_gauge(self, gauge: BufferedGauge, stream: Stream) -> None:
        meters = self._provider.copies(self._scope)
        if not meters:
            return
        try:
            copies = [
                meter.create_gauge(stream.name, stream.unit, stream.description) for meter in meters
            ]
        except Exception as error:  # noqa: BLE001  # a bare one; the run takes more names
            guard = self._provider.guard
            guard.drops.add(DropReason.NOT_COPIED)
            guard.warn("copy", "Metric readers of the program do not get a gauge.", error=error)
        else:
            gauge.show_in(copies, self._provider.late_copies)

    def create_counter(self, name: str, unit: str = "", description: str = "") -> Counter:
        """Create a counter, cumulative, that counts in steps, too."""
        return self._synchronous(
            _TokenCounter if name == RL_TRAIN_TOKENS else _Counter,
            ("counter", name, unit, description),
            lambda meter: meter.create_counter(name, unit, description).add,
            lambda: self._no_op.create_counter(str(name)),
        )

    def create_up_down_counter(
        self, name: str, unit: str = "", description: str = ""
    ) -> UpDownCounter:
        """Create an up-down counter, cumulative."""
        return self._synchronous(
            _UpDownCounter,
            ("up_down_counter", name, unit, description),
            lambda meter: meter.create_up_down_counter(name, unit, description).add,
            lambda: self._no_op.create_up_down_counter(str(name)),
        )

    def create_histogram(
        self,
        name: str,
        unit: str = "",
        description: str = "",
        *,
        explicit_bucket_boundaries_advisory: Sequence[float] | None = None,
    ) -> Histogram:
        """Create a histogram, delta and exponential: finer than any advised buckets.

        Readers of the program get the advised ones.
        """
        buckets = explicit_bucket_boundaries_advisory
        return self._synchronous(
            _Histogram,
            ("histogram", name, unit, description),
            lambda meter: (
                meter.create_histogram(
                    name, unit, description, explicit_bucket_boundaries_advisory=buckets
                ).record
            ),
            lambda: self._no_op.create_histogram(str(name)),
        )

    def create_observable_counter(
        self,
        name: str,
        callbacks: Sequence[CallbackT] | None = None,
        unit: str = "",
        description: str = "",
    ) -> ObservableCounter:
        """Create the SDK's observable counter, cumulative; read once per export."""
        plain = _plain_callbacks(callbacks, self._provider.guard)
        return self._observable(
            ("observable_counter", name, unit, description),
            lambda meter: meter.create_observable_counter(name, plain, unit, description),
            lambda: self._no_op.create_observable_counter(str(name)),
        )

    def create_observable_gauge(
        self,
        name: str,
        callbacks: Sequence[CallbackT] | None = None,
        unit: str = "",
        description: str = "",
    ) -> ObservableGauge:
        """Create the SDK's observable gauge; read once per export."""
        plain = _plain_callbacks(callbacks, self._provider.guard)
        return self._observable(
            ("observable_gauge", name, unit, description),
            lambda meter: meter.create_observable_gauge(name, plain, unit, description),
            lambda: self._no_op.create_observable_gauge(str(name)),
        )

    def create_observable_up_down_counter(
        self,
        name: str,
        callbacks: Sequence[CallbackT] | None = None,
        unit: str = "",
        description: str = "",
    ) -> ObservableUpDownCounter:
        """Create the SDK's observable up-down counter; read once per export."""
        plain = _plain_callbacks(callbacks, self._provider.guard)
        return self._observable(
            ("observable_up_down_counter", name, unit, description),
            lambda meter: meter.create_observable_up_down_counter(name, plain, unit, description),
            lambda: self._no_op.create_observable_up_down_counter(str(name)),
        )

    def _synchronous(
        self,
        kind: Callable[["Provider", InstrumentationScope, str], InstrumentT],
        key: tuple[str, str, str, str],
        create: Callable[[Meter], _Record],
        no_op: Callable[[], InstrumentT],
    ) -> InstrumentT:
        def make() -> tuple[InstrumentT, Callable[[], object]]:
            handle = kind(self._provider, self._scope, key[1])

            def bind() -> None:
                meters = self._provider.copies(self._scope)
                cast("_Handle", handle).bind(
                    create(self._provider.sdk_meter(self._scope)), [*map(create, meters)]
                )

            bind()
            return handle, bind

        return self._once(key, make, no_op)

    def _observable(
        self,
        key: tuple[str, str, str, str],
        create: Callable[[Meter], InstrumentT],
        no_op: Callable[[], InstrumentT],
    ) -> InstrumentT:
        """Return the first of them: nobody calls an observable instrument."""

        def bind() -> InstrumentT:
            first = create(self._provider.sdk_meter(self._scope))
            for meter in self._provider.copies(self._scope):
                create(meter)
            return first

        return self._once(key, lambda: (bind(), bind), no_op)

    def _once(
        self,
        key: tuple[str, str, str, str],
        make: Callable[[], tuple[InstrumentT, Callable[[], object]]],
        no_op: Callable[[], InstrumentT],
    ) -> InstrumentT:
        """Return the instrument of ``key``: made at the first call, then always the same."""
        kind, name, unit, description = key
        try:
            # Names are case-insensitive; the spelling of the first one is kept.
            where = (kind, name.lower(), unit, description)
            found = self._instruments.get(where)
            if found is None:
                found = self._instruments.setdefault(where, make())
            return cast("InstrumentT", found[0])
        except Exception as error:  # noqa: BLE001  # the SDK raises bare Exceptions on bad names
            self._provider.guard.warn(
                "instrument",
                f"The {kind} {name!r} cannot be made ({error}). It records nothing. "
                "Use up to 255 letters, digits and _ . - / after a letter.",
            )
            return no_op()


class _Handle:
    """Counter or histogram of the SDK, and its copies. Never raises.

    Args:
        provider: Counts amounts that cannot be recorded.
        scope: Of the instrument.
        name: Of the instrument.
    """

    _lowest: float = 0.0

    def __init__(self, provider: Provider, scope: InstrumentationScope, name: str) -> None:
        self._guard = provider.guard
        self._scope = scope
        self._steps = provider.steps
        self._name = name

    def bind(self, record: _Record, copies: Sequence[_Record]) -> None:
        """Record in these instruments of the SDK from now on."""
        self._record_in_sdk, self._copies = record, copies

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
            if self._copies:
                copied = without_step(attributes)
                for copy in self._copies:
                    with self._guard:
                        copy(plain, copied, context)
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


class _Counter(_Handle, Counter):
    add = _Handle.count


class _TokenCounter(_Counter):
    """Counter from whose steps the utilization of the model is computed."""

    def _recorded(self, amount: float, attributes: Attributes, context: Context | None) -> None:
        self._steps.add_tokens(amount, attributes, context or get_current())


class _UpDownCounter(_Handle, UpDownCounter):
    _lowest = -math.inf
    add = _Handle.count


class _Histogram(_Handle, Histogram):
    record = _Handle.count

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


def _plain_callbacks(
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
