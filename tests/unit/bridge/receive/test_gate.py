"""Turns at the gate: everybody's part, the order of who waits, and what is left behind."""

import asyncio
from concurrent.futures import ThreadPoolExecutor

import pytest

from otel_rl.bridge.receive.gate import Gate, Turn
from otel_rl.errors import MalformedRequest, Overloaded

OWN, LARGEST = 4, 16
A, B = ("a", "1.1.1.1"), ("b", "2.2.2.2")
A_ELSEWHERE = ("a", "3.3.3.3")


@pytest.fixture
def gate() -> Gate:
    return Gate(lambda _: OWN)


def is_in(turn: Turn) -> bool:
    return turn.granted.done() and turn.granted.exception() is None


def test_what_is_given_back_is_given_to_the_next(gate: Gate) -> None:
    first, second = gate.ask(A, LARGEST), gate.ask(A, LARGEST)
    assert (is_in(first), is_in(second)) == (True, False)
    first.leave()
    first.leave()
    assert is_in(second)
    assert not is_in(gate.ask(A, LARGEST))


def test_the_largest_request_leaves_room_for_a_small_one(gate: Gate) -> None:
    assert is_in(gate.ask(A, LARGEST))
    assert is_in(gate.ask(A))


def test_what_one_token_takes_and_waits_for_leaves_another_its_own(gate: Gate) -> None:
    greedy = [gate.ask(A) for _ in range(100)]
    assert sum(map(is_in, greedy)) == OWN
    small = gate.ask(B)
    assert is_in(small)
    small.leave()
    assert is_in(gate.ask(B))


def test_an_address_has_its_turn_among_many_requests_of_another() -> None:
    gate = Gate(lambda _: 1)
    first = gate.ask(("a", "busy"))
    busy = [gate.ask(("a", "busy")) for _ in range(20)]
    other = gate.ask(("a", "other"))
    first.leave()
    busy[0].leave()
    assert is_in(other)
    assert not is_in(busy[1])


def test_a_large_request_is_not_passed_for_ever_by_small_ones(gate: Gate) -> None:
    small = [gate.ask(A) for _ in range(5)]
    large = gate.ask(A_ELSEWHERE, LARGEST)
    assert not is_in(large)
    for n, turn in enumerate(small):
        small.append(gate.ask(A))
        turn.leave()
        if is_in(large):
            break
        assert n < 10
    assert is_in(large)


def test_a_request_over_the_bound_leaves_room_for_one_small_one(gate: Gate) -> None:
    turn = gate.ask(A, 1000)
    assert is_in(turn)
    assert is_in(gate.ask(A))
    assert not is_in(gate.ask(A))
    assert is_in(gate.ask(B))
    turn.leave()
    assert gate.waiting == 0


def test_large_requests_of_a_token_are_in_work_one_at_a_time(gate: Gate) -> None:
    first, second = gate.ask(A, LARGEST), gate.ask(A_ELSEWHERE, LARGEST)
    assert (is_in(first), is_in(second)) == (True, False)
    first.leave()
    assert is_in(second)


def test_too_many_that_wait_shorten_the_longest_line() -> None:
    gate = Gate(lambda _: 1, max_waiting=3)
    held = gate.ask(A)
    longest = [gate.ask(A) for _ in range(3)]
    other = gate.ask(("a", "other"))
    assert isinstance(longest[-1].granted.exception(0), Overloaded)
    assert gate.waiting == 3
    for turn in (held, longest[0], longest[1]):
        turn.leave()
    assert is_in(other)


@pytest.mark.parametrize("is_given", [False, True])
def test_who_goes_away_while_it_waits_takes_nothing(gate: Gate, *, is_given: bool) -> None:
    async def scenario() -> None:
        first = gate.ask(A, 1000)
        waiting = asyncio.ensure_future(gate.wait(A, 1000))
        await asyncio.sleep(0)
        if is_given:  # at the same moment
            first.leave()
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        first.leave()

    asyncio.run(scenario())
    assert gate.waiting == 0
    assert is_in(gate.ask(A, 1000))


def test_an_error_in_a_thread_ends_the_turn(gate: Gate) -> None:
    def fail() -> None:
        raise MalformedRequest("no")

    async def scenario() -> None:
        with ThreadPoolExecutor(1) as threads:
            with pytest.raises(MalformedRequest):
                await gate.run(A, 1000, threads, fail)
            assert await gate.run(A, 1000, threads, lambda: "done") == "done"

    asyncio.run(scenario())
