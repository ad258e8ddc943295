"""Devices and readings of the NVIDIA driver, through ``pynvml``.

Every query may fail separately: some devices, drivers and containers lack some. Unsupported queries
are not repeated; a lost device is looked for again.
"""

import logging
import os
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from types import ModuleType
from typing import Final

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
from otel_rl.worker.gpu.activity import UnitCounters
from otel_rl.worker.gpu.readings import DeviceGone, DriverMemory, NoDriver, Reading
from otel_rl.worker.gpu.visible_devices import Instance, Listed, choose

__all__ = [
    "Device",
    "DeviceGone",
    "Driver",
    "DriverMemory",
    "NoDriver",
    "Reading",
    "load",
    "renew_locks",
]

_log = logging.getLogger("otel_rl")

_DIRECTION: Final = "network.io.direction"

_ALL_LINKS: Final = 0xFFFFFFFF  # NVML's scope of an NVLink counter that is the sum over all links

_MAX_EVENTS: Final = 64  # per sample; a faulty GPU may repeat an error endlessly


_Question = Callable[["Device"], Iterator[Reading]]


@dataclass(slots=True, eq=False)
class Device:
    """GPU, or a MIG instance of one.

    Attributes:
        uuid: ``hw.id``.
        name: ``hw.name``: its position on the machine, ``gpu0`` or ``gpu0.mig1``.
        model: ``hw.model``.
        parent: The id of the GPU that an instance is part of, else empty.
        driver: Its driver connection.
        handle: NVML's own.
        questions: Queries; unsupported ones are removed.
    """

    uuid: str
    name: str
    model: str
    parent: str
    driver: "Driver"
    handle: object
    questions: list[_Question] = field(default_factory=list)

    def attributes(self) -> dict[str, str]:
        """Return the attributes of every point of the device."""
        found = {
            "hw.id": self.uuid,
            "hw.name": self.name,
            "hw.model": self.model,
            "hw.vendor": "NVIDIA",
            "hw.type": "gpu",
        }
        return found | ({"hw.parent": self.parent} if self.parent else {})

    def read(self) -> list[Reading]:
        """Run all supported queries.

        Raises:
            DeviceGone: The device no longer answers.
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
                    if len(found) == before:  # else a part is supported
                        self.questions.remove(question)
                    self.driver.log_unsupported(self, question.__name__.strip("_"), error)
        return found


class Driver:
    """Connection to the NVIDIA driver. Used by one thread; ``close`` ends it.

    Args:
        memory: Of earlier connections.

    Raises:
        NoDriver: There is no driver.
    """

    def __init__(self, memory: DriverMemory) -> None:
        self.nvml = load()
        self._memory = memory
        self._events: object = None
        self._counters: dict[str, UnitCounters | None] = {}
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
        """Release NVML. Failures have no consequence."""
        counters = [one for one in self._counters.values() if one is not None]
        for end in (*(one.close for one in counters), self._free_events, self.nvml.nvmlShutdown):
            try:
                end()
            except self.nvml.NVMLError as error:
                _log.debug("NVML shutdown failed: %s", error)

    def devices(self, visible: str | None, named: str | None = None) -> tuple[list[Device], bool]:
        """Return the devices to sample, and the GPUs that contain instances among them.

        Args:
            visible: Devices visible to the process, see ``choose``.
            named: Devices configured instead, each by itself.

        Returns:
            The devices, and False if a device did not answer and is left out.

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
                listed.append(Listed(""))  # later numbers stay the same
                self.log_once(f"gpu{number}", f"GPU {number} does not answer ({error}).")
        if named is None:
            uuids = choose(listed, visible)
        else:
            by_word = {word: choose(listed, word) for word in named.split(",")}
            uuids = tuple(uuid for found in by_word.values() for uuid in found)
            missing = [word for word, found in by_word.items() if not found]
            if missing and all(gpu.uuid for gpu in listed):
                self.log_once(
                    "missing",
                    f"Configured GPUs are missing: {', '.join(missing)}.",
                    level=logging.WARNING,
                )
        chosen = [known[uuid] for uuid in uuids if uuid]
        parents = [known[device.parent] for device in chosen if device.parent]
        found = [*dict.fromkeys((*chosen, *parents))]
        self._watch_errors(found)
        return found, all(gpu.uuid for gpu in listed)

    def errors(self, devices: Sequence[Device]) -> Iterator[tuple[Device, list[Reading]]]:
        """Yield each device's number of XID errors, by kind."""
        by_handle = {_address(device.handle): device for device in devices}
        for _ in range(_MAX_EVENTS if self._events is not None else 0):
            try:
                event = self.nvml.nvmlEventSetWait_v2(self._events, 0)
            except self.nvml.NVMLError:
                break  # mostly a timeout: no event
            device = by_handle.get(_address(event.device))
            if device is not None:
                key = (device.uuid, f"xid.{event.eventData}")
                self._memory.errors[key] = self._memory.errors.get(key, 0) + 1
        for device in devices:
            for (uuid, kind), count in self._memory.errors.items():
                if uuid == device.uuid:
                    yield device, [Reading(HW_ERRORS, count, ((ERROR_TYPE, kind),), since=0)]

    def activity(self, devices: Sequence[Device]) -> Iterator[tuple[Device, list[Reading]]]:
        """Yield what the units of each GPU did since the last call; nothing at the first one."""
        for device in devices:
            if device.parent:
                continue
            try:
                if device.uuid not in self._counters:
                    self._counters[device.uuid] = None
                    self._counters[device.uuid] = UnitCounters(self.nvml, device.handle)
                elif (counters := self._counters[device.uuid]) is not None:
                    yield device, [*counters.read()]
            except (self.nvml.NVMLError, AttributeError) as error:  # or an old pynvml
                self._counters[device.uuid] = None
                self.log_unsupported(device, "activity", error)

    def is_unsupported(self, error: Exception) -> bool:
        """Report whether the query will never be supported."""
        return getattr(error, "value", None) in self._unsupported

    def is_gone(self, error: Exception) -> bool:
        """Report whether the device needs no further queries."""
        return getattr(error, "value", None) in self._gone

    def log_unsupported(self, device: Device, question: str, error: Exception) -> None:
        """Log once per model that it does not support a query."""
        self.log_once(
            f"{device.model}/{bool(device.parent)}/{question}",
            f"{device.model} ({device.name}) does not report its {question.replace('_', ' ')}: "
            f"{error}. The rest is recorded.",
        )

    def log_once(self, key: str, message: str, *, level: int = logging.INFO) -> None:
        """Log a message once per process."""
        if key not in self._memory.logged:
            self._memory.logged.add(key)
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
                continue  # most of the possible slots are empty
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
            self.log_once("xid", f"XID errors are not recorded: {error}.")
            return
        for device in devices:
            if not device.parent:
                try:
                    nvml.nvmlDeviceRegisterEvents(
                        device.handle, nvml.nvmlEventTypeXidCriticalError, self._events
                    )
                except nvml.NVMLError as error:
                    self.log_unsupported(device, "xid errors", error)

    def _free_events(self) -> None:
        events, self._events = self._events, None
        if events is not None:
            self.nvml.nvmlEventSetFree(events)


def load() -> ModuleType:
    """Load ``pynvml``; nothing else imports it.

    Call it first in a thread that forks: a child forked while another thread imports a module can
    never import it.

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
    """Replace the lock of ``pynvml`` after a fork: a thread of the parent may have held it."""
    module = sys.modules.get("pynvml")
    if module is not None:
        module.libLoadLock = threading.Lock()  # type: ignore[attr-defined]  # it has no stubs


def _address(handle: object) -> int | None:
    import ctypes  # pynvml has loaded it

    return ctypes.cast(handle, ctypes.c_void_p).value  # type: ignore[arg-type]  # a ctypes pointer


def _utilization(device: Device) -> Iterator[Reading]:
    rates = device.driver.nvml.nvmlDeviceGetUtilizationRates(device.handle)
    yield Reading(HW_GPU_UTILIZATION, rates.gpu / 100)


def _memory(device: Device) -> Iterator[Reading]:
    nvml = device.driver.nvml
    try:
        memory = nvml.nvmlDeviceGetMemoryInfo(device.handle, nvml.nvmlMemory_v2)
    except nvml.NVMLError:
        # Drivers before 510; what the driver reserves for itself is in use, too.
        memory = nvml.nvmlDeviceGetMemoryInfo(device.handle)
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
    # The older name, which all driver versions have.
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


def _nvlink_bytes(device: Device) -> Iterator[Reading]:
    nvml = device.driver.nvml
    fields = nvml.NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_RX, nvml.NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_TX
    asked = [(one, _ALL_LINKS) for one in fields]
    answers = nvml.nvmlDeviceGetFieldValues(device.handle, asked)
    for direction, answer in zip(("receive", "transmit"), answers, strict=True):
        if answer.nvmlReturn:  # each field has its own error
            raise nvml.NVMLError(answer.nvmlReturn)
        attributes = ((_DIRECTION, direction), (RL_GPU_LINK, RlGpuLinkValues.NVLINK))
        yield Reading(HW_GPU_IO, answer.value.ullVal * 1024, attributes)


def _memory_of_the_process(device: Device) -> Iterator[Reading]:
    pid = os.getpid()
    for process in device.driver.nvml.nvmlDeviceGetComputeRunningProcesses(device.handle):
        # Some drivers report no memory; in a container NVML may list no process, or foreign pids.
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
    _nvlink_bytes,
    _memory_of_the_process,
)

_QUESTIONS_OF_PART: Final[tuple[_Question, ...]] = (_memory, _memory_of_the_process)
"""Queries of a MIG instance; its GPU reports the rest once for all instances."""
