"""State of one delivery, for status queries."""

import threading

from otel_rl.bridge.delivery.delivery_interfaces import RunState

__all__ = ["Standing"]


class Standing:
    """State, location and last error of one delivery. Any thread may call any method.

    Args:
        lock: Guards them.
    """

    def __init__(self, lock: threading.Condition) -> None:
        self._lock = lock
        self._state = RunState.WAITING
        self._location = ""
        self._error = ""

    @property
    def state(self) -> RunState:
        """Present state."""
        with self._lock:
            return self._state

    @property
    def location(self) -> str:
        """URL or path of the run; empty before the first opening."""
        with self._lock:
            return self._location

    @property
    def error(self) -> str:
        """Last error; empty once the tracker accepts rows again."""
        with self._lock:
            return self._error

    def enter(self, state: RunState) -> None:
        """Change the state."""
        with self._lock:
            self._state = state

    def move(self, location: str) -> bool:
        """Store the location; return whether it is another one."""
        with self._lock:
            is_elsewhere = self._location != location
            self._location = location
            return is_elsewhere

    def fail(self, state: RunState, error: str, *, keep_first: bool) -> None:
        """Store an error, unless there is one already and the first is to be kept."""
        with self._lock:
            self._state = state
            self._error = self._error if keep_first and self._error else error

    def recover(self) -> RunState:
        """Clear the error; return the state."""
        with self._lock:
            self._error = ""
            return self._state
