"""Opens the journal of a bridge, of either kind, and names its place in messages."""

from collections.abc import Iterable, Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import Final, NamedTuple

from otel_rl.bridge.journal.interface import Journal
from otel_rl.bridge.journal.sqlite import SqliteJournal
from otel_rl.errors import ConfigError, MissingExtra

__all__ = ["WHERE_RUNS_ARE", "JournalPlace", "names_there_are", "open_journal"]

WHERE_RUNS_ARE: Final = (
    "Name the data directory of `otel-rl run` or `otel-rl bridge`: --data DIR, or --config FILE."
)
"""Hint of commands that find no run."""


_MOST_NAMES: Final = 20  # of runs, in a message
_MOST_NEAR, _LEAST_ALIKE = 8, 0.5  # of them, names that may have been meant
_LONGEST_NAME: Final = 60


def names_there_are(wanted: str, names: Iterable[str]) -> str:
    """Return a hint with names of runs: some of them, those first that may have been meant."""
    found = sorted(set(names))
    if len(found) > _MOST_NAMES:
        found = [*_near_first(wanted, found)]
    shown = [
        name if len(name) <= _LONGEST_NAME else f"{name[: _LONGEST_NAME - 1]}…"
        for name in found[:_MOST_NAMES]
    ]
    more = len(found) - len(shown)
    return f"There are: {', '.join(shown)}{f' and {more} more' * bool(more)}."


def _near_first(wanted: str, names: Sequence[str]) -> Sequence[str]:
    within = [name for name in names if wanted.casefold() in name.casefold()]
    near = within or get_close_matches(wanted, names, _MOST_NEAR, _LEAST_ALIKE)
    return [*near, *(name for name in names if name not in near)]


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

    @property
    def words(self) -> str:
        """Return where runs are looked for."""
        if self.url is not None:
            return "in the database of journal.url"
        return f"in the journals below {str(self.directory)!r}"

    @property
    def without_runs(self) -> str:
        """Return one sentence for a place without any run."""
        if self.url is None and not self.directory.is_dir():
            if self.directory.exists():
                return f"{str(self.directory)!r} is no directory."
            return f"There is no directory {str(self.directory)!r}."
        return f"There is no run {self.words}."

    def no_run(self, more: str = "") -> ConfigError:
        """Return the error of a place without any run; ``more`` is added to its hint."""
        return ConfigError(self.without_runs, hint=f"{WHERE_RUNS_ARE} {more}".rstrip())


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
