"""Commit: the changes of one run that are one transaction.

It is the heart of exactly-once: rows, the state that made them, what was seen, and the removal of
the batches they came from. A crash before it repeats the work; after it, never.
"""

import dataclasses
import json
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Final

from otel_rl.bridge.journal.formats.description_format import encode_description
from otel_rl.bridge.journal.formats.row_format import encode_row
from otel_rl.bridge.journal.interface import MADE, RECORD_BYTES, WAITING, Connection, checksum
from otel_rl.bridge.journal.space.space_quota import Use
from otel_rl.errors import LeaseLost
from otel_rl.records import Description, ExperimentKey, Offset, RoleStanding, Row
from otel_rl.run_id import run_id

__all__ = ["Commit", "PreparedCommit"]

_NEVER_NS: Final = -1

_OLD_LOG: Final = (
    f"COALESCE((SELECT SUM(LENGTH(body) + {RECORD_BYTES}) FROM {{}}"  # noqa: S608  # ours
    " WHERE run_id = ? AND newest_ns <= ?), 0)"
)
"""Bytes of a log of a run that is not needed up to a time."""

_CHANGE_RUN: Final = (
    "UPDATE runs SET next_row = ?, is_open = ?, roles = ?, row_bytes = row_bytes + ?,"  # noqa: S608
    " state_bytes = ?, description_bytes = COALESCE(?, description_bytes),"
    f" log_bytes = log_bytes + ? - {_OLD_LOG.format('seen')} - {_OLD_LOG.format('steps')}"
    f" - {_OLD_LOG.format('trails')},"
    f" history_bytes = history_bytes + ? - {_OLD_LOG.format('history')},"
    " archive_bytes = archive_bytes + ?,"
    " begun_ns = CASE WHEN begun_ns = 0 THEN ? ELSE begun_ns END, changed_ns = ?,"
    " step_ns = CASE WHEN COALESCE(CAST(? AS BIGINT), step, -1) = COALESCE(step, -1)"
    " THEN step_ns ELSE ? END,"
    " step = COALESCE(CAST(? AS BIGINT), step)"
    " WHERE run_id = ? AND epoch = ? RETURNING number"
)

_REMOVED_AT_ONCE: Final = 500  # parameters of one statement


@dataclasses.dataclass(frozen=True, slots=True)
class Commit:
    """Changes of one run in a transaction.

    Attributes:
        key: The run.
        rows: New rows, numbered on from the last.
        next_row: The number that the next row will get.
        state: What made them, encoded, to go on from after a restart. Opaque here.
        taken: The batches that are in the rows and the state. They need not be all before the last:
            where several bridges accept, one may become visible after another with a higher number.
        is_open: Whether time alone may bring a row.
        seen: What was taken that the state does not hold, and the newest time in it; or None.
        forgotten_ns: What was seen up to this time is not needed any more.
        description: What the run is; None if that is as it was.
        spans: Those that came and are still needed, with the latest of their ends; or None.
        spans_forgotten_ns: Spans that ended up to this time are not needed any more.
        history: What a diagnosis goes by that became known, and when; or None.
        history_forgotten_ns: What became known up to this time is not needed any more.
        roles: How each role stands, for people who look.
        epoch: The turn in which all this was made, see ``Ownership``.
        keys: What the keys mean that are in a row for the first time, encoded; or None.
        archive: Parts of the archive: number of values and ``ArchivedPart``.
        step: The newest step, for people who look; None keeps the one of before.
        steps: Those that got a row, or were taken again, and the number of this part; or None.
        steps_forgotten: Parts up to this number are not needed any more.
    """

    key: ExperimentKey
    rows: Sequence[Row]
    next_row: int
    state: bytes
    taken: Sequence[Offset] = ()
    is_open: bool = False
    seen: tuple[int, bytes] | None = None
    forgotten_ns: int = 0
    description: Description | None = None
    spans: tuple[int, bytes] | None = None
    spans_forgotten_ns: int = 0
    history: tuple[int, bytes] | None = None
    history_forgotten_ns: int = 0
    roles: Mapping[str, RoleStanding] = dataclasses.field(default_factory=dict)
    epoch: int = 0
    keys: bytes | None = None
    archive: Sequence[tuple[int, bytes]] = ()
    step: int | None = None
    steps: tuple[int, bytes] | None = None
    steps_forgotten: int = 0


class PreparedCommit:
    """A commit as bytes, so that the transaction is short.

    Args:
        commit: The changes.
        now_ns: Time of the commit, in nanoseconds since the epoch.
    """

    def __init__(self, commit: Commit, now_ns: int) -> None:
        self.key = commit.key
        self._commit = commit
        self._now_ns = now_ns
        self._run = run_id(commit.key.experiment, commit.key.trial)
        self._state = commit.state
        bodies = [(row.number, encode_row(row)) for row in commit.rows]
        self._rows = [
            (self._run, number, body, checksum(body, self._run, number)) for number, body in bodies
        ]
        self._description = (
            None if commit.description is None else encode_description(commit.description)
        )

    def store(self, connection: Connection) -> None:
        """Make the changes in a transaction.

        Raises:
            LeaseLost: The run belongs to another bridge.
        """
        commit, run = self._commit, self._run
        is_known = self._change_run(connection)
        if not is_known:  # new, or not ours
            made = connection.execute(
                "INSERT INTO runs (run_id, experiment, trial, epoch) VALUES (?, ?, ?, ?)"
                " ON CONFLICT DO NOTHING RETURNING number",
                (run, commit.key.experiment, commit.key.trial, commit.epoch),
            ).fetchone()
            is_known = made is not None and self._change_run(connection)
        if not is_known:
            raise LeaseLost(f"{commit.key} belongs to another bridge now.")
        connection.execute(
            "INSERT INTO states (run_id, body, crc) VALUES (?, ?, ?) ON CONFLICT (run_id)"
            " DO UPDATE SET body = excluded.body, crc = excluded.crc",
            (run, self._state, checksum(self._state, run)),
        )
        connection.executemany(
            "INSERT INTO rows (run_id, number, body, crc) VALUES (?, ?, ?, ?)", self._rows
        )
        if self._description is not None:
            connection.execute(
                "INSERT INTO descriptions (run_id, body, crc) VALUES (?, ?, ?) ON CONFLICT (run_id)"
                " DO UPDATE SET body = excluded.body, crc = excluded.crc",
                (run, self._description, checksum(self._description, run)),
            )
        if commit.keys is not None:
            _keep_log(connection, "keys", run, (self._now_ns, commit.keys), 0)
        _keep_log(connection, "seen", run, commit.seen, commit.forgotten_ns)
        _keep_log(connection, "steps", run, commit.steps, commit.steps_forgotten)
        _keep_log(connection, "trails", run, commit.spans, commit.spans_forgotten_ns)
        _keep_log(connection, "history", run, commit.history, commit.history_forgotten_ns)
        connection.executemany(
            "INSERT INTO archive (run_id, samples, made_ns, body, crc) VALUES (?, ?, ?, ?, ?)",
            [
                (run, samples, self._now_ns, body, checksum(body, run))
                for samples, body in commit.archive
            ],
        )
        _remove_batches(connection, run, commit.taken)

    def use(self, connection: Connection) -> Use:
        """Return the run's present use of the journal."""
        (waiting, made) = connection.execute(
            f"SELECT {WAITING}, {MADE} FROM runs WHERE run_id = ?",  # noqa: S608  # ours
            (self._run,),
        ).fetchone()
        return Use(int(waiting), int(made))

    def _change_run(self, connection: Connection) -> bool:
        """Change the metadata of the run. Returns whether it exists and is ours."""
        commit, description = self._commit, self._description
        changed = connection.execute(
            _CHANGE_RUN,
            (
                commit.next_row,
                int(commit.is_open),
                json.dumps(commit.roles),
                sum(len(body) for _, _, body, _ in self._rows),
                len(self._state) + RECORD_BYTES,
                None if description is None else len(description) + RECORD_BYTES,
                _room_of_log(commit.seen, commit.forgotten_ns)
                + _room_of_log(commit.steps, commit.steps_forgotten)
                + _room_of_log(commit.spans, commit.spans_forgotten_ns)
                + (0 if commit.keys is None else len(commit.keys) + RECORD_BYTES),
                *(self._run, commit.forgotten_ns or _NEVER_NS),
                *(self._run, commit.steps_forgotten or _NEVER_NS),
                *(self._run, commit.spans_forgotten_ns or _NEVER_NS),
                _room_of_log(commit.history, commit.history_forgotten_ns),
                *(self._run, commit.history_forgotten_ns or _NEVER_NS),
                sum(len(body) + RECORD_BYTES for _, body in commit.archive),
                *(self._now_ns, self._now_ns),
                *(commit.step, self._now_ns, commit.step),
                *(self._run, commit.epoch),
            ),
        ).fetchone()
        return changed is not None


def _remove_batches(connection: Connection, run: str, taken: Sequence[Offset]) -> None:
    freed: Counter[int] = Counter()
    for place in range(0, len(taken), _REMOVED_AT_ONCE):
        some = taken[place : place + _REMOVED_AT_ONCE]
        marks = ", ".join("?" * len(some))
        for shard, size in connection.execute(
            f"DELETE FROM batches WHERE position IN ({marks})"  # noqa: S608  # ours
            " RETURNING shard, LENGTH(payload)",
            some,
        ):
            freed[shard] += size
    connection.executemany(
        "UPDATE waiting SET bytes = bytes - ? WHERE run_id = ? AND shard = ?",
        [(size, run, shard) for shard, size in sorted(freed.items())],
    )


def _room_of_log(new: tuple[int, bytes] | None, forgotten_ns: int) -> int:
    """Bytes of what is added to a log, unless it goes at once."""
    return 0 if new is None or new[0] <= forgotten_ns else len(new[1]) + RECORD_BYTES


def _keep_log(
    connection: Connection,
    table: str,
    run: str,
    new: tuple[int, bytes] | None,
    forgotten_ns: int,
) -> None:
    """Add to the log of a run, and remove parts that are no longer needed."""
    if new is not None:
        newest_ns, body = new
        connection.execute(
            f"INSERT INTO {table} (run_id, newest_ns, body, crc) VALUES (?, ?, ?, ?)",  # noqa: S608  # ours
            (run, newest_ns, body, checksum(body, run)),
        )
    if forgotten_ns:
        connection.execute(
            f"DELETE FROM {table} WHERE run_id = ? AND newest_ns <= ?",  # noqa: S608  # ours
            (run, forgotten_ns),
        )
