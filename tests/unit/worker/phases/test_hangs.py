"""Phases that take too long tell where their flow stands."""

import asyncio
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import pairwise
from time import monotonic_ns

import pytest

import otel_rl
from otel_rl.errors import ConfigError
from otel_rl.worker.phases.flows import views
from otel_rl.worker.phases.hangs import HangWatch, Stack
from otel_rl.worker.settings import read_settings
from tests.support.otlp_sink import Sink
from tests.support.waiting import wait_until

S = 1_000_000_000


def look(watch: HangWatch, age_s: float) -> list[Stack]:
    """Look as if every phase were so old."""
    return watch.look(begun_ns() + int(age_s * S), 0)


def begun_ns() -> int:
    """When the phase began, to a hundredth of a second."""
    while True:
        before_ns = monotonic_ns()
        (view,) = views()
        if monotonic_ns() - before_ns < S / 100:  # else the machine has paused in between
            return before_ns - view.phase_age_ns


@contextmanager
def blocked(wait: Callable[[], object], phase: str = "train", step: int = 7) -> Iterator[None]:
    """A thread that is in a step and a phase, and waits there."""

    def stand_here() -> None:
        with otel_rl.step(step), otel_rl.phase(phase):
            wait()

    thread = threading.Thread(target=stand_here, daemon=True)
    thread.start()
    try:
        wait_until(lambda: [view.phase for view in views()] == [phase], timeout_s=60)
        yield
    finally:
        RELEASE.set()
        thread.join()
        RELEASE.clear()


RELEASE = threading.Event()


def test_the_stack_begins_where_the_thread_stands(started: Sink) -> None:
    with blocked(lambda: RELEASE.wait()):
        (stack,) = look(HangWatch(10), 11)
    assert (stack.phase, stack.step, stack.collective) == ("train", 7, "")
    assert stack.age_s == pytest.approx(11, abs=0.5)
    functions = [call.rpartition(" in ")[2] for call in stack.calls]
    assert functions[0].endswith("wait")
    place = next(n for n, name in enumerate(functions) if name.endswith("stand_here"))
    assert "test_hangs.py:" in stack.calls[place]


def test_a_younger_phase_tells_nothing_and_none_does_if_it_is_off(started: Sink) -> None:
    with blocked(lambda: RELEASE.wait()):
        assert look(HangWatch(10), 9.9) == []
        assert look(HangWatch(0), 9_999) == []


def test_a_phase_that_was_long_before_may_be_long_again(started: Sink) -> None:
    watch = HangWatch(10)
    with blocked(lambda: RELEASE.wait(), "checkpoint"):
        look(watch, 40)
    assert watch.look(monotonic_ns(), 0) == []
    with blocked(lambda: RELEASE.wait(), "checkpoint"):
        assert look(watch, 119) == []
        assert len(look(watch, 121)) == 1
    with blocked(lambda: RELEASE.wait()):
        assert len(look(watch, 11)) == 1


@pytest.mark.parametrize(
    ("steps", "last", "after_s"),
    [
        pytest.param([0], 4, 150, id="of the start itself"),
        pytest.param([0], 20, 10, id="though no look has met a later one"),
        pytest.param([0, 5], 6, 12, id="a later one tells more"),
        pytest.param([100, 105], 106, 12, id="of a resumed run"),
    ],
)
def test_a_slow_start_is_no_measure_of_what_comes_after_a_few_steps(
    started: Sink, steps: list[int], last: int, after_s: float
) -> None:
    watch = HangWatch(10)
    for place, step in enumerate(steps):
        with blocked(lambda: RELEASE.wait(), step=step):
            look(watch, 4.0 if place else 50.0)
        assert watch.look(monotonic_ns(), 0) == []
    with blocked(lambda: RELEASE.wait(), step=last):
        assert look(watch, after_s - 1) == []
        assert len(look(watch, after_s + 1)) == 1


def test_it_is_told_again_at_twice_the_age_and_every_five_minutes(started: Sink) -> None:
    watch = HangWatch(10)
    with blocked(lambda: RELEASE.wait()):
        told = [age_s for age_s in range(1, 1_500) if look(watch, age_s + 0.5)]
    assert told[:6] == [10, 21, 43, 87, 175, 351]
    assert all(later - earlier <= 301 for earlier, later in pairwise(told))


def test_a_task_tells_the_line_at_which_it_waits(started: Sink) -> None:
    async def waits() -> None:
        with otel_rl.phase("rollout"):
            await asyncio.Event().wait()

    async def main() -> Stack:
        task = asyncio.create_task(waits())
        await asyncio.sleep(0)
        (stack,) = look(HangWatch(10), 11)
        task.cancel()
        return stack

    stack = asyncio.run(main())
    assert any(call.endswith("waits") for call in stack.calls)


def test_a_deep_stack_is_cut_at_its_outer_end(started: Sink) -> None:
    def deep(levels: int) -> None:
        if levels:
            deep(levels - 1)
        else:
            RELEASE.wait()

    with blocked(lambda: deep(100)):
        (stack,) = look(HangWatch(10), 11)
    assert len(stack.calls) == 41
    assert stack.calls[-1] == "..."


def test_the_fields_have_no_secret() -> None:
    stack = Stack("train", 7, 12.5, ["a.py:1 in f", "b.py:2 in g"], "")
    fields = stack.fields("node-7", lambda text: text.replace("b.py", "***"))
    assert fields["stack"] == "a.py:1 in f\n***:2 in g"
    assert (fields["host"], fields["phase"], fields["age_s"]) == ("node-7", "train", 12.5)


@pytest.mark.parametrize(
    ("text", "after_s"), [("", 8), ("off", 0), ("OFF", 0), ("1", 1), ("2.5", 2.5)]
)
def test_the_age_is_a_setting(text: str, after_s: float) -> None:
    assert read_settings({"OTEL_RL_STACK_AFTER": text}).stack_after_s == after_s


@pytest.mark.parametrize("text", ["0", "0.9", "-1", "nan", "soon", "1e9"])
def test_a_wrong_age_is_an_error_at_the_start(text: str) -> None:
    with pytest.raises(ConfigError, match="OTEL_RL_STACK_AFTER: must be seconds from 1 on, or off"):
        read_settings({"OTEL_RL_STACK_AFTER": text})
