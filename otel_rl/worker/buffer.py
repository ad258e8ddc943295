"""Measurements between the training threads that make them and the exporter that sends them."""

from collections import deque
from collections.abc import Iterator
from contextlib import suppress
from itertools import chain, repeat, starmap
from typing import Final, NamedTuple

from opentelemetry.context import Context
from opentelemetry.util.types import AnyValue

from otel_rl.worker.encode import Stream

__all__ = ["CAPACITY", "Buffer", "Logged", "Measured"]

CAPACITY: Final = 1 << 17
"""Entries. A full buffer takes 24 MB, and 48 MB if the measurements have attributes other than the
step, the most that a training process should lend; at 10,000 measurements a second it bridges 13 s
in which the exporter thread gets no time, and the exporter empties it every second."""

_CHUNK: Final = 1024
"""Entries that are taken at once: so few that they are still in the CPU's cache when they are
freed, which makes an export a fifth cheaper, and so many that taking them costs nothing."""


Measured = tuple[Stream, object, dict[str, AnyValue] | int | None, int, Context]
"""One measurement of a gauge: (stream, value, step or attributes, time in ns, context).

A bare tuple: building a named one would double what ``gauge.set`` costs. The value is a plain
number or what ``values.hold`` made of it. The step stands alone where it is a plain integer and
there are no other attributes; else it is among them, and they are a private copy.
"""


class Logged(NamedTuple):
    """One call of ``mlogger.log``, as recorded.

    Attributes:
        values: A private copy of the metrics by name.
        step: The step as given, unchecked.
        reduce: The reduction as given, unchecked.
        time_ns: When.
        context: The caller's OpenTelemetry context.
    """

    values: dict[str, object]
    step: object
    reduce: object
    time_ns: int
    context: Context


Entry = Measured | Logged


class Buffer:
    """A bounded queue. Any thread puts and takes; no lock, so that fork() cannot break it.

    ``append`` and ``__len__`` of a deque are atomic. Writers check the length first, so that a
    full buffer drops the newest entry; threads that check at the same moment may each add one
    entry over the capacity.

    Attributes:
        entries: Writers append here after they have compared its length with ``capacity``.
        capacity: In entries.
    """

    __slots__ = ("capacity", "entries")

    def __init__(self, capacity: int = CAPACITY) -> None:
        self.entries: deque[Entry] = deque()
        self.capacity = capacity

    def take_all(self) -> Iterator[Entry]:
        """Everything that was put before the call, in order. Taken as it is iterated over."""
        return chain.from_iterable(self._chunks(len(self.entries)))

    def abandon(self) -> int:
        """Forget everything. Returns how many measurements that were."""
        return sum(
            len(entry.values) if isinstance(entry, Logged) else 1 for entry in self.take_all()
        )

    def _chunks(self, count: int) -> Iterator[list[Entry]]:
        popleft = self.entries.popleft
        while count > 0:
            taken: list[Entry] = []
            # At the end of a process two threads may be here. Whoever comes to an empty queue
            # keeps what it has: extend leaves in the list what it got before the error.
            with suppress(IndexError):
                taken.extend(starmap(popleft, repeat((), min(count, _CHUNK))))
            count -= _CHUNK
            yield taken

    def clear(self) -> None:
        """Forget everything."""
        self.entries.clear()
