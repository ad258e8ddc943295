"""The sizes of a bridge's queues, of the runs that are its own."""

from pathlib import Path

import pytest

from otel_rl.bridge.counters import Counters, Gauge
from otel_rl.bridge.delivery.manager import DeliveryManager, DeliverySettings
from otel_rl.bridge.journal.deliveries import DeliveryStore
from otel_rl.bridge.journal.runs import Commit, RunStore
from otel_rl.bridge.journal.spool import Spool
from otel_rl.bridge.journal.sqlite import SqliteJournal
from otel_rl.bridge.telemetry import queue_gauges
from otel_rl.records import Batch, ExperimentKey, Row, Signal

OURS, THEIRS = ExperimentKey("ours"), ExperimentKey("theirs")


class Owner:
    """A bridge that shares the journal with another."""

    def epoch(self, key: ExperimentKey, /) -> int | None:
        return 0 if key == OURS else None


@pytest.fixture
def journal(tmp_path: Path) -> SqliteJournal:
    return SqliteJournal(tmp_path / "data")


def gauges(journal: SqliteJournal, directory: Path) -> dict[tuple[Gauge, str], float]:
    run_store = RunStore(journal, owners=Owner())
    delivery = DeliveryManager(
        run_store,
        [
            (
                DeliverySettings("jsonl", directory, {}),
                DeliveryStore(journal, "jsonl", owners=Owner()),
            )
        ],
        Counters().add,
    )
    found = queue_gauges(journal, Spool(journal), run_store, delivery)
    return {(one.gauge, one.attributes.get("rl.experiment.name", "")): one.value for one in found}


def test_batches_that_wait_are_those_of_the_bridges_own_runs(
    journal: SqliteJournal, tmp_path: Path
) -> None:
    for key in (OURS, THEIRS):
        Spool(journal).append([Batch(key, Signal.METRICS, b"x" * 100, 1)])
    found = gauges(journal, tmp_path)
    journal.close()
    assert {at: size for at, size in found.items() if at[0] is Gauge.SPOOL_SIZE} == {
        (Gauge.SPOOL_SIZE, "ours"): 100
    }
    assert found[Gauge.JOURNAL_SIZE, ""] > 200


def test_rows_that_wait_for_a_tracker_are_those_of_delivered_runs(
    journal: SqliteJournal, tmp_path: Path
) -> None:
    rows = [Row(0, 0, 1, {"x": 1.0})]
    RunStore(journal).commit([Commit(OURS, rows, 1, b"")])
    found = gauges(journal, tmp_path)
    journal.close()
    assert not [at for at in found if at[0] is Gauge.ROWS_PENDING], "nobody asked for its delivery"


def test_an_unreachable_journal_gives_nothing(journal: SqliteJournal, tmp_path: Path) -> None:
    (tmp_path / "data" / "journal.db").rename(tmp_path / "elsewhere")
    found = gauges(journal, tmp_path)
    journal.close()
    assert found == {}
