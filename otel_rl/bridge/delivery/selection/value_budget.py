"""Budget of values of one run in its tracker, by the tracker's own guidance. Pure.

Above it the series of single workers are left out first, which are also in their role's values,
then what is beyond the basic detail; never the basic values. Minutes are of event time, so a run
that is written anew is not folded for being written fast.
"""

from enum import IntEnum
from typing import Final

__all__ = ["Kind", "ValueBudget"]

_MINUTE_NS: Final = 60_000_000_000


class Kind(IntEnum):
    """Kind of a value, in the order in which they are given up, the last first."""

    BASIC = 0
    FURTHER = 1
    WORKER = 2


class ValueBudget:
    """Decides which kinds of values a row keeps.

    Args:
        per_minute: Values in a minute; 0 for no bound.
    """

    def __init__(self, per_minute: int) -> None:
        self._per_minute = per_minute
        self._minute = -1
        self._kept = 0
        # Values in this minute by kind, folded ones included.
        self._wanted = [0] * len(Kind)
        self._last = Kind.WORKER

    def last_kind(self, time_ns: int, wanted: list[int]) -> Kind:
        """Return the last kind of values that a row keeps.

        Once a kind is left out, it is until a minute in which it would have fitted is over: half a
        minute of a chart is misread.

        Args:
            time_ns: Event time of the row; one of an earlier minute counts as of the present one.
            wanted: Its number of values of each kind.
        """
        if not self._per_minute:
            return Kind.WORKER
        minute = time_ns // _MINUTE_NS
        if minute > self._minute:
            is_next = minute == self._minute + 1
            self._last = self._fitting() if is_next else Kind.WORKER
            self._minute, self._kept, self._wanted = minute, 0, [0] * len(Kind)
        for kind in Kind:
            self._wanted[kind] += wanted[kind]
        while self._last and self._kept + sum(wanted[: self._last + 1]) > self._per_minute:
            self._last = Kind(self._last - 1)
        self._kept += sum(wanted[: self._last + 1])
        return self._last

    def _fitting(self) -> Kind:
        """Return the last kind that would have fitted into the minute."""
        for kind in reversed(Kind):
            if sum(self._wanted[: kind + 1]) <= self._per_minute:
                return kind
        return Kind.BASIC
