"""Readings of devices, and reasons for none. Apart from the driver, which few workers load."""

from dataclasses import dataclass, field
from typing import NamedTuple

__all__ = ["DeviceGone", "DriverMemory", "NoDriver", "Reading"]


class NoDriver(Exception):
    """NVIDIA driver missing or not usable; the message gives the reason."""


class DeviceGone(Exception):
    """Device, or whole driver, no longer answers; the message gives the reason."""


class Reading(NamedTuple):
    """One reading of a device, in the registry's unit.

    Attributes:
        metric: The registry's name.
        value: For a counter, since a start that only the device knows.
        attributes: Besides those of the device.
        since: Value of a counter when the worker began; None if only the device knows.
    """

    metric: str
    value: float
    attributes: tuple[tuple[str, str], ...] = ()
    since: float | None = None


@dataclass(slots=True)
class DriverMemory:
    """State that outlives a connection to the driver.

    Attributes:
        logged: Keys of logged messages, to log each once.
        errors: Number of XID errors so far, by device and kind.
    """

    logged: set[str] = field(default_factory=set)
    errors: dict[tuple[str, str], int] = field(default_factory=dict)
