"""Counters of any machine, from ``psutil``."""

from collections.abc import Mapping

import psutil

__all__ = ["Portable"]


class Portable:
    """Counters of this machine."""

    def cpu_times_s(self) -> Mapping[str, float]:
        """Return the CPU seconds of all cores so far, by mode."""
        return dict(psutil.cpu_times()._asdict())

    def memory_bytes(self) -> tuple[int, int]:
        """Return (what programs can still have, all of it)."""
        memory = psutil.virtual_memory()
        return memory.available, memory.total

    def filesystem_bytes(self) -> tuple[int, int]:
        """Return (used, free for users) of ``/``."""
        found = psutil.disk_usage("/")
        return found.used, found.free

    # psutil's corrections of counters that start over would hold a lock, which a fork may copy.

    def network_bytes(self) -> Mapping[str, tuple[int, int]]:
        """Return the bytes (received, transmitted) so far, by interface."""
        found = psutil.net_io_counters(pernic=True, nowrap=False)
        return {name: (one.bytes_recv, one.bytes_sent) for name, one in found.items()}

    def disk_bytes(self) -> Mapping[str, tuple[int, int]]:
        """Return the bytes (read, written) so far, by disk and partition."""
        found = psutil.disk_io_counters(perdisk=True, nowrap=False) or {}
        return {name: (one.read_bytes, one.write_bytes) for name, one in found.items()}
