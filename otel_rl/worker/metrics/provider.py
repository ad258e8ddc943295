"""MeterProvider behind the OpenTelemetry API in an otel_rl worker.

    gauge.set ----------> Buffer ----> GaugeEncoder ----> RequestPacker ----> requests
    counter.add, ... ---> the SDK's MeterProvider ------> RequestPacker

Synchronous gauges keep every measurement (ADR 0) at a tenth of the SDK's cost; all other
instruments are the SDK's own. What counters and histograms count during a step is in the exemplars
of their points (ADR 15). Instruments in user code survive a fork.
"""

from collections.abc import Sequence
from threading import Lock
from time import monotonic, time_ns
from typing import Protocol

from opentelemetry.metrics import Meter, MeterProvider, NoOpMeter
from opentelemetry.sdk.metrics import AlwaysOnExemplarFilter, Histogram
from opentelemetry.sdk.metrics import MeterProvider as SdkMeterProvider
from opentelemetry.sdk.metrics.export import (
    AggregationTemporality,
    InMemoryMetricReader,
    MetricReader,
)
from opentelemetry.sdk.metrics.view import ExponentialBucketHistogramAggregation
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from opentelemetry.util.types import Attributes

from otel_rl.semconv.names import (
    OTEL_RL_COPY,
    OTEL_RL_WORKER_MEASUREMENTS_DROPPED,
)
from otel_rl.signals import Signal
from otel_rl.version import __version__
from otel_rl.worker.drops import DropReason, Drops
from otel_rl.worker.guard import Guard
from otel_rl.worker.late_copies import LateCopies
from otel_rl.worker.metrics.gauges import SCOPE_NAME, Buffer, GaugeEncoder, pack_heartbeat
from otel_rl.worker.metrics.meter import BufferedMeter
from otel_rl.worker.metrics.step_counts import Steps, views_of
from otel_rl.worker.otlp.requests import (
    Intervals,
    Request,
    RequestPacker,
    encode_resource,
    pack_collected,
)

__all__ = ["BufferedMeterProvider"]


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
        self.steps = Steps(guard)
        """Steps of the process."""
        self.reader: Reader | None = None
        """Sender of the measurements. They wait while it is None."""
        self.late_copies = LateCopies(guard)
        """Values for readers of the program that a device has yet to compute."""
        self.shown: tuple[SdkMeterProvider, ...] = ()
        """Providers of the SDK that show copies of all instruments."""
        self._of_readers: SdkMeterProvider | None = None
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
        """Start over: nothing was collected before now."""
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
        # Of the SDK before, from ``leave`` to ``restart``.
        self._left: Sequence[InMemoryMetricReader] | None = None

    @property
    def resource(self) -> Resource:
        """Present resource of the measurements."""
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
                    {Histogram: AggregationTemporality.DELTA},
                    {Histogram: ExponentialBucketHistogramAggregation()},
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

    def copies(self, scope: InstrumentationScope) -> Sequence[Meter]:
        """Return the meters of a scope in which others see copies of all instruments.

        The copies have an attribute, because a reader may export to the bridge, too.
        """
        attributes = {**(scope.attributes or {}), OTEL_RL_COPY: True}
        return [
            provider.get_meter(scope.name, scope.version, scope.schema_url, attributes)
            for provider in self.shown
        ]

    def force_flush(self, timeout_millis: float = 10_000) -> bool:
        """Send everything recorded before the call, spans and events too. Never raises.

        Returns:
            True if the endpoint and the program's readers have accepted it.
        """
        until_s = monotonic() + timeout_millis / 1000
        reader = self.reader
        is_delivered = reader is None or reader.flush(timeout_millis / 1000)
        for provider in self.shown:
            try:
                is_delivered &= provider.force_flush(max(0.0, until_s - monotonic()) * 1000)
            except Exception as error:  # noqa: BLE001  # the SDK raises a bare one for readers
                is_delivered = False
                self.guard.warn("readers", "A metric reader could not be flushed.", error=error)
        return is_delivered

    def shutdown(self, timeout_millis: float = 30_000) -> None:
        """Flush for a program that shuts down its metrics; otel_rl continues. Never raises."""
        until_s = monotonic() + timeout_millis / 1000
        if self.reader is not None:
            self.reader.flush(timeout_millis / 1000)
        for provider in self.shown:
            try:
                provider.shutdown(max(0.0, until_s - monotonic()) * 1000)
            except Exception as error:  # noqa: BLE001  # the SDK raises a bare one for readers
                self.guard.warn("readers", "A metric reader could not be shut down.", error=error)

    def add_metric_reader(self, metric_reader: MetricReader) -> None:
        """Add a reader of all instruments, including existing ones. Never raises.

        It reads measurements from now on, without steps, and of a gauge the last value, as any
        reader. otel_rl's own export does not change.
        """
        with self.guard:
            if self._of_readers is None:
                # Another provider than that of the export, which begins anew in a forked child and
                # with each trial. Its resource has the mark where scopes lose theirs.
                marked = self._resource.merge(Resource({OTEL_RL_COPY: True}))
                self._of_readers = SdkMeterProvider((), marked, shutdown_on_exit=False)
                self._show_in(self._of_readers)
            if hasattr(self._of_readers, "add_metric_reader"):
                self._of_readers.add_metric_reader(metric_reader)
            else:
                self.guard.warn(
                    "readers",
                    "A metric reader was added to otel_rl's MeterProvider and gets nothing: that "
                    "needs opentelemetry-sdk 1.43 or newer. Upgrade it, or give the reader to a "
                    "MeterProvider of your own.",
                )

    def remove_metric_reader(self, metric_reader: MetricReader) -> None:
        """See ``opentelemetry.sdk.metrics.MeterProvider.remove_metric_reader``. Never raises."""
        if self._of_readers is not None and hasattr(self._of_readers, "remove_metric_reader"):
            with self.guard:
                self._of_readers.remove_metric_reader(metric_reader)

    def share_with(self, later: object) -> bool:
        """Show all instruments, including existing ones, in another provider, too.

        Returns:
            False for one that is not of the SDK.
        """
        if not isinstance(later, SdkMeterProvider):
            return False
        with self.guard:
            self._show_in(later)
        return True

    def _show_in(self, provider: SdkMeterProvider) -> None:
        self.shown = (*self.shown, provider)
        self._rebind()

    def collect(self, *, with_heartbeat: bool = False) -> list[Request]:
        """Return everything recorded since the last call, as requests ready to send.

        Args:
            with_heartbeat: Adds a heartbeat to the last request, if there is one. Only it advances
                the worker's watermark, not the points' own times: training continues while the SDK
                collects, and records of that time are older than the SDK's points but belong to the
                next call.
        """
        packer = self._packer()
        collected_ns = time_ns()
        if self.buffer.entries:
            unready = self._gauges.pack(self.buffer.take_all(), packer)
            self.buffer.put_back(unready)
        self.steps.abandon_orphans()
        for reader in self._sdk_readers():
            with self.guard:
                data = reader.get_metrics_data()
                if data is not None:
                    self.steps.add_zeros(data)
                    lost = pack_collected(data, self._intervals, packer)
                    self.guard.drops.add(DropReason.TOO_LARGE, lost)
        self._collected_ns = min(collected_ns, self.buffer.unready_since_ns or collected_ns)
        if with_heartbeat and packer.has_items:
            pack_heartbeat(packer, self._collected_ns)
        self.late_copies.record_ready()
        return packer.requests()

    def _sdk_readers(self) -> Sequence[InMemoryMetricReader]:
        if self._left is not None:
            return self._left
        with self._lock:
            return [reader for _, reader in self._sdk.values()]

    def leave(self) -> None:
        """Count for what follows ``restart`` from now on; ``collect`` still reads what was before.

        Idempotent.
        """
        if self._left is None:
            readers = self._sdk_readers()
            with self._lock:
                self._sdk = {}
            self._left = readers
            self._rebind()

    def heartbeat(self) -> Request:
        """Return a request that renews the lease; the last ``collect`` is its watermark.

        Sent alone if there is nothing else to send.
        """
        packer = self._packer()
        pack_heartbeat(packer, self._collected_ns)
        (request,) = packer.requests()
        return request

    def _packer(self) -> RequestPacker:
        return RequestPacker(self._resource_bytes, Signal.METRICS)

    def discard(self) -> None:
        """Forget the measurements since the last call; readers of the program have theirs."""
        self.buffer.clear()
        self.steps.abandon_orphans()
        for reader in self._sdk_readers():
            with self.guard:
                reader.get_metrics_data()
        self.late_copies.record_ready()

    def restart(self, resource: Resource, *, keep_buffer: bool) -> None:
        """Start over with another resource; instruments in user code stay valid.

        Sums and histograms start from zero, or from where they were left.

        Args:
            resource: Present resource of the process.
            keep_buffer: False after a fork: the parent sends the buffered measurements.
        """
        if not keep_buffer:
            self.buffer.forget()
            self.steps.forget()
            self.late_copies.forget()
            self._begin()
        for drops in tuple(self._drops):
            drops.begin_anew()
        if keep_buffer and self._left is not None:
            self._left = None
            self._resource, self._resource_bytes = resource, encode_resource(resource)
        else:
            self._bind(resource)
            self._rebind()

    def _rebind(self) -> None:
        for meter in tuple(self._meters.values()):
            meter.rebind()

    def counts_anew(self, drops: Drops) -> None:
        """Reset ``drops``, reported by an instrument of this provider, at each restart."""
        self._drops.append(drops)
