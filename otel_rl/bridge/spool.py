"""Durable queue between receive and decode: accepted batches, in the order of acceptance.

* Durable: once ``append`` returns, the batches survive ``kill -9`` and power loss.
* Ordered: ``read`` yields the batches of an experiment in the order in which ``append`` returned.
* Read again after a crash unless it was removed; it is removed in the transaction that keeps what
  was made of it (``Ledger.commit``), so nothing is made of it twice.
* Apart: experiments share the room, but no one may take all of it, and a damaged batch is found
  by its checksum before anything is made of it.
"""

import sqlite3
from collections.abc import Sequence
from dataclasses import dataclass

from otel_rl.bridge.journal import ROOM_OF_ROWS, Journal, checksum
from otel_rl.errors import JournalFull
from otel_rl.records import Batch, ExperimentKey, Offset, Signal
from otel_rl.semconv.run_id import run_id

__all__ = ["Spool", "Spooled"]


@dataclass(frozen=True, slots=True)
class Spooled:
    """A batch that waits.

    Attributes:
        offset: Its position.
        batch: What was appended.
        is_damaged: Whether it is not what was appended.
    """

    offset: Offset
    batch: Batch
    is_damaged: bool = False


class Spool:
    """The batches of one journal. Any thread may append; one reads.

    Args:
        journal: Where they are.
        max_share: Part of the journal's bound that one experiment may take, with its rows.
    """

    def __init__(self, journal: Journal, *, max_share: float = 1.0) -> None:
        self._journal = journal
        self._max_bytes = int(max_share * journal.max_bytes)

    def append(self, batches: Sequence[Batch]) -> None:
        """Keep the batches of a request. Concurrent calls share one fsync.

        Raises:
            JournalFull: No room for one of them. Those of other experiments were kept all the same,
                so that they do not wait for its room; they are recognised when they come again.
            JournalClosed: The bridge is stopping. Nothing was written.
        """

        def insert(connection: sqlite3.Connection) -> JournalFull | None:
            full: JournalFull | None = None
            for batch in batches:
                try:
                    self._insert(connection, batch)
                except JournalFull as exc:
                    full = exc
            return full

        full = self._journal.write(insert)
        if full is not None:
            raise full

    def waiting(self) -> Sequence[ExperimentKey]:
        """The experiments that have batches, in the order in which they were first heard of."""
        with self._journal.read() as connection:
            found = connection.execute(
                "SELECT experiment, trial FROM runs WHERE waiting_bytes > 0 ORDER BY rowid"
            ).fetchall()
        return [ExperimentKey(experiment, trial) for experiment, trial in found]

    def read(self, key: ExperimentKey, *, max_bytes: int) -> Sequence[Spooled]:
        """The first batches of an experiment, about ``max_bytes``; at least one if there is one."""
        found: list[Spooled] = []
        size = 0
        run = run_id(key.experiment, key.trial)
        with self._journal.read() as connection:
            cursor = connection.execute(
                "SELECT offset, signal, received_ns, payload, crc FROM batches"
                " WHERE run_id = ? ORDER BY offset",
                (run,),
            )
            for offset, signal, received_ns, payload, crc in cursor:
                is_damaged = checksum(payload, run, signal, received_ns) != crc
                kind = Signal.METRICS if is_damaged else Signal(signal)
                batch = Batch(key, kind, payload, received_ns)
                found.append(Spooled(Offset(offset), batch, is_damaged))
                size += len(payload)
                if size >= max_bytes:
                    break
            cursor.close()
        return found

    def pending(self) -> int:
        """How many batches wait."""
        with self._journal.read() as connection:
            return int(connection.execute("SELECT COUNT(*) FROM batches").fetchone()[0])

    def _insert(self, connection: sqlite3.Connection, batch: Batch) -> None:
        key, size = batch.experiment, len(batch.payload)
        run = run_id(key.experiment, key.trial)
        self._journal.check_room(connection, size)
        connection.execute(
            "INSERT OR IGNORE INTO runs (run_id, experiment, trial) VALUES (?, ?, ?)",
            (run, key.experiment, key.trial),
        )
        waiting, rows = connection.execute(
            "UPDATE runs SET waiting_bytes = waiting_bytes + ?"  # noqa: S608  # ours
            f" WHERE run_id = ? RETURNING waiting_bytes, {ROOM_OF_ROWS}",
            (size, run),
        ).fetchone()
        # A batch that is larger than the share is taken when nothing else waits, or it never fits.
        if waiting + rows > self._max_bytes and waiting > size:
            connection.execute(
                "UPDATE runs SET waiting_bytes = waiting_bytes - ? WHERE run_id = ?", (size, run)
            )
            raise JournalFull(
                f"{waiting - size} bytes of {key} wait to be made into rows, and {rows} bytes of"
                " rows for the tracker, which is its share.",
                hint="Raise journal.max_share or journal.max_bytes; senders retry meanwhile.",
            )
        connection.execute(
            "INSERT INTO batches (run_id, signal, received_ns, payload, crc)"
            " VALUES (?, ?, ?, ?, ?)",
            (
                run,
                batch.signal,
                batch.received_ns,
                batch.payload,
                checksum(batch.payload, run, str(batch.signal), batch.received_ns),
            ),
        )
