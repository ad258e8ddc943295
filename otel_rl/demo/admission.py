"""How many prompts are let into the run: as many as keep the inventory full."""

import time
from collections.abc import Callable

from otel_rl.demo.settings import DemoSettings

__all__ = ["Admission"]


class Admission:
    """Decides about one prompt after the other. One thread."""

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
        """The rate counts from now on."""
        self._begun_s = self._clock()

    def admits(self, *, buffered: int, unfinished: int) -> bool:
        """Whether one more prompt may come in; it is taken to do so.

        Args:
            buffered: Groups in the replay buffer.
            unfinished: Prompts that wait or are being worked on.
        """
        if self._floods:
            enough = unfinished >= self._line_limit
        else:
            enough = buffered + unfinished >= self._wanted
        now_s = self._clock()
        if enough or now_s < self._next_s:
            return False
        if self._interval_s:
            # By the schedule and not by now, so that a late look does not lower the rate.
            self._next_s = max(self._next_s, now_s - self._interval_s) + self._interval_s
        self._admitted += 1
        return True

    def throttle(self, factor: float) -> None:
        """From now on prompts come so many times slower than they did until now."""
        self._interval_s = factor * (self._clock() - self._begun_s) / max(1, self._admitted)

    def flood(self) -> None:
        """From now on they come whenever somebody can take them, wanted or not."""
        self._floods = True
