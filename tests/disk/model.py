"""What a journal holds, in plain Python, and what it may hold after a loss of power."""

import copy
from dataclasses import dataclass, field

from otel_rl.bridge.journal import Journal
from otel_rl.bridge.ledger import Ledger
from otel_rl.bridge.spool import Spool
from otel_rl.records import Batch, ExperimentKey, Offset, Row, Signal

__all__ = ["Content", "Run", "batch", "content_of", "key", "row"]


def key(name: str) -> ExperimentKey:
    """The run of a name."""
    return ExperimentKey(name)


def batch(name: str) -> Batch:
    """The one batch of a name, which says how long it is: ``number:bytes``."""
    size = int(name.partition(":")[2])
    return Batch(Signal.METRICS, name.encode().ljust(size, b"."), received_ns=size)


def row(number: int) -> Row:
    """The one row of a number."""
    return Row(number, number * 2, number * 3, {"value": float(number), "nan": 0.5}, number % 3)


@dataclass(slots=True)
class Run:
    """What is kept of a run: how many rows, and the state that was committed with the last."""

    rows: int = 0
    state: str = ""


@dataclass(slots=True)
class Content:
    """What a journal holds.

    Attributes:
        batches: Names by offset.
        runs: By name.
    """

    batches: dict[int, str] = field(default_factory=dict)
    runs: dict[str, Run] = field(default_factory=dict)

    def copy(self) -> "Content":
        return copy.deepcopy(self)


def content_of(journal: Journal) -> Content:
    """What a journal holds, after a look at whether that is whole and sound."""
    spool, ledger = Spool(journal), Ledger(journal)
    with journal.read() as connection:
        assert connection.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
    content = Content()
    for offset, kept in spool.read(after=Offset(0), max_bytes=1 << 40):
        name = kept.payload.decode().rstrip(".")
        assert kept == batch(name)
        content.batches[offset] = name
    for run in ledger.runs():
        next_row = ledger.next_row(run)
        rows = ledger.rows(run, start=0, limit=next_row + 1)
        assert list(rows) == [row(number) for number in range(next_row)]
        content.runs[run.experiment] = Run(next_row, str(ledger.state(run)))
    return content
