"""Counters of a Linux machine, from ``/proc``. See ``portable.py`` for other systems.

Reading five files takes no library: ``psutil`` would add 1.4 MB to every worker of every host.
"""

import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

__all__ = ["Linux"]

_PROC: Final = Path("/proc")

_CPU_MODES: Final = (
    *("user", "nice", "system", "idle", "iowait"),
    *("irq", "softirq", "steal", "guest", "guest_nice"),
)
"""Columns of ``/proc/stat``; old kernels have fewer."""

_SECTOR_BYTES: Final = 512
"""Unit of ``/proc/diskstats``, whatever the sectors of the device are."""


class Linux:
    """Counters of this machine, by the names that ``psutil`` gives them.

    Args:
        proc: Where ``/proc`` is mounted.
    """

    def __init__(self, proc: Path = _PROC) -> None:
        self._proc = proc
        self._ticks_per_s = os.sysconf("SC_CLK_TCK")

    def cpu_times_s(self) -> Mapping[str, float]:
        """Return the CPU seconds of all cores so far, by mode."""
        line, _, _ = self._text("stat").partition("\n")
        spent = (int(ticks) / self._ticks_per_s for ticks in line.split()[1:])
        return dict(zip(_CPU_MODES, spent, strict=False))

    def memory_bytes(self) -> tuple[int, int]:
        """Return (what programs can still have, all of it)."""
        found: dict[str, int] = {}
        for line in self._text("meminfo").splitlines():
            name, _, amount = line.partition(":")
            found[name] = int(amount.split()[0]) * 1024
        # Old kernels and some sandboxes do not tell what is available.
        return found.get("MemAvailable", found["MemFree"]), found["MemTotal"]

    def filesystem_bytes(self) -> tuple[int, int]:
        """Return (used, free for users) of ``/``."""
        found = os.statvfs("/")
        used = (found.f_blocks - found.f_bfree) * found.f_frsize
        return used, found.f_bavail * found.f_frsize

    def network_bytes(self) -> Mapping[str, tuple[int, int]]:
        """Return the bytes (received, transmitted) so far, by interface."""
        found: dict[str, tuple[int, int]] = {}
        for line in self._text("net/dev").splitlines()[2:]:
            name, _, columns = line.rpartition(":")  # an alias has a colon in its name
            counts = columns.split()
            found[name.strip()] = int(counts[0]), int(counts[8])
        return found

    def disk_bytes(self) -> Mapping[str, tuple[int, int]]:
        """Return the bytes (read, written) so far, by disk and partition."""
        return dict(self._disks())

    def _disks(self) -> Iterator[tuple[str, tuple[int, int]]]:
        if not (self._proc / "diskstats").exists():  # a sandbox without disks
            return
        for line in self._text("diskstats").splitlines():
            _, _, name, _, _, read, _, _, _, written, *_ = line.split()
            yield name, (int(read) * _SECTOR_BYTES, int(written) * _SECTOR_BYTES)

    def _text(self, name: str) -> str:
        return (self._proc / name).read_text(encoding="utf-8", errors="replace")
