"""The bridge's counters are a closed set, and exact under threads."""

import threading

import pytest

from otel_rl.bridge.counters import Counter, Counters, Outcome, Refusal


def test_every_counter_is_described_in_one_sentence() -> None:
    for counter in Counter:
        assert counter.description.endswith(".")
        assert "\n" not in counter.description


def test_every_counter_and_reason_is_zero_at_first() -> None:
    snapshot = Counters().snapshot()
    assert set(snapshot.values()) == {0}
    assert snapshot["otel_rl.bridge.points.refused", "no_experiment"] == 0
    assert snapshot["otel_rl.bridge.points.accepted", ""] == 0


def test_counts_are_kept_by_reason_and_summed_without_one() -> None:
    counters = Counters()
    counters.add(Counter.POINTS_REFUSED, 2, reason=Refusal.NO_EXPERIMENT)
    counters.add(Counter.POINTS_REFUSED, reason=Refusal.INVALID_NAME)
    assert counters.value(Counter.POINTS_REFUSED, reason=Refusal.NO_EXPERIMENT) == 2
    assert counters.value(Counter.POINTS_REFUSED) == 3
    assert counters.value(Counter.SPANS_REFUSED) == 0


@pytest.mark.parametrize("reason", [None, Outcome.OK])
def test_reason_of_another_counter_is_an_error(reason: Outcome | None) -> None:
    with pytest.raises(KeyError):
        Counters().add(Counter.POINTS_REFUSED, reason=reason)


def test_snapshot_does_not_change_afterwards() -> None:
    counters = Counters()
    before = counters.snapshot()
    counters.add(Counter.ROWS_WRITTEN)
    assert before["otel_rl.bridge.rows.written", ""] == 0


def test_no_count_is_lost_between_threads() -> None:
    counters = Counters()

    def count() -> None:
        for _ in range(2000):
            counters.add(Counter.ROWS_WRITTEN)

    threads = [threading.Thread(target=count) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert counters.value(Counter.ROWS_WRITTEN) == 16_000
