"""What threads ask of the exporter thread: each gets an answer, or its time is over."""

import time
from concurrent.futures import ThreadPoolExecutor
from threading import Thread, current_thread

from otel_rl.worker.export.flush_requests import FlushRequests, Wanted
from tests.waiting import wait_until

LONG_S = 3600.0
DEADLINE_S = 90.0


def requests(*, is_reached: bool = True) -> FlushRequests:
    return FlushRequests(lambda: is_reached)


def test_one_answer_serves_every_flush_before_it() -> None:
    asked = requests()
    with ThreadPoolExecutor(2) as callers:
        flushes = [callers.submit(asked.flush, DEADLINE_S) for _ in range(2)]
        wait_until(lambda: asked.wait(0.0).ticket == 2, "two flushes", timeout_s=DEADLINE_S)
        asked.answer(2, delivered=True)
        assert [flush.result(DEADLINE_S) for flush in flushes] == [True, True]
    assert asked.wait(0.0) == Wanted(0, is_stopping=False, is_hurried=False)


def test_a_flush_that_was_not_delivered_says_so_and_the_next_may_be() -> None:
    asked = requests()
    with ThreadPoolExecutor(1) as callers:
        for ticket, delivered in ((1, False), (2, True)):
            flush = callers.submit(asked.flush, DEADLINE_S)
            wait_until(lambda: asked.is_urgent, "a flush", timeout_s=DEADLINE_S)
            assert asked.wait(LONG_S).ticket == ticket
            asked.answer(ticket, delivered=delivered)
            assert flush.result(DEADLINE_S) is delivered


def test_a_hurry_is_told_once() -> None:
    asked = requests()
    asked.hurry()
    asked.hurry()
    assert [asked.wait(0.0).is_hurried for _ in range(2)] == [True, False]


def test_a_stop_sets_its_deadlines_once() -> None:
    reached, unreached = requests(), requests(is_reached=False)
    now_s = time.monotonic()
    for asked in (reached, unreached):
        assert asked.stop(1000.0, 10.0)
        assert not asked.stop(9000.0, 9000.0)
    assert 1000.0 <= reached.deadline_s() - now_s < 1000.0 + DEADLINE_S
    assert 10.0 <= unreached.deadline_s() - now_s < 10.0 + DEADLINE_S


def test_an_endpoint_that_never_answered_gets_no_more_than_the_timeout() -> None:
    asked = requests(is_reached=False)
    now_s = time.monotonic()
    asked.stop(10.0, 1000.0)
    assert asked.deadline_s() - now_s < 10.0 + DEADLINE_S


def test_nobody_waits_for_a_thread_that_has_ended_or_is_their_own() -> None:
    asked = requests()
    thread = Thread(target=asked.end)
    assert not asked.may_wait(current_thread())
    assert not asked.may_wait(thread), "it has not begun"
    thread.start()
    asked.wait_for_end(DEADLINE_S)
    assert not asked.may_wait(thread)
    assert not asked.flush(LONG_S)


class SeenMeanwhile(float):
    """A timeout in whose comparison the exporter thread reads its deadline."""

    found: FlushRequests
    deadlines_s: list[float]

    def __lt__(self, other: float) -> bool:
        self.deadlines_s.append(self.found.deadline_s())
        return float(self) < float(other)


def test_an_exporter_that_reads_its_deadline_while_it_is_set_gives_up_no_earlier() -> None:
    found = requests(is_reached=False)
    patience_s = SeenMeanwhile(5.0)
    patience_s.found, patience_s.deadlines_s = found, []
    flushing = Thread(target=found.flush, args=(60,), daemon=True)
    flushing.start()
    while not found.is_urgent:
        flushing.join(0.001)
    begun_s = time.monotonic()
    found.stop(30, patience_s)
    (seen_s,) = patience_s.deadlines_s
    assert seen_s > begun_s
    found.answer(1, delivered=True)
    flushing.join()
