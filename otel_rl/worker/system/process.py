"""Reports the memory of the worker's own process, and what it may have."""

import resource
import time
from collections.abc import Callable, Iterable

import psutil
from opentelemetry.metrics import Meter, Observation

from otel_rl.semconv.names import PROCESS_MEMORY_USAGE, RL_PROCESS_MEMORY_LIMIT
from otel_rl.worker.guard import Guard
from otel_rl.worker.settings import HostSettings
from otel_rl.worker.system.host import Container
from otel_rl.worker.system.latest import Latest

__all__ = ["ProcessMemory", "memory_of_process"]


class ProcessMemory:
    """Reads the process's memory at exports, as often as the host. Never raises.

    A reading takes about 65 us of the exporter's thread.
    """

    def __init__(
        self, meter: Meter, guard: Guard, clock_s: Callable[[], float] = time.monotonic
    ) -> None:
        self._guard = guard
        self._clock_s = clock_s
        self._latest = Latest(meter)
        self._container: Container | None = None
        self._interval_s = 0.0
        self._due_s = 0.0

    def start(self, settings: HostSettings) -> None:
        """Report from now on if ``settings`` allow it. Idempotent."""
        if not settings.enabled or self._container is not None:
            return
        with self._guard:
            self._interval_s = settings.interval_s
            self._container = Container()
            self._latest.observe(PROCESS_MEMORY_USAGE, self._sample_if_due)
            self._latest.observe(RL_PROCESS_MEMORY_LIMIT, self._sample_if_due)

    def forget(self) -> None:
        """Reset for the next ``start``, in a forked child or as another worker."""
        self._container = None
        self._due_s = 0.0
        self._latest.forget()

    def _sample_if_due(self) -> Iterable[Observation]:
        container, now_s = self._container, self._clock_s()
        if container is not None and now_s >= self._due_s:
            self._due_s = now_s + self._interval_s
            with self._guard:
                used, limit = memory_of_process(container)
                for metric, value in (
                    (PROCESS_MEMORY_USAGE, used),
                    (RL_PROCESS_MEMORY_LIMIT, limit),
                ):
                    self._latest.set(metric, "", Observation(value))
        return ()


def memory_of_process(container: Container) -> tuple[float, float]:
    """Return (physical memory of this process, the least of its limits) in bytes.

    Limits are that of its container, its own limit of data (``RLIMIT_DATA``), and the machine's
    memory. Other processes may share the first and the last.
    """
    used = psutil.Process().memory_info().rss
    limits = [float(psutil.virtual_memory().total)]
    if (shared := container.memory()) is not None:
        limits.append(shared[1])
    own, _ = resource.getrlimit(resource.RLIMIT_DATA)
    if own != resource.RLIM_INFINITY:
        limits.append(float(own))
    return float(used), min(limits)
