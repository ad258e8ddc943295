"""Samples the worker's GPUs in a thread.

    driver --thread, every interval--> gauge.set(value)            with the time of the sample
                      latest answers --exporter--> observable sums

The thread is there because a faulty driver can block a query for minutes, while exports continue.
The process can be forked, and the sampler started and stopped, any number of times.
"""

import logging
import os
import threading
from contextlib import closing
from time import monotonic, time
from typing import Final

from opentelemetry.metrics import Meter, Observation

from otel_rl.semconv.names import METRICS
from otel_rl.semconv.spec import Instrument
from otel_rl.worker.drops import DropReason
from otel_rl.worker.guard import Guard
from otel_rl.worker.settings import GpuSettings
from otel_rl.worker.system.latest import Latest
from otel_rl.worker.system.nvml import (
    Device,
    DeviceGone,
    Driver,
    NoDriver,
    Reading,
    log_once,
    renew_lock,
)

__all__ = ["GpuSampler"]

RETRY_S: Final = 30.0
"""Period of attempts to find a lost device, or a driver that was reset."""

STOP_TIMEOUT_S: Final = 1.0
"""Maximum time that the end of a process waits for a driver that does not answer."""

_SILENT_S: Final = 30.0
"""Age of a query that is told: a sound driver answers within a second."""


class GpuSampler:
    """Samples the GPUs of this process in a thread. Never raises; thread-safe."""

    def __init__(
        self,
        meter: Meter,
        guard: Guard,
        *,
        retry_s: float = RETRY_S,
        silent_s: float = _SILENT_S,
    ) -> None:
        self._recorder = _Recorder(meter)
        self._guard = guard
        self._retry_s = retry_s
        self._silent_s = silent_s
        self._asked_s: float | None = None  # when the driver was asked what it has not answered yet
        self._logged: set[str] = set()
        # _lock guards the three below.
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._stopping = threading.Event()
        self._settings = GpuSettings()

    def start(self, settings: GpuSettings, role: str) -> None:
        """Sample from now on if workers of ``role`` sample, else stop. Idempotent."""
        with self._guard, self._lock:
            is_wanted = settings.are_for(role)
            if is_wanted and self._thread is not None and settings == self._settings:
                return
            self._end(STOP_TIMEOUT_S)
            if not is_wanted:
                return
            self._settings, self._stopping = settings, threading.Event()
            self._thread = threading.Thread(
                target=self._run, args=(settings, self._stopping), name="otel-rl-gpu", daemon=True
            )
            self._thread.start()

    def stop(self, *, timeout_s: float = STOP_TIMEOUT_S) -> None:
        """Stop sampling. Waits at most ``timeout_s`` for a running query."""
        with self._guard, self._lock:
            self._end(timeout_s)

    def look(self) -> None:
        """Tell of a driver that does not answer, which its own thread waits for."""
        asked_s = self._asked_s
        if asked_s is not None and monotonic() - asked_s > self._silent_s:
            self._miss("the NVIDIA driver does not answer a query; nothing else waits for it")

    def _miss(self, why: str) -> None:
        self._tell(
            f"No GPU is sampled: {why}. Training is not affected. If this process has none, set "
            "OTEL_RL_GPU_ROLES to the roles that have one."
        )

    def _tell(self, message: str) -> None:
        if log_once(self._logged, message, logging.WARNING):
            self._guard.drops.add(DropReason.NO_GPU)

    def count_anew(self) -> None:
        """Reset the sums for another worker."""
        self._recorder.begin_anew()

    def forget(self) -> None:
        """Reset after a fork: the thread and the driver connection belong to the parent."""
        self._lock = threading.Lock()
        self._thread = None
        self._stopping = threading.Event()
        self._asked_s = None
        self._logged = set()
        renew_lock()
        self._recorder.begin_anew()

    def _end(self, timeout_s: float) -> None:
        thread, self._thread = self._thread, None
        self._stopping.set()
        if thread is not None and thread is not threading.current_thread():
            thread.join(timeout_s)
            if thread.is_alive():
                self._guard.drop(
                    DropReason.NO_GPU,
                    "The NVIDIA driver does not answer a query. The last samples of the GPUs are "
                    "missing in the run; nothing else waits for the driver.",
                )

    def _run(self, settings: GpuSettings, stopping: threading.Event) -> None:
        while not stopping.is_set():
            with self._guard:
                try:
                    self._asked_s = monotonic()
                    with closing(Driver(self._logged)) as driver:
                        self._sample(driver, settings, stopping)
                    continue
                except NoDriver as reason:
                    self._miss(str(reason))
                finally:
                    self._asked_s = None
            stopping.wait(self._retry_s)

    def _sample(self, driver: Driver, settings: GpuSettings, stopping: threading.Event) -> None:
        """Sample the devices. Returns at the end, or to look again for devices that are missing.

        Raises:
            NoDriver: The driver is gone, or no device answers.
        """
        devices, are_all = driver.devices(os.environ.get("CUDA_VISIBLE_DEVICES"))
        if are_all and not devices:
            self._asked_s = None
            self._miss("none is visible to the process")
            stopping.wait()
            return
        look_again_s = None if are_all else monotonic() + self._retry_s
        while True:  # a short process has one sample
            answering = [device for device in devices if self._has_answered(driver, device)]
            if not answering:
                raise NoDriver("no device answers")
            if len(answering) < len(devices):
                look_again_s = look_again_s or monotonic() + self._retry_s
            devices = answering
            is_over = stopping.wait(_until_next_s(time(), settings.interval_s))
            if is_over or (look_again_s is not None and monotonic() >= look_again_s):
                return

    def _has_answered(self, driver: Driver, device: Device) -> bool:
        """Record one sample of a device. False, told once, if the device is gone."""
        self._asked_s = monotonic()
        try:
            self._recorder.record(device, driver.read(device))
        except DeviceGone as reason:
            self._tell(
                f"GPU {device.name} ({device.uuid}) is gone: {reason}. The search for it is "
                "repeated."
            )
            return False
        finally:
            self._asked_s = None
        return True


def _until_next_s(now_s: float, interval_s: float) -> float:
    """Return the time to the middle of the next clock interval, so that each window has a sample.

    At least half an interval, because the previous wait may have ended slightly early.
    """
    next_s = interval_s - (now_s - interval_s / 2) % interval_s
    return next_s if next_s >= interval_s / 2 else next_s + interval_s


class _Recorder:
    """Converts readings to measurements. One thread records.

    A device counts since its power-on; counts before the first sample are subtracted. After a reset
    of the device they start from zero.
    """

    def __init__(self, meter: Meter) -> None:
        self._meter = meter
        self._latest = Latest(meter)
        self.begin_anew()

    def begin_anew(self) -> None:
        """Reset the sums, for another worker or in a forked child."""
        self._latest.forget()
        # By series: the device's last count, and the worker's total.
        self._counts: dict[object, tuple[float, float]] = {}

    def record(self, device: Device, readings: list[Reading]) -> None:
        shared = device.attributes()
        for metric, value, own in readings:
            attributes = {**shared, **dict(own)}
            spec = METRICS[metric]
            if spec.instrument is Instrument.GAUGE:
                self._meter.create_gauge(spec.name, spec.unit, spec.brief).set(value, attributes)
                continue
            series = (metric, device.uuid, own)
            total = self._total(series, value) if spec.instrument is Instrument.COUNTER else value
            self._latest.set(metric, series, Observation(total, attributes))

    def _total(self, series: object, value: float) -> float:
        """Return what was counted since the first sample."""
        before, total = self._counts.get(series, (value, 0.0))
        total += value if value < before else value - before  # or the device was reset
        self._counts[series] = (value, total)
        return total
