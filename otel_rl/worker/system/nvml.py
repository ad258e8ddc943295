"""NVIDIA GPUs through ``nvidia-ml-py``: those that a process sees, and what they report.

Each query may fail by itself, because devices, drivers and containers differ. A query that a device
does not support is not repeated.
"""

import logging
import os
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from math import isnan
from time import monotonic
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
    RL_GPU_ACTIVITY,
    RL_GPU_CLOCK_DOMAIN,
    RL_GPU_CLOCK_FREQUENCY,
    RL_GPU_LINK,
    RL_GPU_POWER_LIMIT,
    RL_GPU_PROCESS_MEMORY_USAGE,
    RL_GPU_THROTTLE_REASON,
    RL_GPU_THROTTLED,
    RL_GPU_UNIT,
    RlGpuClockDomainValues,
    RlGpuLinkValues,
    RlGpuThrottleReasonValues,
    RlGpuUnitValues,
)

__all__ = [
    "Device",
    "DeviceGone",
    "Driver",
    "Listed",
    "NoDriver",
    "Reading",
    "load",
    "log_once",
    "renew_lock",
    "visible",
]

_DIRECTION: Final = "network.io.direction"

_MIB: Final = 1 << 20

_ALL_LINKS: Final = 0xFFFFFFFF  # NVML's scope of an NVLink counter that is the sum over all links

_MAX_EVENTS: Final = 64  # per sample; a faulty GPU may repeat an error endlessly

_log = logging.getLogger("otel_rl")


class NoDriver(Exception):
    """NVIDIA's driver is missing or not usable; the message gives the reason."""


class DeviceGone(Exception):
    """A device, or the whole driver, no longer answers; the message gives the reason."""


class Reading(NamedTuple):
    """One reading of a device, in the registry's unit.

    Attributes:
        metric: The registry's name.
        value: A counter's value counts since a start that only the device knows.
        attributes: Attributes besides those of the device.
        is_increment: True for a counter's increment since the reading before.
    """

    metric: str
    value: float
    attributes: tuple[tuple[str, str], ...] = ()
    is_increment: bool = False


_Query = Callable[[Any, object], Iterator[Reading]]
"""Takes the module ``pynvml`` and a device's handle."""


@dataclass(slots=True, eq=False)
class Device:
    """GPU, or a MIG instance of one.

    Attributes:
        uuid: ``hw.id``.
        name: ``hw.name``: the position on the machine, ``gpu0`` or ``gpu0.mig1``.
        model: ``hw.model``.
        handle: NVML's handle.
        queries: Queries that the device is not known to lack.
        parent: Id of the GPU that an instance is part of, else empty.
    """

    uuid: str
    name: str
    model: str
    handle: object
    queries: list[_Query]
    parent: str = ""

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


class Listed(NamedTuple):
    """A GPU's place in NVML's list, which is in the order of the PCI bus.

    Attributes:
        uuid: Id of the GPU, ``GPU-...``; empty if the GPU does not answer.
        instances: Ids of its MIG instances, ``MIG-...``; None if MIG is off.
    """

    uuid: str
    instances: tuple[str, ...] | None = None

    @property
    def shown(self) -> tuple[str, ...]:
        """Ids of the devices that CUDA shows: only the instances of a divided GPU."""
        return (self.uuid,) if self.instances is None else self.instances


def visible(listed: Sequence[Listed], wanted: str | None) -> list[str]:
    """Return the ids of the devices in a value of ``CUDA_VISIBLE_DEVICES``, each once, in order.

    As in CUDA, a word that names no device ends the list, so that an empty text, ``-1`` and
    ``NoDevFiles`` show none. The number of a divided GPU shows its first instance. CUDA's numbers
    are NVML's if all GPUs are of one model, and with ``CUDA_DEVICE_ORDER=PCI_BUS_ID``.

    Args:
        listed: All GPUs of the machine.
        wanted: The variable's value; None if the variable is unset, which shows everything.
    """
    if wanted is None:
        return [uuid for gpu in listed for uuid in gpu.shown if uuid]
    found: list[str] = []
    for word in map(str.strip, wanted.split(",")):
        named: Sequence[str] = ()
        if word.isascii() and word.isdigit():
            named = listed[int(word)].shown[:1] if int(word) < len(listed) else ()
        elif word.startswith(("GPU-", "MIG-")):  # the beginning of an id is enough
            ids = (uuid for gpu in listed for uuid in (gpu.uuid, *(gpu.instances or ())))
            named = [uuid for uuid in ids if uuid.startswith(word)]
        if len(named) != 1:
            break
        found += named
    return [uuid for uuid in dict.fromkeys(found) if uuid]


class Driver:
    """Connection to the NVIDIA driver, of one thread. ``close`` ends the connection.

    Args:
        logged: Messages that this process has logged; see ``log_once``.

    Raises:
        NoDriver: There is no driver.
    """

    def __init__(self, logged: set[str]) -> None:
        nvml = self._nvml = load()
        self._logged = logged
        self._events: object = None
        self._xids: Counter[tuple[str, int]] = Counter()
        self._units: dict[str, _UnitCounters | None] = {}
        self._unsupported = {
            nvml.NVML_ERROR_NOT_SUPPORTED,
            nvml.NVML_ERROR_FUNCTION_NOT_FOUND,
            nvml.NVML_ERROR_NO_PERMISSION,
            nvml.NVML_ERROR_INVALID_ARGUMENT,
            nvml.NVML_ERROR_ARGUMENT_VERSION_MISMATCH,
        }
        self._gone = {
            nvml.NVML_ERROR_GPU_IS_LOST,
            nvml.NVML_ERROR_GPU_NOT_FOUND,
            nvml.NVML_ERROR_NOT_FOUND,
            nvml.NVML_ERROR_RESET_REQUIRED,
            nvml.NVML_ERROR_UNINITIALIZED,
            nvml.NVML_ERROR_DRIVER_NOT_LOADED,
        }
        try:
            nvml.nvmlInit()
        except nvml.NVMLError as error:
            raise NoDriver(str(error)) from error

    def close(self) -> None:
        """Release what NVML has given. A failure has no consequence."""
        units = [one.close for one in self._units.values() if one is not None]
        for release in (*units, self._free_events, self._nvml.nvmlShutdown):
            try:
                release()
            except self._nvml.NVMLError as error:
                _log.debug("NVML shutdown failed: %s", error)

    def devices(self, wanted: str | None, named: str | None = None) -> tuple[list[Device], bool]:
        """Return the devices to sample, and the GPUs that contain instances among them.

        Args:
            wanted: Value of ``CUDA_VISIBLE_DEVICES``; see ``visible``.
            named: Devices to sample instead, by numbers and ids.

        Returns:
            The devices, and False if a GPU does not answer and is left out.

        Raises:
            NoDriver: The driver is gone.
        """
        try:
            count = self._nvml.nvmlDeviceGetCount()
        except self._nvml.NVMLError as error:
            raise NoDriver(str(error)) from error
        listed: list[Listed] = []
        known: dict[str, Device] = {}
        for number in range(count):
            try:
                gpu, instances = self._list(number)
            except self._nvml.NVMLError as error:
                self._log_once(f"GPU {number} does not answer ({error}).")
                listed.append(Listed(""))  # later GPUs keep their numbers
                continue
            known |= {device.uuid: device for device in (gpu, *(instances or ()))}
            ids = None if instances is None else tuple(one.uuid for one in instances)
            listed.append(Listed(gpu.uuid, ids))
        all_answer = all(gpu.uuid for gpu in listed)
        if named is None:
            uuids = visible(listed, wanted)
        else:
            by_word = {word: visible(listed, word) for word in named.split(",")}
            uuids = [uuid for ids_of_word in by_word.values() for uuid in ids_of_word]
            missing = [word for word, ids_of_word in by_word.items() if not ids_of_word]
            if missing and all_answer:
                self._log_once(f"Configured GPUs are missing: {', '.join(missing)}.", is_wrong=True)
        chosen = [known[uuid] for uuid in uuids]
        parents = [known[device.parent] for device in chosen if device.parent]
        sampled = [*dict.fromkeys((*chosen, *parents))]
        self._watch_errors(sampled)
        return sampled, all_answer

    def read(self, device: Device) -> list[Reading]:
        """Run the device's queries.

        Raises:
            DeviceGone: The device no longer answers.
        """
        found: list[Reading] = []
        for query in tuple(device.queries):
            before = len(found)
            try:
                found.extend(query(self._nvml, device.handle))
            except self._nvml.NVMLError as error:
                if error.value in self._gone:
                    raise DeviceGone(str(error)) from error
                if error.value in self._unsupported:
                    if len(found) == before:  # else a part of the query is supported
                        device.queries.remove(query)
                    self._log_unsupported(device, query.__name__.strip("_"), error)
        return found

    def activity(self, devices: Iterable[Device]) -> Iterator[tuple[Device, list[Reading]]]:
        """Yield what the units of each GPU did since the last call; nothing at the first call."""
        for device in devices:
            if device.parent:
                continue
            try:
                if device.uuid not in self._units:
                    self._units[device.uuid] = None
                    self._units[device.uuid] = _UnitCounters(self._nvml, device.handle)
                elif (units := self._units[device.uuid]) is not None:
                    yield device, [*units.read()]
            except (self._nvml.NVMLError, AttributeError) as error:  # or an old pynvml
                self._units[device.uuid] = None
                self._log_unsupported(device, "activity", error)

    def errors(self, devices: Iterable[Device]) -> Iterator[tuple[Device, list[Reading]]]:
        """Yield the XID errors of each device since the last call, by their number."""
        by_handle = {_address(device.handle): device for device in devices}
        for _ in range(_MAX_EVENTS if self._events is not None else 0):
            try:
                event = self._nvml.nvmlEventSetWait_v2(self._events, 0)
            except self._nvml.NVMLError:
                break  # mostly a timeout: there is no event
            device = by_handle.get(_address(event.device))
            if device is not None:
                self._xids[device.uuid, event.eventData] += 1
        for device in by_handle.values():
            yield (
                device,
                [
                    Reading(HW_ERRORS, count, ((ERROR_TYPE, f"xid.{xid}"),), is_increment=True)
                    for (uuid, xid), count in self._xids.items()
                    if uuid == device.uuid
                ],
            )
        self._xids = Counter(dict.fromkeys(self._xids, 0))

    def _list(self, number: int) -> tuple[Device, list[Device] | None]:
        """Return a GPU, and its MIG instances if the GPU is divided."""
        nvml = self._nvml
        handle = nvml.nvmlDeviceGetHandleByIndex(number)
        uuid, model = nvml.nvmlDeviceGetUUID(handle), nvml.nvmlDeviceGetName(handle)
        gpu = Device(uuid, f"gpu{number}", model, handle, [*_QUERIES])
        try:
            is_divided, _ = nvml.nvmlDeviceGetMigMode(handle)
        except nvml.NVMLError:
            is_divided = False
        if not is_divided:
            return gpu, None
        instances: list[Device] = []
        for place in range(nvml.nvmlDeviceGetMaxMigDeviceCount(handle)):
            try:
                part = nvml.nvmlDeviceGetMigDeviceHandleByIndex(handle, place)
                own = nvml.nvmlDeviceGetUUID(part)
            except nvml.NVMLError:
                continue  # most of the possible places are empty
            name = f"{gpu.name}.mig{place}"
            instances.append(Device(own, name, model, part, [*_QUERIES_OF_INSTANCE], uuid))
        return gpu, instances

    def _watch_errors(self, devices: Iterable[Device]) -> None:
        nvml = self._nvml
        try:
            self._free_events()
            self._events = nvml.nvmlEventSetCreate()
        except nvml.NVMLError as error:
            self._log_once(f"XID errors are not recorded: {error}.")
            return
        for device in devices:
            if not device.parent:
                try:
                    nvml.nvmlDeviceRegisterEvents(
                        device.handle, nvml.nvmlEventTypeXidCriticalError, self._events
                    )
                except nvml.NVMLError as error:
                    self._log_unsupported(device, "xid_errors", error)

    def _free_events(self) -> None:
        events, self._events = self._events, None
        if events is not None:
            self._nvml.nvmlEventSetFree(events)

    def _log_unsupported(self, device: Device, query: str, error: Exception) -> None:
        """Log that a model does not support a query, once for all of its devices."""
        what = f"A MIG instance of {device.model}" if device.parent else device.model
        self._log_once(
            f"{what} does not report its {query.replace('_', ' ')}: {error}. The rest is recorded."
        )

    def _log_once(self, message: str, *, is_wrong: bool = False) -> None:
        log_once(self._logged, message, logging.WARNING if is_wrong else logging.INFO)


class _UnitCounters:
    """Performance counters of Hopper and later GPUs (NVML's GPM).

    A device is "utilized" as long as any kernel runs, however small. These counters tell what the
    chip does. NVML computes their means between two samples.

    Args:
        nvml: The module ``pynvml``.
        handle: NVML's handle of the GPU.

    Raises:
        NVMLError: The GPU or its driver has no such counters.
    """

    _PERCENT: Final = (
        (RlGpuUnitValues.SM, "NVML_GPM_METRIC_SM_UTIL"),
        (RlGpuUnitValues.WARPS, "NVML_GPM_METRIC_SM_OCCUPANCY"),
        (RlGpuUnitValues.TENSOR, "NVML_GPM_METRIC_ANY_TENSOR_UTIL"),
        (RlGpuUnitValues.MEMORY, "NVML_GPM_METRIC_DRAM_BW_UTIL"),
    )
    _MIB_PER_S: Final = (
        ("receive", "NVML_GPM_METRIC_PCIE_RX_PER_SEC"),
        ("transmit", "NVML_GPM_METRIC_PCIE_TX_PER_SEC"),
    )

    def __init__(self, nvml: Any, handle: object) -> None:
        self._nvml = nvml
        self._handle = handle
        if not nvml.nvmlGpmQueryDeviceSupport(handle).isSupportedDevice:
            raise nvml.NVMLError(nvml.NVML_ERROR_NOT_SUPPORTED)
        self._samples = [nvml.nvmlGpmSampleAlloc() for _ in range(2)]
        self._sample()

    def read(self) -> Iterator[Reading]:
        """Yield the activity and the bytes moved since the last call.

        Raises:
            NVMLError: The GPU does not answer.
        """
        begun_s = self._read_at_s
        self._sample()
        lasted_s = self._read_at_s - begun_s
        for unit, percent in self._means(self._PERCENT):
            yield Reading(RL_GPU_ACTIVITY, percent / 100, ((RL_GPU_UNIT, unit),))
        for direction, mib_per_s in self._means(self._MIB_PER_S):
            attributes = ((_DIRECTION, direction), (RL_GPU_LINK, RlGpuLinkValues.PCIE))
            moved = mib_per_s * lasted_s * _MIB
            yield Reading(HW_GPU_IO, moved, attributes, is_increment=True)

    def close(self) -> None:
        """Free the samples."""
        for sample in self._samples:
            self._nvml.nvmlGpmSampleFree(sample)

    def _sample(self) -> None:
        self._samples.reverse()
        self._nvml.nvmlGpmSampleGet(self._handle, self._samples[1])
        self._read_at_s = monotonic()

    def _means(self, metrics: Sequence[tuple[str, str]]) -> Iterator[tuple[str, float]]:
        """Yield the mean of each metric that the driver can compute, by its label."""
        asked = self._nvml.c_nvmlGpmMetricsGet_t()
        asked.version = self._nvml.NVML_GPM_METRICS_GET_VERSION
        asked.sample1, asked.sample2 = self._samples
        asked.numMetrics = len(metrics)
        for place, (_, name) in enumerate(metrics):
            asked.metrics[place].metricId = getattr(self._nvml, name)
        self._nvml.nvmlGpmMetricsGet(asked)
        for place, (label, _) in enumerate(metrics):
            answer = asked.metrics[place]
            if not answer.nvmlReturn and not isnan(answer.value):
                yield label, answer.value


def load() -> Any:
    """Load ``pynvml``; nothing else imports the module.

    Call this function first in the thread that starts a worker: a child that is forked while
    another thread imports a module can never import that module.

    Raises:
        NoDriver: The package is not installed.
    """
    try:
        import pynvml  # type: ignore[import-untyped]  # it has no stubs
    except ImportError as error:
        raise NoDriver(f"the package nvidia-ml-py is missing: {error}") from error
    return pynvml


def renew_lock() -> None:
    """Replace the lock of ``pynvml`` in a forked child: a thread of the parent may have held it."""
    module: Any = sys.modules.get("pynvml")
    if module is not None:
        module.libLoadLock = threading.Lock()


def log_once(logged: set[str], message: str, level: int = logging.INFO) -> None:
    """Log a message that is not in ``logged``, and add it."""
    if message not in logged:
        logged.add(message)
        _log.log(level, message)


def _address(handle: Any) -> int | None:
    import ctypes  # pynvml has loaded it

    return ctypes.cast(handle, ctypes.c_void_p).value


def _utilization(nvml: Any, handle: object) -> Iterator[Reading]:
    yield Reading(HW_GPU_UTILIZATION, nvml.nvmlDeviceGetUtilizationRates(handle).gpu / 100)


def _memory(nvml: Any, handle: object) -> Iterator[Reading]:
    try:
        memory = nvml.nvmlDeviceGetMemoryInfo(handle, nvml.nvmlMemory_v2)
    except nvml.NVMLError:
        # Of drivers before 510; what the driver reserves for itself counts as used there.
        memory = nvml.nvmlDeviceGetMemoryInfo(handle)
    yield Reading(HW_GPU_MEMORY_USAGE, memory.used)
    yield Reading(HW_GPU_MEMORY_LIMIT, memory.total)
    if memory.total:
        yield Reading(HW_GPU_MEMORY_UTILIZATION, memory.used / memory.total)


def _power(nvml: Any, handle: object) -> Iterator[Reading]:
    yield Reading(HW_POWER, nvml.nvmlDeviceGetPowerUsage(handle) / 1000)


def _power_limit(nvml: Any, handle: object) -> Iterator[Reading]:
    yield Reading(RL_GPU_POWER_LIMIT, nvml.nvmlDeviceGetEnforcedPowerLimit(handle) / 1000)


def _energy(nvml: Any, handle: object) -> Iterator[Reading]:
    yield Reading(HW_ENERGY, nvml.nvmlDeviceGetTotalEnergyConsumption(handle) / 1000)


def _temperature(nvml: Any, handle: object) -> Iterator[Reading]:
    sensor = nvml.NVML_TEMPERATURE_GPU
    yield Reading(HW_TEMPERATURE, nvml.nvmlDeviceGetTemperature(handle, sensor))


def _clocks(nvml: Any, handle: object) -> Iterator[Reading]:
    for domain, clock in (
        (RlGpuClockDomainValues.SM, nvml.NVML_CLOCK_SM),
        (RlGpuClockDomainValues.MEMORY, nvml.NVML_CLOCK_MEM),
    ):
        megahertz = nvml.nvmlDeviceGetClockInfo(handle, clock)
        yield Reading(RL_GPU_CLOCK_FREQUENCY, megahertz * 1e6, ((RL_GPU_CLOCK_DOMAIN, domain),))


def _throttling(nvml: Any, handle: object) -> Iterator[Reading]:
    # The older name, which all versions of the driver have.
    bits = nvml.nvmlDeviceGetCurrentClocksThrottleReasons(handle)
    software, hardware = (
        nvml.nvmlClocksThrottleReasonSwThermalSlowdown,
        nvml.nvmlClocksThrottleReasonHwThermalSlowdown,
    )
    for reason, mask in (
        (RlGpuThrottleReasonValues.POWER_CAP, nvml.nvmlClocksThrottleReasonSwPowerCap),
        (RlGpuThrottleReasonValues.THERMAL, software | hardware),
        (RlGpuThrottleReasonValues.HW_SLOWDOWN, nvml.nvmlClocksThrottleReasonHwSlowdown),
        (RlGpuThrottleReasonValues.POWER_BRAKE, nvml.nvmlClocksThrottleReasonHwPowerBrakeSlowdown),
        (RlGpuThrottleReasonValues.SYNC_BOOST, nvml.nvmlClocksThrottleReasonSyncBoost),
    ):
        is_throttled = float(bool(bits & mask))
        yield Reading(RL_GPU_THROTTLED, is_throttled, ((RL_GPU_THROTTLE_REASON, reason),))


def _memory_errors(nvml: Any, handle: object) -> Iterator[Reading]:
    for kind, which in (
        ("ecc.corrected", nvml.NVML_MEMORY_ERROR_TYPE_CORRECTED),
        ("ecc.uncorrected", nvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED),
    ):
        found = nvml.nvmlDeviceGetTotalEccErrors(handle, which, nvml.NVML_VOLATILE_ECC)
        yield Reading(HW_ERRORS, found, ((ERROR_TYPE, kind),))


def _nvlink_bytes(nvml: Any, handle: object) -> Iterator[Reading]:
    fields = nvml.NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_RX, nvml.NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_TX
    answers = nvml.nvmlDeviceGetFieldValues(handle, [(one, _ALL_LINKS) for one in fields])
    for direction, answer in zip(("receive", "transmit"), answers, strict=True):
        if answer.nvmlReturn:  # each field has an error of its own
            raise nvml.NVMLError(answer.nvmlReturn)
        attributes = ((_DIRECTION, direction), (RL_GPU_LINK, RlGpuLinkValues.NVLINK))
        yield Reading(HW_GPU_IO, answer.value.ullVal * 1024, attributes)


def _memory_of_the_process(nvml: Any, handle: object) -> Iterator[Reading]:
    pid = os.getpid()
    for process in nvml.nvmlDeviceGetComputeRunningProcesses(handle):
        # Some drivers report no memory; in a container NVML may list no process, or foreign pids.
        if process.pid == pid and process.usedGpuMemory is not None:
            yield Reading(RL_GPU_PROCESS_MEMORY_USAGE, process.usedGpuMemory)


_QUERIES: Final[tuple[_Query, ...]] = (
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

_QUERIES_OF_INSTANCE: Final[tuple[_Query, ...]] = (_memory, _memory_of_the_process)
"""Queries of a MIG instance; the instance's GPU reports the rest once for all of them."""
