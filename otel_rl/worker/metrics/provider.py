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

from time import monotonic
from typing import TYPE_CHECKING, Protocol

from opentelemetry.metrics import Meter, MeterProvider, NoOpMeter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from opentelemetry.util.types import Attributes

from otel_rl.semconv.names import OTEL_RL_WORKER_MEASUREMENTS_DROPPED
from otel_rl.version import __version__
from otel_rl.worker.drops import Drops
from otel_rl.worker.guard import Guard
from otel_rl.worker.late_copies import LateCopies
from otel_rl.worker.metrics.buffer import Buffer
from otel_rl.worker.metrics.collection import Collection
from otel_rl.worker.metrics.expander import SCOPE_NAME
from otel_rl.worker.metrics.meter import BufferedMeter
from otel_rl.worker.metrics.own_observables import OwnObservables
from otel_rl.worker.metrics.step_shares import StepShares
from otel_rl.worker.otlp.request_packer import Request

if TYPE_CHECKING:
    from opentelemetry.sdk.metrics.export import MetricReader

    from otel_rl.worker.metrics.mirror import Mirror
    from otel_rl.worker.metrics.sdk_meters import SdkMeters

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
        self.steps = StepShares(guard)
        """Counts of the step in progress."""
        self.reader: Reader | None = None
        """Sender of the measurements. They wait while it is None."""
        self.mirrors: tuple[Mirror, ...] = ()
        """Copies of the instruments for readers of the program."""
        self.late_copies = LateCopies(guard)
        """Values for those readers that a device has yet to compute."""
        self._of_readers: Mirror | None = None
        self.own = OwnObservables(guard)
        """Observable instruments of otel_rl itself."""
        # At most one, by None. Written with setdefault only.
        self._sdk: dict[None, SdkMeters] = {}
        self._collection = Collection(
            guard, self.buffer, self.steps, self.own, lambda: tuple(self._sdk.values())
        )
        # Written with setdefault only, which is atomic: two threads get the same meter.
        self._meters: dict[InstrumentationScope, BufferedMeter] = {}
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
            return self._meters.setdefault(scope, BufferedMeter(scope, self))
        except Exception as error:  # noqa: BLE001  # nothing may raise into training code
            self.guard.caught(error)
            return NoOpMeter(str(name))

    def force_flush(self, timeout_millis: float = 10_000) -> bool:
        """Send everything recorded before the call, spans and events too. Never raises.

        Returns:
            True if the endpoint and the program's readers have accepted it.
        """
        until_s = monotonic() + timeout_millis / 1000
        reader = self.reader
        is_delivered = reader is None or reader.flush(timeout_millis / 1000)
        for mirror in self.mirrors:
            is_delivered &= mirror.flush(max(0.0, until_s - monotonic()))
        return is_delivered

    def shutdown(self, timeout_millis: float = 30_000) -> None:
        """Flush for a program that shuts down its metrics; otel_rl continues. Never raises."""
        until_s = monotonic() + timeout_millis / 1000
        if self.reader is not None:
            self.reader.flush(timeout_millis / 1000)
        for mirror in self.mirrors:
            mirror.shutdown(max(0.0, until_s - monotonic()))

    def add_metric_reader(self, metric_reader: "MetricReader") -> None:
        """Add a reader of all instruments, including existing ones. Never raises.

        It reads measurements from now on, without steps, and of a gauge the last value, as any
        reader. otel_rl's own export does not change.
        """
        if self._of_readers is None:
            from otel_rl.worker.metrics.mirror import (
                Mirror,  # as the reader, it is the SDK's
            )

            with self.guard:
                self._of_readers = Mirror.of_readers(self._resource, self.guard)
                self._show_in(self._of_readers)
        if self._of_readers is not None:
            self._of_readers.add(metric_reader)

    def remove_metric_reader(self, metric_reader: "MetricReader") -> None:
        """See ``opentelemetry.sdk.metrics.MeterProvider.remove_metric_reader``. Never raises."""
        if self._of_readers is not None:
            self._of_readers.remove(metric_reader)

    def share_with(self, later: object) -> bool:
        """Show all instruments, including existing ones, in another provider, too.

        Returns:
            False for one that is not of the SDK.
        """
        from opentelemetry.sdk.metrics import MeterProvider as SdkMeterProvider

        from otel_rl.worker.metrics.mirror import Mirror

        if not isinstance(later, SdkMeterProvider):
            return False
        with self.guard:
            self._show_in(Mirror(later, self.guard))
        return True

    def _show_in(self, mirror: "Mirror") -> None:
        self.mirrors = (*self.mirrors, mirror)
        self._rebind()

    def collect(self, *, with_heartbeat: bool = False) -> list[Request]:
        """Return everything recorded since the last call, as requests ready to send.

        Args:
            with_heartbeat: Adds a heartbeat to the last request, if there is one.
        """
        requests = self._collection.collect(with_heartbeat=with_heartbeat)
        self.late_copies.record_ready()
        return requests

    def discard(self) -> None:
        """Forget the measurements since the last call; readers of the program have theirs."""
        self.buffer.clear()
        self.late_copies.record_ready()

    def heartbeat(self) -> Request:
        """Return a request that renews the lease; the last ``collect`` is its watermark."""
        return self._collection.heartbeat()

    def restart(self, resource: Resource, *, keep_buffer: bool) -> None:
        """Start over with another resource; instruments in user code stay valid.

        Sums and histograms start from zero.

        Args:
            resource: Present resource of the process.
            keep_buffer: False after a fork: the parent sends the buffered measurements.
        """
        if not keep_buffer:
            self.buffer.forget()
            self.steps.forget()
            self.late_copies.forget()
            self._collection.begin()
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

    def _bind(self, resource: Resource) -> None:
        self._resource = resource
        self._collection.bind(resource)
        self._sdk = {}
        self.own.restart()
