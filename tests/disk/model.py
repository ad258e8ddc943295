"""What a journal holds, in plain Python."""

import copy
from dataclasses import dataclass, field

from otel_rl.bridge.journal.log import Log
from otel_rl.bridge.journal.runs import RunStore
from otel_rl.bridge.journal.spool import Spool
from otel_rl.bridge.journal.sqlite import SqliteJournal
from otel_rl.records import Batch, ExperimentKey, Row, Signal

RUNS = ("a", "b")
"""Names of the experiments that share a journal."""


def key(run: str) -> ExperimentKey:
    """The key of a run."""
    return ExperimentKey(run)


def batch(run: str, name: str) -> Batch:
    """The one batch of a name, which says how long it is: ``number:bytes``."""
    size = int(name.partition(":")[2])
    return Batch(key(run), Signal.METRICS, name.encode().ljust(size, b"."), received_ns=size)


def row(number: int) -> Row:
    """The one row of a number."""
    return Row(number, number * 2, number * 3, {"value": float(number)}, number % 3)


@dataclass(slots=True)
class Run:
    """What is kept of a run.

    Attributes:
        batches: Names of those that wait.
        aside: Names of those that were set aside.
        pruned: The rows below are gone.
        rows: The number of the next one.
        state: Committed with the last rows.
        seen: Committed with the rows before.
    """

    batches: set[str] = field(default_factory=set)
    aside: set[str] = field(default_factory=set)
    pruned: int = 0
    rows: int = 0
    state: str = ""
    seen: list[str] = field(default_factory=list)


@dataclass(slots=True)
class Content:
    """What a journal holds, by name of the run."""

    runs: dict[str, Run] = field(default_factory=lambda: {name: Run() for name in RUNS})

    def copy(self) -> "Content":
        return copy.deepcopy(self)


def content_of(journal: SqliteJournal) -> Content:
    """What a journal holds, after a look at whether that is whole and sound."""
    with journal.read() as connection:
        assert connection.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
        aside = connection.execute("SELECT payload FROM set_aside").fetchall()
        sizes = connection.execute(
            "SELECT COALESCE((SELECT SUM(bytes) FROM waiting WHERE run_id = r.run_id), 0),"
            " row_bytes,"
            " (SELECT TOTAL(LENGTH(payload)) FROM batches WHERE run_id = r.run_id),"
            " (SELECT TOTAL(LENGTH(body)) FROM rows WHERE run_id = r.run_id) FROM runs r"
        ).fetchall()
    assert all((waiting, rows) == (w, r) for waiting, rows, w, r in sizes)
    content = Content({run: _run(Spool(journal), RunStore(journal), run) for run in RUNS})
    for (payload,) in aside:
        name = _name(payload)
        content.runs[_run_of(name)].aside.add(name)
    return content


def _run(spool: Spool, run_store: RunStore, run: str) -> Run:
    names = []
    for spooled in spool.read(key(run), max_bytes=1 << 40):
        name = _name(spooled.batch.payload)
        assert (spooled.batch, spooled.is_damaged) == (batch(run, name), False)
        names.append(name)
    assert len(names) == len(set(names))
    assert (key(run) in spool.waiting()) is bool(names)
    saved = run_store.saved(key(run))
    rows = run_store.rows(key(run), start=0, limit=saved.next_row + 1)
    pruned = rows[0].number if rows else saved.next_row
    assert list(rows) == [row(number) for number in range(pruned, saved.next_row)]
    return Run(
        set(names),
        set(),
        pruned,
        saved.next_row,
        "" if saved.state is None else saved.state.decode(),
        [seen.decode() for seen in saved.log(Log.DEDUP)],
    )


def _name(payload: bytes) -> str:
    return payload.decode().rstrip(".")


def _run_of(name: str) -> str:
    return name[0]
