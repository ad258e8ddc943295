"""MeterProvider behind the OpenTelemetry API in an otel_rl worker.

    gauge.set ----------> Buffer --Expander--> Encoder ---> RequestPacker ---> requests
    counter.add, ... ---> SdkMeters -------------------> RequestPacker
                     '---> StepShares ----> encode_shares -> RequestPacker
    otel_rl's callbacks -> OwnObservables --------------> RequestPacker

Synchronous gauges keep every measurement (ADR 0000) at a tenth of the SDK's cost; all other
instruments of the program are the SDK's own, which the first of them loads; what counters and
histograms count during a step is sent beside it (ADR 0015). Instruments in user code survive a
fork.
"""

from collections.abc import Callable, Sequence
from time import monotonic, time_ns
from typing import TYPE_CHECKING, Protocol, TypeVar, cast

from opentelemetry.context import Context, get_current
from opentelemetry.metrics import (
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
    UpDownCounter,
    _Gauge,
)
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from opentelemetry.util.types import AnyValue, Attributes

from otel_rl.semconv.names import (
    OTEL_RL_WORKER_HEARTBEAT,
    OTEL_RL_WORKER_MEASUREMENTS_DROPPED,
    RL_LOOP_ITERATION,
)
from otel_rl.signals import Signal
from otel_rl.version import __version__
from otel_rl.worker.drops import DropReason, Drops
from otel_rl.worker.guard import Guard
from otel_rl.worker.metrics.buffer import Buffer
from otel_rl.worker.metrics.expander import MAX_NAME_LENGTH, SCOPE_NAME, Expander
from otel_rl.worker.metrics.instruments import (
    Adds,
    BoundCounter,
    BoundHistogram,
    BoundObservableCounter,
    BoundObservableGauge,
    BoundObservableUpDownCounter,
    BoundUpDownCounter,
    Rebindable,
    Records,
    plain_callbacks,
)
from otel_rl.worker.metrics.own_observables import Callbacks, OwnObservables
from otel_rl.worker.metrics.step_shares import StepShares
from otel_rl.worker.otlp.gauges import Stream, encode_heartbeat
from otel_rl.worker.otlp.intervals import Intervals
from otel_rl.worker.otlp.observed import ObservedKind
from otel_rl.worker.otlp.request_packer import Request, RequestPacker, encode_resource
from otel_rl.worker.otlp.step_shares import ShareStream, encode_shares
from otel_rl.worker.tensors import PLAIN, NotANumber, hold, number

if TYPE_CHECKING:
    from opentelemetry.sdk.metrics.export import MetricReader

    from otel_rl.worker.metrics.mirror import Mirror
    from otel_rl.worker.metrics.sdk_meters import SdkMeters

__all__ = ["BUFFER_FULL", "BufferedGauge", "BufferedMeterProvider"]

BUFFER_FULL = (
    "More measurements were made between two exports than the buffer holds; the newest are "
    "dropped. Record less often, or shorten the export interval."
)

_HEARTBEAT = Stream(InstrumentationScope(SCOPE_NAME, __version__), OTEL_RL_WORKER_HEARTBEAT, "1")

InstrumentT = TypeVar("InstrumentT", bound=Instrument)
MadeT = TypeVar("MadeT")


class BufferedGauge(_Gauge):
    """Synchronous gauge that keeps every measurement. ``set`` never raises and never waits.

    Args:
        stream: Its identity on the wire.
        buffer: Receives the measurements.
        guard: Counts losses.
        steps: Of the process.
    """

    def __init__(self, stream: Stream, buffer: Buffer, guard: Guard, steps: StepShares) -> None:
        self._stream = stream
        self._steps = steps
        self._entries = buffer.entries
        self._capacity = buffer.capacity
        self._guard = guard

    def set(
        self,
        amount: float,
        attributes: Attributes = None,
        context: Context | None = None,
    ) -> None:
        """Record ``amount`` now. The attributes are copied, so the caller may reuse the dict."""
        try:
            if len(self._entries) < self._capacity:
                kept: dict[str, AnyValue] | int | None = None
                now_ns = time_ns()
                if attributes:
                    step = attributes.get(RL_LOOP_ITERATION)
                    # The common case is the step alone; a dict each would be half of the buffer.
                    kept = step if len(attributes) == 1 and type(step) is int else {**attributes}
                    if step is not None and self._steps.follows_gauges:
                        self._steps.reached(step, now_ns)
                self._entries.append(
                    (
                        self._stream,
                        amount if type(amount) in PLAIN else hold(amount),
                        kept,
                        now_ns,
                        context or get_current(),
                    )
                )
            else:
                self._guard.drop(DropReason.BUFFER_FULL, BUFFER_FULL)
        except (TypeError, AttributeError):
            self._guard.drop(
                DropReason.BAD_ATTRIBUTES,
                f"{self._stream.name}: attributes must be a mapping with text keys "
                f"(got {type(attributes).__name__}). The measurement is dropped.",
            )
        except Exception as error:  # noqa: BLE001  # nothing may raise into training code
            self._guard.caught(error)

    def show_in(self, meter: Meter) -> None:
        """Record the values in a gauge of ``meter`` as well, from now on."""
        stream = self._stream
        self._mirrored = meter.create_gauge(stream.name, stream.unit, stream.description)
        # Replaces a check in each ``set``, which runs in training loops.
        self.__class__ = _MirroredGauge


class _MirroredGauge(BufferedGauge):
    """Gauge that readers of the program receive, too."""

    _mirrored: _Gauge

    def set(
        self,
        amount: float,
        attributes: Attributes = None,
        context: Context | None = None,
    ) -> None:
        """See ``BufferedGauge``."""
        super().set(amount, attributes, context)
        with self._guard:
            plain = amount if type(amount) in PLAIN else number(hold(amount))
            if not isinstance(plain, NotANumber):
                self._mirrored.set(plain, attributes, context)


class Reader(Protocol):
    """Sender of a provider's measurements."""

    def flush(self, timeout_s: float) -> bool:
        """Send all measurements. True if that finished in time."""
        ...


class BufferedMeterProvider(MeterProvider):
    """MeterProvider of a worker. Instruments are thread-safe; only the exporter thread collects.

    Args:
        resource: Resource of the measurements.
        guard: Catches and counts errors before they reach training code.
        buffer: Buffer of the gauges.
    """

    def __init__(self, resource: Resource, guard: Guard, buffer: Buffer | None = None) -> None:
        self.buffer = Buffer() if buffer is None else buffer
        self.guard = guard
        self.steps = StepShares(guard)
        """Counts of the step in progress."""
        self.reader: Reader | None = None
        """Sender of the measurements. They wait while it is None."""
        self.mirror: Mirror | None = None
        """Copy of the instruments for readers of the program; None without such readers."""
        self._collected_ns = 0  # all earlier records have been collected
        self.own = OwnObservables(guard)
        """Observable instruments of otel_rl itself."""
        self._begin()
        # Written with setdefault only, which is atomic: two threads get the same meter.
        self._meters: dict[InstrumentationScope, _BufferedMeter] = {}
        self._drops = [guard.drops]
        self._bind(resource)
        self.get_meter(SCOPE_NAME, __version__).create_observable_counter(
            OTEL_RL_WORKER_MEASUREMENTS_DROPPED,
            [guard.drops.observe],
            unit="{measurement}",
            description="Measurements that this worker could not deliver.",
        )

    @property
    def resource(self) -> Resource:
        """Present resource of the measurements."""
        return self._resource

    @property
    def sdk(self) -> "SdkMeters":
        """Present SDK of counters and histograms, loaded at the first use."""
        from otel_rl.worker.metrics.sdk_meters import SdkMeters  # 3 MB that few workers need

        # setdefault is atomic: two threads get the same.
        found = self._sdk.get(None)
        return self._sdk.setdefault(None, SdkMeters(self._resource)) if found is None else found

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
            return self._meters.setdefault(scope, _BufferedMeter(scope, self))
        except Exception as error:  # noqa: BLE001  # nothing may raise into training code
            self.guard.caught(error)
            return NoOpMeter(str(name))

    def force_flush(self, timeout_millis: float = 10_000) -> bool:
        """Send everything recorded before the call, spans and events too. Never raises.

        Returns:
            True if the endpoint and the program's readers have accepted it.
        """
        until_s = monotonic() + timeout_millis / 1000
        reader, mirror = self.reader, self.mirror
        is_delivered = reader is None or reader.flush(timeout_millis / 1000)
        if mirror is not None:
            is_delivered &= mirror.flush(max(0.0, until_s - monotonic()))
        return is_delivered

    def shutdown(self, timeout_millis: float = 30_000) -> None:
        """Flush for a program that shuts down its metrics; otel_rl continues. Never raises."""
        until_s = monotonic() + timeout_millis / 1000
        reader, mirror = self.reader, self.mirror
        if reader is not None:
            reader.flush(timeout_millis / 1000)
        if mirror is not None:
            mirror.shutdown(max(0.0, until_s - monotonic()))

    def add_metric_reader(self, metric_reader: "MetricReader") -> None:
        """Add a reader of all instruments, including existing ones. Never raises.

        It reads measurements from now on, without steps, and of a gauge the last value, as any
        reader. otel_rl's own export does not change.
        """
        if self.mirror is None:
            from otel_rl.worker.metrics.mirror import Mirror  # as the reader, it is the SDK's

            with self.guard:
                self.mirror = Mirror(self._resource, self.guard)
                self._rebind()
        if self.mirror is not None:
            self.mirror.add(metric_reader)

    def remove_metric_reader(self, metric_reader: "MetricReader") -> None:
        """See ``opentelemetry.sdk.metrics.MeterProvider.remove_metric_reader``. Never raises."""
        if self.mirror is not None:
            self.mirror.remove(metric_reader)

    def collect(self) -> list[Request]:
        """Return everything recorded since the last call, as requests ready to send."""
        return self._packed().requests()

    def collect_with_heartbeat(self) -> list[Request]:
        """Collect; add a heartbeat to the last request, if there is one.

        Only the heartbeat advances the worker's watermark, not the points' own times: training
        continues while the SDK collects, and records of that time are older than the SDK's points
        but belong to the next call.
        """
        packer = self._packed()
        if packer.has_items:
            self._beat(packer)
        return packer.requests()

    def heartbeat(self) -> Request:
        """Return a request that renews the lease; the last ``collect`` is its watermark.

        Sent alone if there is nothing else to send.
        """
        packer = self._packer()
        self._beat(packer)
        (request,) = packer.requests()
        return request

    def _packed(self) -> RequestPacker:
        collected_ns = time_ns()
        packer = self._packer()
        if self.buffer.entries:
            self._expander.pack(self.buffer.take_all(), packer)
        # After the gauges: a step that they have left behind has its shares in the same export.
        with self.guard:
            too_large = encode_shares(self.steps.take(), self._intervals, packer)
            self.guard.drops.add(DropReason.TOO_LARGE, too_large)
        self.own.pack(self._intervals, packer)
        for sdk in tuple(self._sdk.values()):
            with self.guard:
                too_large = sdk.pack(self._intervals, packer)
                self.guard.drops.add(DropReason.TOO_LARGE, too_large)
        self._collected_ns = collected_ns
        return packer

    def _packer(self) -> RequestPacker:
        return RequestPacker(self._resource_bytes, Signal.METRICS)

    def _beat(self, packer: RequestPacker) -> None:
        packer.add(_HEARTBEAT.scope_head, *encode_heartbeat(_HEARTBEAT, self._collected_ns), 0)

    def restart(self, resource: Resource, *, keep_buffer: bool) -> None:
        """Start over with another resource; instruments in user code stay valid.

        Sums and histograms start from zero.

        Args:
            resource: Present resource of the process.
            keep_buffer: False after a fork: the parent sends the buffered measurements.
        """
        if not keep_buffer:
            self.buffer.clear()
            self.steps.forget()
            self._begin()
        for drops in tuple(self._drops):
            drops.begin_anew()
        self._bind(resource)
        self._rebind()

    def _rebind(self) -> None:
        for meter in tuple(self._meters.values()):
            meter.rebind()

    def counts_anew(self, drops: Drops) -> None:
        """Reset ``drops``, reported by an instrument of this provider, at each restart."""
        self._drops.append(drops)

    def _begin(self) -> None:
        self._collected_ns = time_ns()
        self._intervals = Intervals(self._collected_ns)
        self._expander = Expander(self.guard, self._intervals)

    def _bind(self, resource: Resource) -> None:
        self._resource = resource
        self._resource_bytes = encode_resource(resource)
        # At most one, by None. Written with setdefault only.
        self._sdk: dict[None, SdkMeters] = {}
        self.own.restart()


class _BufferedMeter(Meter):
    """Makes each instrument once. An instrument that the SDK refuses is a no-op, with a warning."""

    def __init__(self, scope: InstrumentationScope, provider: BufferedMeterProvider) -> None:
        super().__init__(scope.name, scope.version, scope.schema_url)
        self._scope = scope
        self._provider = provider
        self._no_op = NoOpMeter(scope.name, scope.version, scope.schema_url)
        # Written with setdefault only, which is atomic: two threads get the same instrument.
        self._instruments: dict[tuple[str, ...], Instrument] = {}

    def rebind(self) -> None:
        """Replace the SDK instrument behind every instrument."""
        for instrument in tuple(self._instruments.values()):
            with self._provider.guard:
                if isinstance(instrument, BufferedGauge):
                    self._mirror_gauge(instrument)
                elif isinstance(instrument, Rebindable):
                    instrument.rebind()

    def create_gauge(self, name: str, unit: str = "", description: str = "") -> _Gauge:
        """Create a gauge that sends every measurement. Accepts any non-empty name."""

        def make() -> BufferedGauge:
            stream = Stream(self._scope, _text(name), unit or "", description or "")
            provider = self._provider
            gauge = BufferedGauge(stream, provider.buffer, provider.guard, provider.steps)
            self._mirror_gauge(gauge)
            return gauge

        key = ("gauge", name, unit, description)
        return self._once(key, make, lambda: self._no_op.create_gauge(name))

    def create_counter(self, name: str, unit: str = "", description: str = "") -> Counter:
        """Create the SDK's counter, cumulative."""

        def make() -> BoundCounter:
            return BoundCounter(
                lambda: self._adds(lambda meter: meter.create_counter(name, unit, description)),
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
                lambda: self._adds(
                    lambda meter: meter.create_up_down_counter(name, unit, description)
                ),
                self._provider.guard,
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
                lambda: self._records(
                    lambda meter: meter.create_histogram(
                        name, unit, description, explicit_bucket_boundaries_advisory=buckets
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
            self._observe_own(ObservedKind.COUNTER, name, plain, unit, description)
            return BoundObservableCounter(
                lambda: self._observes(
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
            self._observe_own(ObservedKind.GAUGE, name, plain, unit, description)
            return BoundObservableGauge(
                lambda: self._observes(
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
            self._observe_own(ObservedKind.UP_DOWN_COUNTER, name, plain, unit, description)
            return BoundObservableUpDownCounter(
                lambda: self._observes(
                    lambda meter: meter.create_observable_up_down_counter(
                        name, plain, unit, description
                    )
                )
            )

        key = ("observable_up_down_counter", name, unit, description)
        return self._once(key, make, lambda: self._no_op.create_observable_up_down_counter(name))

    def _adds(self, create: Callable[[Meter], Adds]) -> Adds:
        own, mirrored = self._twice(create)
        if mirrored is None:
            return own
        from otel_rl.worker.metrics.mirror import AddsTwice

        return AddsTwice(own, mirrored)

    def _records(self, create: Callable[[Meter], Records], *, advised: bool) -> Records:
        own, mirrored = self._twice(create, advised=advised)
        if mirrored is None:
            return own
        from otel_rl.worker.metrics.mirror import RecordsTwice

        return RecordsTwice(own, mirrored)

    def _observes(self, create: Callable[[Meter], object]) -> None:
        if self._scope.name != SCOPE_NAME:
            self._twice(create)
        elif self._provider.mirror is not None:
            create(self._provider.mirror.meter(self._scope))

    def _observe_own(
        self, kind: ObservedKind, name: str, callbacks: Callbacks, unit: str, description: str
    ) -> None:
        """Read the callbacks without the SDK, if they are otel_rl's own."""
        if self._scope.name == SCOPE_NAME:
            stream = Stream(self._scope, _text(name), unit or "", description or "")
            self._provider.own.add(stream, kind, callbacks)

    def _twice(
        self, create: Callable[[Meter], MadeT], *, advised: bool = False
    ) -> tuple[MadeT, MadeT | None]:
        """Create the SDK's instrument, and its copy if there is a mirror."""
        mirror = self._provider.mirror
        own = create(self._provider.sdk.meter(self._scope, advised=advised))
        return own, None if mirror is None else create(mirror.meter(self._scope))

    def _mirror_gauge(self, gauge: BufferedGauge) -> None:
        mirror = self._provider.mirror
        if mirror is not None and not isinstance(gauge, _MirroredGauge):
            gauge.show_in(mirror.meter(self._scope))

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


def _text(name: object) -> str:
    if isinstance(name, str) and name.strip() and len(name) <= MAX_NAME_LENGTH:
        return name
    raise ValueError(f"a name must be text of 1 to {MAX_NAME_LENGTH} characters")
