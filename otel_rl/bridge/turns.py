"""How long one experiment's turn may last, so that the others have theirs."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

__all__ = ["Slices", "Turn"]

_ALL_S: Final = 0.5
_ALL_PARTS: Final = 64


@dataclass(frozen=True, slots=True)
class Slices:
    """What a turn may take: time, and parts of batches, whichever ends first.

    Attributes:
        most_s: Seconds.
        most_parts: Parts of about a thousand points, see ``decode_parts``.
        clock_s: Seconds that never go back.
    """

    most_s: float
    most_parts: int
    clock_s: Callable[[], float]

    def turn(self, experiments: int) -> "Turn":
        """One turn where so many experiments want one: together they take no more than a moment."""
        share = max(1, experiments)
        most_s = min(self.most_s, _ALL_S / share)
        most_parts = max(1, min(self.most_parts, _ALL_PARTS // share))
        return Turn(self.clock_s, self.clock_s() + most_s, most_parts)


@dataclass(slots=True)
class Turn:
    """One turn, from now on."""

    clock_s: Callable[[], float]
    end_s: float
    parts_left: int

    def took(self) -> None:
        """Another part was taken."""
        self.parts_left -= 1

    @property
    def is_over(self) -> bool:
        """Whether it is somebody else's turn."""
        return self.parts_left <= 0 or self.clock_s() >= self.end_s
