"""Workers of one experiment, and the GPUs and hosts that the workers report.

Each device has one key prefix, whichever workers report the device.
"""

from collections.abc import Collection, Mapping

from otel_rl.bridge.keys import device_prefix, variant_key
from otel_rl.bridge.otlp.device_attributes import Labels
from otel_rl.bridge.rows.series.streams import WorkerState
from otel_rl.bridge.rows.series.worker_clock import most_common_ns, tolerance_ns
from otel_rl.bridge.rows.settings import AlignSettings
from otel_rl.records import Device, Worker


class WorkerTable:
    """Finds the state of a worker, and creates that of a new worker.

    Attributes:
        states: The workers that are not forgotten, in the order of their appearance.
        indexes: All indexes ever seen or assigned, by role.
        changes: Number of changes of both since this object was made.
    """

    def __init__(
        self,
        states: dict[Worker, WorkerState] | None = None,
        indexes: dict[str, set[int]] | None = None,
    ) -> None:
        self.states = states or {}
        self.indexes = indexes or {}
        self.changes = 0
        # Expected number and first free index of each role from there on; not stored.
        self._counts: dict[str, int] | None = None
        self._free: dict[str, tuple[int, int]] = {}

    def of(self, worker: Worker) -> WorkerState:
        state = self.states.get(worker)
        if state is None:
            index = self._free_index(worker.role) if worker.index is None else worker.index
            self.indexes.setdefault(worker.role, set()).add(index)
            state = self.states[worker] = WorkerState(worker.role, str(index), worker.count)
            self.changes += 1
            if self._counts is not None:
                self._counts[worker.role] = max(self._counts.get(worker.role, 0), worker.count or 0)
        return state

    def lease(self, worker: Worker, settings: AlignSettings) -> WorkerState | None:
        """Return the state of a worker that has exported; None if there are too many workers."""
        if worker not in self.states and len(self.states) >= settings.max_series:
            return None
        return self.of(worker)

    def compare_clocks(self, settings: AlignSettings) -> None:
        """Set the offset of each worker's times from most others' times, where it matters."""
        states = self.states.values()
        if not any(state.clock.ahead_ns or state.shift_ns for state in states):
            return
        most_ns = tolerance_ns(settings.wait_s)
        known = [state.clock.ahead_ns for state in states if state.clock.ahead_ns is not None]
        usual_ns = most_common_ns(known, most_ns)
        for state in states:
            ahead_ns = usual_ns if state.clock.ahead_ns is None else state.clock.ahead_ns
            state.shift_ns = usual_ns - ahead_ns if abs(usual_ns - ahead_ns) > most_ns else 0

    def shift_of(self, leader: tuple[str, str]) -> int:
        """Return ``shift_ns`` of the worker with this role and label, else of the first worker."""
        states = self.states.values()
        if not any(state.shift_ns for state in states):
            return 0
        leads = (state for state in states if (state.role, state.label) == leader)
        return next(leads, next(iter(states))).shift_ns

    def names(self) -> Mapping[str, str]:
        return {
            worker.instance: f"{state.role}/{state.label}" for worker, state in self.states.items()
        }

    def forget(self, horizon_ns: int) -> Collection[Worker]:
        """Remove and return the workers whose last export arrived before ``horizon_ns``."""
        gone = {w for w, state in self.states.items() if 0 < state.received_ns < horizon_ns}
        for worker in gone:
            del self.states[worker]
        if gone:
            self.changes += 1
            self._counts = None
        return gone

    def _expected(self, role: str) -> int:
        if self._counts is None:
            self._counts = {}
            for state in self.states.values():
                most = self._counts.get(state.role, 0)
                self._counts[state.role] = max(most, state.count or 0)
        return self._counts.get(role, 0)

    def _free_index(self, role: str) -> int:
        """Return the first index that no worker has and no reported worker count reserves."""
        taken = self.indexes.get(role, set())
        expected = self._expected(role)
        since, index = self._free.get(role, (expected, expected))
        if since != expected:
            index = expected
        while index in taken:  # a taken index is never free again
            index += 1
        self._free[role] = expected, index
        return index


class DeviceTable:
    """Assigns a prefix to each device. Devices are never forgotten."""

    def __init__(self, devices: Mapping[str, Device] | None = None) -> None:
        self._devices: Mapping[str, Device] = dict(devices or {})
        self._prefixes = {device.uuid: prefix for prefix, device in self._devices.items()}

    @property
    def devices(self) -> Mapping[str, Device]:
        """Return the devices by the prefix of their keys. A change makes a new mapping."""
        return self._devices

    def known_prefix(self, uuid: str) -> str:
        return self._prefixes.get(uuid, "")

    def prefix(self, labels: Labels, worker: str, *, at_most: int) -> str:
        """Return the prefix of a device, assigning one if new; empty if there are too many devices.

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
        """Return an unused prefix: host names in containers may repeat, and so may device names."""
        prefix = device_prefix(labels.host, labels.name)
        if prefix not in self._devices:
            return prefix
        if not labels.name:
            return variant_key(prefix, labels.uuid)
        return device_prefix(labels.host, f"{labels.name}-{labels.uuid}")
