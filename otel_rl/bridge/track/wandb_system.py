"""The run's GPUs in W&B's own System panels, under W&B's own keys. ADR 8.

    gpu/node1/gpu0/utilization = 0.5   ->   system.gpu.0.gpu/l:node1.trainer-0 = 50

W&B shows there what it has sampled where ``wandb.init`` was called, which is where no GPU is. The
record that it is sent in can be made, too, by an interface that is not public. So it is made for
the versions of W&B that it was tried with, and if anything about it is not as it was, nothing is
sent: the same values stand in the rows.
"""

import logging
import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from otel_rl.records import Device, Row

if TYPE_CHECKING:
    import wandb

__all__ = ["SUPPORTED", "SystemPanels", "native"]

SUPPORTED: Final = "0.31."
"""What the version of a W&B that has the interface begins with."""

_log = logging.getLogger(__name__)

# Of ours to (W&B's word, how many of its units one of ours is): per cent, MHz.
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

_NUMBER = re.compile(r"gpu(\d+)")


def native(row: Row, devices: Mapping[str, Device]) -> dict[str, float]:
    """What W&B would have called the values of GPUs in a row.

    Args:
        row: Of the run.
        devices: The run's GPUs, by what their keys begin with.
    """
    found: dict[str, float] = {}
    for place, (prefix, device) in enumerate(devices.items()):
        number, label = _number(device, place), _label(device)
        for metric, (word, factor) in _NATIVE.items():
            value = row.values.get(f"{prefix}/{metric}")
            if value is not None:
                found[f"gpu.{number}.{word}/l:{label}"] = value * factor
        limit_w = row.values.get(f"{prefix}/power/limit")
        if limit_w and f"{prefix}/power" in row.values:
            percent = row.values[f"{prefix}/power"] / limit_w * 100
            found[f"gpu.{number}.powerPercent/l:{label}"] = percent
    return found


class SystemPanels:
    """Sends GPUs to the System panels of one run. Never raises: what they show is in the rows.

    Args:
        run: Opened.
    """

    def __init__(self, run: "wandb.Run") -> None:
        import wandb

        self._run = run
        self._devices: Mapping[str, Device] = {}
        self._reason = ""
        if not wandb.__version__.startswith(SUPPORTED):
            self._give_up(f"W&B {wandb.__version__} was not tried")

    def know(self, devices: Mapping[str, Device]) -> None:
        """Take note of which devices there are."""
        self._devices = devices

    def send(self, row: Row) -> None:
        """Send what the row says of GPUs, with its time."""
        if self._reason or not self._devices:
            return
        values = native(row, self._devices)
        if values:
            try:
                self._publish(values, row.time_ns)
            except Exception as error:  # noqa: BLE001  # it is not ours: anything may have changed
                self._give_up(f"{type(error).__name__}: {error}")

    def _publish(self, values: Mapping[str, float], time_ns: int) -> None:
        from wandb.proto import wandb_internal_pb2

        messages: Any = wandb_internal_pb2  # which declares its messages at run time
        # Not publish_stats(), which takes the time of now.
        record = messages.StatsRecord(stats_type=messages.StatsRecord.StatsType.SYSTEM)
        record.timestamp.FromNanoseconds(time_ns)
        for key, value in values.items():
            record.item.add(key=key, value_json=repr(float(value)))
        interface: Any = self._run._interface  # noqa: SLF001  # see the module
        interface._publish(interface._make_record(stats=record))  # noqa: SLF001

    def _give_up(self, reason: str) -> None:
        self._reason = reason
        _log.warning(
            "GPUs are not shown in the System panels of the W&B run (%s); they are in its charts "
            "under gpu/.",
            reason,
        )


def _number(device: Device, place: int) -> int:
    found = _NUMBER.match(device.name)
    return int(found[1]) if found else place


def _label(device: Device) -> str:
    """The host and the worker that reported the device first, which no later one changes."""
    _, _, part = device.name.partition(".")
    words = [device.host, part, *(worker.replace("/", "-") for worker in device.workers[:1])]
    return ".".join(word for word in words if word)
