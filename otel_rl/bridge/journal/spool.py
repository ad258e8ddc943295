"""Durable queue between receive and decode: accepted batches, in the order of acceptance.

* Durable: once ``append`` returns, the batches survive ``kill -9`` and power loss.
* Ordered: ``read`` yields the batches of an experiment in the order in which ``append`` returned.
* At least once: a batch is read again after a crash, until it is removed. The transaction that
  stores what was made of the batch (``Commit``) removes it, so nothing is made of it twice.
* Isolated: experiments share the room, but no one may take all of it, and a damaged batch is found
  by its checksum before anything is made of it.
"""

import random
import threading
from collections import OrderedDict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from itertools import groupby
from typing import Final

from otel_rl.bridge.journal.interface import (
    MADE,
    ROOM_OF_ROWS,
    WAITING,
    Connection,
    Journal,
    Ownership,
    SoleOwner,
    Use,
    checksum,
    write_owned,
)
from otel_rl.bridge.journal.retention import begin_run
from otel_rl.errors import JournalFull
from otel_rl.records import Batch, ExperimentKey, Offset, Signal
from otel_rl.run_id import run_id

_KEPT_BYTES: Final = 8 << 20
"""Of the batches whose columns are kept, by their payload, which takes less than columns do, or by
their points."""

_POINT_BYTES: Final = 40
"""Payload of a point of usual size: a shorter one takes as much memory in columns."""

_KEPT_NS: Final = 60_000_000_000
"""Columns that nobody has asked for in this time are not asked for any more."""


@dataclass(frozen=True, slots=True)
class Spooled:
    """A batch that waits to be turned into rows.

    Attributes:
        is_damaged: Whether the stored bytes differ from what was appended.
    """

    offset: Offset
    batch: Batch
    is_damaged: bool = False


class _ColumnsInMemory:
    """Columns of batches that wait for the row stage. Any thread may call any method.

    Memory is bounded: columns of a backlog, or of a run of another bridge, are decoded from the
    payload again.
    """

    def __init__(self) -> None:
        # _lock guards everything below.
        self._lock = threading.Lock()
        self._kept: OrderedDict[tuple[ExperimentKey, int], Batch] = OrderedDict()
        self._bytes = 0

    def keep(self, batches: Iterable[Batch]) -> None:
        """Keep the columns of batches until ``put_in`` asks for them."""
        with self._lock:
            for batch in batches:
                if not batch.columns:
                    continue
                self._remove((batch.experiment, batch.received_ns))
                while self._kept and self._oldest_ns() < batch.received_ns - _KEPT_NS:
                    self._remove(next(iter(self._kept)))
                if self._bytes + _weight(batch) <= _KEPT_BYTES:
                    self._kept[batch.experiment, batch.received_ns] = batch
                    self._bytes += _weight(batch)

    def put_in(self, batch: Batch) -> Batch:
        """Return the batch with its columns, if they were kept, and drop them here."""
        with self._lock:
            kept = self._remove((batch.experiment, batch.received_ns))
        return batch if kept is None or kept.payload != batch.payload else kept

    def _oldest_ns(self) -> int:
        return next(iter(self._kept))[1]

    def _remove(self, place: tuple[ExperimentKey, int]) -> Batch | None:
        found = self._kept.pop(place, None)
        if found is not None:
            self._bytes -= _weight(found)
        return found


def _weight(batch: Batch) -> int:
    points: int = sum(reading.points for reading in batch.columns)
    return max(len(batch.payload), points * _POINT_BYTES)


class Spool:
    """The batches of one journal. Any thread of any bridge may append; one thread reads a run.

    Args:
        max_share: Share of the journal's bound that one experiment may take, with its rows.
        is_shared: Whether appenders are held to shares of the bound. The spool then refuses no
            batch before the bound is exceeded by half: a tenant whose rows are larger than their
            batches takes more than its share, and must not cause refusals to another.
        owners: Tells which runs this bridge may write. Every bridge may append.
    """

    def __init__(
        self,
        journal: Journal,
        *,
        max_share: float = 1.0,
        is_shared: bool = False,
        owners: Ownership | None = None,
    ) -> None:
        self._journal = journal
        self._owners = owners or SoleOwner()
        self._max_bytes = int(max_share * journal.max_bytes)
        self._over_bytes = journal.max_bytes // 2 if is_shared else 0
        self._columns = _ColumnsInMemory()

    def append(self, batches: Sequence[Batch]) -> None:
        """Store the batches of a request. Concurrent calls share one fsync.

        Raises:
            JournalFull: There is no room for one of the batches. Batches of other experiments were
                stored all the same, so that they do not wait; they are recognised when they are
                sent again.
            JournalClosed: The bridge is stopping. Nothing was written.
        """
        full = self.submit(batches).result()
        if full is not None:
            raise full

    def submit(
        self,
        batches: Sequence[Batch],
        *,
        admit: Callable[[Sequence[Batch]], object] = bool,
        also: Callable[[Connection], None] | None = None,
    ) -> Future[JournalFull | None]:
        """Do the same as ``append`` without waiting.

        Args:
            admit: Called with the batches in the transaction; it may refuse them by raising an
                error.
            also: Run in the same transaction: everything is stored, or nothing is.

        Returns:
            The reason why one of the batches has no room; None if all are stored. With ``also``,
            the reason is raised instead, and nothing was written.
        """
        is_admitted = False

        def append(connection: Connection) -> JournalFull | None:
            nonlocal is_admitted
            if not is_admitted:  # a transaction may be run again
                admit(batches)
                is_admitted = True
            full = self._insert_all(connection, batches)
            if full is None:
                self._columns.keep(batches)
            if also is None:
                return full
            if full is None:
                return also(connection)
            raise full

        return self._journal.submit(append)

    def _insert_all(self, connection: Connection, batches: Sequence[Batch]) -> JournalFull | None:
        """Insert each run's batches all or none; return why one run has no room."""
        full: JournalFull | None = None
        shard = random.randrange(self._journal.shards)  # noqa: S311  # it spreads
        # In this order everywhere, so that no two wait for each other.
        ordered = sorted(batches, key=lambda batch: batch.experiment)
        for _, of_run in groupby(ordered, key=lambda batch: batch.experiment):
            try:
                self._insert(connection, [*of_run], shard)
            except JournalFull as exc:
                full = exc.with_traceback(None)  # which would hold this frame, and the batches
        return full

    def begin(self, key: ExperimentKey, now_ns: int) -> None:
        """Store that the run exists, before its first batch."""
        self._journal.write(lambda connection: begin_run(connection, key, now_ns))

    def waiting(self) -> Sequence[ExperimentKey]:
        with self._journal.read() as connection:
            found = connection.execute(
                "SELECT experiment, trial FROM runs WHERE run_id IN"
                " (SELECT run_id FROM waiting WHERE bytes <> 0) ORDER BY number"
            ).fetchall()
        return [ExperimentKey(experiment, trial) for experiment, trial in found]

    def read(
        self, key: ExperimentKey, *, max_bytes: int, but: Collection[Offset] = ()
    ) -> Sequence[Spooled]:
        """Return an experiment's first batches, about ``max_bytes``; at least one if any waits.

        Args:
            max_bytes: Size at which the read ends.
            but: Offsets of batches that the caller has read already.
        """
        found: list[Spooled] = []
        size = 0
        run = run_id(key.experiment, key.trial)
        with self._journal.read() as connection:
            first = _first_unread(connection, run, but) if but else 0
            if first is None:
                return []
            cursor = connection.execute(
                "SELECT position, signal, received_ns, payload, crc FROM batches"
                " WHERE run_id = ? AND position >= ? ORDER BY position",
                (run, first),
            )
            for row in cursor:
                if row[0] in but:  # one with a lower position became visible after it
                    continue
                found.append(self._spooled(key, run, *row))
                size += len(found[-1].batch.payload)
                if size >= max_bytes:
                    break
            cursor.close()
        return found

    def one(self, key: ExperimentKey, offset: Offset) -> Spooled | None:
        """Return one waiting batch of an experiment; None if the batch does not wait any more."""
        run = run_id(key.experiment, key.trial)
        with self._journal.read() as connection:
            found = connection.execute(
                "SELECT position, signal, received_ns, payload, crc FROM batches"
                " WHERE position = ? AND run_id = ?",
                (offset, run),
            ).fetchone()
        return None if found is None else self._spooled(key, run, *found)

    def in_use(self) -> Mapping[ExperimentKey, Use]:
        with self._journal.read() as connection:
            found = connection.execute(
                f"SELECT experiment, trial, {WAITING}, {MADE}, {ROOM_OF_ROWS}"  # noqa: S608  # ours
                " FROM runs"
            ).fetchall()
        return {
            ExperimentKey(name, trial): Use(int(waiting), int(made), int(rows))
            for name, trial, waiting, made, rows in found
            if waiting or made
        }

    def pending(self) -> int:
        with self._journal.read() as connection:
            return int(connection.execute("SELECT COUNT(*) FROM batches").fetchone()[0])

    def set_aside(self, key: ExperimentKey, offset: Offset) -> None:
        """Move a batch that cannot be decoded out of the spool; the batch is kept for inspection.

        Raises:
            LeaseLost: The run belongs to another bridge. Nothing was written.
            JournalFull: There is no room. Nothing was written.
        """

        def move(connection: Connection) -> None:
            connection.execute(
                "INSERT INTO set_aside (position, run_id, signal, received_ns, payload, crc)"
                " SELECT position, run_id, signal, received_ns, payload, crc FROM batches"
                " WHERE position = ?",
                (offset,),
            )
            connection.execute("DELETE FROM batches WHERE position = ?", (offset,))

        write_owned(self._journal, self._owners, key, move)

    def _spooled(
        self,
        key: ExperimentKey,
        run: str,
        offset: int,
        signal: str,
        received_ns: int,
        payload: bytes,
        crc: int,
    ) -> Spooled:
        is_damaged = checksum(payload, run, signal, received_ns) != crc
        batch = Batch(key, Signal.METRICS if is_damaged else Signal(signal), payload, received_ns)
        if not is_damaged:
            batch = self._columns.put_in(batch)
        return Spooled(Offset(offset), batch, is_damaged)

    def _insert(self, connection: Connection, batches: Sequence[Batch], shard: int) -> None:
        """Insert all of one run's batches, or none of them."""
        key, size = batches[0].experiment, sum(len(batch.payload) for batch in batches)
        run = run_id(key.experiment, key.trial)
        self._journal.room.take(connection, size, over_bytes=self._over_bytes)
        known = connection.execute(
            f"SELECT {WAITING}, {ROOM_OF_ROWS} FROM runs WHERE run_id = ?",  # noqa: S608  # ours
            (run,),
        ).fetchone()
        if known is None:
            begin_run(connection, key, batches[0].received_ns)
        waiting, rows = known or (0, 0)
        # A batch that is larger than the share is taken when nothing else waits, or it never fits.
        is_alone = not waiting and len(batches) == 1
        if not is_alone and waiting + size + rows > self._max_bytes:
            raise JournalFull(
                f"{waiting} bytes of {key} wait to be made into rows, and {rows} bytes of"
                " rows for the tracker, which is its share.",
                hint="Raise journal.max_bytes; senders retry meanwhile.",
            )
        connection.executemany(
            "INSERT INTO batches (run_id, shard, signal, received_ns, payload, crc)"
            " VALUES (?, ?, ?, ?, ?, ?)",
            [
                (
                    run,
                    shard,
                    batch.signal,
                    batch.received_ns,
                    batch.payload,
                    checksum(batch.payload, run, str(batch.signal), batch.received_ns),
                )
                for batch in batches
            ],
        )
        # The batches have locked the run in `runs` before, as who removes it does: in one order.
        connection.execute(
            "INSERT INTO waiting (run_id, shard, bytes) VALUES (?, ?, ?)"
            " ON CONFLICT (run_id, shard) DO UPDATE SET bytes = waiting.bytes + excluded.bytes",
            (run, shard, size),
        )


def _first_unread(connection: Connection, run: str, but: Collection[Offset]) -> int | None:
    positions = connection.execute(
        # One more than were read. In a backlog the run may have a hundred thousand.
        "SELECT position FROM batches WHERE run_id = ? ORDER BY position LIMIT ?",
        (run, len(but) + 1),
    ).fetchall()
    return next((position for (position,) in positions if position not in but), None)


class InboxPositions:
    """Read positions in inbox segments, by the unique name of each segment."""

    def __init__(self, journal: Journal) -> None:
        self._journal = journal

    def read(self) -> Mapping[str, int]:
        with self._journal.read() as connection:
            return dict(connection.execute("SELECT segment, position FROM inbox").fetchall())

    @staticmethod
    def write(connection: Connection, positions: Mapping[str, int], removed: Sequence[str]) -> None:
        """Store positions in a transaction, and forget those of removed segments."""
        connection.executemany(
            "INSERT INTO inbox (segment, position) VALUES (?, ?)"
            " ON CONFLICT (segment) DO UPDATE SET position = excluded.position",
            [*positions.items()],
        )
        connection.executemany("DELETE FROM inbox WHERE segment = ?", [(name,) for name in removed])
