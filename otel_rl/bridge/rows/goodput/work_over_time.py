"""Work by the time at which it was done, in a bounded number of parts. Pure.

Parts are intervals of 2**shift ns. When there are too many, neighbours are joined: the resolution
is about a thousandth of the run.
"""

from typing import Final

from msgspec import field

from otel_rl.bridge.journal.state import Number, StateRefused, Stored

__all__ = ["WorkOverTime"]

_MAX_PARTS: Final = 1024
_FINEST: Final = 20  # 2**20 ns are a millisecond
_COARSEST: Final = 62


class WorkOverTime(Stored):
    """Seconds of work by time.

    Attributes:
        shift: A part is 2**shift ns long.
        parts: Seconds by number of the part.
    """

    shift: int = _FINEST
    parts: dict[int, Number] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not _FINEST <= self.shift <= _COARSEST:
            raise StateRefused(f"it has work in parts of 2**{self.shift} ns")

    def add(self, time_ns: int, seconds: float) -> None:
        """Add work that ended at a time."""
        place = time_ns >> self.shift
        self.parts[place] = self.parts.get(place, 0.0) + seconds
        if len(self.parts) > _MAX_PARTS:
            self._join()

    def take(self, from_ns: int, until_ns: int) -> float:
        """Remove the work between two times, and return its seconds.

        The first part is taken as a whole, the last as far as it is before ``until_ns``.
        """
        first, last = from_ns >> self.shift, until_ns >> self.shift
        taken = 0.0
        for place in [place for place in self.parts if first <= place <= last]:
            seconds = self.parts.pop(place)
            if place == last:
                share = (until_ns - (place << self.shift)) / (1 << self.shift)
                self.parts[place] = seconds * (1 - share)
                seconds *= share
            taken += seconds
        return taken

    def _join(self) -> None:
        while len(self.parts) > _MAX_PARTS // 2 and self.shift < _COARSEST:
            self.shift += 1
            joined: dict[int, float] = {}
            for place, seconds in self.parts.items():
                joined[place >> 1] = joined.get(place >> 1, 0.0) + seconds
            self.parts = joined
