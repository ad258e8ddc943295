"""The bridge's clock without the time in which it could hear nobody. Pure.

While a bridge is down, or its disk keeps every request waiting, workers cannot report. Nothing
becomes overdue in that time, and nobody is missed. So the clock stands still in between:

    bridge's clock   10 11 12 .............. 50 51 52
    this clock       10 11 12                12 13 14
"""

from dataclasses import dataclass

__all__ = ["Hearing"]


@dataclass(slots=True)
class Hearing:
    """Can be pickled.

    Attributes:
        deaf_ns: How far it is behind the bridge's clock.
        since_ns: By the bridge's clock, when it went on last.
        latest_ns: The latest time that it has shown.
    """

    deaf_ns: int = 0
    since_ns: int = 0
    latest_ns: int = 0

    def at(self, now_ns: int) -> int:
        """What it shows when the bridge's clock shows ``now_ns``."""
        shown_ns = max(now_ns, self.since_ns) - self.deaf_ns
        self.latest_ns = max(self.latest_ns, shown_ns)
        return shown_ns

    def clock_is(self, now_ns: int) -> int:
        """If the bridge's clock was set back, go on from here: what was ahead of it was wrong.

        Args:
            now_ns: By the bridge's clock, not that of a batch, which may have waited.

        Returns:
            What this clock shows.
        """
        if now_ns < self.since_ns:
            self.deaf_ns -= self.since_ns - now_ns
            self.since_ns = now_ns
        shown_ns = now_ns - self.deaf_ns
        self.latest_ns = min(self.latest_ns, shown_ns)
        return shown_ns

    def go_on(self, now_ns: int) -> None:
        """The time from the latest that it has shown to ``now_ns`` does not count."""
        self.deaf_ns = now_ns - self.latest_ns if self.latest_ns else 0
        self.since_ns = now_ns
