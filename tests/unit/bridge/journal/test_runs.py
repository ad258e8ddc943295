"""A commit: rows, state and the removal of their batches happen together or not at all."""

from collections.abc import Sequence
from dataclasses import replace

import pytest

from otel_rl.bridge.journal.interface import Journal
from otel_rl.bridge.journal.log import Log
from otel_rl.bridge.journal.runs import Commit, RunStore, SavedRun
from otel_rl.bridge.journal.spool import Spool
from otel_rl.records import Batch, ExperimentKey, Offset, Row, Signal
from tests.support.stores import Store, runs_of

KEY = ExperimentKey("exp", "trial")


@pytest.fixture
def journal(store: Store) -> Journal:
    return store.open()


def batch() -> Batch:
    return Batch(KEY, Signal.METRICS, b"x", received_ns=5)


def commit(*rows: Row, state: bytes = b"", taken: Sequence[Offset] = ()) -> Commit:
    return Commit(KEY, rows, len(rows), state, taken)


def offsets(spool: Spool) -> list[Offset]:
    return [one.offset for one in spool.read(KEY, max_bytes=1 << 40)]


def row(number: int) -> Row:
    return Row(number, number + 100, 1_000 + number, {"loss": float(number)}, 7)


def test_rows_state_and_removal_are_one_commit(journal: Journal) -> None:
    spool, run_store = Spool(journal), RunStore(journal)
    spool.append([batch()])
    run_store.commit([commit(row(0), row(1), state=b"some state", taken=offsets(spool))])
    assert run_store.rows(KEY, start=0, limit=10) == [row(0), row(1)]
    assert run_store.saved(KEY) == SavedRun(b"some state", 2)
    assert spool.pending() == 0
    assert runs_of(journal) == [KEY]


def test_what_was_seen_is_kept_beside_the_state_until_it_is_forgotten(
    journal: Journal,
) -> None:
    run_store = RunStore(journal)
    for number, newest_ns in enumerate((10, 30, 20)):
        run_store.commit([replace(commit(), added={Log.DEDUP: (newest_ns, b"%d" % number)})])
    assert run_store.saved(KEY).log(Log.DEDUP) == [b"0", b"1", b"2"]
    run_store.commit([replace(commit(), forgotten={Log.DEDUP: 20})])
    assert run_store.saved(KEY).log(Log.DEDUP) == [b"1"]


@pytest.mark.parametrize("log", [Log.CHOSEN, Log.HISTORY])
def test_what_only_readers_of_a_run_need_is_not_loaded_with_its_state(
    journal: Journal, log: Log
) -> None:
    run_store = RunStore(journal)
    run_store.commit([replace(commit(), added={log: (1, b"spans"), Log.SPANS: (1, b"open")})])
    assert run_store.saved(KEY).logs == {Log.SPANS: [b"open"]}


def test_a_row_number_is_given_once(journal: Journal) -> None:
    run_store = RunStore(journal)
    run_store.commit([commit(row(0))])
    with pytest.raises(Exception, match=r"(?i)unique"):
        run_store.commit([commit(row(0))])
