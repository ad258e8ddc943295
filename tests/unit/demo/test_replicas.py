import pytest

from otel_rl.demo.messages import Request
from otel_rl.demo.scheduling import Replicas


def request(number: int) -> Request:
    return Request(number, "", 1, 1, 1.0, 1.0)


@pytest.fixture
def replicas() -> Replicas:
    replicas = Replicas(queue_limit=2)
    for number in range(8):
        replicas.submit(request(number))
    return replicas


def given(replicas: Replicas) -> list[tuple[int, int]]:
    """Everything that can be given away, as (replica, number)."""
    found = []
    while (pair := replicas.next()) is not None:
        found.append((pair[0], pair[1].number))
    return found


def test_requests_go_to_the_replica_with_the_fewest(replicas: Replicas) -> None:
    replicas.serving(0)
    replicas.serving(1)
    assert given(replicas) == [(0, 0), (1, 1), (0, 2), (1, 3)]


def test_a_full_replica_gets_nothing(replicas: Replicas) -> None:
    replicas.serving(0)
    given(replicas)
    assert replicas.next() is None
    replicas.finished(0, 0)
    assert given(replicas) == [(0, 2)]


def test_requests_wait_while_nobody_serves(replicas: Replicas) -> None:
    assert replicas.next() is None
    assert replicas.unfinished == 8


def test_what_a_lost_replica_had_is_done_first_by_others(replicas: Replicas) -> None:
    replicas.serving(0)
    given(replicas)
    assert replicas.lost(0) == 2
    replicas.serving(1)
    assert given(replicas) == [(1, 0), (1, 1)]
    assert replicas.unfinished == 8


def test_the_last_word_of_a_lost_replica_finishes_nothing(replicas: Replicas) -> None:
    replicas.serving(0)
    given(replicas)
    replicas.lost(0)
    assert replicas.finished(0, 0) is None
    assert replicas.unfinished == 8


def test_a_replica_that_never_served_loses_nothing(replicas: Replicas) -> None:
    assert replicas.lost(5) == 0
