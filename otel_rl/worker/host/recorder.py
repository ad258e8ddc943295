"""Records readings of the host as measurements of the worker, when the exporter collects."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from time import monotonic
from typing import TYPE_CHECKING, Final

from opentelemetry.metrics import CallbackOptions, CallbackT, Meter, Observation

from otel_rl.semconv.names import (
    METRICS,
    RL_HOST_PRESSURE,
    RL_HOST_RESOURCE,
    SYSTEM_CPU_UTILIZATION,
    SYSTEM_DISK_IO,
    SYSTEM_FILESYSTEM_USAGE,
    SYSTEM_FILESYSTEM_UTILIZATION,
    SYSTEM_MEMORY_LIMIT,
    SYSTEM_MEMORY_USAGE,
    SYSTEM_MEMORY_UTILIZATION,
    SYSTEM_NETWORK_IO,
)
from otel_rl.semconv.spec import Instrument
from otel_rl.worker.guard import Guard
from otel_rl.worker.host.turn import HostTurn
from otel_rl.worker.settings import HostSettings

if TYPE_CHECKING:
    from otel_rl.worker.host.machine import Machine, Reading

__all__ = ["HostRecorder"]

_HOST: Final = "host.name"
_CPU_MODE: Final = "cpu.mode"
_STEAL: Final = "steal"
_MEMORY_STATE: Final = "system.memory.state"
_FILESYSTEM_STATE: Final = "system.filesystem.state"
_USED: Final = "used"
_DISK_DIRECTION: Final = "disk.io.direction"
_NETWORK_DIRECTION: Final = "network.io.direction"

_METRICS: Final = (
    RL_HOST_PRESSURE,
    SYSTEM_CPU_UTILIZATION,
    SYSTEM_DISK_IO,
    SYSTEM_FILESYSTEM_USAGE,
    SYSTEM_FILESYSTEM_UTILIZATION,
    SYSTEM_MEMORY_LIMIT,
    SYSTEM_MEMORY_USAGE,
    SYSTEM_MEMORY_UTILIZATION,
    SYSTEM_NETWORK_IO,
)


@dataclass(frozen=True, slots=True)
class _Report:
    """Metrics of a host, and where they are reported.

    Attributes:
        interval_s: Between two samples.
        host: Name of the host.
        run_id: The run that the host is reported to.
        machine: What is read.
    """

    interval_s: float
    host: str
    run_id: str
    machine: "Machine"


class HostRecorder:
    """Reports this host while it is the process's turn. Never raises.

    ``start`` and ``stop`` are of any thread, readings of the exporter's.

    Args:
        meter: Meter of the worker.
        guard: Catches errors.
    """

    def __init__(self, meter: Meter, guard: Guard) -> None:
        self._meter = meter
        self._guard = guard
        self._is_shown = False
        self._report: _Report | None = None
        self._turn = HostTurn()
        self._due_s = 0.0
        self._first: Reading | None = None
        self._last: Reading | None = None
        # Each is reported once.
        self._latest: dict[str, list[Observation]] = {}

    def prepare(self, settings: HostSettings) -> None:
        """Load what reads the machine, in the thread that starts the worker."""
        if settings.enabled:
            with self._guard:
                _machine()

    def start(self, settings: HostSettings, host: str, run_id: str) -> None:
        """Report ``host`` from now on if ``settings`` allow it. Idempotent."""
        if not settings.enabled or self._report is not None:
            return
        with self._guard:
            self._report = _Report(settings.interval_s, host, run_id, _machine())
            if not self._is_shown:
                self._is_shown = True
                for metric in _METRICS:
                    self._show(metric)

    def forget(self) -> None:
        """Reset for the next ``start``, in a forked child or as another worker."""
        self._turn.give_back()
        self._turn = HostTurn()
        self._report = self._first = self._last = None
        self._due_s = 0.0
        self._latest = {}

    def _show(self, metric: str) -> None:
        spec = METRICS[metric]
        create = {
            Instrument.COUNTER: self._meter.create_observable_counter,
            Instrument.UP_DOWN_COUNTER: self._meter.create_observable_up_down_counter,
        }.get(spec.instrument, self._meter.create_observable_gauge)
        create(metric, [self._taker(metric)], spec.unit, spec.brief)

    def _taker(self, metric: str) -> CallbackT:
        def take(_options: CallbackOptions) -> Iterable[Observation]:
            report = self._report
            if report is None:
                return []
            with self._guard:
                self._sample_if_due(report)
            return self._latest.pop(metric, [])

        return take

    def _sample_if_due(self, report: _Report) -> None:
        now_s = monotonic()
        if now_s < self._due_s:
            return
        self._due_s = now_s + report.interval_s
        if not self._turn.take(report.host, report.run_id):
            return
        reading, last = report.machine.read(), self._last
        self._last = reading
        if last is None:
            self._first = reading
            return
        self._latest = _observations(report.host, reading, last, self._first or last)


def _machine() -> "Machine":
    from otel_rl.worker.host.machine import Machine  # only where the host is reported

    return Machine()


def _observations(
    host: str, now: "Reading", last: "Reading", first: "Reading"
) -> dict[str, list[Observation]]:
    """Return the observations by metric; counts are since the process began to report."""
    memory, filesystem = {_MEMORY_STATE: _USED}, {_FILESYSTEM_STATE: _USED}
    found: list[tuple[str, float, Mapping[str, str]]] = [
        (SYSTEM_MEMORY_LIMIT, now.memory_bytes, {}),
        (SYSTEM_MEMORY_USAGE, now.memory_used_bytes, memory),
        (SYSTEM_MEMORY_UTILIZATION, now.memory_used_bytes / now.memory_bytes, memory),
        (SYSTEM_FILESYSTEM_USAGE, now.filesystem_used_bytes, filesystem),
    ]
    if now.filesystem_bytes:
        used = now.filesystem_used_bytes / now.filesystem_bytes
        found.append((SYSTEM_FILESYSTEM_UTILIZATION, used, filesystem))
    if now.cpu_s > last.cpu_s:
        busy = (now.cpu_used_s - last.cpu_used_s) / (now.cpu_s - last.cpu_s)
        found.append((SYSTEM_CPU_UTILIZATION, min(1.0, max(0.0, busy)), {}))
    whole_s = now.machine_cpu_s - last.machine_cpu_s
    if whole_s > 0 and now.cpu_stolen_s is not None and last.cpu_stolen_s is not None:
        stolen = (now.cpu_stolen_s - last.cpu_stolen_s) / whole_s
        found.append((SYSTEM_CPU_UTILIZATION, min(1.0, max(0.0, stolen)), {_CPU_MODE: _STEAL}))
    took_s = now.read_s - last.read_s
    for resource in (now.waited_s.keys() & last.waited_s.keys()) if took_s > 0 else ():
        waited = (now.waited_s[resource] - last.waited_s[resource]) / took_s
        found.append((RL_HOST_PRESSURE, min(1.0, max(0.0, waited)), {RL_HOST_RESOURCE: resource}))
    for metric, key, so_far, at_first in (
        (SYSTEM_DISK_IO, _DISK_DIRECTION, now.disk_bytes, first.disk_bytes),
        (SYSTEM_NETWORK_IO, _NETWORK_DIRECTION, now.network_bytes, first.network_bytes),
    ):
        for direction, total in so_far.items():
            # A device that is gone takes its bytes with it.
            found.append((metric, max(0.0, total - at_first[direction]), {key: direction}))
    observed: dict[str, list[Observation]] = {}
    for metric, value, attributes in found:
        observed.setdefault(metric, []).append(Observation(value, {_HOST: host, **attributes}))
    return observed
