"""The thread that asks the devices and records what they say.

    NVML --thread, every interval--> gauge.set(value)              with the time of the sample
                    latest answers --exporter--> observable sums

Its own thread, because a driver in trouble can hold a question for minutes; exports go on. The
process can be forked, and the sampler started and stopped, any number of times.
"""

import logging
import os
import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress
from time import monotonic, monotonic_ns, time
from typing import Final

from opentelemetry.metrics import Meter

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
from otel_rl.worker.gpu.owner import Ownership
from otel_rl.worker.gpu.recorder import Recorder
from otel_rl.worker.gpu.settings import GpuSettings
from otel_rl.worker.gpu.share import Shares
from otel_rl.worker.guard import Guard

__all__ = ["GpuSampler"]

RETRY_S: Final = 30.0
"""Until a device that is gone, or a driver that is reset, is looked for again."""

STOP_TIMEOUT_S: Final = 1.0
"""The end of a process does not wait longer for a driver that does not answer."""

_BETWEEN_TURNS_S: Final = 0.1
"""Turns that are shorter are divided by their time alone: a driver answers no faster."""

_log = logging.getLogger("otel_rl")


_Answers = list[tuple[Device, Sequence[Reading]]]


class GpuSampler:
    """Samples the GPUs of this process. Never raises; any thread may call anything.

    Args:
        meter: Records what is found.
        guard: Catches what goes wrong.
        retry_s: See ``RETRY_S``.
    """

    def __init__(self, meter: Meter, guard: Guard, *, retry_s: float = RETRY_S) -> None:
        self._ownership = Ownership(monotonic_ns)
        self._recorder = Recorder(meter, self._held_without_devices_s)
        self._shares = Shares()
        self._guard = guard
        self._retry_s = retry_s
        self._memory = Memory()
        self._has_devices = False  # or may have, as long as nobody knows
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
            self._has_devices = is_wanted
            if not is_wanted:
                return
            self._settings, self._stopping = settings, threading.Event()
            self._thread = threading.Thread(
                target=self._run, args=(settings, self._stopping), name="otel-rl-gpu", daemon=True
            )
            self._thread.start()

    def begin_turn(self, turn: object, phase: str) -> None:
        """A phase holds the GPUs from now on, see ``Ownership``."""
        self._ownership.begin(turn, phase)
        self._recorder.show_turns()

    def end_turn(self, turn: object) -> None:
        """It holds them no more."""
        self._ownership.end(turn)

    def stop(self, *, timeout_s: float = STOP_TIMEOUT_S) -> None:
        """Sample no more. Waits at most ``timeout_s`` for a question that is under way."""
        with self._guard, self._lock:
            self._end(timeout_s)

    def count_anew(self) -> None:
        """From now on the process is another worker, whose sums begin at zero."""
        self._shares = Shares()
        self._recorder.begin_anew()

    def forget(self) -> None:
        """After a fork: the thread is the parent's, and so is its connection to the driver."""
        self._lock = threading.Lock()
        self._thread = None
        self._stopping = threading.Event()
        self._memory = Memory(self._memory.said)
        self._has_devices = False
        renew_locks()
        self._ownership.forget()
        self._recorder.forget()
        self._shares = Shares()

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
            self._has_devices = False
            return False
        self._has_devices = True
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
        visible = os.environ.get("CUDA_VISIBLE_DEVICES")
        devices, are_all = driver.devices(visible, settings.devices)
        if are_all and not devices:
            driver.say("none", "No GPU is sampled: the process can see none.")
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
        self._share(self._answers(devices))  # of a turn that ends with the process
        return False

    def _wait(self, devices: Sequence[Device], stopping: threading.Event, wait_s: float) -> None:
        """Wait for the next round. When others take over, see what those before have had."""
        until_s, changed = monotonic() + wait_s, self._ownership.changed
        while not stopping.is_set() and (left_s := until_s - monotonic()) > 0:
            if changed.wait(left_s) and not stopping.is_set():
                changed.clear()
                self._share(self._answers(devices))
                stopping.wait(_BETWEEN_TURNS_S)

    def _round(self, driver: Driver, devices: Sequence[Device]) -> list[Device]:
        """Ask every device once. Returns those that are there still."""
        answers = self._answers(devices)
        self._recorder.record(answers)
        self._share(answers)
        self._recorder.record(driver.errors(devices))
        return [device for device, _ in answers]

    def _share(self, answers: _Answers) -> None:
        """Record what each phase has had of the devices, if any has ever held them."""
        held_s = self._ownership.held_s()
        if not held_s:
            return
        devices = {device.uuid: device for device, _ in answers}
        readings = [(device.uuid, found) for device, found in answers]
        shares = self._shares.divide(monotonic(), held_s, readings)
        self._recorder.record((devices[uuid], found) for uuid, found in shares)

    def _answers(self, devices: Sequence[Device]) -> _Answers:
        """What the devices say that are there."""
        answers: _Answers = []
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
        return answers


def _until_next_s(now_s: float, interval_s: float) -> float:
    """Until the middle of an interval of the clock, so that each of the bridge's windows has one.

    At least half an interval, because the wait before may have ended a little early.
    """
    next_s = interval_s - (now_s - interval_s / 2) % interval_s
    return next_s if next_s >= interval_s / 2 else next_s + interval_s
