"""Histories of live runs: each diagnosis reads the new part of the journal.

journal    [ 1 2 3 4 5 6 ][ 7 8 ]      a first look reads all, the next one 7 and 8
[ . . 3 4 5 6 ][ 7 8 ]      the oldest is forgotten: all of it is read again
"""

from collections.abc import Collection
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Final, NamedTuple, Protocol

from otel_rl.bridge.journal.interface import Connection
from otel_rl.bridge.journal.run_reader import first_history, read_history
from otel_rl.diagnose.history.records import Facts
from otel_rl.diagnose.history.run_history import GrowingHistory, RunHistory
from otel_rl.records import ExperimentKey
from otel_rl.run_id import run_id

__all__ = ["LiveHistories", "Looked"]

# Of columns in memory for a byte of a record: numbers of Python for compressed text.
_GROWS: Final = 12

_MAX_BYTES: Final = 512 << 20


class _Open(Protocol):
    """Opens a connection that only reads."""

    def __call__(self) -> AbstractContextManager[Connection]: ...


class Looked(NamedTuple):
    """History of a run, at one look.

    Attributes:
        history: Valid until the next look at any run.
        records: Number of records that were read for it.
        is_whole: Whether these are all that there are.
    """

    history: RunHistory
    records: int
    is_whole: bool


@dataclass(slots=True)
class _Live:
    """History of a run, as far as it is read.

    Attributes:
        history: Of it.
        first: Number of its oldest record; 0 before one.
        last: Number of the newest one that was read.
        size: Bytes of them.
    """

    history: GrowingHistory = field(default_factory=GrowingHistory)
    first: int = 0
    last: int = 0
    size: int = 0


class LiveHistories:
    """Histories of the runs that go on, in bounded memory. One thread.

    Args:
        open_: Opens the journal.
        max_bytes: Bound of their memory, roughly. Runs beyond it are read from the beginning at
            each look, those that were looked at longest ago first.
    """

    def __init__(self, open_: _Open, *, max_bytes: int = _MAX_BYTES) -> None:
        self._open = open_
        self._max_bytes = max_bytes
        # The one that was looked at last is the last.
        self._live: dict[ExperimentKey, _Live] = {}

    def keep_only(self, keys: Collection[ExperimentKey]) -> None:
        """Let go of all other runs: they have ended."""
        self._live = {key: of for key, of in self._live.items() if key in keys}

    @property
    def known(self) -> Collection[ExperimentKey]:
        """Return the runs in memory."""
        return self._live.keys()

    def look(self, key: ExperimentKey) -> Looked:
        """Read a run on.

        Raises:
            JournalError: The journal cannot be read.
        """
        run, records = run_id(key.experiment, key.trial), 0
        live = self._live.pop(key, None) or _Live()
        with self._open() as connection:
            first = first_history(connection, run)
            if first != live.first:
                live = _Live(first=first)
            is_whole = not live.last
            while some := read_history(connection, run, after=live.last):
                for number, body in some:
                    live.last = number
                    if body is not None:  # what is damaged is left out
                        live.history.add(Facts.decode(body))
                        live.size += len(body)
                        records += 1
        self._live[key] = live
        self._forget()
        return Looked(live.history.history(), records, is_whole)

    def _forget(self) -> None:
        while self._live and self._memory_bytes() > self._max_bytes:
            del self._live[next(iter(self._live))]

    def _memory_bytes(self) -> int:
        return _GROWS * sum(of.size for of in self._live.values())
