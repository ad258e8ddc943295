"""Histories of the runs that diagnoses read: each look reads the new part of the journal.

journal    [ 1 2 3 4 5 6 ][ 7 8 ]      a first look reads all, the next one 7 and 8
[ . 2 3 4 5 6 ][ 7 8 ]      the oldest is forgotten there: it stays known here
[ . . . 4 5 6 ][ 7 8 ]      a quarter is: all of it is read again

They are kept in bounded memory, which threads may share; the one that was unused for longest goes
first:

thread 1    [ grpo ][ sft ]
thread 2    [ ppo ]              one bound for grpo, sft and ppo
"""

import math
import threading
import time
from array import array
from bisect import bisect_left
from collections.abc import Callable, Collection, MutableSequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final, Generic, NamedTuple, TypeAlias, TypeVar

from otel_rl.bridge.journal.interface import Connection
from otel_rl.bridge.journal.reader import first_history, history_records, read_history
from otel_rl.diagnose.history.records import Facts
from otel_rl.diagnose.history.run_history import GrowingHistory, RunHistory
from otel_rl.records import ExperimentKey
from otel_rl.run_id import run_id

# Of the records that were read, the part that the journal has forgotten before all are read again:
# a long run is not read anew with each part that it forgets.
_MAX_FORGOTTEN: Final = 0.25

_MAX_BYTES: Final = 512 << 20

_WEIGHED_EACH: Final = 16  # records, of which a look reads a few: that takes as long as reading one

Open: TypeAlias = Callable[[], AbstractContextManager[Connection]]
"""Opens a connection that only reads."""


K = TypeVar("K")
V = TypeVar("V")


class MemoryBound:
    """Bound on the memory of several owners together. Any thread may use it.

    Args:
        max_bytes: The bound in bytes. A history in use counts from its next return on.
    """

    def __init__(self, max_bytes: int) -> None:
        self.max_bytes = max_bytes
        # lock guards everything below, as ``Kept`` uses it.
        self.lock = threading.Lock()
        # By owner and key, each with its size; the one that was used last is the last.
        self.entries: dict[tuple[object, Any], tuple[Any, int]] = {}

    @property
    def used_bytes(self) -> int:
        return sum(size for _, size in self.entries.values())

    def forget(self, least: int) -> None:
        """Drop the least recently used histories until the rest fits; keep ``least`` of them."""
        while len(self.entries) > least and self.used_bytes > self.max_bytes:
            del self.entries[next(iter(self.entries))]


class Kept(Generic[K, V]):
    """Histories of one owner. One thread uses it.

    Args:
        bound: Bound of the memory, perhaps shared with other owners.
    """

    def __init__(self, bound: MemoryBound) -> None:
        self._bound = bound

    def known(self) -> Collection[K]:
        with self._bound.lock:
            return [key for owner, key in self._bound.entries if owner is self]

    def take(self, key: K) -> V | None:
        """Return a history, which the caller owns until ``put``; None if there is none."""
        with self._bound.lock:
            taken: tuple[V, int] | None = self._bound.entries.pop((self, key), None)
        return None if taken is None else taken[0]

    def put(self, key: K, value: V, size: int, *, stays: bool) -> None:
        """Keep a history; one that ``stays`` is kept even if it alone exceeds the bound."""
        with self._bound.lock:
            self._bound.entries[self, key] = value, size
            self._bound.forget(1 if stays else 0)

    def keep_only(self, wanted: Callable[[K], bool]) -> None:
        with self._bound.lock:
            for owner, key in [*self._bound.entries]:
                if owner is self and not wanted(key):
                    del self._bound.entries[owner, key]


class Looked(NamedTuple):
    """History of a run at one look.

    Attributes:
        history: Valid until the next look at any run.
        records: Number of records that were read for this look.
        is_whole: Whether the look has read all records that there are.
        left: Number of records that were left for the next look, for lack of time.
        memory_bytes: Approximate memory of the run's history.
    """

    history: RunHistory
    records: int
    is_whole: bool
    left: int = 0
    memory_bytes: int = 0


@dataclass(slots=True)
class _Live:
    """History of a run, as far as it has been read.

    Attributes:
        numbers: Numbers of the records that were read, in order.
        memory_bytes: Approximate size of the history after ``weighed`` records.
    """

    history: GrowingHistory = field(default_factory=GrowingHistory)
    numbers: MutableSequence[int] = field(default_factory=partial(array, "q"))
    memory_bytes: int = 0
    weighed: int = 0

    def weigh(self) -> int:
        """Return the history's memory in bytes, measured at most some records ago."""
        if not self.weighed or len(self.numbers) - self.weighed >= _WEIGHED_EACH:
            self.memory_bytes, self.weighed = self.history.memory_bytes(), len(self.numbers)
        return self.memory_bytes

    def forgotten(self, first: int) -> float:
        """Return the share of the records that the journal no longer has."""
        return bisect_left(self.numbers, first) / max(1, len(self.numbers))


class LiveHistories:
    """Histories of runs in bounded memory. One thread uses it.

    Args:
        bound: Bound on the memory of all histories; None for a bound of this object's own. Runs
            beyond the bound are read from the beginning at each look, the least recently looked at
            first.
    """

    def __init__(self, bound: MemoryBound | None = None) -> None:
        self._bound = bound or MemoryBound(_MAX_BYTES)
        self._live: Kept[tuple[ExperimentKey, int], _Live] = Kept(self._bound)

    def keep_only(self, keys: Collection[ExperimentKey]) -> None:
        """Drop the histories of all other runs, because those have ended."""
        self._live.keep_only(lambda at: at[0] in keys)

    @property
    def max_bytes(self) -> int:
        return self._bound.max_bytes

    @property
    def known(self) -> Collection[ExperimentKey]:
        return [key for key, _ in self._live.known()]

    def look(
        self, open_: Open, key: ExperimentKey, *, begun_ns: int = 0, budget_s: float = math.inf
    ) -> Looked:
        """Read the new records of a run, and return its history."""
        until_s = time.monotonic() + budget_s
        run, records = run_id(key.experiment, key.trial), 0
        live = self._live.take((key, begun_ns)) or _Live()
        with open_() as connection:
            first = first_history(connection, run)
            if not first or live.forgotten(first) >= _MAX_FORGOTTEN:
                live = _Live()
            is_whole = not live.numbers
            while some := read_history(connection, run, after=max(live.numbers[-1:], default=0)):
                for number, body in some:
                    live.numbers.append(number)
                    if body is not None:  # what is damaged is left out
                        live.history.add(Facts.decode(body))
                        records += 1
                if time.monotonic() > until_s:
                    break
            left = history_records(connection, run, max(live.numbers[-1:], default=0))
        is_half_read = bool(left)  # and is not begun anew
        size = live.weigh()
        self._live.put((key, begun_ns), live, size, stays=is_half_read)
        return Looked(live.history.history(), records, is_whole, left, size)
