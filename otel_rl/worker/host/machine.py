"""Readings of the machine, and of the container where that has less."""

import os
import time
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Protocol

from otel_rl.worker.host.cgroup import Container

__all__ = ["Counters", "Machine", "Reading"]

_NETWORK: Final = Path("/sys/class/net")
_DISKS: Final = Path("/sys/block")
_LINUX: Final = Path("/proc/stat")
_PRESSURE: Final = Path("/proc/pressure")
_RESOURCES: Final = ("cpu", "memory", "io")


@dataclass(frozen=True, slots=True)
class Reading:
    """One reading of a host.

    Attributes:
        cpu_used_s: CPU time in use so far.
        cpu_s: CPU time so far, used or not.
        memory_used_bytes: What other programs cannot have.
        memory_bytes: All of it.
        filesystem_used_bytes: Of ``/``.
        filesystem_bytes: What ``/`` can hold for users.
        network_bytes: So far, by direction.
        disk_bytes: So far, by direction.
        cpu_stolen_s: CPU time of the machine so far that its hypervisor gave to others; None if
            the system does not tell.
        machine_cpu_s: CPU time of the whole machine so far, also where a container has less.
        waited_s: Time so far in which some work of the machine waited, by resource; empty if the
            system does not tell.
        read_s: Time of the reading, by a clock that is not set.
    """

    cpu_used_s: float
    cpu_s: float
    memory_used_bytes: float
    memory_bytes: float
    filesystem_used_bytes: float
    filesystem_bytes: float
    network_bytes: Mapping[str, float]
    disk_bytes: Mapping[str, float]
    cpu_stolen_s: float | None = None
    machine_cpu_s: float = 0.0
    waited_s: Mapping[str, float] = field(default_factory=dict)
    read_s: float = 0.0


class Counters(Protocol):
    """Counters of a machine, by the names that ``psutil`` gives them."""

    def cpu_times_s(self) -> Mapping[str, float]:
        """Return the CPU seconds of all cores so far, by mode."""
        ...

    def memory_bytes(self) -> tuple[int, int]:
        """Return (what programs can still have, all of it)."""
        ...

    def filesystem_bytes(self) -> tuple[int, int]:
        """Return (used, free for users) of ``/``."""
        ...

    def network_bytes(self) -> Mapping[str, tuple[int, int]]:
        """Return the bytes (received, transmitted) so far, by interface."""
        ...

    def disk_bytes(self) -> Mapping[str, tuple[int, int]]:
        """Return the bytes (read, written) so far, by disk and partition."""
        ...


class Machine:
    """Reads this machine, or the container's share of it. A reading takes milliseconds.

    Args:
        container: Of this process.
        counters: Of the machine.
        network: Folder of the network interfaces.
        disks: Folder of the disks.
        pressure: Folder of the kernel's pressure stall information.
    """

    def __init__(
        self,
        container: Container | None = None,
        counters: Counters | None = None,
        network: Path = _NETWORK,
        disks: Path = _DISKS,
        pressure: Path = _PRESSURE,
    ) -> None:
        self._container = container or Container()
        self._counters = counters or _counters()
        self._network = network
        self._disks = disks
        self._pressure = pressure

    def read(self) -> Reading:
        """Read all of it.

        Raises:
            OSError: A file of the system cannot be read.
        """
        disk_used, disk_free = self._counters.filesystem_bytes()
        spent = self._counters.cpu_times_s()
        # Linux counts the time of guests as user time, too.
        whole_s = sum(spent.values()) - spent.get("guest", 0) - spent.get("guest_nice", 0)
        idle_s = spent["idle"] + spent.get("iowait", 0)
        used_s, all_s = self._cpu_of_container() or (whole_s - idle_s, whole_s)
        return Reading(
            used_s,
            all_s,
            *self._memory(),
            disk_used,
            disk_used + disk_free,  # some is kept for root
            self._network_bytes(),
            self._disk_bytes(),
            cpu_stolen_s=spent.get("steal"),
            machine_cpu_s=whole_s,
            waited_s=self._waited_s(),
            read_s=time.monotonic(),
        )

    def _waited_s(self) -> Mapping[str, float]:
        """Return for how long some work has waited for each resource; none where that is unknown.

        The kernel may be without it, or have it switched off: then the files cannot be read.
        """
        waited: dict[str, float] = {}
        for resource in _RESOURCES:
            try:
                line = (self._pressure / resource).read_text().partition("\n")[0]
            except OSError:
                return {}
            # some avg10=0.00 avg60=0.00 avg300=0.00 total=<microseconds>
            waited[resource] = float(line.rpartition("total=")[2]) / 1e6
        return waited

    def _cpu_of_container(self) -> tuple[float, float] | None:
        share = self._container.cpu()
        if share is None or share.cpus >= (os.cpu_count() or 1):
            return None
        return share.used_s, time.monotonic() * share.cpus

    def _memory(self) -> tuple[float, float]:
        share, (available, total) = self._container.memory(), self._counters.memory_bytes()
        if share is not None and share.limit_bytes < total:
            return share.used_bytes, share.limit_bytes
        return total - available, total

    def _network_bytes(self) -> Mapping[str, float]:
        found = self._counters.network_bytes()
        counted = _hardware(found.keys() - {"lo", "lo0"}, self._network)
        return {
            "receive": sum(found[name][0] for name in counted),
            "transmit": sum(found[name][1] for name in counted),
        }

    def _disk_bytes(self) -> Mapping[str, float]:
        found = self._counters.disk_bytes()
        counted = _hardware(found.keys(), self._disks)
        return {
            "read": sum(found[name][0] for name in counted),
            "write": sum(found[name][1] for name in counted),
        }


def _counters() -> Counters:
    if _LINUX.exists():
        from otel_rl.worker.host.linux import Linux

        return Linux()
    from otel_rl.worker.host.portable import Portable

    return Portable()


def _hardware(names: Collection[str], folder: Path) -> Collection[str]:
    """Return the devices that are no part of, and no layer on, another: all where none is known."""
    return {name for name in names if (folder / name / "device").exists()} or names
