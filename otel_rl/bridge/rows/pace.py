"""The best pace of a run, against which goodput and efficiency are told."""

from math import fsum
from typing import Final

from msgspec import field

from otel_rl.bridge.journal.state import Count, Stored, check_durations

__all__ = ["Pace"]

_FEWEST: Final = 20
_MOST_WINDOWS: Final = 64


class Pace(Stored):
    """Time of one kind of work, beside what it would be at the best pace of the run.

    That is of the fastest window. Windows are of some times, and of more in a longer run, so that a
    few of next to nothing at the start are no pace for it.

    Attributes:
        size: Number of times in a window.
        windows: Seconds of each full window, in order.
        open_s: Seconds since the last full one.
        open_count: Number of times since.
    """

    size: Count = _FEWEST
    windows: list[float] = field(default_factory=list)
    open_s: float = 0.0
    open_count: Count = 0

    def __post_init__(self) -> None:
        check_durations((*self.windows, self.open_s))

    def add(self, seconds: float) -> None:
        """Add one time of the work."""
        self.open_s += seconds
        self.open_count += 1
        if self.open_count < self.size:
            return
        self.windows.append(self.open_s)
        self.open_s, self.open_count = 0.0, 0
        if len(self.windows) == _MOST_WINDOWS:
            pairs = zip(self.windows[::2], self.windows[1::2], strict=True)
            self.windows = [first + second for first, second in pairs]
            self.size *= 2

    @property
    def best_s(self) -> float | None:
        """Return the mean time in the fastest window; None before the first."""
        return min(self.windows) / self.size if self.windows else None

    @property
    def lost_s(self) -> float:
        """Return what all times took beyond the best pace."""
        best_s = self.best_s
        if best_s is None:
            return 0.0
        count = self.size * len(self.windows) + self.open_count
        return max(0.0, fsum((*self.windows, self.open_s)) - best_s * count)
