"""Finds the runs of every journal, and keeps the parts of their histories that were read."""

import contextlib
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Final, NamedTuple

from otel_rl.bridge.diagnosis.histories import Kept, MemoryBound
from otel_rl.bridge.journal.places import JournalPlace
from otel_rl.bridge.journal.reader import (
    history_records,
    newest_history,
    revision,
)
from otel_rl.errors import JournalError
from otel_rl.records import ExperimentKey
from otel_rl.view.found import Found, FoundRuns, matching, runs_of
from otel_rl.view.run_data import RunData, read_part

_MAX_MEMORY_BYTES: Final = 100 << 20

# An answer is not held up for longer by a long history; the next one reads on.
_READING_S: Final = 0.6

_NEWEST: Final = 100  # records that tell the last value of most keys

Sees = Callable[[Found], bool]


def may_see(key: ExperimentKey, experiments: Sequence[str] | None) -> bool:
    """Return whether a reader may see a run.

    Args:
        key: The run's.
        experiments: Those of the reader, see ``Grant``; None for all.
    """
    if experiments is None:
        return True
    from otel_rl.bridge.receive.tokens import Grant  # with pydantic 11 MB

    return Grant("", experiments).problem(key) is None


class Progress(NamedTuple):
    """Columns of a run, perhaps not all yet.

    Attributes:
        data: What was read.
        share: Of the records, from 0 to 1; 1 if all were read.
    """

    data: RunData
    share: float


class Journals(FoundRuns):
    """The runs of every journal in reach, with what was read of their histories. One thread.

    Args:
        place: Of the journals below a directory, or of the shared one.
        bound: Of the memory of histories; None for one of their own.

    Raises:
        OtelRLError: The shared database cannot be used.
    """

    def __init__(self, place: JournalPlace, bound: MemoryBound | None = None) -> None:
        super().__init__(place)
        # By the size of their columns.
        self._data: Kept[tuple[str, int], RunData] = Kept(bound or MemoryBound(_MAX_MEMORY_BYTES))
        self._journal_of: dict[str, Found] = {}

    def all(self) -> Sequence[Found]:  # noqa: D102  # as that of every finder
        found = super().all()
        # Of several journals with a run, the one that changed last.
        self._journal_of = {one.id: one for one in reversed(found)}
        return found

    def run(self, run: str) -> Found | None:
        """Return the run of an id: from the journal that had it before, or else from any."""
        known = self._journal_of.get(run)
        if known is not None:
            with contextlib.suppress(JournalError):  # it is among the faults
                for one in runs_of(known.directory, known.open):
                    if one.id == run:
                        return one
        return next((one for one in self.all() if one.id == run), None)

    def named(self, wanted: str | None, *, sees: Sees = lambda _run: True) -> Found:
        """Return the most recently active run, of a name if one is given.

        Args:
            wanted: ``EXPERIMENT``, ``TRIAL``, both with a slash, or an id.
            sees: Whether a reader may see a run; others are as if they were not there.

        Raises:
            ConfigError: There is none.
        """
        found = [one for one in self.all() if sees(one)]
        keys = [one.key for one in found]
        wanted_keys = {*matching(wanted, keys)}
        for one in found:
            if one.key in wanted_keys:
                return one
        raise self.no_run(wanted or "", keys)

    def revision(self, experiments: Sequence[str] | None = None) -> int:
        """Return a number that changes whenever a run of these experiments does; None for all."""
        found = 0
        sees = None if experiments is None else partial(may_see, experiments=experiments)
        for _, open_ in self._journals():
            # A journal that cannot be read is among the faults of ``all``.
            with contextlib.suppress(JournalError), open_() as connection:
                found += revision(connection, sees)
        return found

    def read(self, found: Found, *, budget_s: float = _READING_S) -> Progress:
        """Read the history on, for about so long."""
        key = found.id, found.run.begun_ns
        data = self._data.take(key) or RunData()
        try:
            share = _read_on(found, data, budget_s)
        finally:  # what was read before a fault is not read again
            self._data.put(key, data, data.memory_bytes, stays=True)
        return Progress(data, share)

    def newest(self, found: Found, *, records: int = _NEWEST) -> RunData:
        """Read the newest records of a history alone, which the rest may be far behind."""
        data = RunData()
        with found.open() as connection:
            data.number = newest_history(connection, found.id, records=records)
            read_part(connection, found.id, data, limit=records)
        return data


def _read_on(found: Found, data: RunData, budget_s: float) -> float:
    """Add records for about so long, and return the share of all that is read."""
    until_s = time.monotonic() + budget_s
    with found.open() as connection:
        while read_part(connection, found.id, data):
            if time.monotonic() > until_s:
                break
        left = history_records(connection, found.id, data.number)
        return 1.0 if not left else 1 - left / history_records(connection, found.id)
