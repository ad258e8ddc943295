"""CPU and memory limits of the container that the process is in, from Linux's cgroups v1 and v2.

A limit may be that of any group above the process's own. In a container without a cgroup namespace
the path of the process's group is that of the machine, and the mounted root is the container's.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

__all__ = ["Container", "CpuShare", "MemoryShare"]

_ROOT: Final = Path("/sys/fs/cgroup")
_MEMBERSHIP: Final = Path("/proc/self/cgroup")


@dataclass(frozen=True, slots=True)
class CpuShare:
    """CPU of the group with the lowest limit.

    Attributes:
        used_s: CPU time used since the group was made.
        cpus: CPUs that it may use at most.
    """

    used_s: float
    cpus: float


@dataclass(frozen=True, slots=True)
class MemoryShare:
    """Memory of the group with the lowest limit.

    Attributes:
        used_bytes: Without file cache that can be dropped.
        limit_bytes: What it may use at most.
    """

    used_bytes: float
    limit_bytes: float


class Container:
    """Groups of this process. Whatever cannot be read is no limit.

    Args:
        root: Where the groups are mounted.
        membership: File with the groups of the process.
    """

    def __init__(self, root: Path = _ROOT, membership: Path = _MEMBERSHIP) -> None:
        self._root = root
        self._paths: dict[str, str] = {}
        for line in _text(membership).splitlines():
            _, _, rest = line.partition(":")
            controllers, _, path = rest.partition(":")
            self._paths |= dict.fromkeys(controllers.split(","), path)

    def cpu(self) -> CpuShare | None:
        """Return the CPU share; None without a limit."""
        found: list[tuple[float, float]] = []
        for folder in self._folders(""):
            quota_us, _, period_us = _text(folder / "cpu.max").partition(" ")
            used_us = _number(_field(folder / "cpu.stat", "usage_usec"))
            found.append((_cpus(quota_us, period_us), used_us / 1e6))
        for folder, usage in zip(self._folders("cpu"), self._folders("cpuacct"), strict=False):
            quota_us = _text(folder / "cpu.cfs_quota_us")
            cpus = _cpus(quota_us, _text(folder / "cpu.cfs_period_us"))
            found.append((cpus, _number(_text(usage / "cpuacct.usage")) / 1e9))
        limits = [(cpus, used_s) for cpus, used_s in found if cpus > 0 and used_s >= 0]
        if not limits:
            return None
        cpus, used_s = min(limits)
        return CpuShare(used_s, cpus)

    def memory(self) -> MemoryShare | None:
        """Return the memory share; None without a limit. It may be above the machine's memory."""
        found: list[tuple[float, float]] = []
        for folder in self._folders(""):
            cache = _number(_field(folder / "memory.stat", "inactive_file"), otherwise=0)
            used = _number(_text(folder / "memory.current")) - cache
            found.append((_number(_text(folder / "memory.max")), used))
        for folder in self._folders("memory"):
            cache = _number(_field(folder / "memory.stat", "total_inactive_file"), otherwise=0)
            used = _number(_text(folder / "memory.usage_in_bytes")) - cache
            found.append((_number(_text(folder / "memory.limit_in_bytes")), used))
        limits = [(limit, used) for limit, used in found if limit > 0 and used >= 0]
        if not limits:
            return None
        limit, used = min(limits)
        return MemoryShare(used, limit)

    def _folders(self, controller: str) -> Iterator[Path]:
        """Yield the process's group and those above, of a controller; empty means version 2."""
        path = self._paths.get(controller)
        if path is None:
            return
        top = self._root / controller
        own = top / path.strip("/")
        while own != top:
            if own.is_dir():
                yield own
            own = own.parent
        yield top


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        return ""


def _field(path: Path, name: str) -> str:
    rows = (line.split() for line in _text(path).splitlines())
    return next((row[1] for row in rows if len(row) == 2 and row[0] == name), "")


def _number(text: str, *, otherwise: float = math.nan) -> float:
    """Return the number, or ``otherwise`` for texts such as ``max``; NaN is no limit."""
    return float(text) if text.isdigit() else otherwise


def _cpus(quota_us: str, period_us: str) -> float:
    period = _number(period_us)
    return _number(quota_us) / period if period else math.nan
