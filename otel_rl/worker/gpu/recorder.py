"""Records device readings as measurements of the worker."""

import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from opentelemetry.metrics import CallbackOptions, Meter, Observation, _Gauge

from otel_rl.semconv.names import METRICS, RL_GPU_OWNER, RL_GPU_OWNER_TIME
from otel_rl.semconv.spec import Instrument
from otel_rl.worker.gpu.readings import Reading

if TYPE_CHECKING:
    from otel_rl.worker.gpu.nvml import Device

__all__ = ["Recorder"]

_Key = tuple[str, str, tuple[tuple[str, str], ...]]
"""Metric, device and attributes."""


class Recorder:
    """Converts readings to measurements. One thread records, the exporter's reads.

    A device counts since its power-on; counts before the first sample are subtracted. After a reset
    of the device they start from zero.

    Args:
        meter: Meter of the worker.
        held_s: Time that each phase has held the process's GPUs, for processes without sampled
            devices.
    """

    def __init__(self, meter: Meter, held_s: Callable[[], Mapping[str, float]]) -> None:
        self._meter = meter
        self._held_s = held_s
        self._gauges: dict[str, _Gauge] = {}
        self._observed: set[str] = set()
        # _lock guards everything below.
        self._lock = threading.Lock()
        # The exporter removes entries, so that a sample is reported once.
        self._latest: dict[str, dict[_Key, Observation]] = {}
        # The device's last count, and the run's own total.
        self._counts: dict[_Key, tuple[float, float]] = {}

    def record(self, answers: Iterable[tuple["Device", Sequence[Reading]]]) -> None:
        """Record readings of devices."""
        for device, readings in answers:
            shared = device.attributes()
            for reading in readings:
                attributes = {**shared, **dict(reading.attributes)}
                if METRICS[reading.metric].instrument is Instrument.GAUGE:
                    self._gauge(reading.metric).set(reading.value, attributes)
                else:
                    self._keep(device, reading, attributes)

    def begin_anew(self) -> None:
        """Reset the sums for another worker."""
        with self._lock:
            self._latest = {}
            self._counts = {}

    def forget(self) -> None:
        """Reset in a forked process, where a missing thread may hold the lock."""
        self._lock = threading.Lock()
        self.begin_anew()

    def show_turns(self) -> None:
        """Report from now on the time that phases hold the GPUs."""
        self._observe(RL_GPU_OWNER_TIME)

    def _keep(self, device: "Device", reading: Reading, attributes: Mapping[str, str]) -> None:
        key = (reading.metric, device.uuid, reading.attributes)
        with self._lock:
            value = reading.value
            if METRICS[reading.metric].instrument is Instrument.COUNTER:
                before, total = self._counts.get(key, (reading.since, 0.0))
                before = value if before is None else before
                total += value - before if value >= before else value
                self._counts[key] = (value, total)
                value = total
            self._latest.setdefault(reading.metric, {})[key] = Observation(value, attributes)
        self._observe(reading.metric)

    def _take(self, metric: str) -> Iterable[Observation]:
        with self._lock:
            latest = [*self._latest.pop(metric, {}).values()]
        if metric == RL_GPU_OWNER_TIME:
            turns = self._held_s().items()
            latest += [Observation(seconds, {RL_GPU_OWNER: phase}) for phase, seconds in turns]
        return latest

    def _gauge(self, metric: str) -> _Gauge:
        gauge = self._gauges.get(metric)
        if gauge is None:
            spec = METRICS[metric]
            gauge = self._gauges[metric] = self._meter.create_gauge(metric, spec.unit, spec.brief)
        return gauge

    def _observe(self, metric: str) -> None:
        if metric in self._observed:
            return
        self._observed.add(metric)
        spec = METRICS[metric]

        def take(_options: CallbackOptions) -> Iterable[Observation]:
            return self._take(metric)

        if spec.instrument is Instrument.COUNTER:
            self._meter.create_observable_counter(metric, [take], spec.unit, spec.brief)
        else:
            self._meter.create_observable_up_down_counter(metric, [take], spec.unit, spec.brief)
