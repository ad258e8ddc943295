"""Resource use of a process and its host, from Linux's /proc, under OpenTelemetry's own names.

Plain OpenTelemetry, observed when the SDK exports. Where there is no /proc, nothing is reported.
"""

import os
import threading
import time
from collections.abc import Iterable
from pathlib import Path

from opentelemetry import metrics
from opentelemetry.metrics import CallbackOptions, Observation

__all__ = ["observe_host", "observe_process"]

_PROC = Path("/proc")
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
_KIBIBYTE = 1024

Observed = Iterable[Observation]


class _Utilization:
    """Share of the time since the last look that was busy."""

    def __init__(self) -> None:
        self._busy = self._whole = 0.0

    def since_last(self, busy: float, whole: float) -> float | None:
        """None if no time has passed."""
        more_busy, more = busy - self._busy, whole - self._whole
        self._busy, self._whole = busy, whole
        return more_busy / more if more > 0 else None


def observe_process() -> None:
    """Report CPU, memory and threads of this process from now on."""
    if not _PROC.is_dir():
        return
    meter = metrics.get_meter("otel_rl.demo.metrics.machine")
    cores = len(os.sched_getaffinity(0))
    utilization = _Utilization()
    utilization.since_last(time.process_time(), time.monotonic() * cores)

    def cpu_time(_: CallbackOptions) -> Observed:
        used = os.times()
        yield Observation(used.user, {"cpu.mode": "user"})
        yield Observation(used.system, {"cpu.mode": "system"})

    def cpu_utilization(_: CallbackOptions) -> Observed:
        share = utilization.since_last(time.process_time(), time.monotonic() * cores)
        if share is not None:
            yield Observation(share)

    def memory(_: CallbackOptions) -> Observed:
        resident_pages = (_PROC / "self/statm").read_text().split()[1]
        yield Observation(int(resident_pages) * _PAGE_BYTES)

    def threads(_: CallbackOptions) -> Observed:
        yield Observation(threading.active_count())

    meter.create_observable_counter("process.cpu.time", [cpu_time], "s")
    meter.create_observable_gauge("process.cpu.utilization", [cpu_utilization], "1")
    meter.create_observable_up_down_counter("process.memory.usage", [memory], "By")
    meter.create_observable_up_down_counter("process.thread.count", [threads], "{thread}")


def observe_host() -> None:
    """Report CPU and memory of the whole host from now on. One process per host is enough."""
    if not _PROC.is_dir():
        return
    meter = metrics.get_meter("otel_rl.demo.metrics.machine")
    utilization = _Utilization()
    utilization.since_last(*_host_cpu())

    def cpu_utilization(_: CallbackOptions) -> Observed:
        share = utilization.since_last(*_host_cpu())
        if share is not None:
            yield Observation(share)

    def memory(_: CallbackOptions) -> Observed:
        for state, used in _host_memory().items():
            yield Observation(used, {"system.memory.state": state})

    def memory_utilization(_: CallbackOptions) -> Observed:
        by_state = _host_memory()
        for state, used in by_state.items():
            yield Observation(used / sum(by_state.values()), {"system.memory.state": state})

    meter.create_observable_gauge("system.cpu.utilization", [cpu_utilization], "1")
    meter.create_observable_up_down_counter("system.memory.usage", [memory], "By")
    meter.create_observable_gauge("system.memory.utilization", [memory_utilization], "1")


def _host_cpu() -> tuple[float, float]:
    """Busy and whole time of all cores since boot, in ticks."""
    # user nice system idle iowait irq softirq steal; what follows is part of user already.
    ticks = [int(field) for field in (_PROC / "stat").read_text().split()[1:9]]
    idle = ticks[3] + ticks[4]
    return float(sum(ticks) - idle), float(sum(ticks))


def _host_memory() -> dict[str, int]:
    """Bytes by state; the states add up to the whole memory."""
    rows = (line.split() for line in (_PROC / "meminfo").read_text().splitlines())
    size = {row[0].rstrip(":"): int(row[1]) * _KIBIBYTE for row in rows}
    cached = size["Cached"] + size["SReclaimable"]
    used = size["MemTotal"] - size["MemFree"] - size["Buffers"] - cached
    return {"used": used, "free": size["MemFree"], "cached": cached, "buffers": size["Buffers"]}
