"""How long Python's garbage collector has stopped the process: nobody else can see these pauses.

A pause stops every thread, and falls into whatever phase happens to be open.
"""

import gc
import os
from collections.abc import Iterable, Mapping
from time import perf_counter_ns
from typing import Final

from opentelemetry.metrics import CallbackOptions, Meter, Observation

from otel_rl.semconv.names import METRICS, RL_WORKER_GC_TIME
from otel_rl.worker.flows import sights

__all__ = ["GC_VARIABLE", "GcTime"]

GC_VARIABLE: Final = "OTEL_RL_GC"
"""Environment variable: 0 for never, 1 for all processes, else for those that have steps or phases.

A script that measures a number or two is not to have a row of its own for this.
"""


class GcTime:
    """Shows by ``meter`` how long all collections took since ``start``.

    Costs some 0.3 us for each collection, of which there is one per some thousand new objects.
    """

    def __init__(self, meter: Meter) -> None:
        self._total_ns = 0
        self._begun_ns = 0
        self._is_shown = False
        self._is_wanted = False
        spec = METRICS[RL_WORKER_GC_TIME]
        meter.create_observable_counter(spec.name, [self._observe], spec.unit, spec.brief)

    def start(self) -> None:
        """Begin, unless the environment says no. Idempotent."""
        wanted = os.environ.get(GC_VARIABLE, "").strip().lower()
        if self._is_shown or wanted in {"0", "false"}:
            return
        self._is_wanted = wanted in {"1", "true"}
        self._is_shown = True
        gc.callbacks.append(self._note)

    def forget(self) -> None:
        """Begin anew when ``start`` is called next: the process is a fork, and has done nothing."""
        if self._is_shown:
            gc.callbacks.remove(self._note)
        self._is_shown = False
        self._total_ns = self._begun_ns = 0

    def _note(self, phase: str, _info: Mapping[str, int]) -> None:
        """Called by the collector itself, in the thread that it stops first."""
        if phase == "start":
            self._begun_ns = perf_counter_ns()
        elif self._begun_ns:
            self._total_ns += perf_counter_ns() - self._begun_ns
            self._begun_ns = 0

    def _observe(self, _options: CallbackOptions) -> Iterable[Observation]:
        # A process that has nothing of its own to say is no worker, and this is not its own.
        self._is_wanted = self._is_wanted or any(True for _ in sights())
        return [Observation(self._total_ns / 1e9)] if self._is_shown and self._is_wanted else []
