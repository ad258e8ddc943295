"""Simulated time, and what happens while it passes."""

from collections.abc import Callable


class Clock:
    """Seconds that pass when somebody sleeps.

    Attributes:
        now_s: Since the simulation began.
        meanwhile: Called after each step of time.
    """

    def __init__(self) -> None:
        self.now_s = 0.0
        self.meanwhile: Callable[[], None] = lambda: None

    def __call__(self) -> float:
        return self.now_s

    def sleep(self, seconds: float) -> None:
        self.now_s += seconds
        self.meanwhile()
