"""The MeterProvider behind the OpenTelemetry API in an otel_rl worker.

    gauge.set ----------> Buffer --Expander--> Encoder ---> requests
    counter.add, ... ---> Sdk -----------> encode_sdk ----> requests

Synchronous gauges keep every measurement (ADR 0000) at a tenth of the SDK's cost; all other
instruments are the SDK's own. What user code holds survives a fork.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from time import monotonic, time_ns
from typing import Protocol, TypeVar, cast

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
from opentelemetry.sdk.metrics.export import MetricReader
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from opentelemetry.util.types import AnyValue, Attributes

from otel_rl import __version__
from otel_rl.semconv.names import (
    OTEL_RL_WORKER_HEARTBEAT,
    OTEL_RL_WORKER_MEASUREMENTS_DROPPED,
    RL_LOOP_ITERATION,
)
from otel_rl.worker.buffer import Buffer
from otel_rl.worker.drops import DropReason, Drops
from otel_rl.worker.encode import (
    MAX_REQUEST_BYTES,
    Request,
    Stream,
    encode_heartbeat,
    encode_resource,
)
from otel_rl.worker.encode_sdk import encode_sdk
from otel_rl.worker.expand import MAX_NAME_LENGTH, SCOPE_NAME, Expander
from otel_rl.worker.guard import Guard
from otel_rl.worker.instruments import (
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
from otel_rl.worker.intervals import Intervals
from otel_rl.worker.mirror import AddsTwice, Mirror, RecordsTwice
from otel_rl.worker.sdk import Sdk
from otel_rl.worker.values import PLAIN, NotANumber, hold, number

__all__ = ["BUFFER_FULL", "BufferedGauge", "BufferedMeterProvider"]

BUFFER_FULL = (
    "More measurements were made between two exports than the buffer holds; the newest are "
    "dropped. Record less often, or shorten the export interval."
)

_HEARTBEAT = Stream(InstrumentationScope(SCOPE_NAME, __version__), OTEL_RL_WORKER_HEARTBEAT, "1")

InstrumentT = TypeVar("InstrumentT", bound=Instrument)
MadeT = TypeVar("MadeT")


class BufferedGauge(_Gauge):
    """A synchronous gauge that keeps every measurement. ``set`` never raises and never waits.

    Args:
        stream: What it is on the wire.
        buffer: Where measurements go.
        guard: Where losses are counted.
    """

    def __init__(self, stream: Stream, buffer: Buffer, guard: Guard) -> None:
        self._stream = stream
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
                if attributes:
                    if (
                        len(attributes) == 1
                        and type(step := attributes.get(RL_LOOP_ITERATION)) is int
                    ):
                        kept = step  # what most have; a dict for each would be half of the buffer
                    else:
                        kept = {**attributes}
                self._entries.append(
                    (
                        self._stream,
                        amount if type(amount) in PLAIN else hold(amount),
                        kept,
                        time_ns(),
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
        """From now on, let a gauge of ``meter`` have the values as well."""
        stream = self._stream
        self._mirrored = meter.create_gauge(stream.name, stream.unit, stream.description)
        # In place of a question in each ``set``, which is called in training loops.
        self.__class__ = _MirroredGauge


class _MirroredGauge(BufferedGauge):
    """One that readers of the program see, too."""

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
    """Who sends what a provider's instruments measure."""

    def flush(self, timeout_s: float) -> bool:
        """Send it. Whether that was done in time."""
        ...


class BufferedMeterProvider(MeterProvider):
    """See the module. Any thread may use instruments; ``collect`` is the exporter thread's alone.

    Args:
        resource: Whose measurements these are.
        guard: Catches and counts what must not reach training code.
        buffer: Where gauges write.
    """

    def __init__(self, resource: Resource, guard: Guard, buffer: Buffer | None = None) -> None:
        self.buffer = Buffer() if buffer is None else buffer
        self.guard = guard
        self.reader: Reader | None = None
        """Who sends the measurements. While there is nobody they wait."""
        self.mirror: Mirror | None = None
        """Of the instruments, for readers that the program has added; None if there are none."""
        self._collected_ns = 0  # what was recorded before that has been given out
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
        """Whose measurements these are now."""
        return self._resource

    @property
    def sdk(self) -> Sdk:
        """The SDK that counters and histograms record to now."""
        return self._sdk

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
            Whether the endpoint has taken it, and readers of the program have.
        """
        until_s = monotonic() + timeout_millis / 1000
        reader, mirror = self.reader, self.mirror
        is_delivered = reader is None or reader.flush(timeout_millis / 1000)
        if mirror is not None:
            is_delivered &= mirror.flush(max(0.0, until_s - monotonic()))
        return is_delivered

    def shutdown(self, timeout_millis: float = 30_000) -> None:
        """``force_flush`` of a program that ends its metrics; otel_rl goes on. Never raises."""
        until_s = monotonic() + timeout_millis / 1000
        reader, mirror = self.reader, self.mirror
        if reader is not None:
            reader.flush(timeout_millis / 1000)
        if mirror is not None:
            mirror.shutdown(max(0.0, until_s - monotonic()))

    def add_metric_reader(self, metric_reader: MetricReader) -> None:
        """Let a reader see every instrument, also those that were made. Never raises.

        It sees what is measured from now on, without steps, and of a gauge the last value, as
        readers do. What otel_rl sends is not changed by it.
        """
        if self.mirror is None:
            with self.guard:
                self.mirror = Mirror(self._resource, self.guard)
                self._rebind()
        if self.mirror is not None:
            self.mirror.add(metric_reader)

    def remove_metric_reader(self, metric_reader: MetricReader) -> None:
        """See ``opentelemetry.sdk.metrics.MeterProvider.remove_metric_reader``. Never raises."""
        if self.mirror is not None:
            self.mirror.remove(metric_reader)

    def collect(self) -> list[Request]:
        """Everything recorded since the last call, as requests ready to send."""
        collected_ns = time_ns()
        requests: list[Request] = []
        if self.buffer.entries:
            requests += self._expander.requests(self.buffer.take_all(), self._resource_bytes)
        for data in self._sdk.collect():
            with self.guard:
                sdk_requests, too_large = encode_sdk(data, self._intervals)
                requests += sdk_requests
                self.guard.drops.add(DropReason.TOO_LARGE, too_large)
        self._collected_ns = collected_ns
        return requests

    def collect_with_heartbeat(self) -> list[Request]:
        """``collect``, with a heartbeat at the end of the last request if there is one.

        Only that says how far the worker has come, and not the points' own times: while the SDK
        collects, training goes on, and what it records is older than the SDK's points but in the
        next call's requests.
        """
        requests = list(_joined(self.collect()))
        if requests:
            last = requests[-1]
            requests[-1] = Request(last.payload + self.heartbeat().payload, last.measurements)
        return requests

    def heartbeat(self) -> Request:
        """Says that the worker lives, and that all it recorded before ``collect`` is given out.

        Sent alone when there is nothing else to send.
        """
        return encode_heartbeat(self._resource_bytes, _HEARTBEAT, self._collected_ns)

    def restart(self, resource: Resource, *, keep_buffer: bool) -> None:
        """Begin anew under another resource; instruments that user code holds stay valid.

        Sums and histograms start from zero.

        Args:
            resource: Of this process, as of now.
            keep_buffer: False after a fork: what the buffer holds is the parent's to send.
        """
        if not keep_buffer:
            self.buffer.clear()
            self._begin()
        for drops in tuple(self._drops):
            drops.begin_anew()
        self._bind(resource)
        self._rebind()

    def _rebind(self) -> None:
        for meter in tuple(self._meters.values()):
            meter.rebind()

    def counts_anew(self, drops: Drops) -> None:
        """Have ``drops``, which an instrument of this provider shows, begin anew with it."""
        self._drops.append(drops)

    def _begin(self) -> None:
        self._collected_ns = time_ns()
        self._intervals = Intervals(self._collected_ns)
        self._expander = Expander(self.guard, self._intervals)

    def _bind(self, resource: Resource) -> None:
        self._resource = resource
        self._resource_bytes = encode_resource(resource)
        self._sdk = Sdk(resource)


def _joined(requests: Iterable[Request]) -> Iterator[Request]:
    """As few requests as their sizes allow, because each is a way there and back.

    Protobuf reads messages that stand one behind the other as one.
    """
    parts: list[bytes] = []
    size = measurements = 0
    for request in requests:
        if parts and size + len(request.payload) > MAX_REQUEST_BYTES:
            yield Request(b"".join(parts), measurements)
            parts, size, measurements = [], 0, 0
        parts.append(request.payload)
        size += len(request.payload)
        measurements += request.measurements
    if parts:
        yield Request(b"".join(parts), measurements)


class _BufferedMeter(Meter):
    """Makes each instrument once. One that the SDK refuses is a no-op, with a warning."""

    def __init__(self, scope: InstrumentationScope, provider: BufferedMeterProvider) -> None:
        super().__init__(scope.name, scope.version, scope.schema_url)
        self._scope = scope
        self._provider = provider
        self._no_op = NoOpMeter(scope.name, scope.version, scope.schema_url)
        # Written with setdefault only, which is atomic: two threads get the same instrument.
        self._instruments: dict[tuple[str, ...], Instrument] = {}

    def rebind(self) -> None:
        """Give every instrument a new SDK instrument behind it."""
        for instrument in tuple(self._instruments.values()):
            with self._provider.guard:
                if isinstance(instrument, BufferedGauge):
                    self._mirror_gauge(instrument)
                elif isinstance(instrument, Rebindable):
                    instrument.rebind()

    def create_gauge(self, name: str, unit: str = "", description: str = "") -> _Gauge:
        """A gauge of which every measurement is sent. Any non-empty name will do."""

        def make() -> BufferedGauge:
            stream = Stream(self._scope, _text(name), unit or "", description or "")
            gauge = BufferedGauge(stream, self._provider.buffer, self._provider.guard)
            self._mirror_gauge(gauge)
            return gauge

        key = ("gauge", name, unit, description)
        return self._once(key, make, lambda: self._no_op.create_gauge(name))

    def create_counter(self, name: str, unit: str = "", description: str = "") -> Counter:
        """The SDK's counter, cumulative."""

        def make() -> BoundCounter:
            return BoundCounter(
                lambda: self._adds(lambda meter: meter.create_counter(name, unit, description)),
                self._provider.guard,
            )

        key = ("counter", name, unit, description)
        return self._once(key, make, lambda: self._no_op.create_counter(name))

    def create_up_down_counter(
        self, name: str, unit: str = "", description: str = ""
    ) -> UpDownCounter:
        """The SDK's up-down counter, cumulative."""

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
        """The SDK's histogram, delta; exponential unless explicit buckets are advised."""
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
        """The SDK's observable counter, cumulative; read once per export by the exporter."""
        plain = plain_callbacks(callbacks, self._provider.guard)

        def make() -> BoundObservableCounter:
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
        """The SDK's observable gauge; read once per export by the exporter."""
        plain = plain_callbacks(callbacks, self._provider.guard)

        def make() -> BoundObservableGauge:
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
        """The SDK's observable up-down counter; read once per export by the exporter."""
        plain = plain_callbacks(callbacks, self._provider.guard)

        def make() -> BoundObservableUpDownCounter:
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
        return own if mirrored is None else AddsTwice(own, mirrored)

    def _records(self, create: Callable[[Meter], Records], *, advised: bool) -> Records:
        own, mirrored = self._twice(create, advised=advised)
        return own if mirrored is None else RecordsTwice(own, mirrored)

    def _observes(self, create: Callable[[Meter], object]) -> None:
        self._twice(create)

    def _twice(
        self, create: Callable[[Meter], MadeT], *, advised: bool = False
    ) -> tuple[MadeT, MadeT | None]:
        """The SDK's instrument, and its mirror image if there is a mirror."""
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
        """The instrument of ``key``: made at the first call, the same one ever after."""
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
