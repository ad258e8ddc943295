"""Counters of Linux, beside those that ``psutil`` reads there."""

import os
from pathlib import Path

import pytest

from otel_rl.worker.host.linux import Linux
from otel_rl.worker.host.portable import Portable

pytestmark = pytest.mark.skipif(not Path("/proc/stat").exists(), reason="of Linux")

TICKS_PER_S = os.sysconf("SC_CLK_TCK")

NETWORK = """\
Inter-|   Receive                                                |  Transmit
 face |bytes    packets errs drop fifo frame compressed multicast|bytes    packets errs drop
    lo:     700       7    0    0    0     0          0         0      700       7    0    0
eth0:1:123456789   1000    0    0    0     0          0         0 987654321    2000    0    0
"""

DISKS = """\
 259       0 nvme0n1 10 1 2000 5 20 2 3000 7 0 9 12 0 0 0 0 3 4
 259       1 nvme0n1p1 1 0 8 0 2 0 16 1 0 1 1
"""


def proc(folder: Path, **files: str) -> Linux:
    """Counters of a machine with these files."""
    (folder / "net").mkdir()
    for name, text in files.items():
        (folder / name.replace("_", "/")).write_text(text)
    return Linux(folder)


def test_cpu_times_are_those_of_psutil() -> None:
    before, found, after = (one.cpu_times_s() for one in (Portable(), Linux(), Portable()))
    assert found.keys() == before.keys()
    for mode in ("user", "nice", "system", "steal"):  # the kernel's idle time may go back
        assert before[mode] <= found[mode] <= after[mode]


def test_bytes_of_interfaces_and_disks_are_those_of_psutil() -> None:
    for name in ("network_bytes", "disk_bytes"):
        before, found, after = (getattr(one, name)() for one in (Portable(), Linux(), Portable()))
        assert found.keys() == before.keys()
        for each, both in found.items():
            assert all(map(lambda b, n, a: b <= n <= a, before[each], both, after[each]))


def test_memory_and_filesystem_are_those_of_psutil() -> None:
    linux, portable = Linux(), Portable()
    available, total = linux.memory_bytes()
    assert total == portable.memory_bytes()[1]
    assert 0 < available < total
    assert sum(linux.filesystem_bytes()) == pytest.approx(
        sum(portable.filesystem_bytes()), rel=0.05
    )


def test_an_interface_may_have_a_colon_in_its_name(tmp_path: Path) -> None:
    found = proc(tmp_path, net_dev=NETWORK).network_bytes()
    assert found == {"lo": (700, 700), "eth0:1": (123456789, 987654321)}


def test_disks_are_counted_in_sectors_of_512_bytes(tmp_path: Path) -> None:
    found = proc(tmp_path, diskstats=DISKS).disk_bytes()
    assert found == {"nvme0n1": (2000 * 512, 3000 * 512), "nvme0n1p1": (8 * 512, 16 * 512)}


def test_a_sandbox_without_disks_has_none(tmp_path: Path) -> None:
    assert proc(tmp_path).disk_bytes() == {}


def test_a_kernel_that_does_not_tell_what_is_available_tells_what_is_free(tmp_path: Path) -> None:
    meminfo = "MemTotal: 1000 kB\nMemFree: 300 kB\nHugePages_Total: 0\n"
    assert proc(tmp_path, meminfo=meminfo).memory_bytes() == (300 * 1024, 1000 * 1024)


def test_a_kernel_may_have_fewer_modes_of_the_cpu(tmp_path: Path) -> None:
    found = proc(tmp_path, stat="cpu  100 200 300 400\ncpu0 1 2 3 4\n").cpu_times_s()
    ticks = {"user": 100, "nice": 200, "system": 300, "idle": 400}
    assert found == {mode: spent / TICKS_PER_S for mode, spent in ticks.items()}
