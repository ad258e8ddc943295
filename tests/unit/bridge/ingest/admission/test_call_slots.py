"""Who gets a place, who keeps it, and who is told to come again."""

import asyncio
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from otel_rl.bridge.ingest.admission.call_slots import Place, Places, SenderPath
from otel_rl.errors import Overloaded

MOMENT_S = 0.5
PATIENCE_S = 2.5


class Timer:
    def __init__(self, at_s: float, callback: Callable[[], None]) -> None:
        self.at_s = at_s
        self.callback = callback
        self.is_cancelled = False

    def cancel(self) -> None:
        self.is_cancelled = True


class Loop:
    """A clock that stands until it is told to go on."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self.timers: list[Timer] = []
        self.real = asyncio.new_event_loop()

    def time(self) -> float:
        return self.now_s

    def create_future(self) -> "asyncio.Future[Any]":
        return self.real.create_future()

    def call_later(self, delay: float, callback: Callable[[], None], /) -> Timer:
        self.timers.append(Timer(self.now_s + delay, callback))
        return self.timers[-1]

    def pass_s(self, seconds: float) -> None:
        end_s = self.now_s + seconds
        while due := [t for t in self.timers if t.at_s <= end_s and not t.is_cancelled]:
            timer = min(due, key=lambda t: t.at_s)
            self.timers.remove(timer)
            self.now_s = max(self.now_s, timer.at_s)
            timer.callback()
        self.now_s = end_s


@pytest.fixture
def loop() -> Iterator[Loop]:
    loop = Loop()
    yield loop
    loop.real.close()


def places_of(loop: Loop, n: int, max_waiting: int = 1000) -> Places:
    return Places(loop, n, max_waiting=max_waiting, wait_s=10, patience_s=PATIENCE_S)


def call(connection: str = "c", address: str = "1.1.1.1", token: str = "") -> SenderPath:
    return token, address, connection


def deliver(places: Places, path: SenderPath) -> None:
    place = places.ask(path).result()
    places.arrived(place)
    places.release(place)


def test_places_are_given_at_once_and_given_back(loop: Loop) -> None:
    places = places_of(loop, 2)
    first, second = (places.ask(call()).result() for _ in range(2))
    third = places.ask(call())
    assert not third.done()
    places.release(first)
    places.release(first)
    assert third.done()
    assert places.taken == 2
    places.release(second)
    assert places.taken == 1


def test_a_call_without_a_message_keeps_its_place_while_nobody_wants_it(loop: Loop) -> None:
    places = places_of(loop, 1)
    place = places.ask(call()).result()
    loop.pass_s(1000)
    assert not place.lost.done()
    other = places.ask(call("other"))
    loop.pass_s(0)
    assert other.done()
    assert place.lost.done()


def test_a_message_that_a_busy_loop_hears_of_late_is_not_given_up(loop: Loop) -> None:
    places = places_of(loop, 1)
    place = places.ask(call()).result()
    other = places.ask(call("other"))
    loop.now_s = 1000.0
    (timer,) = loop.timers
    timer.callback()
    places.arrived(place)
    loop.pass_s(0)
    assert not place.lost.done()
    assert not other.done()


def test_a_call_without_a_message_is_waited_for_a_moment_while_others_wait(loop: Loop) -> None:
    places = places_of(loop, 1)
    place = places.ask(call()).result()
    other = places.ask(call("other"))
    loop.pass_s(MOMENT_S - 0.01)
    assert not place.lost.done()
    loop.pass_s(0.02)
    assert place.lost.done()
    assert other.done()


def test_a_connection_that_has_delivered_is_waited_for_longer(loop: Loop) -> None:
    places = places_of(loop, 1)
    deliver(places, call())
    place = places.ask(call()).result()
    other = places.ask(call("other"))
    loop.pass_s(PATIENCE_S - 0.01)
    assert not other.done()
    loop.pass_s(0.02)
    assert place.lost.done()
    again = places.ask(call())
    assert not again.done()
    places.arrived(other.result())
    loop.pass_s(100)
    assert not again.done()  # what is being stored is not taken away


def test_a_place_that_was_lost_costs_its_connection_the_trust(loop: Loop) -> None:
    places = places_of(loop, 1)
    deliver(places, call())
    lost = places.ask(call()).result()
    waiting = places.ask(call("other"))
    loop.pass_s(PATIENCE_S)
    assert lost.lost.done()
    places.release(waiting.result())
    again = places.ask(call()).result()
    places.ask(call("other"))
    loop.pass_s(MOMENT_S)
    assert again.lost.done()


def test_who_has_delivered_goes_before_a_flood_that_never_did(loop: Loop) -> None:
    places = places_of(loop, 4)
    deliver(places, call("victim"))
    flood = [places.ask(call(f"attacker {i}")) for i in range(900)]
    victim = places.ask(call("victim"))
    loop.pass_s(MOMENT_S)
    assert victim.done()
    assert sum(asked.done() for asked in flood) == 4 + 3


@pytest.mark.parametrize(
    "victim",
    [call("victim"), call("victim", "2.2.2.2"), call("victim", token="mine")],
    ids=["connection", "address", "token"],
)
def test_a_new_sender_has_its_turn_among_many_calls_of_another(
    loop: Loop, victim: SenderPath
) -> None:
    places = places_of(loop, 4)
    for _ in range(900):
        places.ask(call("attacker"))
    asked = places.ask(victim)
    loop.pass_s(MOMENT_S)
    assert asked.done()


def test_the_sender_with_most_places_loses_one_first(loop: Loop) -> None:
    places = places_of(loop, 4)
    fewer = places.ask(call("a")).result()
    more = [places.ask(call("b", "2.2.2.2")).result() for _ in range(3)]
    loop.pass_s(MOMENT_S)
    places.ask(call("c", "3.3.3.3"))
    loop.pass_s(0)
    assert [place.lost.done() for place in (fewer, *more)] == [False, True, False, False]


def test_too_many_that_wait_shorten_the_longest_line(loop: Loop) -> None:
    places = places_of(loop, 1, max_waiting=3)
    places.ask(call("a"))
    long = [places.ask(call("a")) for _ in range(3)]
    other = places.ask(call("b"))
    assert places.waiting == 3
    assert isinstance(long[-1].exception(), Overloaded)
    assert not other.done()


def test_who_waits_in_vain_is_told_and_leaves_nothing_behind() -> None:
    async def wait() -> None:
        loop = asyncio.get_running_loop()
        places = Places(loop, 1, max_waiting=9, wait_s=0.01, patience_s=1)
        stored = await places.take(call())
        places.arrived(stored)
        with pytest.raises(Overloaded):
            await places.take(call())
        assert places.waiting == 0
        places.release(stored)
        assert places.taken == 0

    asyncio.run(wait())


@pytest.mark.parametrize("is_given", [True, False])
def test_who_goes_away_while_it_waits_leaves_no_place_taken(*, is_given: bool) -> None:
    async def go_away() -> None:
        loop = asyncio.get_running_loop()
        places = Places(loop, 1, max_waiting=9, wait_s=10, patience_s=1)
        held: Place = await places.take(call())
        places.arrived(held)
        waiting = loop.create_task(places.take(call()))
        await asyncio.sleep(0)
        assert places.waiting == 1
        if is_given:
            places.release(held)
            assert places.taken == 1
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        assert places.waiting == 0
        places.release(held)
        assert places.taken == 0

    asyncio.run(go_away())
