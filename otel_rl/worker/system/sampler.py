"""Samples the worker's GPUs in a thread, and divides the samples between phases that share a GPU.

    driver --thread, every interval--> gauge.set(value)            with the time of the sample
                      latest answers --exporter--> observable sums

The thread is there because a faulty driver can block a query for minutes, while exports continue.
The process can be forked, and the sampler started and stopped, any number of times.
"""

import os
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from time import monotonic, monotonic_ns, time
from typing import Final

from opentelemetry.metrics import Meter, Observation

from otel_rl.semconv.names import (
    HW_ENERGY,
    HW_GPU_MEMORY_USAGE,
    HW_GPU_UTILIZATION,
    METRICS,
    RL_GPU_OWNER,
    RL_GPU_OWNER_BUSY_TIME,
    RL_GPU_OWNER_ENERGY,
    RL_GPU_OWNER_MEMORY_USAGE,
    RL_GPU_OWNER_TIME,
)
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
    renew_lock,
)

RETRY_S: Final = 30.0
"""Period of attempts to find a lost device, or a driver that was reset."""

STOP_TIMEOUT_S: Final = 1.0
"""Maximum time that the end of a process waits for a driver that does not answer."""

_SILENT_S: Final = 30.0
"""Age of a query that is told: a sound driver answers within a second."""

_BETWEEN_TURNS_S: Final = 0.1
"""Shorter turns are divided by time alone: a driver does not answer faster."""

_Answers = list[tuple[Device, list[Reading]]]


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
        self._owners = GpuOwners(monotonic_ns)
        self._recorder = _Recorder(meter, self._held_without_devices_s)
        self._guard = guard
        self._retry_s = retry_s
        self._silent_s = silent_s
        self._asked_s: float | None = None  # when the driver was asked what it has not answered yet
        self._has_devices = False  # or may have, as long as that is not known
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
            self._has_devices = is_wanted
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

    def begin_turn(self, turn: object, phase: str) -> None:
        self._recorder.show_turns()
        self._owners.begin(turn, phase)

    def end_turn(self, turn: object) -> None:
        self._owners.end(turn)

    def look(self) -> None:
        """Log that the driver does not answer, as the sampler's own thread only waits for it."""
        asked_s = self._asked_s
        if asked_s is not None and monotonic() - asked_s > self._silent_s:
            self._miss("the NVIDIA driver does not answer a query; nothing else waits for it")

    def _miss(self, why: str) -> None:
        message = (
            f"No GPU is sampled: {why}. Training is not affected. If this process has none, set "
            "OTEL_RL_GPU_ROLES to the roles that have one."
        )
        if self._guard.once(message):
            self._guard.drops.add(DropReason.NO_GPU)

    def count_anew(self) -> None:
        self._recorder.begin_anew()

    def forget(self) -> None:
        """Reset after a fork: the thread and the driver connection belong to the parent."""
        self._lock = threading.Lock()
        self._thread = None
        self._stopping = threading.Event()
        self._has_devices = False
        self._asked_s = None
        renew_lock()
        self._owners.forget()
        self._recorder.begin_anew()

    def _held_without_devices_s(self) -> Mapping[str, float]:
        return {} if self._has_devices else self._owners.held_s()

    def _end(self, timeout_s: float) -> None:
        thread, self._thread = self._thread, None
        self._stopping.set()
        self._owners.changed.set()
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
                    with closing(Driver(self._guard)) as driver:
                        self._sample(driver, settings, stopping)
                    continue
                except NoDriver as reason:
                    self._has_devices = False
                    self._miss(str(reason))
                finally:
                    self._asked_s = None
            stopping.wait(self._retry_s)

    def _sample(self, driver: Driver, settings: GpuSettings, stopping: threading.Event) -> None:
        """Sample the devices. Returns at the end, or to look again for missing devices.

        Raises:
            NoDriver: The driver is gone, or no device answers.
        """
        devices, are_all = driver.devices(os.environ.get("CUDA_VISIBLE_DEVICES"))
        if are_all and not devices:
            self._has_devices = False
            self._asked_s = None
            self._miss("none is visible to the process")
            stopping.wait()
            return
        self._has_devices = True
        look_again_s = None if are_all else monotonic() + self._retry_s
        while True:  # a short process has one sample
            answers = self._answers(driver, devices)
            self._recorder.record(answers)
            self._recorder.record(self._owners.divide(answers))
            if not answers:
                raise NoDriver("no device answers")
            if len(answers) < len(devices):
                look_again_s = look_again_s or monotonic() + self._retry_s
            devices = [device for device, _ in answers]
            if stopping.is_set():
                return
            self._wait(driver, devices, stopping, _until_next_s(time(), settings.interval_s))
            if stopping.is_set():
                break
            if look_again_s is not None and monotonic() >= look_again_s:
                return
        # For a turn that ends with the process.
        self._recorder.record(self._owners.divide(self._answers(driver, devices)))

    def _wait(
        self, driver: Driver, devices: Sequence[Device], stopping: threading.Event, wait_s: float
    ) -> None:
        """Wait for the next round. At each change of the phase, divide the preceding interval."""
        until_s, changed = monotonic() + wait_s, self._owners.changed
        while not stopping.is_set() and (left_s := until_s - monotonic()) > 0:
            if changed.wait(left_s) and not stopping.is_set():
                changed.clear()
                self._recorder.record(self._owners.divide(self._answers(driver, devices)))
                stopping.wait(_BETWEEN_TURNS_S)

    def _answers(self, driver: Driver, devices: Sequence[Device]) -> _Answers:
        answers: _Answers = []
        self._asked_s = monotonic()
        for device in devices:
            try:
                answers.append((device, driver.read(device)))
            except DeviceGone as reason:
                message = (
                    f"GPU {device.name} ({device.uuid}) is gone: {reason}. The search for it is "
                    "repeated."
                )
                if self._guard.once(message):
                    self._guard.drops.add(DropReason.NO_GPU)
        self._asked_s = None
        return answers


def _until_next_s(now_s: float, interval_s: float) -> float:
    """Return the time to the middle of the next clock interval, so that each window has a sample.

    The time is at least half an interval, because the previous wait may have ended slightly early.
    """
    next_s = interval_s - (now_s - interval_s / 2) % interval_s
    return next_s if next_s >= interval_s / 2 else next_s + interval_s


class GpuOwners:
    """Phases that hold the process's GPUs, and each phase's part of every device. Thread-safe.

    Of nested phases the innermost holds the GPUs. The utilization of a sample applies to the
    interval before it; each change of the holder triggers a sample, so that an interval belongs to
    one phase. Energy is the device's own count. Processes that share a device in turns each know
    their own turns, and sample the device in those: the bridge only adds up their reports.

    Attributes:
        changed: Event that is set at each change of the holder.
    """

    def __init__(self, clock_ns: Callable[[], int]) -> None:
        self._clock_ns = clock_ns
        self.forget()

    def forget(self) -> None:
        """Reset in a forked child, whose parent owns the open turns."""
        self.changed = threading.Event()
        # _lock guards the three below.
        self._lock = threading.Lock()
        self._open: list[tuple[object, str]] = []
        self._since_ns = 0
        self._held_ns: dict[str, int] = {}
        # Of the sampling thread: the same at the last sample, and the devices' counts.
        self._sampled_ns = 0
        self._held_before_ns: Mapping[str, int] = {}
        self._energy_j: dict[str, float] = {}

    def begin(self, turn: object, phase: str) -> None:
        with self._lock:
            self._settle()
            self._open.append((turn, phase))
            self._held_ns.setdefault(phase, 0)
        self.changed.set()

    def end(self, turn: object) -> None:
        """End the turn; the surrounding turn holds the GPUs again."""
        with self._lock:
            self._settle()
            self._open = [(other, phase) for other, phase in self._open if other is not turn]
        self.changed.set()

    def held_s(self) -> Mapping[str, float]:
        with self._lock:
            self._settle()
            return {phase: held_ns / 1e9 for phase, held_ns in self._held_ns.items()}

    def divide(self, answers: _Answers) -> Iterator[tuple[Device, list[Reading]]]:
        """Yield each phase's part of each device since the last sample."""
        with self._lock:
            self._settle()
            now_ns, held_ns = self._since_ns, dict(self._held_ns)
        turns = {
            phase: (ns - self._held_before_ns.get(phase, 0)) / 1e9 for phase, ns in held_ns.items()
        }
        passed_s = (now_ns - self._sampled_ns) / 1e9 if self._sampled_ns else 0.0
        self._sampled_ns, self._held_before_ns = now_ns, held_ns
        holder = max(turns, key=turns.__getitem__, default="")
        for device, readings in answers:
            found = {reading.metric: reading.value for reading in readings}
            used_j = self._used_j(device, found.get(HW_ENERGY))
            power_w = used_j / passed_s if passed_s > 0 else 0.0
            busy = found.get(HW_GPU_UTILIZATION, 0.0)
            shares = [
                Reading(metric, turn_s * rate, ((RL_GPU_OWNER, phase),), is_increment=True)
                for phase, turn_s in turns.items()
                for metric, rate in (
                    (RL_GPU_OWNER_TIME, 1.0),
                    (RL_GPU_OWNER_BUSY_TIME, busy),
                    (RL_GPU_OWNER_ENERGY, power_w),
                )
            ]
            if turns.get(holder) and HW_GPU_MEMORY_USAGE in found:
                used = found[HW_GPU_MEMORY_USAGE]
                shares.append(Reading(RL_GPU_OWNER_MEMORY_USAGE, used, ((RL_GPU_OWNER, holder),)))
            yield device, shares

    def _settle(self) -> None:
        now_ns = self._clock_ns()
        if self._open:
            self._held_ns[self._open[-1][1]] += now_ns - self._since_ns
        self._since_ns = now_ns

    def _used_j(self, device: Device, energy_j: float | None) -> float:
        if energy_j is None:
            return 0.0
        before_j = self._energy_j.get(device.uuid, energy_j)
        self._energy_j[device.uuid] = energy_j
        return max(0.0, energy_j - before_j)


class _Recorder:
    """Converts readings to measurements. One thread records.

    A device counts from its power-on; counts before the first sample are subtracted. After a reset
    of the device they start from zero.
    """

    def __init__(self, meter: Meter, held_s: Callable[[], Mapping[str, float]]) -> None:
        self._meter = meter
        self._held_s = held_s
        self._latest = Latest(meter)
        self.begin_anew()

    def begin_anew(self) -> None:
        """Reset the sums, for another worker or in a forked child."""
        self._latest.forget()
        # By series: the device's last count, and the worker's total.
        self._counts: dict[object, tuple[float, float]] = {}

    def record(self, answers: Iterable[tuple[Device, Iterable[Reading]]]) -> None:
        for device, readings in answers:
            shared = device.attributes()
            for reading in readings:
                attributes = {**shared, **dict(reading.attributes)}
                spec = METRICS[reading.metric]
                if spec.instrument is Instrument.GAUGE:
                    gauge = self._meter.create_gauge(spec.name, spec.unit, spec.brief)
                    gauge.set(reading.value, attributes)
                else:
                    series = (reading.metric, device.uuid, reading.attributes)
                    is_count = spec.instrument is Instrument.COUNTER
                    value = self._total(series, reading) if is_count else reading.value
                    self._latest.set(reading.metric, series, Observation(value, attributes))

    def show_turns(self) -> None:
        """Report from now on how long phases hold the GPUs."""
        self._latest.observe(RL_GPU_OWNER_TIME, self._turns)

    def _turns(self) -> Iterable[Observation]:
        turns = self._held_s().items()
        return [Observation(seconds, {RL_GPU_OWNER: phase}) for phase, seconds in turns]

    def _total(self, series: object, reading: Reading) -> float:
        """Return the count of a series since the first sample."""
        counts, value = self._counts, reading.value
        before, total = counts.get(series, (value, 0.0))
        is_part = reading.is_increment or value < before  # or the device was reset
        total += value if is_part else value - before
        counts[series] = (value, total)
        return total
