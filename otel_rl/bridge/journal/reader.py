"""Reads a journal for commands, diagnoses and pages, beside a bridge that writes.

Each read of a part of one run takes one or two short statements on a connection that only reads: no
transaction stays open between them, so that SQLite can go on clearing its log. Damaged records are
left out.
"""

import json
import sqlite3
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Final, NamedTuple

from otel_rl.bridge.journal.interface import MADE, WAITING, Connection, Journal, checksum
from otel_rl.bridge.journal.log import Log, read_log
from otel_rl.bridge.journal.sqlite import JOURNAL_FILE, is_in_use
from otel_rl.bridge.journal.state import decode_row, read_description, readable_keys
from otel_rl.bridge.keys import KeyNames, NamedKeys
from otel_rl.diagnose.result import Kind
from otel_rl.errors import JournalError
from otel_rl.goodput import Spent
from otel_rl.inbox import DATA_DIRECTORY
from otel_rl.records import (
    Description,
    ExperimentKey,
    ExperimentStatus,
    KeySpec,
    RoleStanding,
    Row,
)

_TABLE_MARK: Final = b':[["'  # its columns; decoding shows whether it is a label or value
_ROWS_AT_ONCE: Final = 200
_ROWS_WITH_TABLES: Final = 2_000
"""Newest rows that are searched for tables."""

_HISTORY: Final = str(Log.HISTORY)

# Names of the number of steps in configurations.
_TOTALS: Final = frozenset(
    {
        "max_iterations",
        "max_steps",
        "max_train_steps",
        "num_iterations",
        "num_rollout",
        "num_train_steps",
        "num_training_steps",
        "total_steps",
        "total_training_steps",
    }
)


_INNER: Final = "num_iterations"
"""Also the name of updates for each batch, beside the number of steps, as in TRL's GRPO."""


class KnownWorker(NamedTuple):
    """A process of a run, as the last rows showed it.

    Attributes:
        instance: The process's ``service.instance.id``.
        name: ``<role>/<index>``.
        standing: A number of ``WorkerStanding``.
        first_ns: Time of the first export, by the run's clock (see ``PausableClock``); 0 before
            one.
        received_ns: Time of the last export, by the bridge's clock; 0 before one.
        newest_step: The newest step of the process; None without steps.
    """

    instance: str
    name: str
    standing: int
    first_ns: int
    received_ns: int
    newest_step: int | None


class Standing(NamedTuple):
    """Standing of a run, read from its stored state.

    Attributes:
        verdict: Verdict of its bridge's last diagnosis, a ``Verdict``; empty before one.
        goodput: Time of each role and of the run, whose role is empty, from the last row with
            goodput; nothing if goodput is unknown.
        cause: First cause of that diagnosis, such as ``straggler trainer/1``; empty without one.
        is_full: Whether no room is left for spans of chosen steps, see ``ChosenSteps``.
    """

    workers: Sequence[KnownWorker]
    verdict: str
    goodput: Mapping[str, Spent] = MappingProxyType({})
    cause: str = ""
    is_full: bool = False

    @property
    def is_stalled(self) -> bool:
        return self.cause.partition(" ")[0] == Kind.STALL


def revision(connection: Connection, sees: Callable[[ExperimentKey], bool] | None = None) -> int:
    """Return a number that changes whenever a run changes, in whichever bridge.

    Args:
        sees: Tells whether a run counts; None for all runs.
    """
    if sees is not None:
        runs = connection.execute("SELECT experiment, trial, changed_ns FROM runs").fetchall()
        times_ns = [int(of_ns) for *names, of_ns in runs if sees(ExperimentKey(*names))]
        return len(times_ns) + sum(of_ns & 1073741823 for of_ns in times_ns)
    # The lowest bits, so that the sum has room. The latest time alone hides runs of a clock behind.
    (found,) = connection.execute(
        "SELECT COUNT(*) + COALESCE(SUM(changed_ns & 1073741823), 0) FROM runs"
    ).fetchone()
    return int(found)


def history_bytes(connection: Connection, run: str) -> int:
    (size,) = connection.execute(
        "SELECT COALESCE(SUM(bytes), 0) FROM log WHERE run_id = ? AND kind = ?", (run, _HISTORY)
    ).fetchone()
    return int(size)


def history_records(connection: Connection, run: str, after: int = 0) -> int:
    (records,) = connection.execute(
        "SELECT COUNT(*) FROM log WHERE run_id = ? AND kind = ? AND number > ?",
        (run, _HISTORY, after),
    ).fetchone()
    return int(records)


def newest_history(connection: Connection, run: str, *, records: int) -> int:
    """Return the number after which a history has ``records`` records; 0 if it has no more."""
    found = connection.execute(
        "SELECT number FROM log WHERE run_id = ? AND kind = ?"
        " ORDER BY number DESC LIMIT 1 OFFSET ?",
        (run, _HISTORY, records),
    ).fetchone()
    return int(found[0]) if found else 0


def first_history(connection: Connection, run: str, kind: Log = Log.HISTORY) -> int:
    """Return the number of the first record of a log that is still there; 0 without one."""
    (number,) = connection.execute(
        "SELECT COALESCE(MIN(number), 0) FROM log WHERE run_id = ? AND kind = ?", (run, str(kind))
    ).fetchone()
    return int(number)


def read_history(
    connection: Connection, run: str, *, after: int = 0, limit: int = 256, kind: Log = Log.HISTORY
) -> Sequence[tuple[int, bytes | None]]:
    """Return records of a log after a number, each with its own number; None for a damaged one.

    Records of the history are encoded ``Facts``.
    """
    # The index alone finds the numbers: a long run's bodies are not sorted anew for each part.
    found = connection.execute(
        "SELECT number, body, crc FROM log WHERE number IN (SELECT number FROM log"
        " WHERE run_id = ? AND kind = ? AND number > ? ORDER BY number LIMIT ?) ORDER BY number",
        (run, str(kind), after, limit),
    ).fetchall()
    return [
        (number, body if checksum(body, run, str(kind)) == crc else None)
        for number, body, crc in found
    ]


def whole_history(connection: Connection, run: str) -> Iterator[bytes]:
    """Yield all encoded ``Facts`` of a run, without damaged ones."""
    after = 0
    while some := read_history(connection, run, after=after):
        after = some[-1][0]
        yield from (body for _, body in some if body is not None)


def read_keys(connection: Connection, run: str) -> Sequence[KeySpec]:
    """Return the catalogue of keys as rows spell them, in order of appearance."""
    return readable_keys(read_log(connection, run, Log.KEYS))


def read_named_keys(
    connection: Connection, run: str, names: KeyNames = KeyNames.FRAMEWORK
) -> NamedKeys:
    """Return the catalogue of keys by the names that people see: by default the program's own."""
    return NamedKeys(read_keys(connection, run), names)


def span_parts(connection: Connection, run: str) -> Iterator[bytes]:
    """Yield the parts of both logs of spans: chosen steps of the whole run, and the newest spans.

    A span may be in both logs.
    """
    yield from read_log(connection, run, Log.CHOSEN)
    yield from read_log(connection, run, Log.SPANS)


def read_tables(connection: Connection, run: str) -> Iterator[Row]:
    """Yield the rows with tables among the newest that are still in the journal, newest first."""
    end = 1 << 62
    for _ in range(0, _ROWS_WITH_TABLES, _ROWS_AT_ONCE):
        found = connection.execute(
            "SELECT number, body, crc FROM rows WHERE run_id = ? AND number < ?"
            " ORDER BY number DESC LIMIT ?",
            (run, end, _ROWS_AT_ONCE),
        ).fetchall()
        if not found:
            return
        end = found[-1][0]
        for number, body, crc in found:
            if _TABLE_MARK in bytes(body) and checksum(body, run, number) == crc:
                yield decode_row(number, bytes(body))


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

# In the order of the attributes below.
_QUERY = f"""
SELECT experiment, trial, roles, COALESCE(tracker, ''), runs.next_row,
       runs.next_row - CASE WHEN COALESCE(finished_row, 0) > COALESCE(d.next_row, 0)
                            THEN finished_row ELSE COALESCE(d.next_row, 0) END,
       CAST({WAITING} AS BIGINT),
       COALESCE(state, ''), COALESCE(error, ''), COALESCE(error_ns, 0), owner,
       COALESCE(location, ''), begun_ns, changed_ns, step, step_ns, CAST({MADE} AS BIGINT),
       descriptions.body, descriptions.crc
FROM runs LEFT JOIN deliveries AS d ON d.run_id = runs.run_id
LEFT JOIN descriptions ON descriptions.run_id = runs.run_id
ORDER BY experiment, trial, tracker
"""  # noqa: S608  # ours


@dataclass(frozen=True, slots=True)
class RunOverview:
    """State of one run at one tracker.

    Attributes:
        roles: How the workers of each role stood when the last rows were made.
        tracker: The tracker's name; empty if no tracker was asked yet.
        rows: Number of rows made so far.
        unconfirmed: Number of rows that the tracker has not confirmed.
        waiting_bytes: Bytes of acknowledged batches that are not turned into rows yet.
        state: State of the delivery when it last reported ``error``.
        error: What keeps the tracker from taking rows; empty if nothing does.
        error_ns: Since when the error lasts, in nanoseconds since the epoch.
        owner: The bridge that works on the run, of several on one database, as
            ``host:process:...``; empty if there is one bridge, or nothing to do.
        location: Where the tracker shows the run, URL or path; empty before it was opened.
        begun_ns: Time of the first commit, by the bridge's clock.
        changed_ns: Time of the last commit, by the bridge's clock.
        step: The newest step; None before the first.
        step_ns: When the newest step was first reported.
        made_bytes: Approximate size of the run in the journal, without waiting batches.
        description: The run's metadata, with its status and the failures of its workers.
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
    def lag_rows(self) -> int:
        """Return how many rows the tracker is behind.

        An offline W&B run confirms all rows together at its end: only an error puts it behind, or
        the loss of its bridge, after which another one hands them over again.
        """
        is_offline = self.tracker == "wandb" and bool(self.location) and "://" not in self.location
        return 0 if is_offline and self.has_bridge and not self.error else self.unconfirmed

    @property
    def is_interrupted(self) -> bool:
        """Return whether the run has no end and no bridge, so that its workers are unknown."""
        return self.description.status not in _STATES and not self.has_bridge


def state_of(run: RunOverview, standing: Standing, now_ns: int) -> str:
    """Return ``running``, ``stalled``, ``interrupted``, or how it has ended.

    The end is ``finished``, ``aborted`` or ``crashed``. A run is interrupted if its bridge was
    killed or stopped before the run's end. A run is stalled if nothing was reported for a minute,
    no step for ten times as long as usual, or no step since the bridge's diagnosis has found a
    stall.
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


def total_steps(config: object) -> int | None:
    """Return the number of steps that a configuration names, at its outermost mention."""
    parts = [config]
    for part in parts:
        if isinstance(part, Mapping):
            named = {str(name).rpartition(".")[2]: value for name, value in part.items()}
            if named.get(_INNER) == 1 or named.get("max_steps") == -1:
                named.pop(_INNER, None)
            told = [value for name, value in named.items() if name in _TOTALS]
            counts = {one for one in told if type(one) is int and one > 0}
            if len(counts) == 1:
                return counts.pop()
            parts += part.values()
    return None


def overview(where: Path | Journal) -> Sequence[RunOverview]:
    """Return every run of a journal, in the order of their names."""
    with _opened(where) as connection:
        return read_runs(connection, where if isinstance(where, Path) else None)


def removed_runs(where: Path | Journal) -> Mapping[ExperimentKey, int]:
    """Return the runs that ended and were removed, each with the time of its removal (ns)."""
    with _opened(where) as connection:
        found = connection.execute(
            "SELECT experiment, trial, deleted_ns FROM deleted ORDER BY deleted_ns"
        ).fetchall()
    return {ExperimentKey(name, trial): int(removed_ns) for name, trial, removed_ns in found}


def _opened(where: Path | Journal) -> AbstractContextManager[Connection]:
    return looking(where) if isinstance(where, Path) else where.read()


def journals_below(data: Path) -> Iterator[Path]:
    """Yield the directories with a journal: that of a bridge, and those of single runs below it.

    If `otel-rl run` was called in ``data``, its data directory is searched.
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
        JournalError: The journal cannot be read.
    """
    path = (directory / JOURNAL_FILE).absolute()
    try:
        with closing(
            sqlite3.connect(f"{path.as_uri()}?mode=ro", uri=True, timeout=_TIMEOUT_S)
        ) as connection:
            yield connection
    except sqlite3.Error as exc:
        raise JournalError(
            f"Cannot read the journal {str(path)!r}: {exc}.",
            hint="Run this command as the user of the bridge, with the same version of otel_rl.",
        ) from exc


def read_runs(connection: Connection, directory: Path | None = None) -> Sequence[RunOverview]:
    overviews = []
    has_bridge = directory is None or is_in_use(directory)
    for experiment, trial, roles, *columns, body, crc in connection.execute(_QUERY).fetchall():
        key = ExperimentKey(experiment, trial)
        standings = {role: RoleStanding(*of) for role, of in json.loads(roles).items()}
        description = Description() if body is None else read_description(key, body, crc)
        overviews.append(RunOverview(key, standings, *(*columns, description, has_bridge)))
    return overviews
