"""The best pace of a run, which is the reference of goodput and efficiency."""

from math import fsum, sqrt
from statistics import median
from typing import Final

from msgspec import field

from otel_rl.bridge.journal.state import Count, Stored, check_durations

_FEWEST: Final = 20
_MOST_WINDOWS: Final = 64
_QUARTILE: Final = 0.674
"""Of a normal distribution, in standard deviations below its mean."""


class Pace(Stored):
    """Time of one kind of work, compared with what it would take at the run's best pace.

    The best pace is that of the fastest quarter of the run's windows: a few times of next to
    nothing, as at a start, are no pace. If lengths only scatter, some windows are faster by chance;
    that advantage is subtracted, so that a run whose pace stays the same has lost nothing.

    Attributes:
        size: Number of times in a window; a longer run has longer windows.
        windows: Seconds of each full window, in order.
        squares: Sum of the squared times of each full window.
        open_s: Seconds since the last full window.
        open_square: Sum of the squared times since the last full window.
        open_count: Number of times since the last full window.
    """

    size: Count = _FEWEST
    windows: list[float] = field(default_factory=list)
    squares: list[float] = field(default_factory=list)
    open_s: float = 0.0
    open_square: float = 0.0
    open_count: Count = 0

    def __post_init__(self) -> None:
        check_durations((*self.windows, *self.squares, self.open_s, self.open_square))
        if len(self.windows) != len(self.squares):
            raise ValueError("each window has its squares")

    def add(self, seconds: float) -> None:
        self.open_s += seconds
        self.open_square += seconds * seconds
        self.open_count += 1
        if self.open_count < self.size:
            return
        self.windows.append(self.open_s)
        self.squares.append(self.open_square)
        self.open_s, self.open_square, self.open_count = 0.0, 0.0, 0
        if len(self.windows) == _MOST_WINDOWS:
            self.windows, self.squares = _by_pairs(self.windows), _by_pairs(self.squares)
            self.size *= 2

    @property
    def best_s(self) -> float | None:
        """Return the mean time at the best pace; None before the first window is full."""
        if not self.windows:
            return None
        fast_s = sorted(self.windows)[len(self.windows) // 4] / self.size
        scatter = median(
            max(0.0, square - window * window / self.size) / (self.size - 1)
            for window, square in zip(self.windows, self.squares, strict=True)
        )
        return fast_s + _QUARTILE * sqrt(scatter / self.size)

    @property
    def lost_s(self) -> float:
        """Return the seconds that all times took beyond the best pace."""
        best_s = self.best_s
        if best_s is None:
            return 0.0
        count = self.size * len(self.windows) + self.open_count
        return max(0.0, fsum((*self.windows, self.open_s)) - best_s * count)


def _by_pairs(values: list[float]) -> list[float]:
    return [first + second for first, second in zip(values[::2], values[1::2], strict=True)]
