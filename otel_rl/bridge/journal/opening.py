"""Opens the journal of a bridge, of either kind."""

from pathlib import Path
from typing import NamedTuple

from otel_rl.bridge.journal.interface import Journal
from otel_rl.bridge.journal.sqlite import SqliteJournal
from otel_rl.errors import MissingExtra

__all__ = ["JournalPlace", "open_journal"]


class JournalPlace(NamedTuple):
    """Place of a bridge's journal.

    Attributes:
        directory: Of the file.
        url: Of the database that bridges share; None where the file is the journal.
        max_bytes: Bound of its size.
    """

    directory: Path
    url: str | None
    max_bytes: int

    def open(self) -> Journal:
        """Open it for a single reader; see ``open_journal``."""
        return open_journal(self.directory, self.url, max_bytes=self.max_bytes, connections=1)


def open_journal(
    directory: Path, url: str | None, *, max_bytes: int, connections: int | None = None
) -> Journal:
    """The database at ``url``, or else the file in ``directory``.

    Raises:
        ConfigError: It cannot be used.
        MissingExtra: psycopg is not installed.
        JournalLocked: Another process has the file open.
        JournalError: What is there is no journal, or a damaged one, or does not answer.
    """
    if url is None:
        return SqliteJournal(directory, max_bytes=max_bytes)
    try:
        from otel_rl.bridge.journal.postgres import PostgresJournal
    except ImportError as exc:
        raise MissingExtra("journal.url: PostgreSQL", f"psycopg ({exc})", "postgres") from exc
    if connections is None:
        return PostgresJournal(url, max_bytes=max_bytes)
    return PostgresJournal(url, max_bytes=max_bytes, connections=connections)
