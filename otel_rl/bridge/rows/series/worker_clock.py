"""Finds worker clocks that are wrong by more than rows wait.

Windows are intervals of time, and close when all workers have come past their end, or after
``rows.wait``. If a worker's clock differs by more, no window has the counts of all workers. A time
after its arrival is certainly wrong. A time long before its arrival may belong to data that waited
on the way. But such data, once it comes, comes faster than it was measured; a clock that is wrong
runs as fast as the bridge's. A constant delay looks like such a clock.

The bridge's own clock may be the wrong one, and may be set: the majority of workers is right.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Iterable
from typing import Final

from otel_rl.bridge.journal.state import Count, Int64, Stored

_NS_PER_S: Final = 1_000_000_000

# Data may be on its way for so long: the batches of two Collectors, with time between them.
_LEAST_NS: Final = 10 * _NS_PER_S

# For so long, and in so many exports, data that waits would not keep its distance.
_STEADY_NS: Final = 5 * _NS_PER_S
_EXPORTS: Final = 3

# Of the tolerance: how much the distance may change by what happens on the way.
_SHARE: Final = 4

# Of the time: a queue that empties slowly lets the distance change by more.
_SHARE_OF_TIME: Final = 20


def tolerance_ns(wait_s: float) -> int:
    """Return the difference in ns up to which clocks need no correction."""
    return max(_LEAST_NS, int(wait_s * _NS_PER_S))


class WorkerClock(Stored, gc=False):
    """Difference of a worker's clock to the bridge's.

    Attributes:
        ahead_ns: The difference in ns; 0 if it is too small to matter, None if it is not certain.
    """

    ahead_ns: Int64 | None = None
    _seen_ns: Int64 = 0
    _since_ns: Int64 = 0
    _exports: Count = 0

    def exported(self, event_ns: int, arrived_ns: int, tolerance_ns: int) -> None:
        """Take the newest time of an export, and when it arrived by the bridge's clock."""
        ahead_ns = event_ns - arrived_ns
        if abs(ahead_ns) <= tolerance_ns:
            self.ahead_ns = self._exports = 0
            return
        if self.ahead_ns and abs(ahead_ns - self.ahead_ns) <= tolerance_ns:
            return
        if not self._exports or abs(ahead_ns - self._seen_ns) > tolerance_ns // _SHARE:
            self.ahead_ns, self._exports = None, 0
            self._seen_ns, self._since_ns = ahead_ns, arrived_ns
        self._exports += 1
        if ahead_ns > 0 or self._is_steady(ahead_ns, arrived_ns):
            self.ahead_ns = ahead_ns

    def _is_steady(self, ahead_ns: int, arrived_ns: int) -> bool:
        elapsed_ns = arrived_ns - self._since_ns
        is_long = self._exports >= _EXPORTS and elapsed_ns >= _STEADY_NS
        # A Collector may keep one export until it sends, for the same time each time; not several.
        is_often = 2 * elapsed_ns <= (self._exports - 1) * abs(ahead_ns)
        is_one_way = abs(ahead_ns - self._seen_ns) <= elapsed_ns // _SHARE_OF_TIME
        return is_long and is_often and is_one_way


def most_common_ns(ahead_ns: Iterable[int], tolerance_ns: int) -> int:
    """Return the approximate difference of most clocks; of equally common ones the smallest."""
    in_order = sorted(ahead_ns)

    def rank(one: int) -> tuple[int, int]:
        alike = bisect_right(in_order, one + tolerance_ns) - bisect_left(
            in_order, one - tolerance_ns
        )
        return alike, -abs(one)

    return max(in_order, key=rank, default=0)
