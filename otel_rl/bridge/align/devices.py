"""The GPUs of one experiment: each one device, whoever reports it, under a prefix of its own."""

from collections.abc import Mapping

from otel_rl.bridge.device import Labels
from otel_rl.bridge.keys import device_prefix
from otel_rl.records import Device

__all__ = ["DeviceTable"]


class DeviceTable:
    """Finds the prefix of a device, and gives one out when it is new. None is forgotten."""

    def __init__(self, devices: Mapping[str, Device] | None = None) -> None:
        self._devices: Mapping[str, Device] = dict(devices or {})
        self._prefixes = {device.uuid: prefix for prefix, device in self._devices.items()}

    @property
    def devices(self) -> Mapping[str, Device]:
        """By what all keys of each begin with. Never changed: there is another one when one is."""
        return self._devices

    def known_prefix(self, uuid: str) -> str:
        """What the keys of a device begin with; empty if it has none of its own."""
        return self._prefixes.get(uuid, "")

    def prefix(self, labels: Labels, worker: str, *, at_most: int) -> str:
        """What the keys of a device begin with; empty if there are as many as may be.

        Args:
            labels: What the worker says of the device. Of the first who reports it, they count.
            worker: Who reports it, as ``<role>/<index>``.
            at_most: How many devices may have keys of their own.
        """
        prefix = self._prefixes.get(labels.uuid, "")
        if not prefix:
            if len(self._devices) >= at_most:
                return ""
            prefix = self._free_prefix(labels)
            self._prefixes[labels.uuid] = prefix
            self._keep(prefix, Device(labels.uuid, labels.host, labels.name, labels.model, ()))
        device = self._devices[prefix]
        if worker not in device.workers:
            workers = (*device.workers, worker)
            self._keep(prefix, Device(device.uuid, device.host, device.name, device.model, workers))
        return prefix

    def _keep(self, prefix: str, device: Device) -> None:
        self._devices = {**self._devices, prefix: device}

    def _free_prefix(self, labels: Labels) -> str:
        """Hosts in containers may share their names, and so do devices on different hosts."""
        prefix = device_prefix(labels.host, labels.name)
        if prefix in self._devices:
            prefix = device_prefix(labels.host, f"{labels.name}-{labels.uuid}")
        return prefix
