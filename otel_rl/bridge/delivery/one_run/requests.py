"""Requests to the thread of one delivery: new rows, a stop, the end, or a slot for another run."""

import math
import threading

from otel_rl.records import ExperimentKey

__all__ = ["Requests"]


class Requests:
    """Requests that callers leave for the thread of one delivery.

    Any thread may call any method.

    Attributes:
        key: The run.
        changed: Lock of the requests, notified of each. Hold it to read several of them together.
    """

    def __init__(self, key: ExperimentKey) -> None:
        self.key = key
        self.changed = threading.Condition()
        self._news = False
        self._exit_code: int | None = None
        self._stopping = False
        self._killed = False
        self._room_wanted = False

    def has_news(self) -> bool:
        """Return whether there was a request since ``take_news``."""
        with self.changed:
            return self._news

    def is_stopping(self) -> bool:
        """Return whether the run is to be closed once its rows are written."""
        with self.changed:
            return self._stopping

    def is_killed(self) -> bool:
        """Return whether the delivery is to end at once."""
        with self.changed:
            return self._killed

    def is_room_wanted(self) -> bool:
        """Return whether another run needs the slot."""
        with self.changed:
            return self._room_wanted

    def exit_code(self) -> int | None:
        """Return the exit code with which to close the run; None if no stop was asked for."""
        with self.changed:
            return self._exit_code

    def wake(self) -> None:
        """Ask for a look at the rows."""
        with self.changed:
            self._news = True
            self.changed.notify_all()

    def stop(self, exit_code: int) -> None:
        """Ask to close the run once its rows are written."""
        with self.changed:
            self._stopping = True
            self._exit_code = exit_code

    def kill(self) -> None:
        """Ask to end at once."""
        with self.changed:
            self._killed = True
            self.changed.notify_all()

    def make_room(self) -> None:
        """Ask to close the run when it is idle, because another one needs the slot."""
        with self.changed:
            self._room_wanted = True
            self.changed.notify_all()

    def take_news(self) -> None:
        """Forget the news, before the rows are looked at."""
        with self.changed:
            self._news = False

    def clear_room_wanted(self) -> None:
        """Forget that another run needs the slot: this run has just got a new one."""
        with self.changed:
            self._room_wanted = False

    def wait(self, due_in_s: float, hold_s: float) -> None:
        """Wait for a request.

        Args:
            due_in_s: Longest wait; may be infinite.
            hold_s: Longest wait if another run needs the slot.
        """
        with self.changed:
            asked = self._room_wanted
            timeout_s = min(due_in_s, hold_s) if asked else due_in_s
            self.changed.wait_for(
                lambda: self._news or self._killed or self._room_wanted is not asked,
                None if timeout_s == math.inf else max(0.0, timeout_s),
            )

    def pause(self, pause_s: float, *, stopping: bool) -> None:
        """Wait, but not longer than until the end, or a stop if there was none before."""
        with self.changed:
            self.changed.wait_for(
                lambda: self._killed or self._stopping is not stopping, timeout=pause_s
            )
