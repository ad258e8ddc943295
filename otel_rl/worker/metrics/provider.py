"""MeterProvider behind the OpenTelemetry API in an otel_rl worker.

    gauge.set ----------> Buffer ----> GaugeEncoder ----> RequestPacker ----> requests
    counter.add, ... ---> the SDK's MeterProvider ------> RequestPacker

Synchronous gauges keep every measurement (ADR 0) at a tenth of the SDK's cost; all other
instruments are the SDK's own. What counters and histograms count during a step is in the exemplars
of their points (ADR 15). Instruments in user code survive a fork.
"""

import math
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from threading import Lock
from time import time_ns
from typing import ClassVar, Final, TypeVar, cast

from opentelemetry.context import Context, get_current
from opentelemetry.metrics import (
    CallbackOptions,
    CallbackT,
    Counter,
    Histogram,
    Instrument,
    Meter,
    MeterProvider,
    NoOpMeter,
    ObservableCounter,
    ObservableGauge,
    ObservableUpDownCounter,
    Observation,
    UpDownCounter,
    _Gauge,
)
from opentelemetry.sdk.metrics import AlwaysOnExemplarFilter
from opentelemetry.sdk.metrics import Histogram as SdkHistogram
from opentelemetry.sdk.metrics import MeterProvider as SdkMeterProvider
from opentelemetry.sdk.metrics.export import (
    AggregationTemporality,
    InMemoryMetricReader,
    MetricReader,
)
from opentelemetry.sdk.metrics.view import ExponentialBucketHistogramAggregation
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from opentelemetry.util.types import Attributes, AttributeValue

from otel_rl.semconv.names import (
    OTEL_RL_WORKER_MEASUREMENTS_DROPPED,
    RL_LOOP_ITERATION,
    RL_TRAIN_TOKENS,
)
from otel_rl.signals import Signal
from otel_rl.version import __version__
from otel_rl.worker.drops import DropReason, Drops
from otel_rl.worker.guard import Guard
from otel_rl.worker.metrics.gauges import (
    MAX_NAME_LENGTH,
    SCOPE_NAME,
    Buffer,
    BufferedGauge,
    GaugeEncoder,
    Stream,
    pack_heartbeat,
    without_step,
)
from otel_rl.worker.metrics.step_counts import Steps, add_zeros, views_of
from otel_rl.worker.otlp.requests import (
    Intervals,
    Request,
    RequestPacker,
    encode_resource,
    pack_collected,
)
from otel_rl.worker.tensors import NotANumber, as_step, hold, number

InstrumentT = TypeVar("InstrumentT", bound=Instrument)
HandleT = TypeVar("HandleT", bound="Handle")

Record = Callable[[float, Attributes, Context | None], None]
"""``add`` or ``record`` of an instrument of the SDK."""

_About = tuple[str, str, str]
"""(name, unit, description) of an instrument."""

_NO_OP: Final = NoOpMeter("otel_rl")
"""Its methods make instruments that record nothing; a meter of the SDK has those of these names."""


class BufferedMeterProvider(MeterProvider):
    """MeterProvider of a worker. Instruments are thread-safe; only the exporter thread collects."""

    def __init__(self, resource: Resource, guard: Guard, buffer: Buffer | None = None) -> None:
        self.buffer = Buffer() if buffer is None else buffer
        self.guard = guard
        self.steps = Steps(guard)
        """Steps of the process."""
        self.flush: Callable[[float], bool] | None = None
        """Sends the measurements, within some seconds. They wait while it is None."""
        # Written with setdefault only, which is atomic: two threads get the same meter.
        self._meters: dict[InstrumentationScope, BufferedMeter] = {}
        self._drops = [guard.drops]
        self._begin()
        self._bind(resource)
        self.get_meter(SCOPE_NAME, __version__).create_observable_counter(
            OTEL_RL_WORKER_MEASUREMENTS_DROPPED,
            [guard.drops.observe],
            unit="{measurement}",
            description="Measurements that this worker could not deliver.",
        )

    def _begin(self) -> None:
        self._collected_ns = time_ns()  # all earlier records have been collected
        self._intervals = Intervals(self._collected_ns)
        self._gauges = GaugeEncoder(self.guard, self._intervals)

    def _bind(self, resource: Resource) -> None:
        self._resource = resource
        self._resource_bytes = encode_resource(resource)
        # _lock guards the dict below: by the name of a scope, because a provider with Views warns
        # of instruments of one name, such as the ``http.client.duration`` of two HTTP clients.
        self._lock = Lock()
        self._sdk: dict[str, tuple[SdkMeterProvider, InMemoryMetricReader]] = {}

    @property
    def resource(self) -> Resource:
        return self._resource

    def get_meter(
        self,
        name: str,
        version: str | None = None,
        schema_url: str | None = None,
        attributes: Attributes = None,
    ) -> Meter:
        """See ``opentelemetry.metrics.MeterProvider.get_meter``. Never raises."""
        try:
            scope = InstrumentationScope(str(name or ""), version, schema_url, attributes)
            return self._meters.setdefault(scope, BufferedMeter(scope, self))
        except Exception as error:  # noqa: BLE001  # nothing may raise into training code
            self.guard.caught(error)
            return NoOpMeter(str(name))

    def sdk_meter(self, scope: InstrumentationScope) -> Meter:
        """Return the SDK's meter of a scope, for every instrument but synchronous gauges.

        Counters are cumulative, so that a lost export loses no total. Histograms are delta and
        exponential, so that minimum and maximum belong to the interval and merging is exact.
        """
        with self._lock:
            found = self._sdk.get(scope.name)
            if found is None:
                reader = InMemoryMetricReader(
                    {SdkHistogram: AggregationTemporality.DELTA},
                    {SdkHistogram: ExponentialBucketHistogramAggregation()},
                )
                provider = SdkMeterProvider(
                    [reader],
                    self._resource,
                    exemplar_filter=AlwaysOnExemplarFilter(),
                    shutdown_on_exit=False,
                    views=views_of(self.steps),
                )
                found = self._sdk[scope.name] = provider, reader
        return found[0].get_meter(scope.name, scope.version, scope.schema_url, scope.attributes)

    def force_flush(self, timeout_millis: float = 10_000) -> bool:
        """Send everything recorded so far. Returns whether the endpoint has accepted it."""
        flush = self.flush
        return flush is None or flush(timeout_millis / 1000)

    def shutdown(self, timeout_millis: float = 30_000) -> None:
        """Flush for a program that shuts down its metrics; otel_rl continues. Never raises."""
        self.force_flush(timeout_millis)

    def add_metric_reader(self, metric_reader: MetricReader) -> None:
        """Log that the reader gets nothing, as measurements go to the run. Never raises."""
        self.guard.warn(
            "readers",
            f"A {type(metric_reader).__name__} was added to otel_rl's MeterProvider and gets "
            "nothing. Give it to a MeterProvider of your own, and set that one before "
            "otel_rl.init() and before any library asks for a meter.",
        )

    def remove_metric_reader(self, metric_reader: MetricReader) -> None:
        """Do nothing, because no reader was added."""

    def collect(self, *, with_heartbeat: bool = False) -> list[Request]:
        """Return everything recorded since the last call, as requests ready to send.

        Args:
            with_heartbeat: Whether to add a heartbeat to the last request, if there is one. Only a
                heartbeat advances the worker's watermark, not the points' own times: training
                continues while the SDK collects, and records of that time are older than the SDK's
                points but belong to the next call.
        """
        packer = self._packer()
        collected_ns = time_ns()
        if self.buffer.entries:
            unready = self._gauges.pack(self.buffer.take_all(), packer)
            self.buffer.put_back(unready)
        self.steps.abandon_orphans()
        zeros = self.steps.take_zeros()
        for reader in self._sdk_readers():
            with self.guard:
                data = reader.get_metrics_data()
                if data is not None:
                    add_zeros(zeros, data)
                    lost = pack_collected(data, self._intervals, packer)
                    self.guard.drops.add(DropReason.TOO_LARGE, lost)
        self.steps.zeros_left(zeros, self._collected_ns)
        self._collected_ns = min(collected_ns, self.buffer.unready_since_ns or collected_ns)
        if with_heartbeat and packer.has_items:
            pack_heartbeat(packer, self._collected_ns)
        return packer.requests()

    def _sdk_readers(self) -> Sequence[InMemoryMetricReader]:
        with self._lock:
            return [reader for _, reader in self._sdk.values()]

    def heartbeat(self) -> Request:
        """Return a request that renews the lease; its watermark is the last ``collect``.

        It is sent alone if there is nothing else to send.
        """
        packer = self._packer()
        pack_heartbeat(packer, self._collected_ns)
        (request,) = packer.requests()
        return request

    def _packer(self) -> RequestPacker:
        return RequestPacker(self._resource_bytes, Signal.METRICS)

    def discard(self) -> None:
        """Forget the measurements since the last call."""
        self.buffer.clear()
        self.steps.abandon_orphans()
        for reader in self._sdk_readers():
            with self.guard:
                reader.get_metrics_data()

    def restart(self, resource: Resource, *, keep_buffer: bool) -> None:
        """Start over with another resource; instruments in user code stay valid.

        Sums and histograms start from zero. In a forked child the buffer is emptied, because the
        parent sends its content.
        """
        if not keep_buffer:
            self.buffer.forget()
            self.steps.forget()
            self._begin()
        for drops in tuple(self._drops):
            drops.begin_anew()
        self._bind(resource)
        for meter in tuple(self._meters.values()):
            meter.rebind()

    def counts_anew(self, drops: Drops) -> None:
        """Reset ``drops``, which an instrument of this provider reports, at each restart."""
        self._drops.append(drops)


class BufferedMeter(Meter):
    """Makes each instrument once; one that the SDK refuses becomes a no-op, with a warning."""

    def __init__(self, scope: InstrumentationScope, provider: BufferedMeterProvider) -> None:
        super().__init__(scope.name, scope.version, scope.schema_url)
        self._scope = scope
        self._provider = provider
        # Each with what puts it before the present instruments of the SDK. Written with setdefault
        # only, which is atomic: two threads get the same instrument.
        self._instruments: dict[tuple[str, ...], tuple[Instrument, Callable[[], object]]] = {}

    def rebind(self) -> None:
        """Connect every instrument to the present instruments of the SDK."""
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
            gauge = BufferedGauge(stream, provider.buffer, provider.guard)
            return gauge, lambda: None

        return self._once(_NO_OP.create_gauge, (name, unit, description), make)

    def create_counter(self, name: str, unit: str = "", description: str = "") -> Counter:
        """Create a cumulative counter, which also counts in steps."""
        handle = TokenCounterHandle if name == RL_TRAIN_TOKENS else CounterHandle
        return self._synchronous(_NO_OP.create_counter, handle, (name, unit, description))

    def create_up_down_counter(
        self, name: str, unit: str = "", description: str = ""
    ) -> UpDownCounter:
        about = name, unit, description
        return self._synchronous(_NO_OP.create_up_down_counter, UpDownCounterHandle, about)

    def create_histogram(
        self,
        name: str,
        unit: str = "",
        description: str = "",
        *,
        explicit_bucket_boundaries_advisory: Sequence[float] | None = None,
    ) -> Histogram:
        """Create a delta, exponential histogram, which is finer than any advised buckets."""
        return self._synchronous(
            _NO_OP.create_histogram,
            HistogramHandle,
            (name, unit, description),
            explicit_bucket_boundaries_advisory=explicit_bucket_boundaries_advisory,
        )

    def create_observable_counter(
        self,
        name: str,
        callbacks: Sequence[CallbackT] | None = None,
        unit: str = "",
        description: str = "",
    ) -> ObservableCounter:
        """Create the SDK's observable counter, cumulative; read once per export."""
        about = name, unit, description
        return self._observable(_NO_OP.create_observable_counter, callbacks, about)

    def create_observable_gauge(
        self,
        name: str,
        callbacks: Sequence[CallbackT] | None = None,
        unit: str = "",
        description: str = "",
    ) -> ObservableGauge:
        """Create the SDK's observable gauge; read once per export."""
        about = name, unit, description
        return self._observable(_NO_OP.create_observable_gauge, callbacks, about)

    def create_observable_up_down_counter(
        self,
        name: str,
        callbacks: Sequence[CallbackT] | None = None,
        unit: str = "",
        description: str = "",
    ) -> ObservableUpDownCounter:
        """Create the SDK's observable up-down counter; read once per export."""
        about = name, unit, description
        return self._observable(_NO_OP.create_observable_up_down_counter, callbacks, about)

    def _synchronous(
        self,
        create: Callable[..., Instrument],
        kind: type[HandleT],
        about: _About,
        **advice: Sequence[float] | None,
    ) -> HandleT:
        """Return the handle of an instrument that ``create`` makes from any meter."""

        def record_of(meter: Meter) -> Record:
            made = getattr(meter, create.__name__)(*about, **advice)
            return cast("Record", getattr(made, kind.verb))

        def make() -> tuple[HandleT, Callable[[], object]]:
            provider = self._provider
            handle = kind(self._scope, about[0], provider.guard, provider.steps)

            def bind() -> None:
                handle.bind(record_of(provider.sdk_meter(self._scope)))

            bind()
            return handle, bind

        return self._once(create, about, make)

    def _observable(
        self,
        create: Callable[..., InstrumentT],
        callbacks: Sequence[CallbackT] | None,
        about: _About,
    ) -> InstrumentT:
        """Return the SDK's own instrument, as the program does not call an observable one."""
        name, unit, description = about
        plain = plain_callbacks(callbacks, self._provider.guard)

        def bind() -> InstrumentT:
            meter = self._provider.sdk_meter(self._scope)
            made = getattr(meter, create.__name__)(name, plain, unit, description)
            return cast("InstrumentT", made)

        return self._once(create, about, lambda: (bind(), bind))

    def _once(
        self,
        create: Callable[..., Instrument],
        about: _About,
        make: Callable[[], tuple[InstrumentT, Callable[[], object]]],
    ) -> InstrumentT:
        """Return the instrument that ``make`` made first; after an error a no-op of ``create``."""
        name, unit, description = about
        kind = create.__name__.removeprefix("create_")
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
            return cast("InstrumentT", create(str(name)))


class Handle(Instrument):
    """Handle of the SDK's counter or histogram. Never raises."""

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
        """Return the attributes with an ``int`` as step: the SDK turns other integers into text."""
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
        """Note a recorded amount, in subclasses that need it."""


class CounterHandle(Handle, Counter):
    """Counter of a program."""

    add = Handle.count


class TokenCounterHandle(CounterHandle):
    """Counter whose growth in a step gives the utilization of the model."""

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
    """Convert an amount for the SDK; None, and counted, if it cannot be added.

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

    The API also accepts generators; the SDK starts generators on registration, which works only
    once.
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
