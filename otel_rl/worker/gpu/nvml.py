"""The NVIDIA driver's devices and what each says of itself, by the real ``pynvml``.

Every question may fail by itself: some devices, drivers and containers do not answer some. What is
not supported is not asked again; a device that is gone is.
"""

import ctypes
import logging
import os
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from types import ModuleType
from typing import Final, NamedTuple

from otel_rl.semconv.names import (
    ERROR_TYPE,
    HW_ENERGY,
    HW_ERRORS,
    HW_GPU_IO,
    HW_GPU_MEMORY_LIMIT,
    HW_GPU_MEMORY_USAGE,
    HW_GPU_MEMORY_UTILIZATION,
    HW_GPU_UTILIZATION,
    HW_POWER,
    HW_TEMPERATURE,
    RL_GPU_CLOCK_DOMAIN,
    RL_GPU_CLOCK_FREQUENCY,
    RL_GPU_LINK,
    RL_GPU_POWER_LIMIT,
    RL_GPU_PROCESS_MEMORY_USAGE,
    RL_GPU_THROTTLE_REASON,
    RL_GPU_THROTTLED,
    RlGpuClockDomainValues,
    RlGpuLinkValues,
    RlGpuThrottleReasonValues,
)
from otel_rl.worker.gpu.visible import Instance, Listed, choose

__all__ = [
    "Device",
    "DeviceGone",
    "Driver",
    "Memory",
    "NoDriver",
    "Reading",
    "load",
    "renew_locks",
]

_log = logging.getLogger("otel_rl")

_DIRECTION: Final = "network.io.direction"

_ALL_LINKS: Final = 0xFFFFFFFF  # NVML's scope of an NVLink counter that is the sum over all links

_MAX_EVENTS: Final = 64  # of one look; a GPU in trouble may say the same without end


class NoDriver(Exception):
    """There is no NVIDIA driver, or it cannot be talked to. The message says why."""


class DeviceGone(Exception):
    """The device, or the driver as a whole, does not answer any more. The message says why."""


class Reading(NamedTuple):
    """One answer of a device, in the registry's unit.

    Attributes:
        metric: The registry's name.
        value: For a counter, since some moment in the past that the device knows.
        attributes: Besides those of the device.
        since: What a counter stood at when the worker began; None if only the device knows.
    """

    metric: str
    value: float
    attributes: tuple[tuple[str, str], ...] = ()
    since: float | None = None


_Question = Callable[["Device"], Iterator[Reading]]


@dataclass(slots=True, eq=False)
class Device:
    """A GPU or a MIG instance of one.

    Attributes:
        uuid: ``hw.id``.
        name: ``hw.name``: its place on the machine, ``gpu0`` or ``gpu0.mig1``.
        model: ``hw.model``.
        parent: The id of the GPU that an instance is part of, else empty.
        driver: Whom to ask.
        handle: NVML's own.
        questions: What it is asked; those that it does not support are taken out.
    """

    uuid: str
    name: str
    model: str
    parent: str
    driver: "Driver"
    handle: object
    questions: list[_Question] = field(default_factory=list)

    def attributes(self) -> dict[str, str]:
        """What stands on every point of the device."""
        found = {
            "hw.id": self.uuid,
            "hw.name": self.name,
            "hw.model": self.model,
            "hw.vendor": "NVIDIA",
            "hw.type": "gpu",
        }
        return found | ({"hw.parent": self.parent} if self.parent else {})

    def read(self) -> list[Reading]:
        """Ask it everything that it supports.

        Raises:
            DeviceGone: It does not answer any more.
        """
        found: list[Reading] = []
        for question in tuple(self.questions):
            before = len(found)
            try:
                found.extend(question(self))
            except self.driver.nvml.NVMLError as error:
                if self.driver.is_gone(error):
                    raise DeviceGone(str(error)) from error
                if self.driver.is_unsupported(error):
                    if len(found) == before:  # else it answers a part of it
                        self.questions.remove(question)
                    self.driver.say_unsupported(self, question.__name__.strip("_"), error)
        return found


@dataclass(slots=True)
class Memory:
    """What outlives a connection to the driver.

    Attributes:
        said: What was logged of devices, so that it is not said again.
        errors: XID errors that were seen, by device and kind.
    """

    said: set[str] = field(default_factory=set)
    errors: dict[tuple[str, str], int] = field(default_factory=dict)


class Driver:
    """A connection to the NVIDIA driver. One thread's; ``close`` ends it.

    Args:
        memory: Of earlier connections.

    Raises:
        NoDriver: There is none.
    """

    def __init__(self, memory: Memory) -> None:
        self.nvml = load()
        self._memory = memory
        self._events: object = None
        codes = self.nvml
        self._unsupported = {
            codes.NVML_ERROR_NOT_SUPPORTED,
            codes.NVML_ERROR_FUNCTION_NOT_FOUND,
            codes.NVML_ERROR_NO_PERMISSION,
            codes.NVML_ERROR_INVALID_ARGUMENT,
            codes.NVML_ERROR_ARGUMENT_VERSION_MISMATCH,
        }
        self._gone = {
            codes.NVML_ERROR_GPU_IS_LOST,
            codes.NVML_ERROR_GPU_NOT_FOUND,
            codes.NVML_ERROR_NOT_FOUND,
            codes.NVML_ERROR_RESET_REQUIRED,
            codes.NVML_ERROR_UNINITIALIZED,
            codes.NVML_ERROR_DRIVER_NOT_LOADED,
        }
        try:
            self.nvml.nvmlInit()
        except self.nvml.NVMLError as error:
            raise NoDriver(str(error)) from error

    def close(self) -> None:
        """Give NVML back. What fails here has no consequence."""
        for end in (self._free_events, self.nvml.nvmlShutdown):
            try:
                end()
            except self.nvml.NVMLError as error:
                _log.debug("NVML did not end well: %s", error)

    def devices(self, visible: str | None, named: str | None = None) -> tuple[list[Device], bool]:
        """Those to be sampled, and the GPUs that instances are parts of.

        Args:
            visible: What the process can see, see ``choose``.
            named: Those that are asked for instead, each by itself.

        Returns:
            The devices, and whether those are all: one that does not answer is left out.

        Raises:
            NoDriver: The driver is gone.
        """
        try:
            count = self.nvml.nvmlDeviceGetCount()
        except self.nvml.NVMLError as error:
            raise NoDriver(str(error)) from error
        listed: list[Listed] = []
        known: dict[str, Device] = {}
        for number in range(count):
            try:
                listed.append(self._list(number, known))
            except self.nvml.NVMLError as error:
                listed.append(Listed(""))  # the numbers after it stay what they are
                self.say(f"gpu{number}", f"GPU {number} does not answer ({error}).")
        if named is None:
            uuids = choose(listed, visible)
        else:
            by_word = {word: choose(listed, word) for word in named.split(",")}
            uuids = tuple(uuid for found in by_word.values() for uuid in found)
            missing = [word for word, found in by_word.items() if not found]
            if missing and all(gpu.uuid for gpu in listed):
                self.say(
                    "missing",
                    f"GPUs that were asked for are not there: {', '.join(missing)}.",
                    level=logging.WARNING,
                )
        chosen = [known[uuid] for uuid in uuids if uuid]
        parents = [known[device.parent] for device in chosen if device.parent]
        found = [*dict.fromkeys((*chosen, *parents))]
        self._watch_errors(found)
        return found, all(gpu.uuid for gpu in listed)

    def errors(self, devices: Sequence[Device]) -> Iterator[tuple[Device, list[Reading]]]:
        """How many XID errors each device has had, of each kind that there was."""
        by_handle = {_address(device.handle): device for device in devices}
        for _ in range(_MAX_EVENTS if self._events is not None else 0):
            try:
                event = self.nvml.nvmlEventSetWait_v2(self._events, 0)
            except self.nvml.NVMLError:
                break  # mostly a timeout: nothing has happened
            device = by_handle.get(_address(event.device))
            if device is not None:
                key = (device.uuid, f"xid.{event.eventData}")
                self._memory.errors[key] = self._memory.errors.get(key, 0) + 1
        for device in devices:
            for (uuid, kind), count in self._memory.errors.items():
                if uuid == device.uuid:
                    yield device, [Reading(HW_ERRORS, count, ((ERROR_TYPE, kind),), since=0)]

    def is_unsupported(self, error: Exception) -> bool:
        """Whether the same question will be answered so for ever."""
        return getattr(error, "value", None) in self._unsupported

    def is_gone(self, error: Exception) -> bool:
        """Whether nothing else need be asked of the device."""
        return getattr(error, "value", None) in self._gone

    def say_unsupported(self, device: Device, question: str, error: Exception) -> None:
        """Say once for a model that it does not support a question."""
        self.say(
            f"{device.model}/{bool(device.parent)}/{question}",
            f"{device.model} ({device.name}) does not say its {question.replace('_', ' ')}: "
            f"{error}. The rest is recorded.",
        )

    def say(self, key: str, message: str, *, level: int = logging.INFO) -> None:
        """Log a fact once in the life of the process."""
        if key not in self._memory.said:
            self._memory.said.add(key)
            _log.log(level, message)

    def _list(self, number: int, known: dict[str, Device]) -> Listed:
        nvml = self.nvml
        handle = nvml.nvmlDeviceGetHandleByIndex(number)
        uuid, model = nvml.nvmlDeviceGetUUID(handle), nvml.nvmlDeviceGetName(handle)
        known[uuid] = Device(uuid, f"gpu{number}", model, "", self, handle, [*_QUESTIONS])
        try:
            is_divided, _ = nvml.nvmlDeviceGetMigMode(handle)
        except nvml.NVMLError:
            is_divided = 0
        instances: list[Instance] = []
        for place in range(nvml.nvmlDeviceGetMaxMigDeviceCount(handle) if is_divided else 0):
            try:
                part = nvml.nvmlDeviceGetMigDeviceHandleByIndex(handle, place)
                own = nvml.nvmlDeviceGetUUID(part)
                ids = (
                    nvml.nvmlDeviceGetGpuInstanceId(part),
                    nvml.nvmlDeviceGetComputeInstanceId(part),
                )
            except nvml.NVMLError:
                continue  # most of the possible places are empty
            instances.append(Instance(own, ids))
            name = f"gpu{number}.mig{place}"
            known[own] = Device(own, name, model, uuid, self, part, [*_QUESTIONS_OF_PART])
        return Listed(uuid, bool(is_divided), tuple(instances))

    def _watch_errors(self, devices: Sequence[Device]) -> None:
        nvml = self.nvml
        try:
            self._free_events()
            self._events = nvml.nvmlEventSetCreate()
        except nvml.NVMLError as error:
            self._events = None
            self.say("xid", f"XID errors are not recorded: {error}.")
            return
        for device in devices:
            if not device.parent:
                try:
                    nvml.nvmlDeviceRegisterEvents(
                        device.handle, nvml.nvmlEventTypeXidCriticalError, self._events
                    )
                except nvml.NVMLError as error:
                    self.say_unsupported(device, "xid errors", error)

    def _free_events(self) -> None:
        events, self._events = self._events, None
        if events is not None:
            self.nvml.nvmlEventSetFree(events)


def load() -> ModuleType:
    """``pynvml``, which is loaded here and nowhere else.

    To be called first by a thread that forks: a child that is forked while another thread imports
    a module can never import it.

    Raises:
        NoDriver: The package is not installed.
    """
    try:
        import pynvml  # type: ignore[import-untyped]  # it has no stubs
    except ImportError as error:
        raise NoDriver(f"the package nvidia-ml-py is missing: {error}") from error
    module: ModuleType = pynvml
    return module


def renew_locks() -> None:
    """After a fork: a thread that is not in this process may have held a lock of ``pynvml``."""
    module = sys.modules.get("pynvml")
    if module is not None:
        module.libLoadLock = threading.Lock()  # type: ignore[attr-defined]  # it has no stubs


def _address(handle: object) -> int | None:
    return ctypes.cast(handle, ctypes.c_void_p).value  # type: ignore[arg-type]  # a ctypes pointer


def _utilization(device: Device) -> Iterator[Reading]:
    rates = device.driver.nvml.nvmlDeviceGetUtilizationRates(device.handle)
    yield Reading(HW_GPU_UTILIZATION, rates.gpu / 100)


def _memory(device: Device) -> Iterator[Reading]:
    memory = device.driver.nvml.nvmlDeviceGetMemoryInfo(device.handle)
    yield Reading(HW_GPU_MEMORY_USAGE, memory.used)
    yield Reading(HW_GPU_MEMORY_LIMIT, memory.total)
    if memory.total:
        yield Reading(HW_GPU_MEMORY_UTILIZATION, memory.used / memory.total)


def _power(device: Device) -> Iterator[Reading]:
    yield Reading(HW_POWER, device.driver.nvml.nvmlDeviceGetPowerUsage(device.handle) / 1000)


def _power_limit(device: Device) -> Iterator[Reading]:
    limit_mw = device.driver.nvml.nvmlDeviceGetEnforcedPowerLimit(device.handle)
    yield Reading(RL_GPU_POWER_LIMIT, limit_mw / 1000)


def _energy(device: Device) -> Iterator[Reading]:
    used_mj = device.driver.nvml.nvmlDeviceGetTotalEnergyConsumption(device.handle)
    yield Reading(HW_ENERGY, used_mj / 1000)


def _temperature(device: Device) -> Iterator[Reading]:
    nvml = device.driver.nvml
    yield Reading(
        HW_TEMPERATURE, nvml.nvmlDeviceGetTemperature(device.handle, nvml.NVML_TEMPERATURE_GPU)
    )


def _clocks(device: Device) -> Iterator[Reading]:
    nvml = device.driver.nvml
    for domain, clock in (
        (RlGpuClockDomainValues.SM, nvml.NVML_CLOCK_SM),
        (RlGpuClockDomainValues.MEMORY, nvml.NVML_CLOCK_MEM),
    ):
        megahertz = nvml.nvmlDeviceGetClockInfo(device.handle, clock)
        yield Reading(RL_GPU_CLOCK_FREQUENCY, megahertz * 1e6, ((RL_GPU_CLOCK_DOMAIN, domain),))


def _throttling(device: Device) -> Iterator[Reading]:
    nvml = device.driver.nvml
    # By its older name, which drivers of all ages have.
    bits = nvml.nvmlDeviceGetCurrentClocksThrottleReasons(device.handle)
    thermal = (
        nvml.nvmlClocksThrottleReasonSwThermalSlowdown
        | nvml.nvmlClocksThrottleReasonHwThermalSlowdown
    )
    for reason, mask in (
        (RlGpuThrottleReasonValues.POWER_CAP, nvml.nvmlClocksThrottleReasonSwPowerCap),
        (RlGpuThrottleReasonValues.THERMAL, thermal),
        (RlGpuThrottleReasonValues.HW_SLOWDOWN, nvml.nvmlClocksThrottleReasonHwSlowdown),
        (RlGpuThrottleReasonValues.POWER_BRAKE, nvml.nvmlClocksThrottleReasonHwPowerBrakeSlowdown),
        (RlGpuThrottleReasonValues.SYNC_BOOST, nvml.nvmlClocksThrottleReasonSyncBoost),
    ):
        yield Reading(
            RL_GPU_THROTTLED, float(bool(bits & mask)), ((RL_GPU_THROTTLE_REASON, reason),)
        )


def _memory_errors(device: Device) -> Iterator[Reading]:
    nvml = device.driver.nvml
    for kind, which in (
        ("ecc.corrected", nvml.NVML_MEMORY_ERROR_TYPE_CORRECTED),
        ("ecc.uncorrected", nvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED),
    ):
        found = nvml.nvmlDeviceGetTotalEccErrors(device.handle, which, nvml.NVML_VOLATILE_ECC)
        yield Reading(HW_ERRORS, found, ((ERROR_TYPE, kind),))


def _pcie_bytes(device: Device) -> Iterator[Reading]:
    nvml = device.driver.nvml
    fields = nvml.NVML_FI_DEV_PCIE_COUNT_RX_BYTES, nvml.NVML_FI_DEV_PCIE_COUNT_TX_BYTES
    yield from _moved(device, RlGpuLinkValues.PCIE, [(one, 0) for one in fields], unit_bytes=1)


def _nvlink_bytes(device: Device) -> Iterator[Reading]:
    nvml = device.driver.nvml
    fields = nvml.NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_RX, nvml.NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_TX
    asked = [(one, _ALL_LINKS) for one in fields]
    yield from _moved(device, RlGpuLinkValues.NVLINK, asked, unit_bytes=1024)


def _moved(
    device: Device, link: str, fields: list[tuple[int, int]], *, unit_bytes: int
) -> Iterator[Reading]:
    """Received and sent bytes. NVML answers each field by itself."""
    nvml = device.driver.nvml
    answers = nvml.nvmlDeviceGetFieldValues(device.handle, fields)
    for direction, answer in zip(("receive", "transmit"), answers, strict=True):
        if answer.nvmlReturn:
            raise nvml.NVMLError(answer.nvmlReturn)
        attributes = ((_DIRECTION, direction), (RL_GPU_LINK, link))
        yield Reading(HW_GPU_IO, answer.value.ullVal * unit_bytes, attributes)


def _memory_of_the_process(device: Device) -> Iterator[Reading]:
    pid = os.getpid()
    for process in device.driver.nvml.nvmlDeviceGetComputeRunningProcesses(device.handle):
        # Some drivers do not know; in a container NVML may show no process, or foreign numbers.
        if process.pid == pid and process.usedGpuMemory is not None:
            yield Reading(RL_GPU_PROCESS_MEMORY_USAGE, process.usedGpuMemory)


_QUESTIONS: Final[tuple[_Question, ...]] = (
    _utilization,
    _memory,
    _power,
    _power_limit,
    _energy,
    _temperature,
    _clocks,
    _throttling,
    _memory_errors,
    _pcie_bytes,
    _nvlink_bytes,
    _memory_of_the_process,
)

_QUESTIONS_OF_PART: Final[tuple[_Question, ...]] = (_memory, _memory_of_the_process)
"""Of a MIG instance; the rest is its GPU's, which reports it once for all of them."""
