"""Attempts of a run: passes over its steps by the role that leads its axis. ADR 17. Pure.

    attempt 1   401 ... 500 (crash)
    attempt 2               400 401 ... 520

A row is of the attempt of its pass where its role leads the axis, else of the one at its time.
"""

from collections.abc import Sequence
from dataclasses import replace

from msgspec import field

from otel_rl.bridge.journal.state import Stored
from otel_rl.records import Attempt

__all__ = ["Attempts"]

_MAX_KEPT = 100
"""Attempts whose beginnings are known; older rows are of the oldest of them."""


class Attempts(Stored):
    """Attempts of one run after the first, which begins with it.

    Attributes:
        begun: In order, the last of them; one without a row has a ``first_row`` of -1.
    """

    begun: list[Attempt] = field(default_factory=list)

    @property
    def newest(self) -> int:
        """Return the number of the present attempt, from 1."""
        return self.begun[-1].number if self.begun else 1

    @property
    def with_rows(self) -> Sequence[Attempt]:
        """Return the attempts after the first that have a row."""
        return tuple(one for one in self.begun if one.first_row >= 0)

    def at(self, time_ns: int) -> int:
        """Return the attempt at a time."""
        for one in reversed(self.begun):
            if time_ns > one.since_ns:
                return one.number
        return self.begun[0].number - 1 if self.begun else 1

    def begin(self, first_step: int, since_ns: int) -> None:
        """Begin the next attempt.

        Args:
            first_step: That it goes back to.
            since_ns: Later values are of it.
        """
        self.begun.append(Attempt(self.newest + 1, first_step, -1, since_ns))
        del self.begun[:-_MAX_KEPT]

    def has_row(self, attempt: int, number: int) -> None:
        """Record that an attempt has a row of this number."""
        for place in range(len(self.begun) - 1, -1, -1):
            one = self.begun[place]
            if one.number == attempt and one.first_row < 0:
                self.begun[place] = replace(one, first_row=number)
            if one.number <= attempt:
                return
