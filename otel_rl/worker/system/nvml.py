"""NVIDIA GPUs through ``nvidia-ml-py``: those that a process sees, and what they report.

Each query may fail by itself, because devices, drivers and containers differ.
"""

import logging
import os
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any, Final, NamedTuple

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
    RlGpuLinkValues,
)
from otel_rl.semconv.names import RlGpuClockDomainValues as _Clock
from otel_rl.semconv.names import RlGpuThrottleReasonValues as _Reason
from otel_rl.worker.forks import IMPORTS
from otel_rl.worker.guard import Guard

_ALL_LINKS: Final = 0xFFFFFFFF  # NVML's scope of an NVLink counter that is the sum over all links


class NoDriver(Exception):
    """NVIDIA's driver is missing or not usable; the message gives the reason."""


class DeviceGone(Exception):
    """A device, or the whole driver, no longer answers; the message gives the reason."""


class Reading(NamedTuple):
    """One reading of a device, in the unit of the registry.

    Attributes:
        metric: The registry's name.
        value: A counter's value counts since a start that only the device knows.
        attributes: Attributes besides those of the device.
        is_increment: Whether the value is a counter's increment since the previous reading.
    """

    metric: str
    value: float
    attributes: tuple[tuple[str, str], ...] = ()
    is_increment: bool = False


_Query = Callable[[Any, object], Iterator[Reading]]
"""Takes the module ``pynvml`` and a device's handle."""


@dataclass(frozen=True, slots=True, eq=False)
class Device:
    """A GPU, or a MIG instance of one.

    Attributes:
        uuid: Id of the device, ``hw.id``.
        name: Name of the device, ``hw.name``: its position on the machine, ``gpu0`` or
            ``gpu0.mig1``.
        model: Model of the device, ``hw.model``.
        parent: Id of the GPU that an instance is part of; empty for a GPU.
        instances: Instances of a divided GPU; None for any other device.
    """

    uuid: str
    name: str
    model: str = ""
    handle: object = None
    parent: str = ""
    instances: "tuple[Device, ...] | None" = None

    def attributes(self) -> dict[str, str]:
        found = {
            "hw.id": self.uuid,
            "hw.name": self.name,
            "hw.model": self.model,
            "hw.vendor": "NVIDIA",
            "hw.type": "gpu",
        }
        return found | ({"hw.parent": self.parent} if self.parent else {})

    @property
    def shown(self) -> "tuple[Device, ...]":
        """Return the devices that CUDA shows of the GPU: of a divided GPU only the instances."""
        return (self,) if self.instances is None else self.instances


def visible(gpus: Sequence[Device | None], wanted: str | None) -> list[Device]:
    """Return the devices in a value of ``CUDA_VISIBLE_DEVICES``, each once, in order.

    As in CUDA, a word that names no device ends the list, so that an empty text, ``-1`` and
    ``NoDevFiles`` show none. The number of a divided GPU shows its first instance. CUDA's numbers
    are NVML's if all GPUs are of one model, and with ``CUDA_DEVICE_ORDER=PCI_BUS_ID``.

    Args:
        gpus: All GPUs of the machine in the order of NVML; None for one that does not answer.
        wanted: The variable's value; None if the variable is unset, which shows everything.
    """
    answering = [gpu for gpu in gpus if gpu is not None]
    if wanted is None:
        return [device for gpu in answering for device in gpu.shown]
    found: list[Device] = []
    for word in map(str.strip, wanted.split(",")):
        named: Sequence[Device] = ()
        if word.isascii() and word.isdigit() and int(word) < len(gpus):
            gpu = gpus[int(word)]
            if gpu is None:
                continue
            named = gpu.shown[:1]
        elif word.startswith(("GPU-", "MIG-")):  # the beginning of an id is enough
            devices = [device for gpu in answering for device in (gpu, *(gpu.instances or ()))]
            named = [device for device in devices if device.uuid.startswith(word)]
        if len(named) != 1:
            break
        found += named
    return [*dict.fromkeys(found)]


class Driver:
    """Connection to the NVIDIA driver, for one thread. ``close`` ends it. Raises ``NoDriver``."""

    def __init__(self, guard: Guard) -> None:
        nvml = self._nvml = _load()
        self._guard = guard
        self._gone = {
            nvml.NVML_ERROR_GPU_IS_LOST,
            nvml.NVML_ERROR_GPU_NOT_FOUND,
            nvml.NVML_ERROR_NOT_FOUND,
            nvml.NVML_ERROR_RESET_REQUIRED,
            nvml.NVML_ERROR_UNINITIALIZED,
            nvml.NVML_ERROR_DRIVER_NOT_LOADED,
        }
        # The last two are of a driver, and of a module, that is older than the other.
        mismatch = getattr(nvml, "NVMLLibraryMismatchError", AttributeError)
        self._lacks = (nvml.NVMLError, mismatch, AttributeError)
        try:
            nvml.nvmlInit()
        except nvml.NVMLError as error:
            raise NoDriver(str(error)) from error

    def close(self) -> None:
        """Release what NVML has given. A failure has no consequence."""
        with suppress(self._nvml.NVMLError):
            self._nvml.nvmlShutdown()

    def devices(self, wanted: str | None) -> tuple[list[Device], bool]:
        """Return the visible devices, and the GPUs that contain instances among them.

        The second value is False if a GPU does not answer and was left out.

        Raises:
            NoDriver: The driver is gone.
        """
        try:
            count = self._nvml.nvmlDeviceGetCount()
        except self._nvml.NVMLError as error:
            raise NoDriver(str(error)) from error
        gpus: list[Device | None] = []
        for number in range(count):
            try:
                gpus.append(self._gpu(number))
            except self._nvml.NVMLError as error:
                if error.value == self._nvml.NVML_ERROR_NO_PERMISSION:
                    continue  # another container's: CUDA does not number it either
                self._guard.once(f"GPU {number} does not answer ({error}).", logging.INFO)
                gpus.append(None)
        chosen = visible(gpus, wanted)
        wholes = {device.parent for device in chosen}
        divided = [gpu for gpu in gpus if gpu is not None and gpu.uuid in wholes]
        return [*dict.fromkeys(chosen + divided)], None not in gpus

    def read(self, device: Device) -> list[Reading]:
        """Run the queries of the device.

        Raises:
            DeviceGone: The device no longer answers.
        """
        found: list[Reading] = []
        for query in _QUERIES_OF_INSTANCE if device.parent else _QUERIES:
            try:
                found.extend(query(self._nvml, device.handle))
            except self._lacks as error:
                if getattr(error, "value", None) in self._gone:
                    raise DeviceGone(str(error)) from error
                self._log_lack(device, query.__name__.strip("_"), error)
        return found

    def _gpu(self, number: int) -> Device:
        nvml = self._nvml
        handle = nvml.nvmlDeviceGetHandleByIndex(number)
        uuid, model = nvml.nvmlDeviceGetUUID(handle), nvml.nvmlDeviceGetName(handle)
        gpu = Device(uuid, f"gpu{number}", model, handle)
        try:
            is_divided, _ = nvml.nvmlDeviceGetMigMode(handle)
        except nvml.NVMLError:  # this model cannot be divided
            return gpu
        return replace(gpu, instances=tuple(self._instances(gpu))) if is_divided else gpu

    def _instances(self, gpu: Device) -> Iterator[Device]:
        nvml = self._nvml
        for place in range(nvml.nvmlDeviceGetMaxMigDeviceCount(gpu.handle)):
            with suppress(nvml.NVMLError):  # most of the possible places are empty
                part = nvml.nvmlDeviceGetMigDeviceHandleByIndex(gpu.handle, place)
                uuid = nvml.nvmlDeviceGetUUID(part)
                yield Device(uuid, f"{gpu.name}.mig{place}", gpu.model, part, parent=gpu.uuid)

    def _log_lack(self, device: Device, query: str, error: Exception) -> None:
        what = f"A MIG instance of {device.model}" if device.parent else device.model
        self._guard.once(
            f"{what} does not report its {query.replace('_', ' ')}: {error}. The rest is recorded.",
            logging.INFO,
        )


def _load() -> Any:
    try:
        with IMPORTS.work():
            import pynvml  # type: ignore[import-untyped]  # it has no stubs
    except ImportError as error:
        raise NoDriver(f"the package nvidia-ml-py is missing: {error}") from error
    return pynvml


def renew_lock() -> None:
    """Replace the lock of ``pynvml`` in a forked child: a thread of the parent may have held it."""
    module: Any = sys.modules.get("pynvml")
    if module is not None:
        module.libLoadLock = threading.Lock()


def _utilization(nvml: Any, gpu: object) -> Iterator[Reading]:
    yield Reading(HW_GPU_UTILIZATION, nvml.nvmlDeviceGetUtilizationRates(gpu).gpu / 100)


def _memory(nvml: Any, gpu: object) -> Iterator[Reading]:
    try:
        memory = nvml.nvmlDeviceGetMemoryInfo(gpu, nvml.nvmlMemory_v2)
    except nvml.NVMLError:
        # Of drivers before 510; what the driver reserves for itself counts as used there.
        memory = nvml.nvmlDeviceGetMemoryInfo(gpu)
    yield Reading(HW_GPU_MEMORY_USAGE, memory.used)
    yield Reading(HW_GPU_MEMORY_LIMIT, memory.total)
    if memory.total:
        yield Reading(HW_GPU_MEMORY_UTILIZATION, memory.used / memory.total)


def _power(nvml: Any, gpu: object) -> Iterator[Reading]:
    yield Reading(HW_POWER, nvml.nvmlDeviceGetPowerUsage(gpu) / 1000)


def _power_limit(nvml: Any, gpu: object) -> Iterator[Reading]:
    yield Reading(RL_GPU_POWER_LIMIT, nvml.nvmlDeviceGetEnforcedPowerLimit(gpu) / 1000)


def _energy(nvml: Any, gpu: object) -> Iterator[Reading]:
    yield Reading(HW_ENERGY, nvml.nvmlDeviceGetTotalEnergyConsumption(gpu) / 1000)


def _temperature(nvml: Any, gpu: object) -> Iterator[Reading]:
    sensor = nvml.NVML_TEMPERATURE_GPU
    yield Reading(HW_TEMPERATURE, nvml.nvmlDeviceGetTemperature(gpu, sensor))


def _clocks(nvml: Any, gpu: object) -> Iterator[Reading]:
    for domain, clock in ((_Clock.SM, nvml.NVML_CLOCK_SM), (_Clock.MEMORY, nvml.NVML_CLOCK_MEM)):
        megahertz = nvml.nvmlDeviceGetClockInfo(gpu, clock)
        yield Reading(RL_GPU_CLOCK_FREQUENCY, megahertz * 1e6, ((RL_GPU_CLOCK_DOMAIN, domain),))


_THROTTLED: Final = {
    _Reason.POWER_CAP: ("SwPowerCap",),
    _Reason.THERMAL: ("SwThermalSlowdown", "HwThermalSlowdown"),
    _Reason.HW_SLOWDOWN: ("HwSlowdown",),
    _Reason.POWER_BRAKE: ("HwPowerBrakeSlowdown",),
    _Reason.SYNC_BOOST: ("SyncBoost",),
}
"""Bits of the driver's answer, by the older name that all versions have."""


def _throttling(nvml: Any, gpu: object) -> Iterator[Reading]:
    bits = nvml.nvmlDeviceGetCurrentClocksThrottleReasons(gpu)
    for reason, names in _THROTTLED.items():
        is_throttled = any(bits & getattr(nvml, f"nvmlClocksThrottleReason{one}") for one in names)
        yield Reading(RL_GPU_THROTTLED, float(is_throttled), ((RL_GPU_THROTTLE_REASON, reason),))


def _memory_errors(nvml: Any, gpu: object) -> Iterator[Reading]:
    for kind in ("corrected", "uncorrected"):
        which = getattr(nvml, f"NVML_MEMORY_ERROR_TYPE_{kind.upper()}")
        found = nvml.nvmlDeviceGetTotalEccErrors(gpu, which, nvml.NVML_VOLATILE_ECC)
        yield Reading(HW_ERRORS, found, ((ERROR_TYPE, f"ecc.{kind}"),))


def _nvlink_bytes(nvml: Any, gpu: object) -> Iterator[Reading]:
    fields = nvml.NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_RX, nvml.NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_TX
    answers = nvml.nvmlDeviceGetFieldValues(gpu, [(one, _ALL_LINKS) for one in fields])
    for direction, answer in zip(("receive", "transmit"), answers, strict=True):
        if answer.nvmlReturn:  # each field has an error of its own
            raise nvml.NVMLError(answer.nvmlReturn)
        attributes = (("network.io.direction", direction), (RL_GPU_LINK, RlGpuLinkValues.NVLINK))
        yield Reading(HW_GPU_IO, answer.value.ullVal * 1024, attributes)


def _memory_of_the_process(nvml: Any, gpu: object) -> Iterator[Reading]:
    pid = os.getpid()
    for process in nvml.nvmlDeviceGetComputeRunningProcesses(gpu):
        # Some drivers report no memory; in a container NVML may list no process, or foreign pids.
        if process.pid == pid and process.usedGpuMemory is not None:
            yield Reading(RL_GPU_PROCESS_MEMORY_USAGE, process.usedGpuMemory)


_QUERIES: Final[tuple[_Query, ...]] = (
    *(_utilization, _memory, _power, _power_limit, _energy, _temperature, _clocks, _throttling),
    *(_memory_errors, _nvlink_bytes, _memory_of_the_process),
)

_QUERIES_OF_INSTANCE: Final[tuple[_Query, ...]] = (_memory, _memory_of_the_process)
"""Queries of a MIG instance; the instance's GPU reports the rest once for all of them."""
