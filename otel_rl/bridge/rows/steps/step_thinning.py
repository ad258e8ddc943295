"""Leaves out steps in a run of more rows a minute than its tracker should get. Pure.

Above the bound every second step has rows, then every fourth, and so on: of all roles the same
steps, with their own values, so that a chart is coarser and never wrong. Minutes are of event time.
"""

from typing import Final

__all__ = ["StepThinning"]

_MINUTE_NS: Final = 60_000_000_000

_RESERVE: Final = 0.1
"""Share of a minute's rows for more steps than in the minute before."""

_FIRST_RESERVE: Final = 0.5
"""The same where there was none: the right distance of steps is found by doubling it."""


class StepThinning:
    """Decides which steps have rows.

    Attributes:
        is_coarse: Whether any step was left out.
    """

    def __init__(self) -> None:
        self.is_coarse = False
        self._minute = -1
        # Rows of this minute: in the run, and as many as there would be of every step.
        self._kept = self._wanted = 0
        self._first_every = self._every = 1
        self._reserve = _FIRST_RESERVE

    def count(self, time_ns: int, most: int) -> None:
        """Count a row of any kind.

        Args:
            time_ns: Event time of the row; one of an earlier minute counts as of the present one.
            most: Rows in a minute; 0 for no bound.
        """
        if most:
            self._begin(time_ns // _MINUTE_NS, most)
            self._kept += 1
            self._wanted += 1

    def keeps(self, step: int, time_ns: int, most: int) -> bool:
        """Return whether the values of a step have a row; the caller counts the row.

        Args:
            step: Of the values.
            time_ns: As in ``count``.
            most: As in ``count``.
        """
        if not most:
            return True
        self._begin(time_ns // _MINUTE_NS, most)
        if self._kept < most:
            while self._kept >= most * (1 - self._reserve * self._first_every / self._every):
                self._every *= 2
            if not step % self._every:
                return True
        self._wanted += 1
        self.is_coarse = True
        return False

    def _begin(self, minute: int, most: int) -> None:
        if minute <= self._minute:
            return
        is_next = minute == self._minute + 1
        self._reserve = _RESERVE if is_next else _FIRST_RESERVE
        self._every = 1
        while is_next and self._wanted > most * (1 - _RESERVE) * self._every:
            self._every *= 2
        self._first_every = self._every
        self._minute, self._kept, self._wanted = minute, 0, 0
