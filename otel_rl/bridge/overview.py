"""What a journal says of its runs to somebody who only looks.

It reads beside a bridge that runs, and changes nothing.
"""

import json
import sqlite3
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path

from otel_rl.bridge.journal import Connection, Journal, checksum
from otel_rl.bridge.journal.sqlite import JOURNAL_FILE
from otel_rl.errors import JournalError
from otel_rl.records import ExperimentKey, RoleStanding
from otel_rl.semconv.run_id import run_id

__all__ = ["RunOverview", "histories", "overview", "shared_histories", "shared_overview"]

_TIMEOUT_S = 3.0  # a bridge that is just committing

# In the order of the attributes below.
_QUERY = """
SELECT experiment, trial, roles, COALESCE(tracker, ''), runs.next_row,
       runs.next_row - CASE WHEN COALESCE(finished_row, 0) > COALESCE(d.next_row, 0)
                            THEN finished_row ELSE COALESCE(d.next_row, 0) END,
       COALESCE((SELECT SUM(bytes) FROM waiting WHERE waiting.run_id = runs.run_id), 0),
       COALESCE(state, ''), COALESCE(error, ''), COALESCE(error_ns, 0), owner
FROM runs LEFT JOIN deliveries AS d ON d.run_id = runs.run_id
ORDER BY experiment, trial, tracker
"""

_HISTORY = """
SELECT experiment, trial, h.run_id, newest_ns, body, crc FROM history AS h
JOIN runs ON runs.run_id = h.run_id {} ORDER BY h.number
"""


@dataclass(frozen=True, slots=True)
class RunOverview:
    """How one run stands with one tracker.

    Attributes:
        key: Experiment and trial.
        roles: How the workers of each role stood when rows were made last.
        tracker: Its name, or empty if none has been asked yet.
        rows: How many were made so far.
        unconfirmed: How many of them the tracker has not said that it has.
        waiting_bytes: Acknowledged batches that are no rows yet.
        state: What the delivery said when it spoke last of ``error``.
        error: What keeps the tracker from taking rows; empty if nothing does.
        error_ns: Since when, in nanoseconds since the epoch.
        owner: The bridge that works on it, of several on one database, as ``host:process:...``;
            empty if there is one bridge, or nothing to do.
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


def shared_overview(journal: Journal) -> Sequence[RunOverview]:
    """Every run of a journal that bridges share, in the order of their names.

    Raises:
        JournalError: It cannot be read.
    """
    with journal.read() as connection:
        return _read(connection)


def overview(directory: Path) -> Sequence[RunOverview]:
    """Every run of the journal in ``directory``, in the order of their names.

    Raises:
        JournalError: It cannot be read.
    """
    with _looking(directory) as connection:
        return _read(connection)


def shared_histories(
    journal: Journal, only: ExperimentKey | None = None
) -> Mapping[ExperimentKey, Sequence[bytes]]:
    """What a journal that bridges share keeps for a diagnosis, see ``histories``.

    Raises:
        JournalError: It cannot be read.
    """
    with journal.read() as connection:
        return _read_histories(connection, only)


def histories(
    directory: Path, only: ExperimentKey | None = None
) -> Mapping[ExperimentKey, Sequence[bytes]]:
    """What the journal in ``directory`` keeps for a diagnosis: ``Facts``, encoded, oldest first.

    The run that was heard of last comes last. With ``only``, nothing of the other runs is read.

    Raises:
        JournalError: It cannot be read.
    """
    with _looking(directory) as connection:
        return _read_histories(connection, only)


@contextmanager
def _looking(directory: Path) -> Iterator[Connection]:
    path = (directory / JOURNAL_FILE).absolute()
    try:
        with closing(
            sqlite3.connect(f"{path.as_uri()}?mode=ro", uri=True, timeout=_TIMEOUT_S)
        ) as connection:
            yield connection
    except sqlite3.Error as exc:
        raise JournalError(
            f"Cannot read the journal {str(path)!r}: {exc}.",
            hint="Look as the user that the bridge runs as, with the same version of otel_rl.",
        ) from exc


def _read_histories(
    connection: Connection, only: ExperimentKey | None
) -> Mapping[ExperimentKey, Sequence[bytes]]:
    found: dict[ExperimentKey, list[bytes]] = {}
    newest: dict[ExperimentKey, int] = {}
    of = () if only is None else (run_id(only.experiment, only.trial),)
    for experiment, trial, run, newest_ns, body, crc in connection.execute(
        _HISTORY.format("WHERE h.run_id = ?" if of else ""), of
    ):
        key = ExperimentKey(experiment, trial)
        if checksum(body, run) == crc:  # what is damaged is left out
            found.setdefault(key, []).append(body)
            newest[key] = max(newest_ns, newest.get(key, 0))
    return {key: found[key] for key in sorted(found, key=lambda key: newest[key])}


def _read(connection: Connection) -> Sequence[RunOverview]:
    found = connection.execute(_QUERY).fetchall()
    return [
        RunOverview(
            ExperimentKey(experiment, trial),
            {role: RoleStanding(*of) for role, of in json.loads(roles).items()},
            *columns,
        )
        for experiment, trial, roles, *columns in found
    ]
