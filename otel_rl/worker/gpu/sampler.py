"""The thread that asks the devices and records what they say.

    NVML --thread, every interval--> gauge.set(value)              with the time of the sample
                    latest answers --exporter--> observable sums

Its own thread, because a driver in trouble can hold a question for minutes; exports go on. The
process can be forked, and the sampler started and stopped, any number of times.
"""

import logging
import os
import threading
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from time import monotonic, time
from typing import Final

from opentelemetry.metrics import CallbackOptions, Meter, Observation, _Gauge

from otel_rl.semconv.names import METRICS
from otel_rl.semconv.spec import Instrument
from otel_rl.worker.gpu.nvml import (
    Device,
    DeviceGone,
    Driver,
    Memory,
    NoDriver,
    Reading,
    load,
    renew_locks,
)
from otel_rl.worker.gpu.settings import GpuSettings
from otel_rl.worker.guard import Guard

__all__ = ["GpuSampler"]

RETRY_S: Final = 30.0
"""Until a device that is gone, or a driver that is reset, is looked for again."""

STOP_TIMEOUT_S: Final = 1.0
"""The end of a process does not wait longer for a driver that does not answer."""

_log = logging.getLogger("otel_rl")


class GpuSampler:
    """Samples the GPUs of this process. Never raises; any thread may call anything.

    Args:
        meter: Records what is found.
        guard: Catches what goes wrong.
        retry_s: See ``RETRY_S``.
    """

    def __init__(self, meter: Meter, guard: Guard, *, retry_s: float = RETRY_S) -> None:
        self._recorder = _Recorder(meter)
        self._guard = guard
        self._retry_s = retry_s
        self._memory = Memory()
        # _lock guards the three below.
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._stopping = threading.Event()
        self._settings = GpuSettings()

    def prepare(self, settings: GpuSettings) -> None:
        """Load what sampling needs, if anybody samples. For the thread that starts the worker."""
        if settings.enabled:
            with self._guard, suppress(NoDriver):
                load()

    def start(self, settings: GpuSettings, role: str) -> None:
        """Sample from now on if a worker of ``role`` is to, else no more. Idempotent."""
        with self._guard, self._lock:
            is_wanted = settings.are_for(role)
            if is_wanted and self._thread is not None and settings == self._settings:
                return
            self._end()
            if not is_wanted:
                return
            self._settings, self._stopping = settings, threading.Event()
            self._thread = threading.Thread(
                target=self._run, args=(settings, self._stopping), name="otel-rl-gpu", daemon=True
            )
            self._thread.start()

    def stop(self, *, timeout_s: float = STOP_TIMEOUT_S) -> None:
        """Sample no more. Waits at most ``timeout_s`` for a question that is under way."""
        with self._guard, self._lock:
            self._end(timeout_s)

    def count_anew(self) -> None:
        """From now on the process is another worker, whose sums begin at zero."""
        self._recorder.forget()

    def forget(self) -> None:
        """After a fork: the thread is the parent's, and so is its connection to the driver."""
        self._lock = threading.Lock()
        self._thread = None
        self._stopping = threading.Event()
        self._memory = Memory(self._memory.said)
        renew_locks()
        self._recorder.forget()

    def _end(self, timeout_s: float = STOP_TIMEOUT_S) -> None:
        thread, self._thread = self._thread, None
        self._stopping.set()
        if thread is not None and thread is not threading.current_thread():
            thread.join(timeout_s)

    def _run(self, settings: GpuSettings, stopping: threading.Event) -> None:
        while not stopping.is_set():
            wait_s = self._retry_s
            with self._guard:
                wait_s = 0 if self._sample(settings, stopping) else wait_s
            stopping.wait(wait_s)

    def _sample(self, settings: GpuSettings, stopping: threading.Event) -> bool:
        """Sample until told to stop, or until it is time to look for devices that are gone.

        Returns:
            Whether it was so; if not, there was nobody to ask.
        """
        try:
            driver = Driver(self._memory)
        except NoDriver as reason:
            if "driver" not in self._memory.said:
                self._memory.said.add("driver")
                _log.info("No GPU is sampled: %s. Training is not affected.", reason)
            return False
        try:
            return self._sample_with(driver, settings, stopping)
        except NoDriver as reason:
            _log.warning("GPUs cannot be sampled now: %s. They are looked for again.", reason)
            return False
        finally:
            driver.close()

    def _sample_with(
        self, driver: Driver, settings: GpuSettings, stopping: threading.Event
    ) -> bool:
        wanted = settings.devices
        if wanted is None:
            wanted = os.environ.get("CUDA_VISIBLE_DEVICES")
        devices, are_all = driver.devices(wanted)
        if are_all and not devices:
            driver.say("none", "No GPU is sampled: the process can see none.")
            stopping.wait()
        look_again_s = None if are_all else monotonic() + self._retry_s
        while devices and not stopping.is_set():
            there = self._round(driver, devices)
            if len(there) < len(devices):
                look_again_s = look_again_s or monotonic() + self._retry_s
            devices = there
            stopping.wait(_until_next_s(time(), settings.interval_s))
            if look_again_s is not None and monotonic() >= look_again_s:
                return True
        return False

    def _round(self, driver: Driver, devices: Sequence[Device]) -> list[Device]:
        """Ask every device once. Returns those that are there still."""
        answers: list[tuple[Device, Sequence[Reading]]] = []
        for device in devices:
            try:
                answers.append((device, device.read()))
            except DeviceGone as reason:
                _log.warning(
                    "GPU %s (%s) is gone: %s. It is looked for again.",
                    device.name,
                    device.uuid,
                    reason,
                )
        self._recorder.record(answers)
        self._recorder.record(driver.errors(devices))
        return [device for device, _ in answers]


def _until_next_s(now_s: float, interval_s: float) -> float:
    """Until the middle of an interval of the clock, so that each of the bridge's windows has one.

    At least half an interval, because the wait before may have ended a little early.
    """
    next_s = interval_s - (now_s - interval_s / 2) % interval_s
    return next_s if next_s >= interval_s / 2 else next_s + interval_s


_Key = tuple[str, str, tuple[tuple[str, str], ...]]
"""Metric, device and attributes."""


class _Recorder:
    """Turns answers into measurements. One thread records, the exporter's reads.

    A device counts since it was switched on; what was counted before the first sample is not the
    run's. After a reset of the device it counts from zero.
    """

    def __init__(self, meter: Meter) -> None:
        self._meter = meter
        self._gauges: dict[str, _Gauge] = {}
        self._observed: set[str] = set()
        # _lock guards everything below.
        self._lock = threading.Lock()
        # Taken out by the exporter, so that nothing is said twice of one sample.
        self._latest: dict[str, dict[_Key, Observation]] = {}
        # The device's last count, and how much it has counted for us.
        self._counts: dict[_Key, tuple[float, float]] = {}

    def record(self, answers: Iterable[tuple[Device, Sequence[Reading]]]) -> None:
        """Record what devices say of themselves."""
        for device, readings in answers:
            shared = device.attributes()
            for reading in readings:
                attributes = {**shared, **dict(reading.attributes)}
                if METRICS[reading.metric].instrument is Instrument.GAUGE:
                    self._gauge(reading.metric).set(reading.value, attributes)
                else:
                    self._keep(device, reading, attributes)

    def forget(self) -> None:
        """Begin anew: in another process, or as another worker."""
        self._lock = threading.Lock()  # a parent's thread that is not here may hold it
        self._latest = {}
        self._counts = {}

    def _keep(self, device: Device, reading: Reading, attributes: Mapping[str, str]) -> None:
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
            return [*self._latest.pop(metric, {}).values()]

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
