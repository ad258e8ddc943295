"""GPUs and hosts of one experiment: each has one key prefix, whichever workers report it."""

from collections.abc import Mapping

from otel_rl.bridge.otlp.device_attributes import Labels
from otel_rl.bridge.tracker_keys import device_prefix, variant_key
from otel_rl.records import Device

__all__ = ["DeviceTable"]


class DeviceTable:
    """Assigns a prefix to each device. None is forgotten."""

    def __init__(self, devices: Mapping[str, Device] | None = None) -> None:
        self._devices: Mapping[str, Device] = dict(devices or {})
        self._prefixes = {device.uuid: prefix for prefix, device in self._devices.items()}

    @property
    def devices(self) -> Mapping[str, Device]:
        """Return the devices by the prefix of their keys. A change makes a new mapping."""
        return self._devices

    def known_prefix(self, uuid: str) -> str:
        """Return the prefix of a device; empty if it has none."""
        return self._prefixes.get(uuid, "")

    def prefix(self, labels: Labels, worker: str, *, at_most: int) -> str:
        """Return the prefix of a device, assigned if new; empty if there are as many as allowed.

        Args:
            labels: The worker's description of the device. The first reported one counts.
            worker: The reporting worker, as ``<role>/<index>``.
            at_most: Number of GPUs, and of hosts, that may have keys of their own.
        """
        prefix = self._prefixes.get(labels.uuid, "")
        if not prefix:
            new = Device(labels.uuid, labels.host, labels.name, labels.model, ())
            if sum(one.is_host == new.is_host for one in self._devices.values()) >= at_most:
                return ""
            prefix = self._free_prefix(labels)
            self._prefixes[labels.uuid] = prefix
            self._keep(prefix, new)
        device = self._devices[prefix]
        if worker not in device.workers:
            workers = (*device.workers, worker)
            self._keep(prefix, Device(device.uuid, device.host, device.name, device.model, workers))
        return prefix

    def _keep(self, prefix: str, device: Device) -> None:
        self._devices = {**self._devices, prefix: device}

    def _free_prefix(self, labels: Labels) -> str:
        """Return an unused prefix: host names in containers, and device names, may repeat."""
        prefix = device_prefix(labels.host, labels.name)
        if prefix not in self._devices:
            return prefix
        if not labels.name:
            return variant_key(prefix, labels.uuid)
        return device_prefix(labels.host, f"{labels.name}-{labels.uuid}")
