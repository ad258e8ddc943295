"""Durable queue between receive and decode: accepted batches, in the order of acceptance.

* Durable: once ``append`` returns, the batch survives ``kill -9`` and power loss.
* Ordered: ``read`` yields batches in the order in which ``append`` returned.
* Read again after a crash unless it was removed; it is removed in the transaction that keeps what
  was made of it (``Ledger.commit``), so nothing is made of it twice.
"""

import sqlite3
from collections.abc import Sequence

from otel_rl.bridge.journal import Journal
from otel_rl.records import Batch, Offset, Signal

__all__ = ["Spool"]


class Spool:
    """The batches of one journal. Any thread may append; one reads."""

    def __init__(self, journal: Journal) -> None:
        self._journal = journal

    def append(self, batch: Batch) -> Offset:
        """Keep ``batch``. Concurrent calls share one fsync.

        Returns:
            Its position, greater than every position returned before.

        Raises:
            JournalFull: No room. Nothing was written.
            JournalClosed: The bridge is stopping. Nothing was written.
        """

        def insert(connection: sqlite3.Connection) -> Offset:
            self._journal.check_room(connection, len(batch.payload))
            cursor = connection.execute(
                "INSERT INTO batches (signal, received_ns, payload) VALUES (?, ?, ?)",
                (batch.signal, batch.received_ns, batch.payload),
            )
            return Offset(cursor.lastrowid or 0)

        return self._journal.write(insert)

    def read(self, *, after: Offset, max_bytes: int) -> Sequence[tuple[Offset, Batch]]:
        """The batches past ``after``, at least one if there is one, about ``max_bytes`` of them."""
        found: list[tuple[Offset, Batch]] = []
        size = 0
        with self._journal.read() as connection:
            cursor = connection.execute(
                "SELECT offset, signal, received_ns, payload FROM batches"
                " WHERE offset > ? ORDER BY offset",
                (after,),
            )
            for offset, signal, received_ns, payload in cursor:
                found.append((Offset(offset), Batch(Signal(signal), payload, received_ns)))
                size += len(payload)
                if size >= max_bytes:
                    break
            cursor.close()
        return found

    def pending(self) -> int:
        """How many batches wait."""
        with self._journal.read() as connection:
            return int(connection.execute("SELECT COUNT(*) FROM batches").fetchone()[0])
