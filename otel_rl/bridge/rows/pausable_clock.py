"""The bridge's clock without the time in which it could not receive. Pure.

While a bridge is down, or its disk blocks all requests, workers cannot report. Such downtime does
not count toward lateness or lost workers, so the clock stands still in between:

    bridge's clock   10 11 12 .............. 50 51 52
    this clock       10 11 12                12 13 14
"""

from otel_rl.bridge.journal.state import Int64, Stored

__all__ = ["PausableClock"]


class PausableClock(Stored):
    """Clock of one run.

    Attributes:
        deaf_ns: Its lag behind the bridge's clock.
        since_ns: Its last restart, by the bridge's clock.
        latest_ns: The latest time that it has shown.
    """

    deaf_ns: Int64 = 0
    since_ns: Int64 = 0
    latest_ns: Int64 = 0

    @property
    def resumed_ns(self) -> int:
        """Return the time that it showed at its last restart."""
        return self.since_ns - self.deaf_ns

    def at(self, now_ns: int) -> int:
        """Return its time when the bridge's clock shows ``now_ns``."""
        shown_ns = max(now_ns, self.since_ns) - self.deaf_ns
        self.latest_ns = max(self.latest_ns, shown_ns)
        return shown_ns

    def clock_is(self, now_ns: int) -> int:
        """Adjust to a bridge's clock that was set back: later times were wrong.

        Args:
            now_ns: By the bridge's clock, not that of a batch, which may have waited.

        Returns:
            The time of this clock.
        """
        if now_ns < self.since_ns:
            self.deaf_ns -= self.since_ns - now_ns
            self.since_ns = now_ns
        shown_ns = now_ns - self.deaf_ns
        self.latest_ns = min(self.latest_ns, shown_ns)
        return shown_ns

    def go_on(self, now_ns: int) -> None:
        """Skip the time from the latest shown one to ``now_ns``."""
        self.deaf_ns = now_ns - self.latest_ns if self.latest_ns else 0
        self.since_ns = now_ns
