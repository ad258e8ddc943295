"""Rounds of queries of the devices on the sampler's thread, until they stop or one is lost."""

import logging
import os
import threading
from collections.abc import Sequence
from time import monotonic, time
from typing import TYPE_CHECKING, Final

from otel_rl.worker.gpu.phase_owner import PhaseOwnership
from otel_rl.worker.gpu.phase_shares import PhaseShares
from otel_rl.worker.gpu.readings import DeviceGone, DriverMemory, NoDriver, Reading
from otel_rl.worker.gpu.recorder import Recorder
from otel_rl.worker.settings import GpuSettings

if TYPE_CHECKING:
    from otel_rl.worker.gpu.nvml import Device, Driver

__all__ = ["DeviceRounds"]

_BETWEEN_TURNS_S: Final = 0.1
"""Shorter turns are divided by time alone: a driver does not answer faster."""

_log = logging.getLogger("otel_rl")


_Answers = list[tuple["Device", Sequence[Reading]]]


class DeviceRounds:
    """Queries all devices at intervals, and records the answers and the shares of phases.

    Args:
        ownership: Phases that hold the devices.
        recorder: Records the readings.
        retry_s: Period of attempts to find a lost device.

    Attributes:
        has_devices: Whether there are devices, or may be, while that is unknown.
    """

    def __init__(self, ownership: PhaseOwnership, recorder: Recorder, retry_s: float) -> None:
        self.has_devices = False
        self._ownership = ownership
        self._recorder = recorder
        self._retry_s = retry_s
        self._shares = PhaseShares()
        self._memory = DriverMemory()

    def expect(self, *, devices: bool) -> None:
        """Record whether devices are to be looked for."""
        self.has_devices = devices

    def count_anew(self) -> None:
        """Reset the shares for another worker."""
        self._shares = PhaseShares()

    def forget(self) -> None:
        """Reset after a fork, except for what was logged."""
        self._memory = DriverMemory(self._memory.logged)
        self.has_devices = False
        self._shares = PhaseShares()

    def sample(self, settings: GpuSettings, stopping: threading.Event) -> bool:
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
            self.has_devices = False
            return False
        self.has_devices = True
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
            self.has_devices = False
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
        self._recorder.record(driver.activity(devices))
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
