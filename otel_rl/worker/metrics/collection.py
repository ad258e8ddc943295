"""Collection: everything recorded since the last one, as requests ready to send."""

from collections.abc import Callable, Sequence
from time import time_ns
from typing import TYPE_CHECKING

from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.util.instrumentation import InstrumentationScope

from otel_rl.semconv.names import OTEL_RL_WORKER_HEARTBEAT
from otel_rl.signals import Signal
from otel_rl.version import __version__
from otel_rl.worker.drops import DropReason
from otel_rl.worker.guard import Guard
from otel_rl.worker.metrics.buffer import Buffer
from otel_rl.worker.metrics.expander import SCOPE_NAME, Expander
from otel_rl.worker.metrics.own_observables import OwnObservables
from otel_rl.worker.metrics.step_shares import StepShares
from otel_rl.worker.otlp.gauges import Stream, encode_heartbeat
from otel_rl.worker.otlp.intervals import Intervals
from otel_rl.worker.otlp.request_packer import Request, RequestPacker, encode_resource
from otel_rl.worker.otlp.step_shares import encode_shares

if TYPE_CHECKING:
    from otel_rl.worker.metrics.sdk_meters import SdkMeters

__all__ = ["Collection"]

_HEARTBEAT = Stream(InstrumentationScope(SCOPE_NAME, __version__), OTEL_RL_WORKER_HEARTBEAT, "1")


class Collection:
    """Packs measurements into requests. Only the exporter thread collects.

    Args:
        guard: Catches and counts errors.
        buffer: Buffer of the gauges.
        steps: Counts of the steps.
        own: Observable instruments of otel_rl itself.
        sdks: Returns the SDK of the other instruments, if it is loaded.
    """

    def __init__(
        self,
        guard: Guard,
        buffer: Buffer,
        steps: StepShares,
        own: OwnObservables,
        sdks: Callable[[], "Sequence[SdkMeters]"],
    ) -> None:
        self._guard = guard
        self._buffer = buffer
        self._steps = steps
        self._own = own
        self._sdks = sdks
        self._resource_bytes = b""
        self.begin()

    def begin(self) -> None:
        """Start over: nothing was collected before now."""
        self._collected_ns = time_ns()  # all earlier records have been collected
        self._intervals = Intervals(self._collected_ns)
        self._expander = Expander(self._guard, self._intervals)

    def bind(self, resource: Resource) -> None:
        """Collect for this resource from now on."""
        self._resource_bytes = encode_resource(resource)

    def collect(self, *, with_heartbeat: bool) -> list[Request]:
        """Return everything recorded since the last call.

        Args:
            with_heartbeat: Adds a heartbeat to the last request, if there is one. Only it advances
                the worker's watermark, not the points' own times: training continues while the SDK
                collects, and records of that time are older than the SDK's points but belong to the
                next call.
        """
        packer = self._packed()
        if with_heartbeat and packer.has_items:
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
        if self._buffer.entries:
            unready = self._expander.pack(self._buffer.take_all(), packer)
            self._buffer.put_back(unready)
        # After the gauges: a step that they have left behind has its shares in the same export.
        with self._guard:
            too_large = encode_shares(self._steps.take(), self._intervals, packer)
            self._guard.drops.add(DropReason.TOO_LARGE, too_large)
        self._own.pack(self._intervals, packer)
        for sdk in self._sdks():
            with self._guard:
                too_large = sdk.pack(self._intervals, packer)
                self._guard.drops.add(DropReason.TOO_LARGE, too_large)
        self._collected_ns = min(collected_ns, self._buffer.unready_since_ns or collected_ns)
        return packer

    def _packer(self) -> RequestPacker:
        return RequestPacker(self._resource_bytes, Signal.METRICS)

    def _beat(self, packer: RequestPacker) -> None:
        packer.add(_HEARTBEAT.scope_head, *encode_heartbeat(_HEARTBEAT, self._collected_ns), 0)
