"""Reads the runs and histories of a journal for commands that only look.

It reads beside a bridge that runs, and changes nothing.
"""

import json
import sqlite3
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from otel_rl.bridge.journal.formats.description_format import read_description
from otel_rl.bridge.journal.interface import MADE, WAITING, Connection, Journal, checksum
from otel_rl.bridge.journal.log import Log
from otel_rl.bridge.journal.run_reader import Standing, read_keys
from otel_rl.bridge.journal.sqlite import JOURNAL_FILE
from otel_rl.bridge.journal.sqlite_files import DATA_DIRECTORY, is_in_use
from otel_rl.errors import JournalError
from otel_rl.records import Description, ExperimentKey, ExperimentStatus, KeySpec, RoleStanding
from otel_rl.run_id import run_id

__all__ = [
    "LookingOn",
    "RunOverview",
    "histories",
    "journals_below",
    "keys",
    "looking",
    "overview",
    "read_runs",
    "removed_runs",
    "shared_histories",
    "shared_keys",
    "shared_overview",
    "shared_removed_runs",
    "state_of",
]

_SILENT_S: Final = 60.0  # workers report each second, and by default at least once a minute
_SHORTEST_STALL_S: Final = 300.0
_STALL: Final = 10.0  # times the usual duration of a step

# The same after a diagnosis has found a stall: a run that has come to a step since then goes on,
# though no look has said so yet.
_SHORTEST_DIAGNOSED_S: Final = 10.0
_DIAGNOSED_STALL: Final = 1.5

_STATES: Final = {
    ExperimentStatus.COMPLETE: "finished",
    ExperimentStatus.ABORTED: "aborted",
    ExperimentStatus.CRASHED: "crashed",
}

_TIMEOUT_S = 3.0  # a bridge that is just committing

_MADE = MADE.replace("next_row", "runs.next_row")  # deliveries have one, too

# In the order of the attributes below.
_QUERY = f"""
SELECT experiment, trial, roles, COALESCE(tracker, ''), runs.next_row,
       runs.next_row - CASE WHEN COALESCE(finished_row, 0) > COALESCE(d.next_row, 0)
                            THEN finished_row ELSE COALESCE(d.next_row, 0) END,
       CAST({WAITING} AS BIGINT),
       COALESCE(state, ''), COALESCE(error, ''), COALESCE(error_ns, 0), owner,
       COALESCE(location, ''), begun_ns, changed_ns, step, step_ns, CAST({_MADE} AS BIGINT),
       descriptions.body, descriptions.crc
FROM runs LEFT JOIN deliveries AS d ON d.run_id = runs.run_id
LEFT JOIN descriptions ON descriptions.run_id = runs.run_id
ORDER BY experiment, trial, tracker
"""  # noqa: S608  # ours

_HISTORY = f"""
SELECT experiment, trial, log.run_id, newest, body, crc FROM log
JOIN runs ON runs.run_id = log.run_id WHERE kind = '{Log.HISTORY}' {{}} ORDER BY log.number
"""  # noqa: S608  # ours


@dataclass(frozen=True, slots=True)
class RunOverview:
    """State of one run with one tracker.

    Attributes:
        key: Experiment and trial.
        roles: How the workers of each role stood when rows were made last.
        tracker: Its name, or empty if none has been asked yet.
        rows: How many were made so far.
        unconfirmed: How many of them the tracker has not confirmed.
        waiting_bytes: Acknowledged batches that are no rows yet.
        state: State of the delivery when it last reported ``error``.
        error: What keeps the tracker from taking rows; empty if nothing does.
        error_ns: Since when, in nanoseconds since the epoch.
        owner: The bridge that works on it, of several on one database, as ``host:process:...``;
            empty if there is one bridge, or nothing to do.
        location: Where the tracker has it, URL or path; empty before it was opened.
        begun_ns: Time of the first commit, by the bridge's clock.
        changed_ns: Time of the last one.
        step: The newest step; None before the first.
        step_ns: When that was new.
        made_bytes: What the journal has of it, without the batches that wait, about.
        description: Its metadata, with its status and the failures of its workers.
        has_bridge: Whether a bridge uses the journal, as far as is known.
    """

    key: ExperimentKey
    roles: Mapping[str, RoleStanding]
    tracker: str
    rows: int
    unconfirmed: int
    waiting_bytes: int
    state: str
    error: str
    error_ns: int
    owner: str
    location: str
    begun_ns: int
    changed_ns: int
    step: int | None
    step_ns: int
    made_bytes: int
    description: Description
    has_bridge: bool = True

    @property
    def is_interrupted(self) -> bool:
        """Return whether it has neither an end nor a bridge: its workers are unknown."""
        return self.description.status not in _STATES and not self.has_bridge


def state_of(run: RunOverview, standing: Standing, now_ns: int) -> str:
    """Return ``running``, ``stalled``, ``interrupted``, or how it has ended.

    That is ``finished``, ``aborted`` or ``crashed``. It is interrupted if its bridge was killed or
    stopped before its end. It is stalled if nothing was reported for a minute, no step for ten
    times as long as usual, or no step since the bridge's diagnosis has found a stall.
    """
    ended = _STATES.get(run.description.status)
    if ended is not None:
        return ended
    if run.is_interrupted:
        return "interrupted"
    if now_ns - run.changed_ns > _SILENT_S * 1e9:
        return "stalled"
    if run.step is None:
        return "running"
    usual_ns = (run.step_ns - run.begun_ns) / max(1, run.step)
    shortest_s, times = _SHORTEST_STALL_S, _STALL
    if standing.is_stalled:
        shortest_s, times = _SHORTEST_DIAGNOSED_S, _DIAGNOSED_STALL
    is_late = now_ns - run.step_ns > max(shortest_s * 1e9, times * usual_ns)
    return "stalled" if is_late else "running"


def shared_overview(journal: Journal) -> Sequence[RunOverview]:
    """Every run of a journal that bridges share, in the order of their names.

    Raises:
        JournalError: It cannot be read.
    """
    with journal.read() as connection:
        return read_runs(connection)


def overview(directory: Path) -> Sequence[RunOverview]:
    """Every run of the journal in ``directory``, in the order of their names.

    Raises:
        JournalError: It cannot be read.
    """
    with looking(directory) as connection:
        return read_runs(connection, directory)


def shared_histories(
    journal: Journal, only: ExperimentKey | None = None
) -> Mapping[ExperimentKey, Sequence[bytes]]:
    """Return the histories of a journal that bridges share, see ``histories``.

    Raises:
        JournalError: It cannot be read.
    """
    with journal.read() as connection:
        return _read_histories(connection, only)


def histories(
    directory: Path, only: ExperimentKey | None = None
) -> Mapping[ExperimentKey, Sequence[bytes]]:
    """Return the records for a diagnosis in ``directory``: encoded ``Facts``, oldest first.

    The most recently active run comes last. With ``only``, nothing of the other runs is read.

    Raises:
        JournalError: It cannot be read.
    """
    with looking(directory) as connection:
        return _read_histories(connection, only)


def shared_keys(journal: Journal, key: ExperimentKey) -> Sequence[KeySpec]:
    """Return the meaning of the tracker keys of a run in a shared journal, see ``RunStore.keys``.

    Raises:
        JournalError: It cannot be read.
    """
    with journal.read() as connection:
        return _read_keys(connection, key)


def keys(directory: Path, key: ExperimentKey) -> Sequence[KeySpec]:
    """Return the meaning of the tracker keys of a run in ``directory``, see ``RunStore.keys``.

    Raises:
        JournalError: It cannot be read.
    """
    with looking(directory) as connection:
        return _read_keys(connection, key)


def shared_removed_runs(journal: Journal) -> Mapping[ExperimentKey, int]:
    """Runs that ended and were removed from a journal that bridges share, see ``removed_runs``.

    Raises:
        JournalError: It cannot be read.
    """
    with journal.read() as connection:
        return _read_removed(connection)


def removed_runs(directory: Path) -> Mapping[ExperimentKey, int]:
    """Runs that ended and were removed from the journal in ``directory``, and when (ns).

    Raises:
        JournalError: It cannot be read.
    """
    with looking(directory) as connection:
        return _read_removed(connection)


def journals_below(data: Path) -> Iterator[Path]:
    """Yield the directories with a journal: that of a bridge, and those of single runs below it.

    A directory in which `otel-rl run` was called stands for its data directory.
    """
    of_runs = data.glob(f"*/{JOURNAL_FILE}")
    called_in = data.glob(f"{DATA_DIRECTORY}/*/{JOURNAL_FILE}")
    for path in (data / JOURNAL_FILE, *of_runs, *called_in):
        if path.exists():
            yield path.parent


@contextmanager
def looking(directory: Path) -> Iterator[Connection]:
    """Open the journal in ``directory`` for reading, for the length of the context.

    Raises:
        JournalError: It cannot be read.
    """
    path = (directory / JOURNAL_FILE).absolute()
    try:
        with closing(
            sqlite3.connect(f"{path.as_uri()}?mode=ro", uri=True, timeout=_TIMEOUT_S)
        ) as connection:
            yield connection
    except sqlite3.Error as exc:
        raise _cannot_read(path, exc) from exc


class LookingOn:
    """Opens a journal as ``looking`` does, and keeps it open until its file is another one.

    Opening it costs as much as a few looks. One thread.

    Args:
        directory: Of the journal.
    """

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._opened: ExitStack = ExitStack()
        self._connection: Connection | None = None
        self._file: tuple[int, int] | None = None

    @contextmanager
    def __call__(self) -> Iterator[Connection]:
        """Open the journal, or go on with it.

        Raises:
            JournalError: It cannot be read.
        """
        try:
            found = (self._directory / JOURNAL_FILE).stat()
            file = found.st_dev, found.st_ino
        except OSError:
            file = None
        if file != self._file or file is None:
            self.close()
        try:
            if self._connection is None:
                self._connection = self._opened.enter_context(looking(self._directory))
                self._file = file
            yield self._connection
        except sqlite3.Error as exc:
            self.close()
            raise _cannot_read(self._directory / JOURNAL_FILE, exc) from exc

    def close(self) -> None:
        """Close the journal. Idempotent."""
        self._connection = self._file = None
        self._opened.close()


def _cannot_read(path: Path, exc: Exception) -> JournalError:
    return JournalError(
        f"Cannot read the journal {str(path.absolute())!r}: {exc}.",
        hint="Run this command as the user of the bridge, with the same version of otel_rl.",
    )


def _read_histories(
    connection: Connection, only: ExperimentKey | None
) -> Mapping[ExperimentKey, Sequence[bytes]]:
    found: dict[ExperimentKey, list[bytes]] = {}
    newest: dict[ExperimentKey, int] = {}
    of = () if only is None else (run_id(only.experiment, only.trial),)
    for experiment, trial, run, newest_ns, body, crc in connection.execute(
        _HISTORY.format("AND log.run_id = ?" if of else ""), of
    ):
        key = ExperimentKey(experiment, trial)
        if checksum(body, run, str(Log.HISTORY)) == crc:  # what is damaged is left out
            found.setdefault(key, []).append(body)
            newest[key] = max(newest_ns, newest.get(key, 0))
    return {key: found[key] for key in sorted(found, key=lambda key: newest[key])}


def _read_keys(connection: Connection, key: ExperimentKey) -> Sequence[KeySpec]:
    return read_keys(connection, run_id(key.experiment, key.trial))


def _read_removed(connection: Connection) -> Mapping[ExperimentKey, int]:
    found = connection.execute(
        "SELECT experiment, trial, deleted_ns FROM deleted ORDER BY deleted_ns"
    ).fetchall()
    return {ExperimentKey(name, trial): int(removed_ns) for name, trial, removed_ns in found}


def read_runs(connection: Connection, directory: Path | None = None) -> Sequence[RunOverview]:
    """Every run of a journal, in the order of their names.

    Args:
        connection: Of the journal.
        directory: Of the journal, if it is one bridge's own.
    """
    overviews = []
    has_bridge = directory is None or is_in_use(directory)
    for experiment, trial, roles, *columns, body, crc in connection.execute(_QUERY).fetchall():
        key = ExperimentKey(experiment, trial)
        standings = {role: RoleStanding(*of) for role, of in json.loads(roles).items()}
        description = Description() if body is None else read_description(key, body, crc)
        overviews.append(RunOverview(key, standings, *(*columns, description, has_bridge)))
    return overviews
