"""Handlers of a process's signals, such as SIGTERM, that a command sets for a while."""

import os
import queue
import signal
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from types import FrameType

_SIGNALLED = 128


@contextmanager
def handled(
    numbers: Iterable[signal.Signals], handler: Callable[[int, FrameType | None], None]
) -> Iterator[None]:
    before = {number: signal.signal(number, handler) for number in numbers}
    try:
        yield
    finally:
        for number, former in before.items():
            signal.signal(number, former)


@contextmanager
def end_requests(
    *numbers: signal.Signals,
) -> Iterator["EndRequests"]:
    """Take signals, by default SIGINT and SIGTERM, as requests for an end of the context."""
    requests = EndRequests()
    of = numbers or (signal.SIGINT, signal.SIGTERM)
    with handled(of, lambda number, _frame: requests.add(number)):
        yield requests


class EndRequests:
    """Signals by which a person or a scheduler asks a command to end, in order.

    A handler may call ``add`` at any time: it takes no lock that the interrupted code may hold.

    Attributes:
        status: Exit status after a signal; None for that of a death by it.
    """

    status: int | None = None

    def __init__(self) -> None:
        self._numbers: queue.SimpleQueue[int] = queue.SimpleQueue()
        self._is_leaving = False

    def add(self, number: int) -> None:
        """Note a signal; another one, once the command is leaving, exits at once."""
        if self._is_leaving:
            os._exit(self.exit_status(number))
        self._numbers.put(number)

    def wake(self) -> None:
        self._numbers.put(0)

    def wait(self, timeout_s: float) -> int:
        """Return the next signal; 0 if there was none in time, or ``wake`` was called."""
        with suppress(queue.Empty):
            return self._numbers.get(timeout=max(0.0, timeout_s))
        return 0

    def leave(self) -> None:
        """Exit at the next signal, whatever the command is doing then."""
        self._is_leaving = True

    def exit_status(self, number: int) -> int:
        """Return the exit status after a signal: as a shell reports a death by it."""
        return self.status if self.status is not None else _SIGNALLED + number
