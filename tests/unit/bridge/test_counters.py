"""The bridge's counters are a closed set, and exact under threads."""

import threading

from otel_rl.bridge.counters import Counter, Counters, Refusal


def test_counts_are_kept_by_reason_and_summed_without_one() -> None:
    counters = Counters()
    counters.add(Counter.POINTS_REFUSED, 2, reason=Refusal.NO_EXPERIMENT)
    counters.add(Counter.POINTS_REFUSED, reason=Refusal.INVALID_NAME)
    assert counters.value(Counter.POINTS_REFUSED, reason=Refusal.NO_EXPERIMENT) == 2
    assert counters.value(Counter.POINTS_REFUSED) == 3
    assert counters.value(Counter.SPANS_REFUSED) == 0


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
