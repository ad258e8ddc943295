"""Buffers measurements between the training threads and the exporter thread."""

from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import suppress
from itertools import chain, repeat, starmap
from typing import Final, NamedTuple

from opentelemetry.context import Context
from opentelemetry.util.types import AnyValue

from otel_rl.worker.otlp.gauges import Stream
from otel_rl.worker.tensors import Deferred, keep_for_ever

__all__ = ["CAPACITY", "Buffer", "Entry", "Logged", "Measured", "time_of"]

CAPACITY: Final = 1 << 17
"""Entries. A full buffer takes 24 MB, and 48 MB if the measurements have attributes besides the
step: the most that a training process should spare. At 10,000 measurements per second it holds 13 s
without an export; the exporter normally empties it every second.
"""

_CHUNK: Final = 128
"""Entries taken at once: few enough to be in the CPU's cache when they are freed, which makes an
export a fifth cheaper, and that rows, of 2 kB each with 20 metrics, do not stand in memory beside
what they are encoded to; enough to make the overhead of taking them negligible.
"""


Measured = tuple[Stream, object, dict[str, AnyValue] | int | None, int, Context]
"""One measurement of a gauge: (stream, value, step or attributes, time in ns, context).

A bare tuple: a named one would double the cost of ``gauge.set``. The value is a plain number or a
result of ``values.hold``. A plain integer step without other attributes stands alone; otherwise it
is among the attributes, which are a private copy.
"""


class Logged(NamedTuple):
    """One call of ``otel_rl.log``, as recorded.

    Attributes:
        values: A private copy of the metrics by name.
        step: The step as given, unchecked.
        reduce: The reduction as given, unchecked.
        time_ns: Time of the call.
        context: The caller's OpenTelemetry context.
        scope: Name of the instrumentation scope; empty for otel_rl's own.
    """

    values: dict[str, object]
    step: object
    reduce: object
    time_ns: int
    context: Context
    scope: str = ""


Entry = Measured | Logged


def time_of(entry: Entry) -> int:
    """Return the time of a measurement, in ns since the Unix epoch."""
    return entry[3]


class Buffer:
    """Bounded queue. Any thread puts and takes; no lock, so that fork() cannot break it.

    ``append`` and ``__len__`` of a deque are atomic. Writers check the length first, so that a full
    buffer drops the newest entry; threads that check at the same moment may each add one entry over
    the capacity.

    Attributes:
        entries: Writers append here after they have compared its length with ``capacity``.
        capacity: In entries.
        unready_since_ns: Time of the oldest entry that the last reader put back, because a device
            has yet to compute it; None for none.
    """

    __slots__ = ("capacity", "entries", "unready_since_ns")

    def __init__(self, capacity: int = CAPACITY) -> None:
        self.entries: deque[Entry] = deque()
        self.capacity = capacity
        self.unready_since_ns: int | None = None

    def take_all(self) -> Iterator[Entry]:
        """Return all entries put before the call, in order. Taken lazily, during iteration."""
        return chain.from_iterable(self._chunks(len(self.entries)))

    def put_back(self, unready: Sequence[Entry]) -> None:
        """Return taken entries that wait for a device; the next reader takes them first."""
        self.unready_since_ns = min(map(time_of, unready), default=None)
        self.entries.extendleft(reversed(unready))

    def abandon(self) -> int:
        """Clear the buffer. Returns the number of measurements in it."""
        self.unready_since_ns = None
        return sum(
            len(entry.values) if isinstance(entry, Logged) else 1 for entry in self.take_all()
        )

    def _chunks(self, count: int) -> Iterator[list[Entry]]:
        popleft = self.entries.popleft
        while count > 0:
            taken: list[Entry] = []
            # At the end of a process two threads may run this. On an empty queue extend keeps the
            # entries that it took before the error.
            with suppress(IndexError):
                taken.extend(starmap(popleft, repeat((), min(count, _CHUNK))))
            count -= _CHUNK
            yield taken

    def clear(self) -> None:
        """Clear the buffer."""
        self.unready_since_ns = None
        self.entries.clear()

    def forget(self) -> None:
        """Clear the buffer in a forked child: the parent sends the entries.

        Copies of tensors are kept for ever.
        """
        keep_for_ever([entry for entry in self.entries if _is_on_device(entry)])
        self.clear()


def _is_on_device(entry: Entry) -> bool:
    values = entry.values.values() if isinstance(entry, Logged) else (entry[1],)
    return any(isinstance(value, Deferred) for value in values)
