"""Admission of prompts: as many as keep the inventory full."""

import time
from collections.abc import Callable

from otel_rl.demo.settings import DemoSettings

__all__ = ["Admission"]


class Admission:
    """Decides about single prompts. One thread."""

    def __init__(self, settings: DemoSettings, clock: Callable[[], float] = time.monotonic) -> None:
        self._wanted = settings.inventory_groups
        self._line_limit = settings.generators * settings.queue_limit
        self._clock = clock
        self._begun_s = clock()
        self._admitted = 0
        self._interval_s = 0.0
        self._next_s = 0.0
        self._floods = False

    def begin(self) -> None:
        """Start the clock of the rate."""
        self._begun_s = self._clock()

    def admits(self, *, buffered: int, unfinished: int) -> bool:
        """Report whether one more prompt is admitted, and count it.

        Args:
            buffered: Groups in the replay buffer.
            unfinished: Prompts that wait or run.
        """
        if self._floods:
            enough = unfinished >= self._line_limit
        else:
            enough = buffered + unfinished >= self._wanted
        now_s = self._clock()
        if enough or now_s < self._next_s:
            return False
        if self._interval_s:
            # Relative to the schedule, so that a late call does not lower the rate.
            self._next_s = max(self._next_s, now_s - self._interval_s) + self._interval_s
        self._admitted += 1
        return True

    def throttle(self, factor: float) -> None:
        """Slow down the prompts by this factor, relative to their rate until now."""
        self._interval_s = factor * (self._clock() - self._begun_s) / max(1, self._admitted)

    def flood(self) -> None:
        """Admit prompts whenever a replica has room, independent of the inventory."""
        self._floods = True
