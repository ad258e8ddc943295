"""Sampler thread that queries the devices and records the readings.

    NVML --thread, every interval--> gauge.set(value)              with the time of the sample
                    latest answers --exporter--> observable sums

A thread of its own, because a faulty driver can block a query for minutes, while exports continue.
The process can be forked, and the sampler started and stopped, any number of times.
"""

import logging
import os
import sys
import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress
from time import monotonic, monotonic_ns, time
from typing import TYPE_CHECKING, Final

from opentelemetry.metrics import Meter

from otel_rl.worker.gpu.phase_owner import PhaseOwnership
from otel_rl.worker.gpu.phase_shares import PhaseShares
from otel_rl.worker.gpu.readings import DeviceGone, DriverMemory, NoDriver, Reading
from otel_rl.worker.gpu.recorder import Recorder
from otel_rl.worker.gpu.settings import GpuSettings
from otel_rl.worker.guard import Guard

if TYPE_CHECKING:
    from otel_rl.worker.gpu.nvml import Device, Driver

__all__ = ["GpuSampler"]

RETRY_S: Final = 30.0
"""Period of attempts to find a lost device, or a driver that was reset."""

STOP_TIMEOUT_S: Final = 1.0
"""Maximum time that the end of a process waits for a driver that does not answer."""

_BETWEEN_TURNS_S: Final = 0.1
"""Shorter turns are divided by time alone: a driver does not answer faster."""

_log = logging.getLogger("otel_rl")


_Answers = list[tuple["Device", Sequence[Reading]]]


class GpuSampler:
    """Samples the GPUs of this process. Never raises; thread-safe.

    Args:
        meter: Records the readings.
        guard: Catches errors.
        retry_s: See ``RETRY_S``.
    """

    def __init__(self, meter: Meter, guard: Guard, *, retry_s: float = RETRY_S) -> None:
        self._ownership = PhaseOwnership(monotonic_ns)
        self._recorder = Recorder(meter, self._held_without_devices_s)
        self._shares = PhaseShares()
        self._guard = guard
        self._retry_s = retry_s
        self._memory = DriverMemory()
        self._has_devices = False  # or may have, while unknown
        # _lock guards the three below.
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._stopping = threading.Event()
        self._settings = GpuSettings()

    def prepare(self, settings: GpuSettings) -> None:
        """Load NVML if sampling is enabled. Call it in the thread that starts the worker."""
        if settings.enabled:
            from otel_rl.worker.gpu.nvml import load  # few workers sample

            with self._guard, suppress(NoDriver):
                load()

    def start(self, settings: GpuSettings, role: str) -> None:
        """Sample from now on if workers of ``role`` sample, else stop. Idempotent."""
        with self._guard, self._lock:
            is_wanted = settings.are_for(role)
            if is_wanted and self._thread is not None and settings == self._settings:
                return
            self._end()
            self._has_devices = is_wanted
            if not is_wanted:
                return
            self._settings, self._stopping = settings, threading.Event()
            self._thread = threading.Thread(
                target=self._run, args=(settings, self._stopping), name="otel-rl-gpu", daemon=True
            )
            self._thread.start()

    def begin_turn(self, turn: object, phase: str) -> None:
        """Assign the GPUs to a phase, see ``PhaseOwnership``."""
        self._ownership.begin(turn, phase)
        self._recorder.show_turns()

    def end_turn(self, turn: object) -> None:
        """End the turn."""
        self._ownership.end(turn)

    def stop(self, *, timeout_s: float = STOP_TIMEOUT_S) -> None:
        """Stop sampling. Waits at most ``timeout_s`` for a running query."""
        with self._guard, self._lock:
            self._end(timeout_s)

    def count_anew(self) -> None:
        """Reset the sums for another worker."""
        self._shares = PhaseShares()
        self._recorder.begin_anew()

    def forget(self) -> None:
        """Reset after a fork: the thread and the driver connection belong to the parent."""
        self._lock = threading.Lock()
        self._thread = None
        self._stopping = threading.Event()
        self._memory = DriverMemory(self._memory.logged)
        self._has_devices = False
        if "pynvml" in sys.modules:
            from otel_rl.worker.gpu.nvml import renew_locks

            renew_locks()
        self._ownership.forget()
        self._recorder.forget()
        self._shares = PhaseShares()

    def _held_without_devices_s(self) -> Mapping[str, float]:
        return {} if self._has_devices else self._ownership.held_s()

    def _end(self, timeout_s: float = STOP_TIMEOUT_S) -> None:
        thread, self._thread = self._thread, None
        self._stopping.set()
        self._ownership.changed.set()
        if thread is not None and thread is not threading.current_thread():
            thread.join(timeout_s)

    def _run(self, settings: GpuSettings, stopping: threading.Event) -> None:
        while not stopping.is_set():
            wait_s = self._retry_s
            with self._guard:
                wait_s = 0 if self._sample(settings, stopping) else wait_s
            stopping.wait(wait_s)

    def _sample(self, settings: GpuSettings, stopping: threading.Event) -> bool:
        """Sample until stopped, or until it is time to look for lost devices.

        Returns:
            True if it sampled; False without a usable driver.
        """
        from otel_rl.worker.gpu.nvml import Driver

        try:
            driver = Driver(self._memory)
        except NoDriver as reason:
            if "driver" not in self._memory.logged:
                self._memory.logged.add("driver")
                _log.info("No GPU is sampled: %s. Training is not affected.", reason)
            self._has_devices = False
            return False
        self._has_devices = True
        try:
            return self._sample_with(driver, settings, stopping)
        except NoDriver as reason:
            _log.warning("GPUs cannot be sampled now: %s. Sampling is tried again.", reason)
            return False
        finally:
            driver.close()

    def _sample_with(
        self, driver: "Driver", settings: GpuSettings, stopping: threading.Event
    ) -> bool:
        visible = os.environ.get("CUDA_VISIBLE_DEVICES")
        devices, are_all = driver.devices(visible, settings.devices)
        if are_all and not devices:
            driver.log_once("none", "No GPU is sampled: none is visible to the process.")
            self._has_devices = False
            stopping.wait()
        look_again_s = None if are_all else monotonic() + self._retry_s
        while devices and not stopping.is_set():
            there = self._round(driver, devices)
            if len(there) < len(devices):
                look_again_s = look_again_s or monotonic() + self._retry_s
            devices = there
            self._wait(devices, stopping, _until_next_s(time(), settings.interval_s))
            if look_again_s is not None and monotonic() >= look_again_s:
                return True
        self._share(self._answers(devices))  # for a turn that ends with the process
        return False

    def _wait(self, devices: Sequence["Device"], stopping: threading.Event, wait_s: float) -> None:
        """Wait for the next round. At each change of the phase, divide the interval before it."""
        until_s, changed = monotonic() + wait_s, self._ownership.changed
        while not stopping.is_set() and (left_s := until_s - monotonic()) > 0:
            if changed.wait(left_s) and not stopping.is_set():
                changed.clear()
                self._share(self._answers(devices))
                stopping.wait(_BETWEEN_TURNS_S)

    def _round(self, driver: "Driver", devices: Sequence["Device"]) -> list["Device"]:
        """Query every device once. Returns those that still answer."""
        answers = self._answers(devices)
        self._recorder.record(answers)
        self._share(answers)
        self._recorder.record(driver.errors(devices))
        return [device for device, _ in answers]

    def _share(self, answers: _Answers) -> None:
        """Record the devices' shares of each phase, if any phase has held them."""
        held_s = self._ownership.held_s()
        if not held_s:
            return
        devices = {device.uuid: device for device, _ in answers}
        readings = [(device.uuid, found) for device, found in answers]
        shares = self._shares.divide(monotonic(), held_s, readings)
        self._recorder.record((devices[uuid], found) for uuid, found in shares)

    def _answers(self, devices: Sequence["Device"]) -> _Answers:
        """Return the readings of the devices that answer."""
        answers: _Answers = []
        for device in devices:
            try:
                answers.append((device, device.read()))
            except DeviceGone as reason:
                _log.warning(
                    "GPU %s (%s) is gone: %s. The search for it is repeated.",
                    device.name,
                    device.uuid,
                    reason,
                )
        return answers


def _until_next_s(now_s: float, interval_s: float) -> float:
    """Return the time to the middle of the next clock interval, so that each window has a sample.

    At least half an interval, because the previous wait may have ended slightly early.
    """
    next_s = interval_s - (now_s - interval_s / 2) % interval_s
    return next_s if next_s >= interval_s / 2 else next_s + interval_s
