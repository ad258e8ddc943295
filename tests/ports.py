"""Ports for programs that are killed and started again on the same one."""

import random
import socket
from collections.abc import Iterator

__all__ = ["free_ports"]

# Below those that the system gives to outgoing connections (32768 and up on Linux): one of these
# would take the port of a program in the moment in which it is down.
_RANGE = range(20_000, 32_000)


def free_ports(n: int) -> list[int]:
    """Ports of loopback that nobody listens on. They differ, and are soon used."""
    return [port for port, _ in zip(_free(), range(n), strict=False)]


def _free() -> Iterator[int]:
    for port in random.sample(_RANGE, len(_RANGE)):
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
        yield port
