import pytest

from otel_rl.demo.messages import Request
from otel_rl.demo.scheduling import Router


def request(number: int) -> Request:
    return Request(number, "", 1, 1, 1.0, 1.0)


@pytest.fixture
def router() -> Router:
    router = Router(queue_limit=2)
    for number in range(8):
        router.submit(request(number))
    return router


def given(router: Router) -> list[tuple[int, int]]:
    """Everything that can be given away, as (replica, number)."""
    found = []
    while (pair := router.next()) is not None:
        found.append((pair[0], pair[1].number))
    return found


def test_requests_go_to_the_replica_with_the_fewest(router: Router) -> None:
    router.add_replica(0)
    router.add_replica(1)
    assert given(router) == [(0, 0), (1, 1), (0, 2), (1, 3)]


def test_a_full_replica_gets_nothing(router: Router) -> None:
    router.add_replica(0)
    given(router)
    assert router.next() is None
    router.finish(0, 0)
    assert given(router) == [(0, 2)]


def test_requests_wait_while_nobody_serves(router: Router) -> None:
    assert router.next() is None
    assert router.unfinished == 8


def test_what_a_lost_replica_had_is_done_first_by_others(router: Router) -> None:
    router.add_replica(0)
    given(router)
    assert router.lose_replica(0) == 2
    router.add_replica(1)
    assert given(router) == [(1, 0), (1, 1)]
    assert router.unfinished == 8


def test_the_last_word_of_a_lost_replica_finishes_nothing(router: Router) -> None:
    router.add_replica(0)
    given(router)
    router.lose_replica(0)
    assert not router.finish(0, 0)
    assert router.unfinished == 8


def test_a_replica_that_never_served_loses_nothing(router: Router) -> None:
    assert router.lose_replica(5) == 0
