"""CPU time and memory of a process together with all its descendants."""

import contextlib
import ctypes
import os
import platform
import resource
import subprocess
import sys
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

SAMPLE_S = 0.05
"""Sampling interval of memory."""


@dataclass(frozen=True, slots=True)
class Cost:
    """Cost of a command and its whole family.

    Attributes:
        cpu_s: CPU seconds.
        peak_mb: Peak memory of all together; shared pages count once.
        said: Output of the command.
        own_cpu_s: Part of the command's own process.
        spawned_cpu_s: Part of the processes that ``multiprocessing`` spawned.
    """

    cpu_s: float
    peak_mb: float
    said: str
    own_cpu_s: float
    spawned_cpu_s: float

    @property
    def others_cpu_s(self) -> float:
        """Part of all other processes."""
        return self.cpu_s - self.own_cpu_s - self.spawned_cpu_s


def measured(module: str, *arguments: str) -> Cost:
    """Run a Python module and measure it with all that it starts."""
    _adopt_orphans()
    before_s = _children_cpu_s()
    environment = {**os.environ, "WANDB_ERROR_REPORTING": "false"}
    process = subprocess.Popen(
        [sys.executable, "-m", module, *arguments],
        stdout=subprocess.PIPE,
        env=environment,
        text=True,
    )
    peak = 0
    parts = _Parts()
    while process.poll() is None:
        peak = max(peak, _memory_kb(process.pid))
        parts.sample(_family(process.pid))
        time.sleep(SAMPLE_S)
    said, _ = process.communicate()
    if process.returncode:
        raise SystemExit(f"{module} {' '.join(arguments)} failed with {process.returncode}.")
    _reap_orphans()
    own_s, spawned_s = parts.cpu_s(process.pid)
    return Cost(_children_cpu_s() - before_s, peak / 1024, said, own_s, spawned_s)


class _Parts:
    """CPU seconds and commands of processes, as of the last look at each."""

    def __init__(self) -> None:
        self._cpu_s: dict[int, float] = {}
        self._spawned: set[int] = set()

    def sample(self, pids: Iterable[int]) -> None:
        for pid in pids:
            with contextlib.suppress(OSError):  # it has ended
                self._cpu_s[pid] = sum(cpu_s_by_name([pid]).values())
                command = Path(f"/proc/{pid}/cmdline").read_bytes()
                if b"spawn_main" in command:
                    self._spawned.add(pid)
                elif command:  # an ended process has none
                    self._spawned.discard(pid)

    def cpu_s(self, own: int) -> tuple[float, float]:
        """Return those of the process ``own``, and of all that ``multiprocessing`` spawned."""
        return self._cpu_s.get(own, 0.0), sum(self._cpu_s[pid] for pid in self._spawned)


def descendants_cpu_s() -> dict[str, float]:
    """Return the CPU seconds of the running descendants, by the name of their program."""
    return cpu_s_by_name(_family(os.getpid())[1:])


def family_cpu_s(pid: int) -> float:
    """Return the CPU seconds of a process and of its running descendants."""
    return sum(cpu_s_by_name(_family(pid)).values())


def family_states(pid: int) -> list[str]:
    """Return the state of a process and of each of its running descendants: S if it sleeps."""
    stats = [Path(f"/proc/{member}/stat").read_text() for member in _family(pid)]
    return [stat.rpartition(")")[2].split()[0] for stat in stats]


def family_mb(pid: int) -> float:
    """Return the memory of a process and its descendants; shared pages count once."""
    return _memory_kb(pid) / 1024


def part_mb(pid: int, module: str) -> float:
    """Return the memory of those of a process and its descendants that run a module."""
    found = 0.0
    for member in _family(pid):
        with contextlib.suppress(OSError):  # it has ended
            if module.encode() in Path(f"/proc/{member}/cmdline").read_bytes().split(b"\0"):
                found += _pss_kb(member) / 1024
    return found


_KCMP = {"x86_64": 312, "aarch64": 272}.get(platform.machine())


def shares_memory(pid: int, others: Iterable[int]) -> bool:
    """Return whether a process has the memory of one of the others; False where none can say.

    A process that was just started has, until it executes its program: as each of them then
    reports all of it, the family would seem to need it twice.
    """
    of_memory = 1
    kcmp = ctypes.CDLL(None).syscall
    return _KCMP is not None and any(
        kcmp(_KCMP, pid, other, of_memory, 0, 0) == 0 for other in others
    )


def cpu_s_by_name(pids: Iterable[int]) -> dict[str, float]:
    """Return the CPU seconds of some processes, by the name of their program."""
    found: dict[str, float] = {}
    for pid in pids:
        # After the name in brackets: state is field 3, utime and stime are 14 and 15.
        head, _, rest = Path(f"/proc/{pid}/stat").read_text().rpartition(")")
        name, fields = head.partition("(")[2], rest.split()
        used_s = (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
        found[name] = found.get(name, 0.0) + used_s
    return found


def _children_cpu_s() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def _adopt_orphans() -> None:
    """Adopt orphans of child processes, so that they are counted."""
    set_child_subreaper = 36
    ctypes.CDLL(None).prctl(set_child_subreaper, 1, 0, 0, 0)


def _reap_orphans() -> None:
    with contextlib.suppress(ChildProcessError):
        while True:
            os.wait()


def _memory_kb(pid: int) -> int:
    total = 0
    members = _family(pid)
    for place, member in enumerate(members):
        if shares_memory(member, members[:place]):
            continue
        with contextlib.suppress(OSError):  # it has ended
            total += _pss_kb(member)
    return total


def _pss_kb(pid: int) -> int:
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    return sum(int(line.split()[1]) for line in lines if line.startswith("Pss:"))


def _family(pid: int) -> list[int]:
    """Return a process and all its descendants."""
    found = [pid]
    for member in found:
        with contextlib.suppress(OSError):  # it has ended
            for thread in Path(f"/proc/{member}/task").iterdir():
                found += map(int, (thread / "children").read_text().split())
    return found
