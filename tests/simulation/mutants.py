"""The bridge with one layer of its safety taken out: what the simulator must notice.

Each is a function that patches. Nothing in the product knows of them.
"""

import contextlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType

import pytest

from otel_rl.bridge.align.seen import Seen
from otel_rl.bridge.align.streams import StreamTable
from otel_rl.bridge.journal import Connection, Cursor, Value
from otel_rl.bridge.ledger import Commit, Ledger
from otel_rl.bridge.spool import Spool
from otel_rl.bridge.track import RunInfo
from otel_rl.bridge.track.open_run import OpenRun
from otel_rl.bridge.track.wandb import WandbTracker
from otel_rl.errors import JournalFull
from otel_rl.records import Batch, ExperimentKey, Row
from tests.simulation import bridge
from tests.simulation.journal import MemoryJournal

__all__ = ["MUTANTS", "SURVIVORS", "Mutant"]

Mutant = Callable[[pytest.MonkeyPatch], None]


def early_acknowledgement(patch: pytest.MonkeyPatch) -> None:
    """A request is answered before its batches are durable."""
    append, waiting = Spool.append, Spool.waiting
    in_memory: dict[int, list[Sequence[Batch]]] = {}

    def begin(self: Spool, journal: MemoryJournal) -> None:
        __init__(self, journal)
        in_memory.clear()  # the process before has died

    def answer_first(self: Spool, batches: Sequence[Batch]) -> None:
        in_memory.setdefault(id(self), []).append(batches)

    def keep_then(self: Spool) -> Sequence[ExperimentKey]:
        requests = in_memory.setdefault(id(self), [])
        while requests:
            append(self, requests[0])
            del requests[0]
        return waiting(self)

    __init__ = Spool.__init__
    patch.setattr(Spool, "__init__", begin)
    patch.setattr(Spool, "append", answer_first)
    patch.setattr(Spool, "waiting", keep_then)


def no_recognition(patch: pytest.MonkeyPatch) -> None:
    """What comes again is taken again."""
    patch.setattr(Seen, "take_interval", lambda *_: True)
    patch.setattr(StreamTable, "take_time", lambda *_: True)


def batches_removed_first(patch: pytest.MonkeyPatch) -> None:
    """Batches are removed in one transaction, rows and state are kept in the next."""
    _split(patch, lambda sql: sql.startswith("DELETE FROM batches"))


def rows_kept_first(patch: pytest.MonkeyPatch) -> None:
    """Rows are kept in one transaction, the state that made them in the next."""
    _split(patch, lambda sql: sql.startswith("INSERT INTO rows"))


def seen_kept_later(patch: pytest.MonkeyPatch) -> None:
    """What was taken is remembered a transaction after what was made of it."""
    _split(patch, lambda sql: not sql.startswith("INSERT INTO seen"))


def trusted_cursor(patch: pytest.MonkeyPatch) -> None:
    """The bridge goes on from what it has handed over, not from what the tracker has."""
    open_run, write = bridge.Writer.open, bridge.Writer.write
    handed: dict[bridge.Writer, str] = {}
    cursors: dict[str, int] = {}
    begin = MemoryJournal.__init__

    def begin_world(self: MemoryJournal, *arguments: object) -> None:
        begin(self, *arguments)  # type: ignore[arg-type]  # as given
        cursors.clear()

    def open_at_cursor(self: bridge.Writer, run: RunInfo, /) -> int:
        handed[self] = run.run_id
        return cursors.get(run.run_id, open_run(self, run))

    def write_and_note(self: bridge.Writer, rows: Sequence[Row], /) -> None:
        for row in rows:
            write(self, [row])
            cursors[handed[self]] = row.number + 1

    patch.setattr(MemoryJournal, "__init__", begin_world)
    patch.setattr(bridge.Writer, "open", open_at_cursor)
    patch.setattr(bridge.Writer, "write", write_and_note)


def pruned_when_handed_over(patch: pytest.MonkeyPatch) -> None:
    """Rows leave the journal as soon as the tracker's library has them."""
    write = OpenRun._write

    def write_and_prune(self: OpenRun, rows: Sequence[Row]) -> None:
        write(self, rows)
        key, tracker = self._info.key, self._settings.tracker
        with contextlib.suppress(JournalFull):
            self._source.confirmed(key, tracker, self.next_row)
            self._source.prune(key, tracker, self.next_row)

    patch.setattr(OpenRun, "_write", write_and_prune)


def unbounded_lead(patch: pytest.MonkeyPatch) -> None:
    """Rows are handed over however many of them are not confirmed."""
    patch.setattr(bridge, "DELIVERY", replace(bridge.DELIVERY, max_unconfirmed_rows=1 << 60))


def unsettled_start(patch: pytest.MonkeyPatch) -> None:
    """A run is opened without waiting for what its last writer had sent."""
    patch.setattr(WandbTracker, "_settled_lines", lambda self: self._ask_who_wrote())


def pruned_when_confirmed(patch: pytest.MonkeyPatch) -> None:
    """Rows leave the journal as soon as the tracker confirms them.

    An older answer of the tracker may then name a row that is gone; the run is refused, and opened
    when the answers are up to date.
    """
    patch.setattr(bridge, "DELIVERY", replace(bridge.DELIVERY, keep_confirmed_s=0))


def no_contiguity(patch: pytest.MonkeyPatch) -> None:
    """Rows are handed over without a look at whether one is missing.

    None is, as long as rows are numbered and kept in one transaction, and nothing is removed that
    is not confirmed.
    """

    def write(self: OpenRun, rows: Sequence[Row]) -> None:
        self._writer.write(rows)
        self.next_row = rows[-1].number + 1

    patch.setattr(OpenRun, "_write", write)


MUTANTS: Mapping[str, Mutant] = MappingProxyType(
    {
        mutant.__name__: mutant
        for mutant in (
            early_acknowledgement,
            no_recognition,
            batches_removed_first,
            rows_kept_first,
            seen_kept_later,
            trusted_cursor,
            pruned_when_handed_over,
            unbounded_lead,
            unsettled_start,
        )
    }
)
"""The simulator notices these."""

SURVIVORS: Mapping[str, Mutant] = MappingProxyType(
    {mutant.__name__: mutant for mutant in (pruned_when_confirmed, no_contiguity)}
)
"""It does not notice these, because another layer does the same."""


class _Only:
    """A connection that does a part of what changes something."""

    def __init__(self, connection: Connection, does: Callable[[str], bool]) -> None:
        self._connection = connection
        self._does = does

    def execute(self, sql: str, parameters: Sequence[Value] = ()) -> Cursor:
        if sql.startswith("SELECT") or self._does(sql):
            return self._connection.execute(sql, parameters)
        return self._connection.execute("SELECT 0, 0")

    def executemany(self, sql: str, parameters: Iterable[Sequence[Value]]) -> object:
        if self._does(sql):
            return self._connection.executemany(sql, parameters)
        return self._connection.execute("SELECT 0, 0")


def _only(connection: Connection, does: Callable[[str], bool]) -> Connection:
    return _Only(connection, does)


def _split(patch: pytest.MonkeyPatch, is_first: Callable[[str], bool]) -> None:
    """Make two transactions of the ledger's one."""
    commit = Ledger.commit

    def is_second(sql: str) -> bool:
        return not is_first(sql)

    def commit_twice(self: Ledger, commits: Sequence[Commit]) -> None:
        journal = self._journal

        class Twice:
            def write(self, function: Callable[[Connection], None]) -> None:
                journal.write(lambda one: function(_only(one, is_first)))
                journal.write(lambda one: function(_only(one, is_second)))

        self._journal = Twice()  # type: ignore[assignment]  # all that a commit needs
        try:
            commit(self, commits)
        finally:
            self._journal = journal

    patch.setattr(Ledger, "commit", commit_twice)
