"""Time that Python's garbage collector stops the process, which no other metric shows.

A pause stops every thread, and adds to the phase that happens to be open.
"""

import gc
from collections.abc import Iterable, Mapping
from time import perf_counter_ns

from opentelemetry.metrics import CallbackOptions, Meter, Observation

from otel_rl.semconv.names import METRICS, RL_WORKER_GC_TIME
from otel_rl.worker.phases.control_flows import views

__all__ = ["GcTime"]


class GcTime:
    """Reports the total duration of all collections since ``start`` through ``meter``.

    The last total is reported after ``stop``, too.

    Costs about 0.3 us per collection, of which there is one per some thousand new objects.
    """

    def __init__(self, meter: Meter) -> None:
        self._total_ns = 0
        self._begun_ns = 0
        self._is_shown = False
        self._is_wanted = False
        spec = METRICS[RL_WORKER_GC_TIME]
        meter.create_observable_counter(spec.name, [self._observe], spec.unit, spec.brief)

    def start(self, *, wanted: bool | None = None) -> None:
        """Start measuring from zero. Idempotent.

        Args:
            wanted: False does not measure. None reports only with steps or phases: a script with
                one or two metrics gets no row for this.
        """
        if self._note in gc.callbacks:
            return
        self.forget()
        if wanted is not False:
            self._is_wanted = wanted is True
            self._is_shown = True
            gc.callbacks.append(self._note)

    def stop(self) -> None:
        """Stop measuring. Idempotent."""
        if self._note in gc.callbacks:  # the program may have removed it
            gc.callbacks.remove(self._note)

    def forget(self) -> None:
        """Reset for the next ``start``: a forked child has collected nothing yet."""
        self.stop()
        self._is_shown = False
        self._total_ns = self._begun_ns = 0

    def _note(self, phase: str, _info: Mapping[str, int]) -> None:
        """Handle a callback of the collector, in the thread that it stops first."""
        if phase == "start":
            self._begun_ns = perf_counter_ns()
        elif self._begun_ns:
            self._total_ns += perf_counter_ns() - self._begun_ns
            self._begun_ns = 0

    def _observe(self, _options: CallbackOptions) -> Iterable[Observation]:
        # GC time alone does not make a process a worker.
        self._is_wanted = self._is_wanted or any(True for _ in views())
        return [Observation(self._total_ns / 1e9)] if self._is_shown and self._is_wanted else []
