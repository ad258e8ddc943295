"""Ends gRPC calls whose message does not arrive in time. gRPC itself waits for ever.

All deadlines are equally far away, so they pass in the order in which they were set: one thread,
which looks at the oldest, is enough for any number of calls.
"""

import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import TracebackType
from typing import Self

__all__ = ["Deadline", "Deadlines"]


@dataclass(slots=True, eq=False)
class Deadline:
    """The time by which something has to be done.

    Attributes:
        at_s: On the monotonic clock.
        end: Called once it has passed, unless the thing was done.
        has_passed: Whether ``end`` is being called or was.
    """

    at_s: float
    end: Callable[[], object]
    has_passed: bool = False


class Deadlines:
    """Watches deadlines from ``start`` to ``stop``. Any thread may call ``within``.

    Args:
        timeout_s: How far away each of them is.
        name: Of the thread.
    """

    def __init__(self, timeout_s: float, name: str) -> None:
        self._timeout_s = timeout_s
        # _changed guards everything below.
        self._changed = threading.Condition()
        self._open: OrderedDict[Deadline, None] = OrderedDict()
        self._stopping = False
        self._thread = threading.Thread(target=self._watch, name=name, daemon=True)

    @contextmanager
    def within(self, end: Callable[[], object]) -> Iterator[Deadline]:
        """Call ``end`` from another thread unless the block is left in time."""
        deadline = Deadline(time.monotonic() + self._timeout_s, end)
        with self._changed:
            self._open[deadline] = None
            if len(self._open) == 1:
                self._changed.notify()
        try:
            yield deadline
        finally:
            with self._changed:
                self._open.pop(deadline, None)

    def start(self) -> None:
        """Begin to watch."""
        self._thread.start()

    def stop(self) -> None:
        """Watch no longer. Idempotent."""
        with self._changed:
            self._stopping = True
            self._changed.notify()
        if self._thread.is_alive():
            self._thread.join()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self,
        _type: type[BaseException] | None,
        _error: BaseException | None,
        _traceback: TracebackType | None,
    ) -> None:
        self.stop()

    def _watch(self) -> None:
        while True:
            with self._changed:
                if self._stopping:
                    return
                oldest = next(iter(self._open), None)
                if oldest is None:
                    self._changed.wait()
                    continue
                left_s = oldest.at_s - time.monotonic()
                if left_s > 0:
                    self._changed.wait(left_s)
                    continue
                del self._open[oldest]
                oldest.has_passed = True
            oldest.end()
