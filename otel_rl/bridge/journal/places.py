"""Places of journals: opens a journal, and finds the one that has a run.

Journals lie side by side where each `otel-rl run` has its own. A program may name a run that
another journal has, for example because the program was started again. Another launch is another
run, as in W&B, so the run gets the next free name: `lr-1-2` for `lr-1`. One bridge decides for all
processes of a launch, when it first hears of a run, and from then on its own journal has the run:
so after a restart it decides the same.
"""

import fcntl
import os
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import Final, NamedTuple

from otel_rl.bridge.journal.interface import Connection, Journal
from otel_rl.bridge.journal.reader import journals_below, looking
from otel_rl.bridge.journal.sqlite import SqliteJournal
from otel_rl.errors import ConfigError, JournalError, MissingExtra
from otel_rl.records import ExperimentKey
from otel_rl.run_id import run_id

WHERE_RUNS_ARE: Final = (
    "Name the data directory of `otel-rl run` or `otel-rl bridge`: --data DIR, or --config FILE."
)
"""Hint of commands that find no run."""


_MOST_NAMES: Final = 20  # of runs, in a message
_MOST_NEAR, _LEAST_ALIKE = 8, 0.5  # of them, names that may have been meant
_LONGEST_NAME: Final = 60


def names_there_are(wanted: str, names: Iterable[str]) -> str:
    """Return a hint with some names of runs, the ones that resemble ``wanted`` first."""
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
        url: URL of the database that bridges share; None where the journal is a file.
        max_bytes: Bound of the journal's size.
    """

    directory: Path
    url: str | None
    max_bytes: int

    def open(self) -> Journal:
        return open_journal(self.directory, self.url, max_bytes=self.max_bytes, connections=1)

    @property
    def words(self) -> str:
        if self.url is not None:
            return "in the database of journal.url"
        return f"in the journals below {str(self.directory)!r}"

    @property
    def without_runs(self) -> str:
        if self.url is None and not self.directory.is_dir():
            if self.directory.exists():
                return f"{str(self.directory)!r} is no directory."
            return f"There is no directory {str(self.directory)!r}."
        return f"There is no run {self.words}."

    def no_run(self) -> ConfigError:
        return ConfigError(self.without_runs, hint=WHERE_RUNS_ARE)


def open_journal(
    directory: Path, url: str | None, *, max_bytes: int, connections: int | None = None
) -> Journal:
    """Open the database at ``url``, or else the file in ``directory``.

    Raises:
        ConfigError: The journal cannot be used.
        MissingExtra: psycopg is not installed.
        JournalLocked: Another process has the file open.
        JournalError: What is there is not a journal, is damaged, or does not answer.
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


_LOCK: Final = ".names.lock"


@dataclass(frozen=True, slots=True)
class Beside:
    """Journals beside that of a bridge, and what happens to runs that they have.

    Attributes:
        root: Directory above all the journals; it may hold a journal itself.
        renamed: Called with each run that gets another name, and the new name.
    """

    root: Path
    own: Path
    renamed: Callable[[ExperimentKey, ExperimentKey], None]

    @contextmanager
    def held(self) -> Iterator[None]:
        """Hold a lock that keeps other bridges from naming runs at the same time."""
        descriptor = os.open(self.root / _LOCK, os.O_RDWR | os.O_CREAT, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            yield
        finally:
            os.close(descriptor)


def home_of(key: ExperimentKey, root: Path, own: Path | None = None) -> Path | None:
    """Return the directory of the journal that has a run, ``own`` first; None if none has it."""
    for directory in (*filter(None, [own]), *journals_below(root)):
        try:
            with looking(directory) as connection:
                if _has_run(connection, key):
                    return directory
        except JournalError:  # none is there yet, or none that can be read
            continue
    return None


class RunNaming:
    """Decides under which name a sender's run is stored here. Any thread may call it.

    Args:
        begin: Puts a run into the bridge's own journal.
    """

    def __init__(
        self,
        beside: Beside,
        *,
        begin: Callable[[ExperimentKey], None],
    ) -> None:
        self._beside = beside
        self._begin = begin
        # _lock guards everything below.
        self._lock = threading.Lock()
        self._settled: dict[ExperimentKey, ExperimentKey] = {}

    def __call__(self, key: ExperimentKey) -> ExperimentKey:
        """Return the name under which a sender's run is stored here.

        Raises:
            JournalError: The run cannot be stored; the sender retries.
        """
        settled = self._settled.get(key)
        if settled is not None:
            return settled
        with self._lock:
            if key not in self._settled:
                with self._beside.held():
                    self._settled[key] = self._settle(key)
                if self._settled[key] != key:
                    self._beside.renamed(key, self._settled[key])
            return self._settled[key]

    def _settle(self, key: ExperimentKey) -> ExperimentKey:
        beside = self._beside
        for candidate in key.numbered():
            home = home_of(candidate, beside.root, beside.own)
            # A program numbers its runs, too: its second may be called as its first is here.
            if home in (None, beside.own) and candidate not in self._settled.values():
                self._begin(candidate)
                return candidate
        raise AssertionError  # numbers do not end


def _has_run(connection: Connection, key: ExperimentKey) -> bool:
    cursor = connection.execute("SELECT 1 FROM runs WHERE run_id = ?", (run_id(*key),))
    return cursor.fetchone() is not None
