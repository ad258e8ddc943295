"""Spans of a run in a temporary database, so that an export of any size takes little memory.

They come in the order in which they ended, repeated now and then, and leave in the order in which a
process began them, each with the spans that it links to.
"""

import sqlite3
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing
from itertools import count
from typing import Final, NamedTuple, Self

from otel_rl.records import SpanRecord
from otel_rl.semconv.spec import STEP_SPAN

__all__ = ["Link", "SpanTable", "StoredSpan", "StoredWorker"]

# The empty name is a file that SQLite removes when it is closed; the pages in memory are few.
# An id is the hash of 24 bytes: with a million spans, two are equal once in ten million runs.
_SCHEMA: Final = """
PRAGMA journal_mode = OFF;
PRAGMA synchronous = OFF;
PRAGMA cache_size = -32768;
CREATE TABLE spans (
  id INTEGER PRIMARY KEY, parent INTEGER, trace BLOB, number INTEGER,
  role TEXT, worker TEXT, host TEXT, start_ns INTEGER, end_ns INTEGER,
  name TEXT, phase TEXT, class TEXT, step INTEGER, failed INTEGER
);
CREATE TABLE links (
  consumer INTEGER, producer INTEGER, PRIMARY KEY (consumer, producer)
) WITHOUT ROWID;
CREATE TABLE places (
  id INTEGER PRIMARY KEY, pid INTEGER, tid INTEGER, start_ns INTEGER, end_ns INTEGER
);
"""

_FIELDS: Final = "id, parent, trace, start_ns, end_ns, name, phase, class, step, failed"
_TRACE_ID_BYTES: Final = 16

# A rollout that a step used was generated with weights that a sync brought.
_HOPS: Final = 2


class StoredSpan(NamedTuple):
    """Span of one process. Ids are hashes of those of ``SpanRecord``; the rest is as there."""

    span_id: int
    parent_id: int | None
    trace_id: bytes
    start_ns: int
    end_ns: int
    name: str
    phase: str
    phase_class: str
    step: int | None
    failed: int


class StoredWorker(NamedTuple):
    """Process with spans. Fields as of ``SpanRecord``; ``start_ns`` is that of its first."""

    role: str
    worker: str
    host: str
    start_ns: int


class Link(NamedTuple):
    """Link between two spans that have a place.

    Attributes:
        producer: Process, lane, start and end (ns) of the span that is linked to.
        consumer: The same of the span that links.
    """

    producer: tuple[int, int, int, int]
    consumer: tuple[int, int, int, int]


class SpanTable:
    """Spans of a run, on disk until it is closed. One thread uses it."""

    def __init__(self) -> None:
        self._database = sqlite3.connect("", isolation_level=None)
        self._database.executescript(_SCHEMA)
        self._numbers = count()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._database.close()

    def add(self, spans: Iterable[SpanRecord]) -> None:
        """Add spans in any order. Of two with one id the first counts."""
        kept = list(spans)
        self._database.execute("BEGIN")
        self._database.executemany(
            f"INSERT OR IGNORE INTO spans VALUES ({', '.join('?' * 14)})",  # noqa: S608  # ours
            (
                (
                    hash(span.span_id),
                    None if span.parent_id is None else hash(span.parent_id),
                    span.span_id[:_TRACE_ID_BYTES],
                    next(self._numbers),
                    *(span.role, span.worker, span.host, span.start_ns, span.end_ns),
                    *(span.name, span.phase, span.phase_class, span.step, span.failed),
                )
                for span in kept
            ),
        )
        self._database.executemany(
            "INSERT OR IGNORE INTO links VALUES (?, ?)",
            ((hash(span.span_id), hash(link)) for span in kept for link in span.links),
        )
        self._database.execute("COMMIT")

    def set_back(self, host: str, ahead_ns: int) -> None:
        """Correct the times of a host whose clock is ahead by so much, or behind if negative."""
        self._database.execute(
            "UPDATE spans SET start_ns = start_ns - ?, end_ns = end_ns - ? WHERE host = ?",
            (ahead_ns, ahead_ns, host),
        )

    def steps(self) -> Sequence[int]:
        """Return the steps with a span, in order: those of whole steps if there are any."""
        for name in (STEP_SPAN, None):
            found = self._database.execute(
                "SELECT DISTINCT step FROM spans"
                " WHERE name = COALESCE(?, name) AND step IS NOT NULL ORDER BY step",
                (name,),
            ).fetchall()
            if found:
                return [step for (step,) in found]
        return []

    def select(self, first: int, last: int) -> bool:
        """Keep only the spans of some steps, inclusive: those in their time, and linked ones.

        Of the linked spans before that time, those that made the samples of the steps stay, and
        those that brought the weights to them.

        Returns:
            False if there is no span of these steps; then nothing is changed.
        """
        execute = self._database.execute
        # Whole steps, if there are any: a rollout bears the number of the step in which it began.
        for name in (STEP_SPAN, None):
            found = execute(
                "SELECT worker, step, start_ns, end_ns FROM spans"
                " WHERE name = COALESCE(?, name) AND step BETWEEN ? AND ? ORDER BY start_ns",
                (name, first, last),
            ).fetchall()
            if found:
                break
        else:
            return False
        execute("CREATE TEMP TABLE used (id INTEGER PRIMARY KEY)")
        for start_ns, end_ns in _passes(found, are_whole=name == STEP_SPAN):
            execute(
                "INSERT OR IGNORE INTO used"
                " SELECT id FROM spans WHERE start_ns <= ? AND end_ns >= ?",
                (end_ns, start_ns),
            )
        for _ in range(_HOPS):
            execute(
                "INSERT OR IGNORE INTO used"
                " SELECT producer FROM links JOIN used ON links.consumer = used.id"
            )
        execute("DELETE FROM spans WHERE id NOT IN (SELECT id FROM used)")
        execute("DELETE FROM links WHERE consumer NOT IN (SELECT id FROM spans)")
        execute("DROP TABLE used")
        return True

    def start_ns(self) -> int | None:
        """Return the start of the first span; None without spans."""
        (start_ns,) = self._database.execute("SELECT MIN(start_ns) FROM spans").fetchone()
        return None if start_ns is None else int(start_ns)

    def end_ns(self) -> int:
        """Return the end of the last span; 0 without spans."""
        (end_ns,) = self._database.execute("SELECT COALESCE(MAX(end_ns), 0) FROM spans").fetchone()
        return int(end_ns)

    def workers(self) -> Sequence[StoredWorker]:
        """Return the processes with spans, in the order in which they began."""
        found = self._database.execute(
            "SELECT role, worker, host, MIN(start_ns) FROM spans GROUP BY role, worker"
            " ORDER BY MIN(start_ns), worker"
        ).fetchall()
        return [StoredWorker(*one) for one in found]

    def of(self, worker: StoredWorker) -> Iterator[StoredSpan]:
        """Yield the spans of a process by their start, of two with one start the longer first."""
        self._database.execute(
            "CREATE INDEX IF NOT EXISTS by_start ON spans (worker, start_ns, end_ns DESC)"
        )
        # A parent that begins and ends with its child has ended after it.
        found = self._database.execute(
            f"SELECT {_FIELDS} FROM spans WHERE worker = ? AND role = ?"  # noqa: S608  # ours
            " ORDER BY start_ns, end_ns DESC, number DESC",
            (worker.worker, worker.role),
        )
        with closing(found):
            yield from map(StoredSpan._make, found)

    def place(self, places: Iterable[tuple[StoredSpan, int, int]]) -> None:
        """Note the process and the lane of spans."""
        self._database.execute("BEGIN")
        self._database.executemany(
            "INSERT INTO places VALUES (?, ?, ?, ?, ?)",
            ((span.span_id, pid, tid, span.start_ns, span.end_ns) for span, pid, tid in places),
        )
        self._database.execute("COMMIT")

    def links(self) -> Iterator[Link]:
        """Yield the links between spans that have a place."""
        found = self._database.execute(
            "SELECT a.pid, a.tid, a.start_ns, a.end_ns, b.pid, b.tid, b.start_ns, b.end_ns"
            " FROM links JOIN places AS b ON b.id = consumer JOIN places AS a ON a.id = producer"
        )
        with closing(found):
            for row in found:
                yield Link(row[:4], row[4:])

    def unknown_links(self) -> int:
        """Return how many links lead to spans that are not here."""
        (count,) = self._database.execute(
            "SELECT COUNT(*) FROM links WHERE producer NOT IN (SELECT id FROM spans)"
        ).fetchone()
        return int(count)


def _passes(
    steps: Iterable[tuple[str, int, int, int]], *, are_whole: bool
) -> Iterable[tuple[int, int]]:
    """Return begin and end of each pass over some steps.

    A worker that goes back to a step begins its next pass; what is between is of other steps.

    Args:
        steps: Worker, step, begin and end of each, by begin.
        are_whole: Whether they are whole steps. Else a step may have several.
    """
    of_worker: dict[str, tuple[int, int]] = {}  # the pass that it is in, and its highest step there
    passes: dict[int, tuple[int, int]] = {}
    for worker, step, start_ns, end_ns in steps:
        number, highest = of_worker.get(worker, (0, step - 1))
        is_back = are_whole and step <= highest
        number += is_back
        of_worker[worker] = number, step if is_back else max(step, highest)
        begin_ns, until_ns = passes.get(number, (start_ns, end_ns))
        passes[number] = min(begin_ns, start_ns), max(until_ns, end_ns)
    return passes.values()
