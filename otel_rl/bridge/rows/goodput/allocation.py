"""Places of the workers of a role: time for which each was held, and its use. Pure.

trainer/0   |-- first process --|   gap   |-- second process --|
            begun             exported                       exported
"""

from collections.abc import Iterable
from typing import Final

from msgspec import field

from otel_rl.bridge.journal.state import Int64, Stored, check_durations

__all__ = ["MAX_PLACES", "Place", "Places"]

_NS_PER_S: Final = 1_000_000_000

MAX_PLACES: Final = 4_096
"""Places of a role that are known apart; of more, the oldest that is not held is added up. Workers
without an index have a place for each process, so there is no end to them."""


class Place(Stored, eq=False):
    """Place of a worker. Times are by the worker's clock.

    Attributes:
        begun_ns: First sign of life.
        exported_ns: Last export; 0 before the first.
        phase_ns: End of the last reported phase; 0 before it.
        starting_ns: First sign of a process without a reported phase so far; else 0.
        reported_s: Seconds in phases of that process.
        productive_s: Seconds of productive phases.
        overhead_s: Seconds of overhead.
        is_held: Whether it is held although its worker is silent: none has reported its end.
    """

    begun_ns: Int64
    exported_ns: Int64 = 0
    phase_ns: Int64 = 0
    starting_ns: Int64 = 0
    reported_s: float = 0.0
    productive_s: float = 0.0
    overhead_s: float = 0.0
    is_held: bool = False

    @property
    def last_ns(self) -> int:
        """Return the last sign of life."""
        return max(self.begun_ns, self.exported_ns, self.phase_ns)

    def exported(self, event_ns: int, *, is_first: bool, is_held: bool) -> None:
        """Record an export, after its phases.

        Args:
            event_ns: Its time.
            is_first: Whether it is the first of a process.
            is_held: See above.
        """
        if is_first:
            has_phases = self.phase_ns > self.exported_ns
            self.starting_ns = 0 if has_phases else event_ns
            self.reported_s = 0.0
        elif self.starting_ns and self.reported_s:
            # Phases before the first export with some follow one another without a gap.
            begun_ns = self.phase_ns - round(self.reported_s * _NS_PER_S)
            self.overhead_s += max(0, begun_ns - self.starting_ns) / _NS_PER_S
            self.starting_ns = 0
        self.exported_ns = max(self.exported_ns, event_ns)
        self.is_held = is_held

    def spent(self, until_ns: int) -> tuple[float, float, float]:
        """Return wall time, productive time and overhead, in seconds.

        Args:
            until_ns: Last sign of the role.
        """
        end_ns = max(self.last_ns, until_ns) if self.is_held else self.last_ns
        wall_s = (end_ns - self.begun_ns) / _NS_PER_S
        busy_s = self.productive_s + self.overhead_s
        if busy_s <= wall_s:
            return wall_s, self.productive_s, self.overhead_s
        # Rounding may make it more than all there is.
        productive_s = min(wall_s, self.productive_s * (wall_s / busy_s))
        return wall_s, productive_s, wall_s - productive_s


class Places(Stored):
    """Places of a role, by label, the oldest first.

    Attributes:
        of: The places.
        past: Wall time, productive time and overhead of forgotten ones, in seconds.
    """

    of: dict[str, Place] = field(default_factory=dict)
    past: tuple[float, float, float] = (0.0, 0.0, 0.0)

    def __post_init__(self) -> None:
        check_durations(self.past)
        for one in self.of.values():
            check_durations((one.reported_s, one.productive_s, one.overhead_s))

    def add(self, label: str, time_ns: int) -> Place:
        """Add a place that begins at a time. Others may be forgotten."""
        place = self.of[label] = Place(time_ns)
        if len(self.of) > MAX_PLACES:
            self._forget(but=label)
        return place

    def _forget(self, but: str) -> None:
        for label, place in self.of.items():
            if not place.is_held and label != but:
                self.past = _sum((self.past, self.of.pop(label).spent(0)))
                return

    def spent(self) -> tuple[float, float, float]:
        """Return wall time, productive time and overhead of all, in seconds."""
        last_ns = max((place.last_ns for place in self.of.values()), default=0)
        return _sum([self.past, *(place.spent(last_ns) for place in self.of.values())])


def _sum(spent: Iterable[tuple[float, float, float]]) -> tuple[float, float, float]:
    wall_s = productive_s = overhead_s = 0.0
    for one in spent:
        wall_s += one[0]
        productive_s += one[1]
        overhead_s += one[2]
    return wall_s, productive_s, overhead_s
