"""Length of one experiment's turn, so that the others get theirs."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

__all__ = ["Slices", "Turn"]

_ALL_S: Final = 0.5
_ALL_PARTS: Final = 64


@dataclass(frozen=True, slots=True)
class Slices:
    """Bounds of a turn: time, and parts of batches, whichever ends first.

    Attributes:
        most_s: Seconds.
        most_parts: Parts of about a thousand points, see ``decode_parts``.
        clock_s: Monotonic clock, in seconds.
    """

    most_s: float
    most_parts: int
    clock_s: Callable[[], float]

    def end_of_round_s(self) -> float:
        """Return the end of a round that begins now: its rows are then committed."""
        return self.clock_s() + _ALL_S

    def turn(self, experiments: int) -> "Turn":
        """Return a turn for one of ``experiments``, which together take no more than a moment."""
        share = max(1, experiments)
        most_s = min(self.most_s, _ALL_S / share)
        most_parts = max(1, min(self.most_parts, _ALL_PARTS // share))
        return Turn(self.clock_s, self.clock_s() + most_s, most_parts)


@dataclass(slots=True)
class Turn:
    """One turn, from now on."""

    clock_s: Callable[[], float]
    end_s: float
    parts_left: float

    def took(self, share: float = 1.0) -> None:
        """Count a part, or the share of one that a small batch is."""
        self.parts_left -= share

    @property
    def is_over(self) -> bool:
        """Return whether the turn is over."""
        return self.parts_left <= 0 or self.clock_s() >= self.end_s
