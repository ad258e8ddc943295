"""How long a delivery pauses after failures, and who is told."""

import logging
from pathlib import Path

import pytest

from otel_rl.bridge.counters import Where
from otel_rl.bridge.delivery.manager import DeliverySettings, RunState
from otel_rl.bridge.delivery.run_delivery import Retries
from otel_rl.bridge.delivery.session import Route
from otel_rl.errors import JournalFull
from otel_rl.records import ExperimentKey
from tests.unit.bridge.delivery.bench import Bench, Rows

KEY = ExperimentKey("e")


class Rig:
    """Retries with a clock that tests move by hand."""

    def __init__(self, rows: Rows | None = None) -> None:
        self.rows = rows or Rows()
        self.now_s = 1000.0
        settings = DeliverySettings("jsonl", Path(), {}, first_retry_s=0.5, max_retry_s=60.0)
        route = Route(self.rows, self.rows, settings, lambda *_, **__: None, lambda: self.now_s)
        self.retries = Retries(KEY, route, jitter=lambda: 1.0)

    def fail(self) -> None:
        self.retries.store(RunState.RETRYING, "away")


def test_pauses_double_up_to_the_longest_until_rows_are_taken_again() -> None:
    retries = Rig().retries
    pauses = [retries.pause_s(RunState.RETRYING) for _ in range(9)]
    assert pauses == [0.5, 1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 60.0, 60.0]
    retries.reset()
    assert retries.pause_s(RunState.RETRYING) == 0.5


def test_after_a_refusal_the_pause_is_the_longest_at_once() -> None:
    retries = Rig().retries
    assert [retries.pause_s(RunState.REJECTED) for _ in range(3)] == [60.0] * 3


def test_an_error_is_stored_once_a_minute_and_its_end_at_once() -> None:
    rig = Rig()
    rig.fail()
    rig.now_s += 59.0
    rig.fail()
    assert rig.rows.errors == [("retrying", "away")]
    rig.now_s += 1.0
    rig.fail()
    rig.retries.store(RunState.LIVE, "")
    rig.fail()
    assert rig.rows.errors == [
        *[("retrying", "away")] * 2,
        ("live", ""),
        ("retrying", "away"),
    ]


def test_the_end_of_an_error_is_stored_once_and_that_of_an_earlier_bridge_too() -> None:
    rig = Rig()
    for _ in range(3):
        rig.retries.store(RunState.LIVE, "")
    assert rig.rows.errors == [("live", "")]


def test_failures_are_logged_once_a_minute(caplog: pytest.LogCaptureFixture) -> None:
    rig = Rig()
    with caplog.at_level(logging.WARNING):
        for _ in range(3):
            rig.retries.log(OSError("away"), 1.0, with_trace=False)
        rig.now_s += 60.0
        rig.retries.log(OSError("away"), 1.0, with_trace=True)
    assert [bool(record.exc_info) for record in caplog.records] == [False, True]


def test_a_journal_that_breaks_down_does_not_end_the_delivery(tmp_path: Path) -> None:
    bench = Bench(tmp_path, writer=None)

    def reported(key: ExperimentKey, state: str, error: str, /) -> None:
        raise OSError("the journal is broken")

    def opened(key: ExperimentKey, location: str, /) -> None:
        bench.source.opened = there  # type: ignore[method-assign]
        raise OSError("the journal is broken")

    there, bench.source.opened, bench.source.reported = bench.source.opened, opened, reported  # type: ignore[method-assign]
    bench.feed(KEY, 3)
    try:
        assert bench.wait_until_written(KEY).pending == 0
    finally:
        bench.stop()
    assert bench.lines(KEY) == [0, 1, 2]
    assert bench.reasons[Where.DELIVERY] >= 2  # the opening, and the report of its failure


def test_a_full_journal_does_not_stop_the_delivery() -> None:
    class Full(Rows):
        def reported(self, key: ExperimentKey, state: str, error: str, /) -> None:
            raise JournalFull("The disk is full.")

    Rig(Full()).fail()
