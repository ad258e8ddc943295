"""Losses are counted exactly, whoever counts them and whenever."""

import random
import signal
from threading import Thread

from opentelemetry.metrics import CallbackOptions

from otel_rl.worker.drops import DropReason, Drops


def test_a_signal_handler_may_count_in_the_middle_of_counting() -> None:
    drops = Drops()
    handled = made = 0

    def handler(*_: object) -> None:
        nonlocal handled
        handled += 1
        drops.add(DropReason.BUFFER_FULL)
        drops.counts()

    before = signal.signal(signal.SIGALRM, handler)
    try:
        while handled < 1_000:
            # Strikes between any two instructions of what follows.
            signal.setitimer(signal.ITIMER_REAL, random.uniform(1e-6, 20e-6))
            drops.add(DropReason.BUFFER_FULL, 2)
            drops.counts()
            made += 1
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    assert drops.counts() == {DropReason.BUFFER_FULL: 2 * made + handled}


def test_threads_count_together() -> None:
    drops = Drops()

    def count() -> None:
        for _ in range(5_000):
            drops.add(DropReason.QUEUE_FULL)

    threads = [Thread(target=count) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert drops.counts() == {DropReason.QUEUE_FULL: 20_000}


def observed(drops: Drops) -> dict[object, float]:
    return {
        (one.attributes or {})["rl.reason"]: one.value for one in drops.observe(CallbackOptions())
    }


def test_what_one_worker_has_reported_is_not_the_next_ones() -> None:
    drops = Drops()
    drops.add(DropReason.BUFFER_FULL, 3)
    assert observed(drops) == {"buffer_full": 3}
    drops.add(DropReason.SHUTDOWN, 2)  # too late for its own worker
    drops.begin_anew()
    assert observed(drops) == {"shutdown": 2}
    drops.add(DropReason.BUFFER_FULL)
    assert observed(drops) == {"shutdown": 2, "buffer_full": 1}
    assert drops.counts() == {DropReason.BUFFER_FULL: 4, DropReason.SHUTDOWN: 2}


def test_nothing_lost_is_no_entry() -> None:
    drops = Drops()
    drops.add(DropReason.SHUTDOWN, 0)
    assert drops.counts() == {}
