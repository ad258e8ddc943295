"""Resource use of a process, from Linux's /proc, under OpenTelemetry's own names.

Plain OpenTelemetry, observed when the SDK exports. Where there is no /proc, nothing is reported.
"""

import os
import threading
import time
from collections.abc import Iterable
from pathlib import Path

from opentelemetry import metrics
from opentelemetry.metrics import CallbackOptions, Observation

__all__ = ["observe_process"]

_PROC = Path("/proc")
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")

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
