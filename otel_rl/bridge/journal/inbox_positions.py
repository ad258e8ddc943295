"""Up to where the segments of an inbox are in the journal, see ``otel_rl.inbox``."""

from collections.abc import Mapping, Sequence

from otel_rl.bridge.journal.interface import Connection, Journal

__all__ = ["InboxPositions"]


class InboxPositions:
    """Positions in segments by the names of these, which no two workers share.

    Args:
        journal: Has a table of them from now on, which a journal without an inbox lacks.
    """

    def __init__(self, journal: Journal) -> None:
        self._journal = journal
        journal.write(
            lambda connection: connection.execute(
                "CREATE TABLE IF NOT EXISTS inbox"
                " (segment TEXT NOT NULL PRIMARY KEY, position BIGINT NOT NULL)"
            ).close()
        )

    def read(self) -> Mapping[str, int]:
        """Return the positions that are journaled."""
        with self._journal.read() as connection:
            return dict(connection.execute("SELECT segment, position FROM inbox").fetchall())

    @staticmethod
    def write(connection: Connection, positions: Mapping[str, int], removed: Sequence[str]) -> None:
        """Note positions, and forget those of segments that are removed, in a transaction."""
        connection.executemany(
            "INSERT INTO inbox (segment, position) VALUES (?, ?)"
            " ON CONFLICT (segment) DO UPDATE SET position = excluded.position",
            [*positions.items()],
        )
        connection.executemany("DELETE FROM inbox WHERE segment = ?", [(name,) for name in removed])
