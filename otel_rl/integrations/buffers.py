"""Measures any buffer of samples: its size, reads, writes and evictions, and how long a read takes.

    buffer = measured(deque(maxlen=1000))
    buffer.append(sample)       # rl.replay_buffer.writes, .size; .evictions of a full one
    buffer.popleft()            # rl.replay_buffer.reads, .size, .retrieval.duration

The methods of ``deque``, ``list``, ``queue.Queue`` and of usual replay buffers are known by name.
Each call is passed on; nothing in the buffer is replaced.
"""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from copy import copy
from inspect import iscoroutinefunction
from time import perf_counter
from typing import Any, Final, Self

from otel_rl.integrations.adapter import Uncut, guard, meter_of
from otel_rl.semconv import names
from otel_rl.semconv.spec import described

__all__ = ["MeasuredBuffer", "measured"]

_ONE: Final = frozenset({"add", "append", "appendleft", "insert", "push", "put", "put_nowait"})
_MANY: Final = frozenset({"add_batch", "extend", "extendleft", "put_batch"})
_TAKES: Final = frozenset({"get", "get_nowait", "pop", "popleft"})
_SAMPLES: Final = frozenset({"sample"})
_SHARED: Final = ("multiprocessing.", "torch.multiprocessing.", "ray.util.queue")
"""Modules of queues between processes."""


def measured(
    buffer: Any,
    *,
    one: Collection[str] = (),
    many: Collection[str] = (),
    takes: Collection[str] = (),
    takes_many: Collection[str] = (),
    samples: Collection[str] = (),
) -> "MeasuredBuffer":
    """Return a buffer that passes each call on and records it. It is as thread-safe as the buffer.

    A call costs about 20 us more. Errors of the buffer reach the caller, and such calls count
    neither as read nor as written. Coroutines, as those of ``asyncio.Queue``, count when they have
    ended. Samples that leave the buffer otherwise are evictions: by ``maxlen``, or by ``clear`` or
    ``del``, which count at the next call. A queue of ``multiprocessing``, which other processes
    read and write, has neither a size nor evictions. The result is no instance of the buffer's
    class.

    Several samples are either a sequence of samples, or columns: a mapping or a tuple of arrays or
    lists, whose first one's length counts.

    Args:
        buffer: Any object with ``__len__`` or ``qsize``.
        one: Further methods that write one sample.
        many: Further methods that write several samples, which are the last argument.
        takes: Further methods that return one sample, of whatever form, and remove it.
        takes_many: Further methods that return several samples and remove them.
        samples: Further methods that return one sample or several without removing them.
    """
    kinds: dict[str, str] = {}
    for kind, known, more in (
        ("one", _ONE, one),
        ("many", _MANY, many),
        ("takes", _TAKES, takes),
        ("takes_many", frozenset(), takes_many),
        ("samples", _SAMPLES, samples),
    ):
        kinds |= dict.fromkeys((*known, *more), kind)
    return MeasuredBuffer(buffer, kinds)


class MeasuredBuffer:
    """Buffer with the methods and attributes of another buffer; see ``measured``."""

    def __init__(self, buffer: Any, kinds: dict[str, str]) -> None:
        # The attributes of the buffer are set and read through this object.
        self.__dict__.update(
            _buffer=buffer,
            _kinds=kinds,
            _record=_Record(None if _is_shared(buffer) else lambda: _size(buffer)),
        )

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_") and "_buffer" not in self.__dict__:
            raise AttributeError(name)  # while it is copied or unpickled
        found = getattr(self._buffer, name)
        kind = self._kinds.get(name)
        if kind is None or not callable(found):
            return found
        record = self._record

        async def call_later(*arguments: Any, **named: Any) -> Any:
            with record.call(kind) as call:
                call.result = await found(*call.prepared(arguments, named), **named)
            return call.result

        def call_now(*arguments: Any, **named: Any) -> Any:
            with record.call(kind) as call:
                call.result = found(*call.prepared(arguments, named), **named)
            return call.result

        return call_later if iscoroutinefunction(found) else call_now

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(self._buffer, name, value)

    def __delattr__(self, name: str) -> None:
        delattr(self._buffer, name)

    def __reduce__(self) -> tuple[Any, ...]:
        return MeasuredBuffer, (self._buffer, self._kinds)

    def __copy__(self) -> "MeasuredBuffer":
        return MeasuredBuffer(copy(self._buffer), self._kinds)

    def __iadd__(self, items: Iterable[Any]) -> Self:
        self.extend(items)
        return self

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


class _Call:
    """A method call in progress.

    Attributes:
        result: Value that the buffer has returned.
    """

    def __init__(self, kind: str) -> None:
        self._kind = kind
        self._given: Any = ()
        self.result: Any = None

    def prepared(self, arguments: tuple[Any, ...], named: dict[str, Any]) -> tuple[Any, ...]:
        """Return the arguments, with a list in place of an iterator, which counts only once."""
        if self._kind == "many":
            if arguments and isinstance(arguments[-1], Iterator):
                arguments = (*arguments[:-1], [*arguments[-1]])
            self._given = [*arguments, *named.values()][-1:]
        return arguments

    def moved(self) -> tuple[int, int, bool]:
        """Return (samples written, samples read, whether read ones are removed) after the call."""
        match self._kind:
            case "one":
                return 1, 0, False
            case "many":
                return sum(map(_count, self._given)), 0, False
            case "takes":
                return 0, 1, True
            case kind:
                return 0, _count(self.result), kind == "takes_many"


class _Record:
    """Counts of one buffer, and its instruments once there is a worker.

    Args:
        size: Measures the buffer; None for a buffer that other processes change.
    """

    def __init__(self, size: Callable[[], int] | None) -> None:
        self._measure = size
        # _lock guards everything below.
        self._lock = Uncut()
        self._in_flight = 0
        self._kept = 0 if size is None else size()  # what came in and was not taken
        self._told = 0
        self._instruments: dict[str, Any] = {}

    @contextmanager
    def call(self, kind: str) -> Iterator[_Call]:
        """Enter around a call, which counts unless it raises."""
        call = _Call(kind)
        with guard, self._lock.work():
            self._in_flight += 1
            self._add(names.RL_REPLAY_BUFFER_QUEUE_DEPTH, 1)
        begun_s, moved = perf_counter(), (0, 0, False)
        try:
            yield call
            with guard:
                moved = call.moved()
        finally:
            with guard, self._lock.work():
                self._ends(*moved, perf_counter() - begun_s)

    def _ends(self, written: int, read: int, is_taken: bool, seconds: float) -> None:
        self._in_flight -= 1
        self._add(names.RL_REPLAY_BUFFER_QUEUE_DEPTH, -1)
        self._add(names.RL_REPLAY_BUFFER_WRITES, written)
        self._add(names.RL_REPLAY_BUFFER_READS, read)
        if read:
            self._instrument(names.RL_REPLAY_BUFFER_RETRIEVAL_DURATION).record(seconds)
        if self._measure is None:
            return
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
    """Instrument of a process that is not a worker yet."""

    def add(self, _amount: int) -> None:
        pass

    def record(self, _value: float) -> None:
        pass


_NOBODY: Final = _Nobody()


def _size(buffer: Any) -> int:
    count = getattr(buffer, "qsize", None)
    return int(len(buffer) if count is None else count())


def _is_shared(buffer: Any) -> bool:
    """Return whether a buffer is a queue, or a queue's proxy, that other processes use, too."""
    return any(kind.__module__.startswith(_SHARED) for kind in type(buffer).__mro__)


def _count(samples: Any) -> int:
    """Return the number of samples in an argument or a result of a method."""
    if isinstance(samples, Mapping) or hasattr(samples, "_fields"):
        columns = [*(samples.values() if isinstance(samples, Mapping) else samples)]
        return _count(columns[0]) if columns else 0
    if isinstance(samples, str | bytes) or not hasattr(samples, "__len__"):
        return 1
    if getattr(samples, "shape", None) == ():  # an array of no dimension
        return 1
    if isinstance(samples, tuple) and samples and _is_column(samples[0]):
        return _count(samples[0])
    return len(samples)


def _is_column(part: Any) -> bool:
    return hasattr(part, "__len__") and not isinstance(part, str | bytes | Mapping | tuple)
