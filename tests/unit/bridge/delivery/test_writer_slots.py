"""Who gets a writer when there are more live runs than writers."""

import threading
import time
from collections.abc import Iterator

import pytest

from otel_rl.bridge.delivery.writer_slots import WriterSlots
from tests.support.waiting import wait_until

DEADLINE_S = 90.0


def never() -> bool:
    return False


def nothing() -> None:
    pass


def test_a_free_slot_is_taken_at_once() -> None:
    with WriterSlots[str](1, starting=8).hold("a", nothing, never) as held:
        assert held


def test_a_slot_is_free_again_after_an_error() -> None:
    slots = WriterSlots[str](1, starting=8)
    try:
        with slots.hold("a", nothing, never):
            raise RuntimeError
    except RuntimeError:
        pass
    with slots.hold("b", nothing, never) as held:
        assert held


def test_whoever_is_cancelled_while_waiting_gets_none() -> None:
    slots = WriterSlots[str](1, starting=8)
    with slots.hold("a", nothing, never), slots.hold("b", nothing, lambda: True) as held:
        assert not held


def test_the_one_used_longest_ago_is_asked_first_to_make_room() -> None:
    slots = WriterSlots[str](2, starting=8)
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
    slots = WriterSlots[str](2, starting=8)
    inside, gone = threading.Event(), threading.Event()
    deadline = time.monotonic() + DEADLINE_S

    def leave() -> None:
        with slots.hold("idle", gone.set, never):
            inside.set()
            assert gone.wait(DEADLINE_S)

    with slots.hold("busy", nothing, never):
        idle = threading.Thread(target=leave)
        idle.start()
        assert inside.wait(DEADLINE_S)
        with slots.hold("new", nothing, lambda: time.monotonic() > deadline) as held:
            assert held
            assert gone.is_set(), "it was asked as well"
        idle.join(DEADLINE_S)


# Tenants, and writers that start


class Runs:
    """Runs that want slots, each in a thread, until they are told to go."""

    def __init__(self, slots: WriterSlots[str]) -> None:
        self.slots = slots
        self.asked: list[str] = []
        self.waited: set[str] = set()
        """Those that have been in the queue."""
        self.live: list[str] = []
        self._leave: dict[str, threading.Event] = {}
        self._threads: list[threading.Thread] = []

    def want(self, name: str) -> None:
        self._leave[name] = threading.Event()
        thread = threading.Thread(target=self._live, args=(name,))
        self._threads.append(thread)
        thread.start()

    def leave(self, name: str) -> None:
        self._leave[name].set()

    def end(self) -> None:
        for name in self._leave:
            self.leave(name)
        for thread in self._threads:
            thread.join(DEADLINE_S)

    def _live(self, name: str) -> None:
        leave = self._leave[name]

        def is_cancelled() -> bool:  # asked of those that wait
            self.waited.add(name)
            return leave.is_set()

        with self.slots.hold(name, lambda: self.asked.append(name), is_cancelled) as held:
            if held:
                self.live.append(name)
                assert leave.wait(2 * DEADLINE_S)  # longer than a test waits for another


@pytest.fixture
def tenants() -> Iterator[Runs]:
    runs = Runs(
        WriterSlots(
            8,
            tenants=("many", "few"),
            tenant=lambda name: name.partition("/")[0],
            starting=100,
        )
    )
    yield runs
    runs.end()


def live_of(runs: Runs, tenant: str) -> int:
    return sum(name.startswith(tenant) for name in runs.live)


def test_a_tenant_finds_slots_free_however_many_runs_another_has(tenants: Runs) -> None:
    for n in range(20):
        tenants.want(f"many/{n}")
    wait_until(lambda: len(tenants.live) == 6, timeout_s=DEADLINE_S)
    tenants.want("few/0")
    tenants.want("few/1")
    wait_until(lambda: live_of(tenants, "few") == 2, timeout_s=DEADLINE_S)
    assert live_of(tenants, "many") == 6


def test_the_slots_that_many_runs_of_a_tenant_want_are_its_own(tenants: Runs) -> None:
    tenants.want("few/0")
    wait_until(lambda: tenants.live == ["few/0"], timeout_s=DEADLINE_S)
    for n in range(40):
        tenants.want(f"many/{n}")
    wait_until(lambda: len(tenants.asked) == 6, timeout_s=DEADLINE_S)
    assert "few/0" not in tenants.asked


def test_the_tenant_with_the_fewest_slots_has_the_next_one(tenants: Runs) -> None:
    for n in range(20):
        tenants.want(f"many/{n}")
    for n in range(2):
        tenants.want(f"few/{n}")
    wait_until(lambda: len(tenants.live) == 8, timeout_s=DEADLINE_S)
    tenants.want("few/2")
    first = next(name for name in tenants.live if name.startswith("many"))
    wait_until(lambda: "few/2" in tenants.waited, timeout_s=DEADLINE_S)
    tenants.leave(first)
    wait_until(lambda: live_of(tenants, "few") == 3, timeout_s=DEADLINE_S)


def test_few_writers_start_at_a_time_and_one_that_hangs_keeps_nobody_waiting() -> None:
    now_s = 0.0
    runs = Runs(WriterSlots(8, starting=2, clock_s=lambda: now_s))
    try:
        for n in range(8):
            runs.want(f"{n}")
        wait_until(lambda: len(runs.live) == 2, timeout_s=DEADLINE_S)
        runs.slots.started(runs.live[0])
        wait_until(lambda: len(runs.live) == 3, timeout_s=DEADLINE_S)
        now_s = 3.0
        wait_until(lambda: len(runs.live) == 5, timeout_s=DEADLINE_S)
    finally:
        runs.end()
