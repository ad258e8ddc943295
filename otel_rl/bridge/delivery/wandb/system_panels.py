"""Shows the run's GPUs and hosts in W&B's own System panels, under W&B's own keys. ADR 8 and 19.

    gpu/node1/gpu0/utilization = 0.5   ->   system.gpu.0.gpu/l:node1.trainer-0 = 50
    host/node1/cpu/utilization = 0.5   ->   system.cpu/l:node1 = 50

W&B's System panels show samples of the process that called ``wandb.init``, which is the bridge. The
record of such samples can also be sent through an interface that is not public. So it is used only
for a range of versions whose ends were tried, and if the interface differs, nothing is sent: the
same values are in the rows.
"""

import logging
import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from otel_rl.records import Device, Row

if TYPE_CHECKING:
    import wandb

_TRIED: Final = range(23, 32)
"""Minor versions of W&B 0 of which the first and the last were tried."""

_log = logging.getLogger(__name__)

# Our name to (W&B's name, number of its units in one of ours): per cent, MHz.
_NATIVE: Final[Mapping[str, tuple[str, float]]] = {
    "clock/frequency/memory": ("memoryClock", 1e-6),
    "clock/frequency/sm": ("smClock", 1e-6),
    "errors/ecc.corrected": ("correctedMemoryErrors", 1),
    "errors/ecc.uncorrected": ("uncorrectedMemoryErrors", 1),
    "memory/usage": ("memoryAllocatedBytes", 1),
    "memory/utilization": ("memoryAllocated", 100),
    "power": ("powerWatts", 1),
    "power/limit": ("enforcedPowerLimitWatts", 1),
    "temperature": ("temp", 1),
    "utilization": ("gpu", 100),
}

_MEBIBYTE: Final = 2**-20

# The same for hosts: per cent, MiB, GiB, bytes.
_NATIVE_OF_HOST: Final[Mapping[str, tuple[str, float]]] = {
    "cpu/utilization": ("cpu", 100),
    "disk/io/read": ("disk.in", _MEBIBYTE),
    "disk/io/write": ("disk.out", _MEBIBYTE),
    "filesystem/usage/used": ("disk./.usageGB", 2**-30),
    "filesystem/utilization/used": ("disk./.usagePercent", 100),
    "memory/utilization/used": ("memory_percent", 100),
    "network/io/receive": ("network.recv", 1),
    "network/io/transmit": ("network.sent", 1),
}

_NUMBER = re.compile(r"gpu(\d+)")


def is_supported(version: str) -> bool:
    found = re.match(r"0\.(\d+)\.", version)
    return found is not None and int(found[1]) in _TRIED


def native(row: Row, devices: Mapping[str, Device]) -> dict[str, float]:
    """Return W&B's own metrics for a row's values of GPUs and hosts."""
    found: dict[str, float] = {}
    values = {**row.devices, **row.values} if row.devices else row.values
    for place, (prefix, device) in enumerate(devices.items()):
        if device.is_host:
            found |= _of_host(values, prefix, device.host)
            continue
        number, label = _number(device, place), _label(device)
        for metric, (word, factor) in _NATIVE.items():
            value = values.get(f"{prefix}/{metric}")
            if value is not None:
                found[f"gpu.{number}.{word}/l:{label}"] = value * factor
        limit_w = values.get(f"{prefix}/power/limit")
        if limit_w and f"{prefix}/power" in values:
            percent = values[f"{prefix}/power"] / limit_w * 100
            found[f"gpu.{number}.powerPercent/l:{label}"] = percent
    return found


def _of_host(values: Mapping[str, float], prefix: str, host: str) -> dict[str, float]:
    found: dict[str, float] = {}
    for metric, (word, factor) in _NATIVE_OF_HOST.items():
        value = values.get(f"{prefix}/{metric}")
        if value is not None:
            found[f"{word}/l:{host}"] = value * factor
    limit = values.get(f"{prefix}/memory/limit")
    used = values.get(f"{prefix}/memory/usage/used")
    if limit is not None and used is not None:
        found[f"proc.memory.availableMB/l:{host}"] = (limit - used) * _MEBIBYTE
    return found


class SystemPanels:
    """Sends metrics of devices to a run's System panels. Never raises: the rows have them, too."""

    def __init__(self, run: "wandb.Run") -> None:
        import wandb

        self._run = run
        self._devices: Mapping[str, Device] = {}
        self._reason = ""
        if not is_supported(wandb.__version__):
            self._give_up(f"W&B {wandb.__version__} was not tried")

    def know(self, devices: Mapping[str, Device]) -> None:
        self._devices = devices

    def send(self, row: Row) -> None:
        if self._reason or not self._devices:
            return
        values = native(row, self._devices)
        if values:
            try:
                self._publish(values, row.time_ns)
            except Exception as error:  # noqa: BLE001  # a private interface may change
                self._give_up(f"{type(error).__name__}: {error}")

    def _publish(self, values: Mapping[str, float], time_ns: int) -> None:
        from wandb.proto import wandb_internal_pb2

        messages: Any = wandb_internal_pb2  # which declares its messages at run time
        # Not publish_stats(), which uses the current time.
        record = messages.StatsRecord(stats_type=messages.StatsRecord.StatsType.SYSTEM)
        record.timestamp.FromNanoseconds(time_ns)
        for key, value in values.items():
            record.item.add(key=key, value_json=repr(float(value)))
        run: Any = self._run
        # Older versions have it in the run's backend.
        interface = getattr(run, "_interface", None) or run._backend.interface  # noqa: SLF001
        interface._publish(interface._make_record(stats=record))  # noqa: SLF001

    def _give_up(self, reason: str) -> None:
        self._reason = reason
        _log.warning(
            "GPUs and hosts are not shown in the System panels of the W&B run (%s); with "
            "tracker.detail=full they are in its charts under gpu/ and host/.",
            reason,
        )


def _number(device: Device, place: int) -> int:
    found = _NUMBER.match(device.name)
    return int(found[1]) if found else place


def _label(device: Device) -> str:
    """Return the host and the worker that first reported the device; neither ever changes."""
    _, _, part = device.name.partition(".")
    words = [device.host, part, *(worker.replace("/", "-") for worker in device.workers[:1])]
    return ".".join(word for word in words if word)
