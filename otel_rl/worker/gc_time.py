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

__all__ = ["GC_VARIABLE", "show_gc_time"]

GC_VARIABLE: Final = "OTEL_RL_GC"
"""Environment variable that turns it off, with 0 or false."""


class _GcTime:
    """Adds up. Called by the collector itself, in the thread that it stops first."""

    def __init__(self) -> None:
        self.total_ns = 0
        self._begun_ns = 0

    def __call__(self, phase: str, _info: Mapping[str, int]) -> None:
        if phase == "start":
            self._begun_ns = perf_counter_ns()
        elif self._begun_ns:
            self.total_ns += perf_counter_ns() - self._begun_ns
            self._begun_ns = 0


def show_gc_time(meter: Meter) -> None:
    """Let ``meter`` show the time of all collections from now on, unless the environment says no.

    Costs some 0.3 us for each collection, of which there is one per some thousand new objects.
    """
    if os.environ.get(GC_VARIABLE, "").strip().lower() in {"0", "false"}:
        return
    gc_time = _GcTime()
    gc.callbacks.append(gc_time)

    def total(_options: CallbackOptions) -> Iterable[Observation]:
        return [Observation(gc_time.total_ns / 1e9)]

    spec = METRICS[RL_WORKER_GC_TIME]
    meter.create_observable_counter(spec.name, [total], spec.unit, spec.brief)
