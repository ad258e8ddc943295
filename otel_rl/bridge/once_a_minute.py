"""Lines of a log that are worth writing once a minute: what causes them comes every second."""

import threading
import time
from collections.abc import Callable
from typing import Final

_INTERVAL_S: Final = 60.0
_MANY: Final = 256


class OnceAMinute:
    """Lets each line of a log through at first, and then once a minute. Any thread may call it.

    Args:
        most: Number of lines that are known apart. In a minute with more lines, all others of a
            kind count as one.
    """

    def __init__(self, most: int = _MANY, clock_s: Callable[[], float] = time.monotonic) -> None:
        self._most = most
        self._clock_s = clock_s
        # _lock guards everything below.
        self._lock = threading.Lock()
        self._next_s: dict[tuple[str, ...], float] = {}

    def is_due(self, *of: str) -> bool:
        """Return whether a line is due. ``of`` identifies the line, its kind first."""
        now_s = self._clock_s()
        with self._lock:
            if len(self._next_s) >= self._most:
                due = self._next_s.items()
                self._next_s = {one: next_s for one, next_s in due if next_s > now_s}
            if len(self._next_s) >= self._most and of not in self._next_s:
                of = of[:1]
            if now_s < self._next_s.get(of, 0.0):
                return False
            self._next_s[of] = now_s + _INTERVAL_S
            return True
