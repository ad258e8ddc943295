"""Who gets a writer when there are more live runs than writers."""

import threading
import time

from otel_rl.bridge.track.slots import Slots

DEADLINE_S = 90.0


def never() -> bool:
    return False


def nothing() -> None:
    pass


def test_a_free_slot_is_taken_at_once() -> None:
    with Slots[str](1).hold("a", nothing, never) as held:
        assert held


def test_a_slot_is_free_again_after_an_error() -> None:
    slots = Slots[str](1)
    try:
        with slots.hold("a", nothing, never):
            raise RuntimeError
    except RuntimeError:
        pass
    with slots.hold("b", nothing, never) as held:
        assert held


def test_whoever_is_cancelled_while_waiting_gets_none() -> None:
    slots = Slots[str](1)
    with slots.hold("a", nothing, never), slots.hold("b", nothing, lambda: True) as held:
        assert not held


def test_the_one_used_longest_ago_is_asked_first_to_make_room() -> None:
    slots = Slots[str](2)
    asked: list[str] = []
    leave = threading.Event()
    inside = threading.Barrier(3, timeout=DEADLINE_S)

    def make_room(name: str) -> None:
        asked.append(name)
        leave.set()

    def live(name: str) -> None:
        with slots.hold(name, lambda: make_room(name), never):
            inside.wait()
            assert leave.wait(DEADLINE_S)

    threads = [threading.Thread(target=live, args=(name,)) for name in ("old", "busy")]
    for thread in threads:
        thread.start()
    inside.wait()
    slots.used("old")
    slots.used("busy")
    with slots.hold("new", nothing, never) as held:
        assert held
    for thread in threads:
        thread.join(DEADLINE_S)
    assert asked[0] == "old"


def test_one_that_does_not_make_room_does_not_keep_others_from_being_asked() -> None:
    slots = Slots[str](2)
    gone = threading.Event()
    deadline = time.monotonic() + DEADLINE_S

    def leave() -> None:
        with slots.hold("idle", gone.set, never):
            assert gone.wait(DEADLINE_S)

    with slots.hold("busy", nothing, never):
        idle = threading.Thread(target=leave)
        idle.start()
        with slots.hold("new", nothing, lambda: time.monotonic() > deadline) as held:
            assert held
        gone.set()
        idle.join(DEADLINE_S)
