"""Reads parts of one run for a page that is looked at while a bridge writes.

Every function is one or two short statements on a connection that only reads: no transaction stays
open between them, so that SQLite can go on clearing its log. What is damaged is left out.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Final, NamedTuple

from otel_rl.bridge.journal.formats.key_log import readable_keys
from otel_rl.bridge.journal.interface import Connection, checksum
from otel_rl.bridge.journal.log import Log, read_log
from otel_rl.diagnose.result import Kind
from otel_rl.goodput import Spent
from otel_rl.records import KeySpec, Table

__all__ = [
    "KnownWorker",
    "Standing",
    "TableRow",
    "first_history",
    "history_records",
    "history_size",
    "newest_history",
    "read_history",
    "read_keys",
    "read_tables",
    "revision",
    "span_parts",
]

_TABLE_MARK: Final = b':[["'  # its columns; decoding shows whether it is a label or value
_ROWS_AT_ONCE: Final = 200
_HISTORY: Final = str(Log.HISTORY)


class KnownWorker(NamedTuple):
    """A process of a run, as it stood with the last rows.

    Attributes:
        instance: Its ``service.instance.id``.
        name: ``<role>/<index>``.
        standing: A number of ``WorkerStanding``.
        first_ns: Its first export, by the run's clock, see ``PausableClock``; 0 before one.
        received_ns: Its last export, by the bridge's clock; 0 before one.
        newest_step: None without steps.
    """

    instance: str
    name: str
    standing: int
    first_ns: int
    received_ns: int
    newest_step: int | None


class Standing(NamedTuple):
    """Standing of a run, by its state.

    Attributes:
        workers: Its processes, in the order of appearance.
        verdict: Of the last diagnosis by its bridge, as ``Verdict``; empty before one.
        goodput: As in its last row with goodput: time of each role, and of the run, whose role is
            empty. Nothing if it is unknown.
        cause: First cause of that diagnosis, such as ``straggler trainer/1``; empty without one.
    """

    workers: Sequence[KnownWorker]
    verdict: str
    goodput: Mapping[str, Spent] = MappingProxyType({})
    cause: str = ""

    @property
    def is_stalled(self) -> bool:
        """Return whether that diagnosis has found first that the run stands still."""
        return self.cause.partition(" ")[0] == Kind.STALL


class TableRow(NamedTuple):
    """A row of a run that has tables of text.

    Attributes:
        number: Of the row.
        step: Of the row.
        time_ns: Of the row.
        tables: By tracker key.
    """

    number: int
    step: int
    time_ns: int
    tables: Mapping[str, Table]


def revision(connection: Connection) -> int:
    """Return a number that changes whenever a run does, by the clock of whichever bridge."""
    # The lowest bits, so that the sum has room. The latest time alone hides runs of a clock behind.
    (found,) = connection.execute(
        "SELECT COUNT(*) + COALESCE(SUM(changed_ns & 1073741823), 0) FROM runs"
    ).fetchone()
    return int(found)


def history_size(connection: Connection, run: str, after: int = 0) -> tuple[int, int]:
    """Return the number and bytes of the history's records after a number."""
    records, size = connection.execute(
        "SELECT COUNT(*), CAST(COALESCE(SUM(LENGTH(body)), 0) AS BIGINT) FROM log"
        " WHERE run_id = ? AND kind = ? AND number > ?",
        (run, _HISTORY, after),
    ).fetchone()
    return int(records), int(size)


def history_records(connection: Connection, run: str, after: int = 0) -> int:
    """Return the number of the history's records after a number."""
    (records,) = connection.execute(
        "SELECT COUNT(*) FROM log WHERE run_id = ? AND kind = ? AND number > ?",
        (run, _HISTORY, after),
    ).fetchone()
    return int(records)


def newest_history(connection: Connection, run: str, *, records: int) -> int:
    """Return the number after which a history has so many records; 0 if it has no more."""
    found = connection.execute(
        "SELECT number FROM log WHERE run_id = ? AND kind = ?"
        " ORDER BY number DESC LIMIT 1 OFFSET ?",
        (run, _HISTORY, records),
    ).fetchone()
    return int(found[0]) if found else 0


def first_history(connection: Connection, run: str) -> int:
    """Return the number of the oldest record of the history; 0 without one."""
    (number,) = connection.execute(
        "SELECT COALESCE(MIN(number), 0) FROM log WHERE run_id = ? AND kind = ?", (run, _HISTORY)
    ).fetchone()
    return int(number)


def read_history(
    connection: Connection, run: str, *, after: int = 0, limit: int = 256
) -> Sequence[tuple[int, bytes | None]]:
    """Return some encoded ``Facts`` after a number, each with its own; None for a damaged one."""
    # The index alone finds the numbers: a long run's bodies are not sorted anew for each part.
    found = connection.execute(
        "SELECT number, body, crc FROM log WHERE number IN (SELECT number FROM log"
        " WHERE run_id = ? AND kind = ? AND number > ? ORDER BY number LIMIT ?) ORDER BY number",
        (run, _HISTORY, after, limit),
    ).fetchall()
    return [
        (number, body if checksum(body, run, _HISTORY) == crc else None)
        for number, body, crc in found
    ]


def read_keys(connection: Connection, run: str) -> Sequence[KeySpec]:
    """Return the catalogue of keys, in order of appearance."""
    return readable_keys(read_log(connection, run, Log.KEYS))


def span_parts(connection: Connection, run: str, *, since_ns: int) -> Iterator[bytes]:
    """Yield the parts of the log of spans with a span that ended after that time."""
    yield from read_log(connection, run, Log.SPANS, after=since_ns)


def read_tables(
    connection: Connection, run: str, *, before: int | None = None, limit: int = 2_000
) -> Sequence[TableRow]:
    """Return the rows with tables among the newest that are still in the journal, newest first.

    Args:
        connection: Of the journal.
        run: Its id.
        before: Only rows with a lower number.
        limit: The most rows that are looked at.
    """
    rows: list[TableRow] = []
    end = 1 << 62 if before is None else before
    for _ in range(0, limit, _ROWS_AT_ONCE):
        found = connection.execute(
            "SELECT number, body, crc FROM rows WHERE run_id = ? AND number < ?"
            " ORDER BY number DESC LIMIT ?",
            (run, end, _ROWS_AT_ONCE),
        ).fetchall()
        if not found:
            break
        end = found[-1][0]
        for number, body, crc in found:
            if _TABLE_MARK in bytes(body) and checksum(body, run, number) == crc:
                step, time_ns, _, _, *more = json.loads(body)
                tables = {key: Table(*table) for key, table in (more or ({},))[0].items()}
                rows.append(TableRow(number, step, time_ns, tables))
    return rows
