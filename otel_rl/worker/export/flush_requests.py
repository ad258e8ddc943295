"""Flush, hurry and stop: requests of other threads to the exporter thread, and its answers."""

import time
from collections.abc import Callable
from threading import Condition, Thread, current_thread
from typing import NamedTuple

__all__ = ["FlushRequests", "Wanted"]


class Wanted(NamedTuple):
    """Work that the exporter thread is asked for.

    Attributes:
        ticket: Last flush to answer; 0 for none.
        is_stopping: Whether to send everything and end.
        is_hurried: Whether to collect early.
    """

    ticket: int
    is_stopping: bool
    is_hurried: bool


class FlushRequests:
    """Requests to one exporter thread. Callers wait no longer than the timeout that they pass.

    Flushes are numbered, so that one answer may serve several callers.

    Args:
        is_reached: Whether the endpoint has ever answered.
    """

    def __init__(self, is_reached: Callable[[], bool]) -> None:
        self._is_reached = is_reached
        # _changed guards everything below.
        self._changed = Condition()
        self._is_hurried = False
        self._wanted = 0
        self._done = 0
        self._delivered = 0
        self._until_s = 0.0
        self._stop_at_s: float | None = None
        self._stop_unreached_at_s = 0.0
        self._has_ended = False

    def may_wait(self, thread: Thread) -> bool:
        """Report whether the caller may wait for answers of ``thread``."""
        is_other = current_thread() is not thread
        return is_other and thread.is_alive() and not self._has_ended

    def flush(self, timeout_s: float) -> bool:
        """Ask for a flush and wait for it. True once everything was delivered."""
        with self._changed:
            if self._has_ended:
                return False
            self._wanted += 1
            ticket = self._wanted
            self._until_s = max(self._until_s, time.monotonic() + timeout_s)
            self._changed.notify_all()
            self._changed.wait_for(lambda: self._done >= ticket, timeout_s)
            return self._delivered >= ticket

    def hurry(self) -> None:
        """Ask for an early collection, without waiting."""
        with self._changed:
            if not self._is_hurried:
                self._is_hurried = True
                self._changed.notify_all()

    def stop(self, timeout_s: float, unreached_timeout_s: float) -> bool:
        """Ask for the end. The first call sets the deadlines, and returns True.

        Args:
            timeout_s: Time for an endpoint that has answered.
            unreached_timeout_s: Time for one that never did.
        """
        with self._changed:
            is_first = self._stop_at_s is None
            if is_first:
                now_s = time.monotonic()
                self._stop_at_s = now_s + timeout_s
                self._stop_unreached_at_s = now_s + min(timeout_s, unreached_timeout_s)
            self._changed.notify_all()
            return is_first

    def wait_for_end(self, timeout_s: float) -> None:
        """Wait until the exporter thread has ended its work."""
        with self._changed:
            self._changed.wait_for(lambda: self._has_ended, timeout_s)

    @property
    def is_stopping(self) -> bool:
        """Report whether the end was asked for."""
        return self._stop_at_s is not None

    @property
    def is_urgent(self) -> bool:
        """Report whether a caller waits."""
        return self._stop_at_s is not None or self._wanted > self._done

    # Below: the exporter thread.

    def wait(self, until_s: float) -> Wanted:
        """Sleep until someone asks for something, or the monotonic clock shows ``until_s``."""
        with self._changed:
            self._changed.wait_for(
                lambda: self._is_hurried or self.is_urgent, max(0.0, until_s - time.monotonic())
            )
            is_hurried, self._is_hurried = self._is_hurried, False
            ticket = self._wanted if self._wanted > self._done else 0
            return Wanted(ticket, self._stop_at_s is not None, is_hurried)

    def pause(self, pause_s: float) -> None:
        """Sleep, unless another request comes."""
        with self._changed:
            self._changed.wait(max(0.0, pause_s))

    def deadline_s(self) -> float:
        """Return when the callers stop waiting, on the monotonic clock."""
        if self._stop_at_s is None:
            return self._until_s
        return self._stop_at_s if self._is_reached() else self._stop_unreached_at_s

    def answer(self, ticket: int, *, delivered: bool) -> None:
        """Answer the flushes up to ``ticket``."""
        with self._changed:
            if delivered:
                self._delivered = max(self._delivered, ticket)
            self._done = max(self._done, ticket)
            self._changed.notify_all()

    def end(self) -> None:
        """Answer the threads that wait for the end."""
        with self._changed:
            self._has_ended = True
            self._changed.notify_all()
