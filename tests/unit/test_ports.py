"""Tests that run side by side get different ports."""

import subprocess
import sys

import pytest

from tests.ports import free_ports

N = 500
"""Of twelve thousand: by chance two processes would have twenty in common."""

DRAW = f"""
import sys
from tests.ports import free_ports
print(*free_ports({N}), flush=True)
sys.stdin.read()
"""


@pytest.mark.process
def test_two_processes_get_no_port_in_common() -> None:
    with subprocess.Popen(
        [sys.executable, "-c", DRAW], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as other:
        assert other.stdout is not None
        theirs = {int(port) for port in other.stdout.readline().split()}
        ours = set(free_ports(N))
        other.communicate("", timeout=120)
    assert (len(theirs), len(ours)) == (N, N)
    assert not theirs & ours


def test_a_process_gets_no_port_twice() -> None:
    ports = free_ports(N) + free_ports(N)
    assert len(set(ports)) == 2 * N
