"""Memory of a family of processes, as the bench counts it."""

import os
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from bench.family import family_mb, shares_memory
from tests.waiting import wait_until

pytestmark = pytest.mark.process

_STARTS_ONE = """
import os, sys
ballast = b"x" * (64 << 20)
waits = [(os.POSIX_SPAWN_OPEN, 0, sys.argv[1], os.O_RDONLY, 0)]
os.waitpid(os.posix_spawn("/bin/true", ["true"], {}, file_actions=waits), 0)
"""


@pytest.mark.skipif(
    not shares_memory(os.getpid(), [os.getpid()]), reason="the kernel compares no processes"
)
def test_a_process_that_is_being_started_does_not_count_its_parent_again(tmp_path: Path) -> None:
    gate = tmp_path / "gate"  # the child waits for it before it is a program of its own
    os.mkfifo(gate)
    with subprocess.Popen([sys.executable, "-c", _STARTS_ONE, str(gate)]) as parent:
        wait_until(lambda: bool(psutil.Process(parent.pid).children()), "a child", timeout_s=60)
        together_mb = family_mb(parent.pid)
        gate.write_bytes(b"")
    assert parent.returncode == 0
    assert 64 < together_mb < 2 * 64
