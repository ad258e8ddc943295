"""Data-parallel ranks: averaging, barriers and agreement, through rank 0.

All ranks make the same calls in the same order; that is the whole protocol.
"""

from multiprocessing.connection import Connection, Listener

import numpy as np

from otel_rl.demo.control.messages import Address
from otel_rl.demo.control.rpc import accept, connect
from otel_rl.demo.model import Floats

__all__ = ["Ranks"]


class Ranks:
    """Connection of one rank to the group."""

    def __init__(self, peers: list[Connection]) -> None:
        """Use :meth:`gather` on rank 0 and :meth:`join` on the others."""
        self._peers = peers

    @classmethod
    def gather(cls, listener: Listener, *, count: int) -> "Ranks":
        """Wait on rank 0 for all other ranks."""
        return cls([accept(listener) for _ in range(count - 1)])

    @classmethod
    def join(cls, address: Address) -> "_OtherRank":
        """Connect another rank to rank 0."""
        return _OtherRank([connect(address)])

    def average(self, values: Floats) -> Floats:
        """Return the mean of all ranks' values, bitwise equal on every rank."""
        total = values.astype(np.float32)
        for peer in self._peers:
            total += np.frombuffer(peer.recv_bytes(), np.float32)
        total /= 1 + len(self._peers)
        for peer in self._peers:
            peer.send_bytes(total.tobytes())
        return total

    def barrier(self) -> None:
        """Return when every rank has called this."""
        self.agree(go_on=True)

    def agree(self, *, go_on: bool) -> bool:
        """Wait for all ranks; every rank returns the value of rank 0."""
        for peer in self._peers:
            peer.recv_bytes()
        for peer in self._peers:
            peer.send_bytes(b"\x01" if go_on else b"\x00")
        return go_on


class _OtherRank(Ranks):
    def average(self, values: Floats) -> Floats:
        (root,) = self._peers
        root.send_bytes(values.astype(np.float32).tobytes())
        return np.frombuffer(root.recv_bytes(), np.float32)

    def agree(self, *, go_on: bool) -> bool:
        del go_on  # rank 0 decides
        (root,) = self._peers
        root.send_bytes(b"\x01")
        return root.recv_bytes() == b"\x01"
