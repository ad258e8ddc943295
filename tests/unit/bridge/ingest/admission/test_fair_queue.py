"""Senders take turns; the longest line is the one that is cut."""

from collections import deque

import pytest
from hypothesis import given
from hypothesis import strategies as st

from otel_rl.bridge.ingest.admission.fair_queue import FairQueue

PATHS = st.tuples(st.sampled_from("ab"), st.sampled_from("xyz"))


def of(*pushed: tuple[str, str, int]) -> FairQueue[int]:
    queue: FairQueue[int] = FairQueue()
    for first, second, item in pushed:
        queue.push((first, second), item)
    return queue


def test_one_sender_is_served_in_order() -> None:
    queue = of(("a", "x", 1), ("a", "x", 2), ("a", "x", 3))
    assert [queue.pop() for _ in range(3)] == [1, 2, 3]


def test_a_long_line_waits_for_a_short_one_that_came_later() -> None:
    queue = of(*(("a", "x", i) for i in range(1000)), ("b", "x", 1000))
    assert [queue.pop() for _ in range(3)] == [0, 1000, 1]


def test_many_connections_of_one_sender_take_as_many_turns_as_one_of_another() -> None:
    queue: FairQueue[int] = FairQueue()
    for i in range(1000):
        queue.push(("a", f"connection {i}"), i)
    for i in range(3):
        queue.push(("b", "only"), 1000 + i)
    assert [item for item in (queue.pop() for _ in range(6)) if item >= 1000] == [1000, 1001, 1002]


def test_the_end_of_the_longest_line_of_the_largest_sender_is_cut() -> None:
    queue = of(("b", "z", 1), ("b", "z", 2), ("a", "x", 3), ("a", "y", 4), ("a", "y", 5))
    assert [queue.pop_largest() for _ in range(2)] == [5, 2]


@pytest.mark.parametrize("pop", [FairQueue.pop, FairQueue.pop_largest])
def test_nothing_comes_out_of_an_empty_queue(pop: object) -> None:
    with pytest.raises(IndexError):
        pop(of())  # type: ignore[operator]


def test_an_item_that_is_not_there_cannot_be_removed() -> None:
    with pytest.raises(KeyError):
        of(("a", "x", 1)).remove(("a", "x"), 2)


@given(st.lists(st.tuples(PATHS, st.sampled_from(["push", "pop", "cut", "remove"]))))
def test_every_item_comes_out_once_and_each_sender_keeps_its_order(
    steps: list[tuple[tuple[str, str], str]],
) -> None:
    queue: FairQueue[int] = FairQueue()
    model: dict[tuple[str, str], deque[int]] = {}
    for number, (path, step) in enumerate(steps):
        line = model.setdefault(path, deque())
        if step == "push":
            queue.push(path, number)
            line.append(number)
        elif step == "remove" and line:
            queue.remove(path, line.popleft())
        elif step in {"pop", "cut"} and len(queue):
            item = queue.pop() if step == "pop" else queue.pop_largest()
            (owner,) = (line for line in model.values() if item in line)
            assert item == (owner.popleft() if step == "pop" else owner.pop())
        assert len(queue) == sum(map(len, model.values()))
