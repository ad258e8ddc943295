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
from otel_rl.bridge.journal.log import Log, LogChanges
from otel_rl.bridge.journal.space.space_quota import Use
from otel_rl.errors import LeaseLost
from otel_rl.records import Description, ExperimentKey, Offset, RoleStanding, Row
from otel_rl.run_id import run_id

__all__ = ["Commit", "PreparedCommit"]

_CHANGE_RUN: Final = (
    "UPDATE runs SET next_row = ?, is_open = ?, roles = ?, row_bytes = row_bytes + ?,"
    " state_bytes = ?, description_bytes = COALESCE(?, description_bytes),"
    " log_bytes = log_bytes + ? - {freed_bytes}, archive_bytes = archive_bytes + ?,"
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
        dedup: The newest time of what was taken that the state does not hold, and that; or None.
        dedup_forgotten_ns: What was taken up to this time is not needed any more.
        description: What the run is; None if that is as it was.
        spans: The latest end of spans that came and are still needed, and those; or None.
        spans_forgotten_ns: Spans that ended up to this time are not needed any more.
        history: When something became known that a diagnosis goes by, and that; or None.
        history_forgotten_ns: What became known up to this time is not needed any more.
        roles: How each role stands, for people who look.
        epoch: The turn in which all this was made, see ``Ownership``.
        keys: What the keys mean that are in a row for the first time, encoded; or None.
        archive: Parts of the archive: number of values and ``ArchivedPart``.
        step: The newest step, for people who look; None keeps the one of before.
        steps: The number of this part, and the steps that got a row or were taken again; or None.
        steps_forgotten: Parts up to this number are not needed any more.
    """

    key: ExperimentKey
    rows: Sequence[Row]
    next_row: int
    state: bytes
    taken: Sequence[Offset] = ()
    is_open: bool = False
    dedup: tuple[int, bytes] | None = None
    dedup_forgotten_ns: int = 0
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
        self._logs = LogChanges(
            self._run,
            {
                Log.DEDUP: commit.dedup,
                Log.STEPS: commit.steps,
                Log.SPANS: commit.spans,
                Log.HISTORY: commit.history,
                Log.KEYS: None if commit.keys is None else (now_ns, commit.keys),
            },
            {
                Log.DEDUP: commit.dedup_forgotten_ns,
                Log.STEPS: commit.steps_forgotten,
                Log.SPANS: commit.spans_forgotten_ns,
                Log.HISTORY: commit.history_forgotten_ns,
            },
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
        self._logs.store(connection)
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
        freed_bytes, limits = self._logs.freed_bytes
        changed = connection.execute(
            _CHANGE_RUN.format(freed_bytes=freed_bytes),
            (
                commit.next_row,
                int(commit.is_open),
                json.dumps(commit.roles),
                sum(len(body) for _, _, body, _ in self._rows),
                len(self._state) + RECORD_BYTES,
                None if description is None else len(description) + RECORD_BYTES,
                *(self._logs.added_bytes, *limits),
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
