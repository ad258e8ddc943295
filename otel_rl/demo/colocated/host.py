"""Shared state of the two processes: the weights in shared memory, and the turn."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from ctypes import c_float
from multiprocessing.context import SpawnContext
from multiprocessing.queues import Queue
from multiprocessing.sharedctypes import RawArray
from multiprocessing.synchronize import Semaphore

import numpy as np

from otel_rl.demo.control.messages import Group
from otel_rl.demo.model import Floats, Parameters
from otel_rl.demo.settings import DemoSettings

__all__ = ["Host"]

OTHER_TIMEOUT_S = 120.0
"""A turn takes a fraction of a second; a longer wait means that the other process has ended."""


class Host:
    """Shared memory and queue. Made by the parent, passed to both processes.

    Args:
        context: Start context of the processes.
        settings: Of the run.
        rng: Source of the first weights.
    """

    def __init__(
        self, context: SpawnContext, settings: DemoSettings, rng: np.random.Generator
    ) -> None:
        first = Parameters.random(settings.shape, rng)
        self._weights = RawArray(c_float, len(first.flat))
        self._turns: dict[str, Semaphore] = {
            "generator": context.Semaphore(1),
            "trainer": context.Semaphore(0),
        }
        self._samples: Queue[Sequence[Group]] = context.Queue()
        self.offload(first.flat)

    @contextmanager
    def turn(self, role: str, *, then: str) -> Iterator[None]:
        """Wait for the turn of ``role``; pass it to ``then`` at the end of the block.

        Raises:
            TimeoutError: The other process does not end its turn.
        """
        if not self._turns[role].acquire(timeout=OTHER_TIMEOUT_S):
            raise TimeoutError(f"the {role} timed out waiting for its turn")
        yield
        self._turns[then].release()

    def offload(self, flat: Floats) -> None:
        """Copy weights from the device to shared memory."""
        np.copyto(np.frombuffer(memoryview(self._weights), np.float32), flat)

    def onload(self) -> Floats:
        """Copy the weights from shared memory to the device."""
        return np.frombuffer(memoryview(self._weights), np.float32).copy()

    def hand_over(self, groups: Sequence[Group]) -> None:
        """Send samples to the trainer, without waiting for it."""
        self._samples.put(tuple(groups))

    def taken_over(self) -> Sequence[Group]:
        """Return the samples of the previous turn."""
        return self._samples.get(timeout=OTHER_TIMEOUT_S)
