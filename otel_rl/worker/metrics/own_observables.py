"""Observable instruments of otel_rl itself: read at each export, without the SDK.

A worker that logs through ``otel_rl.log`` alone has no other instruments, and need not load those
of the SDK.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from time import time_ns

from opentelemetry.metrics import CallbackOptions, Observation

from otel_rl.worker.drops import DropReason
from otel_rl.worker.guard import Guard
from otel_rl.worker.otlp import protobuf
from otel_rl.worker.otlp.gauges import Stream
from otel_rl.worker.otlp.intervals import Intervals
from otel_rl.worker.otlp.observed import ObservedKind, encode_observed
from otel_rl.worker.otlp.request_packer import RequestPacker

__all__ = ["Callbacks", "OwnObservables"]

Callbacks = Sequence[Callable[[CallbackOptions], Iterable[Observation]]]
"""They never raise."""


@dataclass(frozen=True, slots=True)
class _Instrument:
    stream: Stream
    kind: ObservedKind
    callbacks: Callbacks


class OwnObservables:
    """Instruments with callbacks. Any thread adds; the exporter thread packs.

    Args:
        guard: Counts what cannot be sent.
    """

    def __init__(self, guard: Guard) -> None:
        self._guard = guard
        self._instruments: list[_Instrument] = []  # only appended to
        self._begin_ns = time_ns()

    def add(self, stream: Stream, kind: ObservedKind, callbacks: Callbacks) -> None:
        """Observe an instrument from now on."""
        self._instruments.append(_Instrument(stream, kind, callbacks))

    def restart(self) -> None:
        """Begin all sums from now on: they are another worker's."""
        self._begin_ns = time_ns()

    def pack(self, intervals: Intervals, packer: RequestPacker) -> None:
        """Run the callbacks and add what they observe to requests."""
        options = CallbackOptions()
        for instrument in tuple(self._instruments):
            with self._guard:
                observed = _observed(instrument, options)
                if observed:
                    times_ns = self._begin_ns, time_ns()
                    stream, kind = instrument.stream, instrument.kind
                    lost = encode_observed(stream, kind, observed, times_ns, intervals, packer)
                    self._guard.drops.add(DropReason.TOO_LARGE, lost)


def _observed(instrument: _Instrument, options: CallbackOptions) -> dict[bytes, float]:
    """Return the values by encoded attributes; the last one of each."""
    return {
        protobuf.attributes(7, observation.attributes or {}): observation.value
        for callback in instrument.callbacks
        for observation in callback(options)
    }
