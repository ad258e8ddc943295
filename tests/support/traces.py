"""Spans of a small run, for tests of what shows them."""

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from otel_rl.bridge.journal.log import Log
from otel_rl.bridge.journal.runs import Commit, RunStore
from otel_rl.bridge.journal.sqlite import SqliteJournal
from otel_rl.bridge.rows.settings import AlignSettings
from otel_rl.bridge.rows.spans import SpanWindow
from otel_rl.records import ExperimentKey, SpanRecord
from otel_rl.semconv.spec import STEP_SPAN

BEGUN_NS = 1_700_000_000_123_456_789
MS = 1_000_000


def span(
    name: str,
    start_ns: int,
    end_ns: int,
    *,
    worker: str = "trainer-0",
    within: str = "",
    uses: Iterable[str] = (),
    phase: str | None = None,
    step: int | None = None,
    failed: bool = False,
    host: str = "host",
) -> SpanRecord:
    """Return a span whose id is its name; the phase is the name before ``#``."""
    return SpanRecord(
        _id(name),
        _id(within) if within else None,
        tuple(map(_id, uses)),
        worker.partition("-")[0],
        worker,
        host,
        start_ns,
        end_ns,
        name,
        name.partition("#")[0] if phase is None else phase,
        "compute",
        step,
        failed,
    )


def _id(name: str) -> bytes:
    return name.encode().rjust(24, b"\1")


def steps_of_a_run(steps: Iterable[int], *, begun_ns: int = BEGUN_NS) -> Iterator[SpanRecord]:
    """Yield spans of a trainer and two generators: in each step, both make a sample.

    A step takes 100 ms. In it a sample is generated with the weights of the step before, and the
    train span links to those of the step before.
    """
    for step in steps:
        start = begun_ns + step * 100 * MS
        for index in range(2):
            worker = f"generator-{index}"
            sync, sample = f"weight_sync#{step}.{index}", f"generate#{step}.{index}"
            yield span(
                sync, start, start + 5 * MS + index, worker=worker, uses=[f"weight_push#{step - 1}"]
            )
            yield span(
                sample, start + 10 * MS, start + 80 * MS + 1, worker=worker, uses=[sync]
            )  # fmt: skip
        root = f"step#{step}"
        yield span(
            f"train#{step}",
            start + 30 * MS,
            start + 80 * MS,
            within=root,
            uses=[f"generate#{step - 1}.{index}" for index in range(2)],
        )
        yield span(f"weight_push#{step}", start + 80 * MS, start + 99 * MS, within=root)
        yield SpanRecord(
            _id(root), None, (), "trainer", "trainer-0", "host", start, start + 99 * MS, STEP_SPAN,
            step=step,
        )  # fmt: skip


def keep_spans(
    directory: Path, key: ExperimentKey, spans: Sequence[SpanRecord], *, log: Log = Log.SPANS
) -> None:
    """Keep spans in a journal as a bridge does, that of several requests."""
    journal = SqliteJournal(directory)
    window, store = SpanWindow(), RunStore(journal)
    for first in range(0, len(spans), 1_000):
        window.add(spans[first : first + 1_000], AlignSettings(max_spans=10**7), 0)
        part = window.recent.take_log()
        assert part is not None
        store.commit([Commit(key, [], 0, b"", added={log: part})])
    journal.close()
