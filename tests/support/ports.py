"""Ports for programs that are killed and started again on the same one."""

import fcntl
import os
import random
import socket
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Final

# Below those that the system gives to outgoing connections (32768 and up on Linux): one of these
# would take the port of a program in the moment in which it is down.
_RANGE = range(20_000, 32_000)

# A byte of it stands for a port: tests that run side by side would get the same one before the
# first program listens on it. The kernel gives the locks back when the process of the tests ends.
_CLAIMS: Final = (Path(tempfile.gettempdir()) / f"otel-rl-test-ports-{os.getuid()}").open("ab")
_ours: set[int] = set()


def free_ports(n: int) -> list[int]:
    """Ports of loopback that nobody listens on, and that no other call has given away."""
    return [port for port, _ in zip(_free(), range(n), strict=False)]


def _free() -> Iterator[int]:
    for port in random.sample(_RANGE, len(_RANGE)):
        if port in _ours or not _is_claimed(port):
            continue
        _ours.add(port)
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
        yield port


def _is_claimed(port: int) -> bool:
    try:
        fcntl.lockf(_CLAIMS, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, port)
    except OSError:  # by another process
        return False
    return True
