"""Times at which an exporter collects: at an interval, or earlier on request."""

import time
from typing import Final

__all__ = ["CollectSchedule"]

_LOOK_EVERY_S: Final = 1.0
"""Period of checks of the buffer's fill, if the export interval is longer."""

_FIRST_LOOK_S: Final = 0.1
"""The same before the first collection. A receiver waits for the workers that it knows, so first
measurements must not wait long."""

_HURRY_EVERY_S: Final = 0.25
"""Period of early exports: shorter than the half second that Ray waits before it ends a job."""


class CollectSchedule:
    """Times of the collections of one exporter thread.

    Args:
        interval_s: Between two collections.
        is_waited_for: Whether a receiver waits for the first records.

    Attributes:
        next_s: Time of the next collection, on the monotonic clock.
    """

    def __init__(self, interval_s: float, *, is_waited_for: bool) -> None:
        self._interval_s = interval_s
        self._collected_s = 0.0
        self._look_every_s = _FIRST_LOOK_S if is_waited_for else _LOOK_EVERY_S
        self.next_s = time.monotonic() + interval_s

    def wake_s(self) -> float:
        """Return when to look at the buffer again, on the monotonic clock."""
        return min(self.next_s, time.monotonic() + self._look_every_s)

    def is_due(self) -> bool:
        """Report whether the interval is over."""
        return time.monotonic() >= self.next_s

    def hurry(self) -> None:
        """Make the next collection due at once, or a moment after the last one."""
        self.next_s = min(self.next_s, self._collected_s + _HURRY_EVERY_S)

    def begin(self) -> None:
        """Begin an interval: records are collected now."""
        now_s = time.monotonic()
        self.next_s = now_s + self._interval_s
        self._collected_s = now_s

    def found_records(self) -> None:
        """Look less often: the receiver knows this process."""
        self._look_every_s = _LOOK_EVERY_S
