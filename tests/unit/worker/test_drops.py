"""Losses are counted exactly, whoever counts them and whenever."""

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from threading import Thread

from otel_rl.worker.drops import DropReason, Drops


@contextmanager
def interrupted_by(handler: object) -> Iterator[None]:
    """A signal every 50 microseconds, handled between any two instructions of this thread."""
    before = signal.signal(signal.SIGALRM, lambda *_: handler())  # type: ignore[operator]
    signal.setitimer(signal.ITIMER_REAL, 50e-6, 50e-6)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def test_a_signal_handler_may_count_in_the_middle_of_counting() -> None:
    drops = Drops()
    handled = 0

    def handler() -> None:
        nonlocal handled
        handled += 1
        drops.add(DropReason.BUFFER_FULL)
        drops.counts()

    with interrupted_by(handler):
        made = 0
        while handled < 300:
            drops.add(DropReason.BUFFER_FULL, 2)
            drops.counts()
            made += 1
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
        thread.join(30)
    assert drops.counts() == {DropReason.QUEUE_FULL: 20_000}


def test_nothing_lost_is_no_entry() -> None:
    drops = Drops()
    drops.add(DropReason.SHUTDOWN, 0)
    assert drops.counts() == {}
