"""Reports CPU, memory, network and disks of the host as ``system.*``, from one process (ADR 19).

These reports are on by default, as is the memory of each process. There is no thread: the machine
is read when the exporter collects. CPU and memory are the container's where the container has less
than the machine.
"""

import contextlib
import fcntl
import math
import os
import resource
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from hashlib import sha256
from pathlib import Path
from typing import Final, NamedTuple

import psutil
from opentelemetry.metrics import Meter, Observation

from otel_rl.semconv.names import (
    PROCESS_MEMORY_USAGE,
    RL_HOST_PRESSURE,
    RL_HOST_RESOURCE,
    RL_PROCESS_MEMORY_LIMIT,
    SYSTEM_CPU_UTILIZATION,
    SYSTEM_DISK_IO,
    SYSTEM_FILESYSTEM_USAGE,
    SYSTEM_FILESYSTEM_UTILIZATION,
    SYSTEM_MEMORY_LIMIT,
    SYSTEM_MEMORY_USAGE,
    SYSTEM_MEMORY_UTILIZATION,
    SYSTEM_NETWORK_IO,
)
from otel_rl.worker.guard import Guard
from otel_rl.worker.settings import HostSettings
from otel_rl.worker.system.latest import Latest

_METRICS: Final = (
    PROCESS_MEMORY_USAGE,
    RL_HOST_PRESSURE,
    RL_PROCESS_MEMORY_LIMIT,
    SYSTEM_CPU_UTILIZATION,
    SYSTEM_DISK_IO,
    SYSTEM_FILESYSTEM_USAGE,
    SYSTEM_FILESYSTEM_UTILIZATION,
    SYSTEM_MEMORY_LIMIT,
    SYSTEM_MEMORY_USAGE,
    SYSTEM_MEMORY_UTILIZATION,
    SYSTEM_NETWORK_IO,
)


class HostRecorder:
    """Reports the memory of this process, and this host while it is the process's turn.

    Never raises.

    Any thread may call ``start`` and ``forget``; the exporter's thread reads the machine.
    """

    def __init__(
        self, meter: Meter, guard: Guard, clock_s: Callable[[], float] = time.monotonic
    ) -> None:
        self._guard = guard
        self._clock_s = clock_s
        self._latest = Latest(meter)
        self._turn = HostTurn()
        self._machine: Machine | None = None
        self.forget()

    def start(self, settings: HostSettings, host: str, run_id: str) -> None:
        """Report ``host`` to a run from now on if ``settings`` allow it. Idempotent."""
        if not settings.enabled or self._machine is not None:
            return
        with self._guard:
            self._interval_s, self._host, self._run_id = settings.interval_s, host, run_id
            self._machine = Machine()
            for metric in _METRICS:
                self._latest.observe(metric, self._sample_if_due)

    def forget(self) -> None:
        """Reset for the next ``start``, in a forked child or as another worker."""
        self._turn.give_back()
        self._turn = HostTurn()
        self._machine = None
        self._due_s = 0.0
        self._first: Reading | None = None
        self._last: Reading | None = None
        self._latest.forget()

    def _sample_if_due(self) -> Iterable[Observation]:
        """Read the machine once an interval, at the first metric of an export."""
        machine, now_s = self._machine, self._clock_s()
        if machine is not None and now_s >= self._due_s:
            self._due_s = now_s + self._interval_s
            with self._guard:
                used, limit = memory_of_process(machine.container)
                self._latest.set(PROCESS_MEMORY_USAGE, "", Observation(used))
                self._latest.set(RL_PROCESS_MEMORY_LIMIT, "", Observation(limit))
            with self._guard:
                if self._turn.take(self._host, self._run_id):
                    self._sample(machine.read())
        return ()

    def _sample(self, now: "Reading") -> None:
        last, self._last = self._last, now
        if last is None:
            self._first = now
            return
        for series, value in _measurements(now, last, self._first or last):
            metric, key, word = series
            attributes = {"host.name": self._host} | ({key: word} if key else {})
            self._latest.set(metric, series, Observation(value, attributes))


_Series = tuple[str, str, str]
"""Metric, and an attribute's key and value; empty without an attribute."""


class Reading(NamedTuple):
    """One reading of a host.

    Attributes:
        levels: Present values.
        shares: Time used so far, with the total time of which that is a share.
        counts: Bytes counted so far.
    """

    levels: Mapping[_Series, float]
    shares: Mapping[_Series, tuple[float, float]]
    counts: Mapping[_Series, float]


def _measurements(now: Reading, last: Reading, first: Reading) -> Iterator[tuple[_Series, float]]:
    """Yield shares of the time since the last reading, and bytes since the first one."""
    yield from now.levels.items()
    for series, (used_s, whole_s) in now.shares.items():
        used_before_s, before_s = last.shares.get(series, (0.0, whole_s))
        if whole_s > before_s:
            share = (used_s - used_before_s) / (whole_s - before_s)
            yield series, min(1.0, max(0.0, share))
    for series, total in now.counts.items():
        # A device that is gone takes its bytes with it.
        yield series, max(0.0, total - first.counts[series])


class Machine:
    """Reads this machine, or the container's share of it. A reading takes milliseconds."""

    def __init__(
        self,
        container: "Container | None" = None,
        *,
        network: Path = Path("/sys/class/net"),
        disks: Path = Path("/sys/block"),
        pressure: Path = Path("/proc/pressure"),
    ) -> None:
        self.container = container or Container()
        self._network = network
        self._disks = disks
        self._pressure = pressure

    def read(self) -> Reading:
        """Read everything.

        Raises:
            OSError: A file of the system cannot be read.
        """
        used, limit = self._memory()
        levels: dict[_Series, float] = {
            (SYSTEM_MEMORY_LIMIT, "", ""): limit,
            (SYSTEM_MEMORY_USAGE, "system.memory.state", "used"): used,
            (SYSTEM_MEMORY_UTILIZATION, "system.memory.state", "used"): used / limit,
        }
        disk, filesystem = psutil.disk_usage("/"), ("system.filesystem.state", "used")
        levels[SYSTEM_FILESYSTEM_USAGE, *filesystem] = disk.used
        if capacity := disk.used + disk.free:  # the system keeps some for root
            levels[SYSTEM_FILESYSTEM_UTILIZATION, *filesystem] = disk.used / capacity
        return Reading(levels, {**self._cpu(), **self._pressure_s()}, dict(self._bytes()))

    def _memory(self) -> tuple[float, float]:
        memory, container = psutil.virtual_memory(), self.container.memory()
        if container is not None and container[1] < memory.total:
            return container
        return memory.total - memory.available, memory.total

    def _cpu(self) -> Mapping[_Series, tuple[float, float]]:
        spent = psutil.cpu_times()._asdict()
        # Linux counts the time of guests as user time, too.
        machine_s = sum(spent.values()) - spent.get("guest", 0) - spent.get("guest_nice", 0)
        found: dict[_Series, tuple[float, float]] = {}
        if "steal" in spent:  # time of the machine that its hypervisor gave to others
            found[SYSTEM_CPU_UTILIZATION, "cpu.mode", "steal"] = spent["steal"], machine_s
        used_s, cpus = self.container.cpu() or (0.0, math.inf)
        all_s = time.monotonic() * cpus
        if cpus >= (os.cpu_count() or 1):
            used_s, all_s = machine_s - spent["idle"] - spent.get("iowait", 0), machine_s
        return found | {(SYSTEM_CPU_UTILIZATION, "", ""): (used_s, all_s)}

    def _pressure_s(self) -> Mapping[_Series, tuple[float, float]]:
        """Return how long some work has waited for each resource; nothing where that is unknown.

        The kernel may be built without pressure stall information, or have it switched off.
        """
        found: dict[_Series, tuple[float, float]] = {}
        for kind in ("cpu", "memory", "io"):
            # some avg10=0.00 avg60=0.00 avg300=0.00 total=<microseconds>
            total_us = _text(self._pressure / kind).partition("\n")[0].rpartition("total=")[2]
            if total_us:
                waited_s = float(total_us) / 1e6
                found[RL_HOST_PRESSURE, RL_HOST_RESOURCE, kind] = waited_s, time.monotonic()
        return found

    def _bytes(self) -> Iterator[tuple[_Series, float]]:
        # psutil's corrections of counters that start over hold a lock, which a fork may copy.
        interfaces = psutil.net_io_counters(pernic=True, nowrap=False)
        counted = _hardware(interfaces.keys() - {"lo", "lo0"}, self._network)
        for direction, field in (("receive", "bytes_recv"), ("transmit", "bytes_sent")):
            total = sum(getattr(interfaces[name], field) for name in counted)
            yield (SYSTEM_NETWORK_IO, "network.io.direction", direction), total
        try:
            disks = psutil.disk_io_counters(perdisk=True, nowrap=False) or {}
        except NotImplementedError:  # a sandbox without disks
            disks = {}
        counted = _hardware(disks.keys(), self._disks)
        for direction, field in (("read", "read_bytes"), ("write", "write_bytes")):
            total = sum(getattr(disks[name], field) for name in counted)
            yield (SYSTEM_DISK_IO, "disk.io.direction", direction), total


def memory_of_process(container: "Container") -> tuple[float, float]:
    """Return (physical memory of this process, the lowest of its limits) in bytes.

    The limits are the container's, the process's own limit of data (``RLIMIT_DATA``), and the
    machine's memory. Other processes may share the first and the last. The call takes about 65 us.
    """
    used = psutil.Process().memory_info().rss
    limits = [float(psutil.virtual_memory().total)]
    if (shared := container.memory()) is not None:
        limits.append(shared[1])
    own, _ = resource.getrlimit(resource.RLIMIT_DATA)
    if own != resource.RLIM_INFINITY:
        limits.append(float(own))
    return float(used), min(limits)


def _hardware(names: Collection[str], folder: Path) -> Collection[str]:
    """Return devices that are not part of, nor a layer on, another; all if no such is known."""
    return {name for name in names if (folder / name / "device").exists()} or names


class Container:
    """CPU and memory limits of this process, from Linux's cgroups of version 2.

    A limit may be that of any group above the process's own. In a container without a cgroup
    namespace the path of the process's group is that of the machine, and the mounted root is the
    container's. Whatever cannot be read is no limit.
    """

    def __init__(
        self,
        root: Path = Path("/sys/fs/cgroup"),
        membership: Path = Path("/proc/self/cgroup"),
    ) -> None:
        lines = _text(membership).splitlines()
        path = next((line.removeprefix("0::/") for line in lines if line.startswith("0::/")), "")
        own = root / path.lstrip("/")
        groups = [own, *own.parents]
        self._folders = groups[: groups.index(root) + 1]

    def cpu(self) -> tuple[float, float] | None:
        """Return (CPU seconds used so far, largest number of CPUs in use); None without a limit."""
        found: list[tuple[float, float]] = []
        for folder in self._folders:
            quota_us, _, period_us = _text(folder / "cpu.max").partition(" ")
            period = _number(period_us)
            cpus = _number(quota_us) / period if period else math.nan
            found.append((cpus, _number(_field(folder / "cpu.stat", "usage_usec")) / 1e6))
        return _lowest(found)

    def memory(self) -> tuple[float, float] | None:
        """Return (bytes used without droppable file cache, limit); None without a limit."""
        found: list[tuple[float, float]] = []
        for folder in self._folders:
            dropped = _number(_field(folder / "memory.stat", "inactive_file"), otherwise=0)
            taken = _number(_text(folder / "memory.current")) - dropped
            found.append((_number(_text(folder / "memory.max")), taken))
        return _lowest(found)


def _lowest(found: Iterable[tuple[float, float]]) -> tuple[float, float] | None:
    """Return (use, limit) of the group with the lowest limit; NaN means unknown."""
    known = [(limit, used) for limit, used in found if limit > 0 and used >= 0]
    if not known:
        return None
    limit, used = min(known)
    return used, limit


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        return ""


def _field(path: Path, name: str) -> str:
    rows = (line.split() for line in _text(path).splitlines())
    return next((row[1] for row in rows if len(row) == 2 and row[0] == name), "")


def _number(text: str, *, otherwise: float = math.nan) -> float:
    return float(text) if text.isdigit() else otherwise


class HostTurn:
    """Decides which of a host's processes reports the host. One thread uses it.

    The process holds a lock on one byte of a file. The kernel gives the lock back when the process
    ends, however it ends; a forked child does not inherit the lock. The byte stands for the run and
    the host, so that one file is enough for all runs.

    Where the system has no such lock, each process reports: the bridge counts a host once.
    """

    def __init__(self) -> None:
        self._file: int | None = None
        self._is_held = False

    def take(self, host: str, run_id: str) -> bool:
        """Return whether this process reports the host; if so, it does until ``give_back``."""
        if self._is_held:
            return True
        try:
            if self._file is None:
                folder = os.environ.get("TMPDIR") or "/tmp"  # noqa: S108  # opened with O_NOFOLLOW
                path = f"{folder}/otel_rl-{os.getuid()}.lock"
                self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600)
            fcntl.lockf(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, _byte(host, run_id))
        except (BlockingIOError, PermissionError):
            if self._file is not None:
                return False  # another process has the lock
        except OSError:
            pass  # a file system without locks
        self._is_held = True
        return True

    def give_back(self) -> None:
        """Let another process report. In a forked child the parent keeps its turn."""
        file, self._file, self._is_held = self._file, None, False
        if file is not None:
            with contextlib.suppress(OSError):
                os.close(file)


def _byte(host: str, run_id: str) -> int:
    # A shared folder for temporary files may lock between machines.
    boot = _text(Path("/proc/sys/kernel/random/boot_id"))
    digest = sha256(f"{boot}\0{host}\0{run_id}".encode()).digest()
    return int.from_bytes(digest[:7])
