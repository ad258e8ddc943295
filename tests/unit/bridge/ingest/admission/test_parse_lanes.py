"""All requests that are parsed share one bound on memory, and none waits behind a large one."""

import threading

import pytest

from otel_rl.bridge.ingest.admission.parse_lanes import Lane, ParseLanes
from otel_rl.errors import Overloaded
from tests.waiting import wait_until

MIB = 1 << 20


def parsing(cores: int = 4, max_waiting: int = 8) -> ParseLanes:
    return ParseLanes(64 * MIB, cores=cores, max_waiting=max_waiting, timeout_s=0.01)


def lane(width: int = 1, max_bytes: int = 100, timeout_s: float = 600) -> Lane:
    return Lane(width=width, max_bytes=max_bytes, max_waiting=8, timeout_s=timeout_s)


@pytest.mark.parametrize("cores", [1, 2, 64])
def test_small_requests_pass_a_large_one_on_any_machine(cores: int) -> None:
    shared = parsing(cores)
    with shared.hold(40 * MIB), shared.hold(1 * MIB):
        assert shared.bytes == 41 * MIB


@pytest.mark.parametrize("cores", [1, 2, 64])
def test_one_large_request_is_parsed_at_a_time_on_any_machine(cores: int) -> None:
    shared = parsing(cores)
    refused = pytest.raises(Overloaded, match="send_batch_max_size")
    with shared.hold(5 * MIB), refused, shared.hold(5 * MIB):
        pass
    with shared.hold(5 * MIB):
        pass


def test_memory_is_one_budget_for_all_cores_and_not_one_for_each() -> None:
    shared = parsing(cores=64)
    held = []
    for _ in range(64):
        context = shared.hold(4 * MIB)
        try:
            context.__enter__()
        except Overloaded:
            break
        held.append(context)
    assert len(held) == 4  # a quarter of the budget; three quarters are for large requests
    with shared.hold(64 * MIB):
        assert shared.bytes == 64 * MIB
    for context in held:
        context.__exit__(None, None, None)
    assert shared.bytes == 0


def test_a_request_of_more_than_the_budget_is_charged_all_of_it() -> None:
    shared = parsing()
    with shared.hold(1000 * MIB):
        assert shared.bytes == 48 * MIB


def test_too_many_that_wait_are_sent_away_at_once() -> None:
    full = Lane(width=1, max_bytes=100, max_waiting=1, timeout_s=600)
    with full.hold(1):
        waiting = threading.Thread(target=enter, args=(full, 1))
        waiting.start()
        wait_until(lambda: full.waiting == 1, timeout_s=60)
        with pytest.raises(Overloaded), full.hold(1):
            pass
    waiting.join()


def test_an_error_gives_the_place_back() -> None:
    one = lane()
    for _ in range(3):
        with pytest.raises(ValueError, match="no"), one.hold(100):
            raise ValueError("no")
    assert one.bytes == 0


def enter(into: Lane, n_bytes: int, order: list[int] | None = None) -> None:
    with into.hold(n_bytes):
        if order is not None:
            order.append(n_bytes)


def order_of(*sizes: int) -> list[int]:
    """In which order requests of these sizes, that came in this one, are let in."""
    one, order = lane(max_bytes=1000), list[int]()
    with one.hold(1):
        threads = []
        for n, size in enumerate(sizes, 1):
            threads.append(threading.Thread(target=enter, args=(one, size, order)))
            threads[-1].start()
            wait_until(lambda n=n: one.waiting == n, timeout_s=60)  # type: ignore[misc]
    for thread in threads:
        thread.join()
    return order


def test_who_has_less_to_parse_goes_first() -> None:
    assert order_of(900, 10, 500) == [10, 500, 900]


def test_those_of_one_size_go_in_the_order_in_which_they_came() -> None:
    one, order = lane(max_bytes=1000), list[int]()
    with one.hold(1):
        threads = []
        for n in range(5):

            def take(n: int = n) -> None:
                with one.hold(7):
                    order.append(n)

            threads.append(threading.Thread(target=take))
            threads[-1].start()
            wait_until(lambda n=n: one.waiting == n + 1, timeout_s=60)  # type: ignore[misc]
    for thread in threads:
        thread.join()
    assert order == [0, 1, 2, 3, 4]


def test_small_ones_pass_a_waiting_one_only_up_to_its_own_size() -> None:
    one, order = lane(width=2, max_bytes=100), list[int]()
    with one.hold(1):
        threads = [threading.Thread(target=enter, args=(one, 100, order))]
        threads[0].start()
        wait_until(lambda: one.waiting == 1, timeout_s=60)
        enter(one, 60, order)
        # 61 bytes were served since the large one came: 60 more would be beyond its own 100.
        threads.append(threading.Thread(target=enter, args=(one, 60, order)))
        threads[1].start()
        wait_until(lambda: one.waiting == 2, timeout_s=60)
    for thread in threads:
        thread.join()
    assert order == [60, 100, 60]
