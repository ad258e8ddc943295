"""Measures any buffer of samples: its size, reads, writes and evictions, and how long a read takes.

    buffer = measured(deque(maxlen=1000))
    buffer.append(sample)       # rl.replay_buffer.writes, .size; .evictions of a full one
    buffer.popleft()            # rl.replay_buffer.reads, .size, .retrieval.duration

The methods of ``deque``, ``list``, ``queue.Queue`` and of usual replay buffers are known by name.
Each call is passed on; nothing in the buffer is replaced.
"""

import threading
from collections.abc import Callable, Collection, Iterator, Sized
from time import perf_counter
from typing import Any, Final

from otel_rl.integrations.adapter import guard, meter_of
from otel_rl.semconv import names
from otel_rl.semconv.spec import described

__all__ = ["MeasuredBuffer", "measured"]

_ONE: Final = frozenset({"add", "append", "appendleft", "insert", "push", "put", "put_nowait"})
_MANY: Final = frozenset({"add_batch", "extend", "extendleft", "put_batch"})
_TAKES: Final = frozenset({"get", "get_nowait", "pop", "popleft"})
_SAMPLES: Final = frozenset({"sample"})


def measured(
    buffer: Any,
    *,
    one: Collection[str] = (),
    many: Collection[str] = (),
    takes: Collection[str] = (),
    samples: Collection[str] = (),
) -> "MeasuredBuffer":
    """Return a buffer that passes each call on, and records it. Thread-safe as the buffer is.

    It costs about 20 us a call. Errors of the buffer reach the caller, and such calls count neither
    as read nor as written. What leaves the buffer otherwise is an eviction: by ``maxlen``, or by
    ``clear`` or ``del``, which the next call tells. It is no instance of the buffer's class.

    Args:
        buffer: With ``__len__`` or ``qsize``.
        one: Further methods that write one sample.
        many: The same of several, which are the last argument.
        takes: Further methods that return a sample, or a list of several, and remove it.
        samples: The same without removing: one sample, or a list, or a mapping of columns.
    """
    kinds: dict[str, str] = {}
    for kind, known, more in (
        ("one", _ONE, one),
        ("many", _MANY, many),
        ("takes", _TAKES, takes),
        ("samples", _SAMPLES, samples),
    ):
        kinds |= dict.fromkeys((*known, *more), kind)
    return MeasuredBuffer(buffer, kinds)


class MeasuredBuffer:
    """Buffer with the methods of another one; see ``measured``."""

    def __init__(self, buffer: Any, kinds: dict[str, str]) -> None:
        self._buffer = buffer
        self._kinds = kinds
        self._record = _Record(lambda: _size(buffer))

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._buffer, name)
        kind = self._kinds.get(name)
        if kind is None or not callable(found):
            return found

        def call(*arguments: Any, **named: Any) -> Any:
            if kind == "many" and arguments and not isinstance(arguments[-1], Sized):
                arguments = (*arguments[:-1], list(arguments[-1]))  # an iterator counts once only
            self._record.begins()
            begun_s, result, written, read = perf_counter(), None, 0, 0
            try:
                result = found(*arguments, **named)
                written, read = _moved(kind, arguments, result)
            finally:
                self._record.ends(written, read, perf_counter() - begun_s, is_taken=kind == "takes")
            return result

        return call

    def __len__(self) -> int:
        return _size(self._buffer)

    def __bool__(self) -> bool:
        return bool(self._buffer)

    def __iter__(self) -> Iterator[Any]:
        return iter(self._buffer)

    def __contains__(self, item: object) -> bool:
        return item in self._buffer

    def __getitem__(self, place: Any) -> Any:
        return self._buffer[place]

    def __setitem__(self, place: Any, item: Any) -> None:
        self._buffer[place] = item

    def __delitem__(self, place: Any) -> None:
        del self._buffer[place]


class _Record:
    """Counts of one buffer, and its instruments once there is a worker."""

    def __init__(self, size: Callable[[], int]) -> None:
        self._measure = size
        # _lock guards everything below.
        self._lock = threading.Lock()
        self._in_flight = 0
        self._kept = size()  # what came in and was not taken
        self._told = 0
        self._instruments: dict[str, Any] = {}

    def begins(self) -> None:
        with guard, self._lock:
            self._in_flight += 1
            self._add(names.RL_REPLAY_BUFFER_QUEUE_DEPTH, 1)

    def ends(self, written: int, read: int, seconds: float, *, is_taken: bool) -> None:
        with guard, self._lock:
            self._in_flight -= 1
            self._add(names.RL_REPLAY_BUFFER_QUEUE_DEPTH, -1)
            self._add(names.RL_REPLAY_BUFFER_WRITES, written)
            self._add(names.RL_REPLAY_BUFFER_READS, read)
            if read:
                self._instrument(names.RL_REPLAY_BUFFER_RETRIEVAL_DURATION).record(seconds)
            self._kept += written - (read if is_taken else 0)
            size = self._measure()
            self._add(names.RL_REPLAY_BUFFER_SIZE, size - self._told)
            self._told = size
            # With a call under way in another thread, size and counts are not of one moment.
            if not self._in_flight and self._kept > size:
                self._add(names.RL_REPLAY_BUFFER_EVICTIONS, self._kept - size)
                self._kept = size

    def _add(self, name: str, amount: int) -> None:
        if amount:
            self._instrument(name).add(amount)

    def _instrument(self, name: str) -> Any:
        if name not in self._instruments:
            meter = meter_of("buffers")
            if meter is None:
                return _NOBODY
            creators: dict[str, Callable[..., Any]] = {
                names.RL_REPLAY_BUFFER_SIZE: meter.create_up_down_counter,
                names.RL_REPLAY_BUFFER_QUEUE_DEPTH: meter.create_up_down_counter,
                names.RL_REPLAY_BUFFER_RETRIEVAL_DURATION: meter.create_histogram,
            }
            create = creators.get(name, meter.create_counter)
            self._instruments[name] = create(*described(name))
        return self._instruments[name]


class _Nobody:
    """Instrument of a process that is no worker yet."""

    def add(self, _amount: int) -> None:
        pass

    def record(self, _value: float) -> None:
        pass


_NOBODY: Final = _Nobody()


def _size(buffer: Any) -> int:
    count = getattr(buffer, "qsize", None)
    return int(len(buffer) if count is None else count())


def _moved(kind: str, arguments: tuple[Any, ...], result: Any) -> tuple[int, int]:
    """Return (samples written, samples read) by a call that has returned."""
    if kind == "one":
        return 1, 0
    if kind == "many":
        return (len(arguments[-1]) if arguments else 0), 0
    if isinstance(result, dict):  # of columns
        result = next(iter(result.values()), ())
    is_several = isinstance(result, list) or (kind == "samples" and hasattr(result, "__len__"))
    return 0, len(result) if is_several and not isinstance(result, str | bytes) else 1
