"""A deadline that passes is ended once; one that is kept is not."""

import threading
import time

from otel_rl.bridge.receive.deadlines import Deadlines


def test_what_is_done_in_time_is_not_ended() -> None:
    ended: list[int] = []
    with Deadlines(0.05, "test") as deadlines:
        for i in range(1000):
            with deadlines.within(lambda i=i: ended.append(i)) as deadline:  # type: ignore[misc]
                pass
        last = threading.Event()
        with deadlines.within(last.set):
            assert last.wait(60)
    assert ended == []
    assert not deadline.has_passed


def test_what_takes_too_long_is_ended_once_and_says_so() -> None:
    ended = threading.Semaphore(0)
    with Deadlines(0.02, "test") as deadlines:
        with deadlines.within(ended.release) as deadline:
            assert ended.acquire(timeout=60)
            assert deadline.has_passed
        with deadlines.within(threading.Event().set):
            pass
    assert not ended.acquire(blocking=False)


def test_deadlines_of_many_threads_all_pass() -> None:
    ended = [threading.Event() for _ in range(20)]

    def wait(event: threading.Event) -> None:
        with deadlines.within(event.set):
            event.wait(5)

    with Deadlines(0.05, "test") as deadlines:
        threads = [threading.Thread(target=wait, args=(event,)) for event in ended]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert all(event.is_set() for event in ended)


def test_stop_does_not_wait_for_a_deadline() -> None:
    deadlines = Deadlines(1000, "test")
    deadlines.start()
    with deadlines.within(lambda: None):
        begun_s = time.monotonic()
        deadlines.stop()
        deadlines.stop()
    assert time.monotonic() - begun_s < 5
    assert "test" not in {thread.name for thread in threading.enumerate()}


def test_stop_without_start_is_nothing() -> None:
    Deadlines(1, "test").stop()
