"""Single frames of a timeline: which is closed, and what others see and do."""

import threading

import pytest

import otel_rl
from otel_rl.worker import session
from otel_rl.worker.drops import DropReason
from otel_rl.worker.phases import timeline
from otel_rl.worker.phases.timeline import Frame, StepFrame, Timeline
from tests.support.otlp_sink import Sink

WALL_NS = 1_700_000_000_000_000_000


class Clock:
    """Nanoseconds in the hands of the test."""

    def __init__(self) -> None:
        self.now_ns = 1_000

    def __call__(self) -> int:
        return self.now_ns


class Bench:
    """A timeline, and what is open in the process."""

    def __init__(self) -> None:
        self.clock = Clock()
        self.opened: dict[int, Timeline] = {}
        self.timeline = Timeline(self.opened, self.clock)

    def phase(self, opener: object, name: str = "train") -> Frame:
        self.clock.now_ns += 10
        frame = self.timeline.open_phase(opener, name)
        assert frame is not None
        return frame


def test_of_a_phase_within_itself_the_inner_one_is_closed() -> None:
    bench = Bench()
    opener = object()
    outer, inner, _ = bench.phase(opener), bench.phase(opener), bench.phase(object())
    assert bench.timeline.close(opener) is inner
    assert bench.timeline.close(opener) is outer


def test_a_timeline_is_looked_at_only_while_something_is_open() -> None:
    bench = Bench()
    openers = object(), object()
    for opener in openers:
        bench.phase(opener)
    assert list(bench.opened.values()) == [bench.timeline]
    for opener in openers:
        bench.timeline.close(opener)
    assert bench.opened == {}


def test_a_thread_that_loses_the_processor_as_a_block_begins_dates_no_end_into_the_future(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    bench = Bench()

    def delayed() -> int:
        bench.clock.now_ns += 5_000_000
        return WALL_NS + bench.clock.now_ns

    monkeypatch.setattr(timeline, "time_ns", delayed)
    bench.phase(object())
    assert bench.timeline.wall_ns == WALL_NS


def test_the_time_of_a_part_goes_to_its_whole_alone() -> None:
    bench = Bench()
    whole, other = bench.phase(object(), "weight_sync"), bench.phase(object(), "train")
    assert bench.timeline.credit("weight_sync", 7)
    assert not bench.timeline.credit("generate", 7)
    assert (whole.charged_ns, other.charged_ns) == (7 + 10, 0)


def test_what_another_flow_closes_has_its_time_until_then_and_is_closed_once() -> None:
    bench = Bench()
    opener = object()
    frame = bench.phase(opener)
    bench.clock.now_ns += 25
    assert bench.timeline.abandon(opener) is frame
    assert (frame.charged_ns, frame.ended_ns) == (25, bench.clock.now_ns)
    assert bench.timeline.abandon(opener) is None


def test_a_part_is_reported_with_its_whole() -> None:
    bench = Bench()
    assert bench.timeline.report(["weight_push"])
    assert [name for name, _ in bench.timeline.reported] == ["weight_sync", "weight_push"]


def test_a_step_with_open_phases_has_their_time_when_it_ends() -> None:
    bench = Bench()
    step_opener, opener = object(), object()
    step = bench.timeline.open_step(step_opener, 3)
    assert isinstance(step, StepFrame)
    phase = bench.phase(opener)
    bench.clock.now_ns += 30
    bench.timeline.close(step_opener)
    assert step.durations_ns == {"unaccounted": 10, "train": 30}
    bench.clock.now_ns += 5
    assert bench.timeline.close(opener) is phase
    assert (phase.step, phase.charged_ns) == (None, 5)
    assert step.durations_ns["train"] == 30


def test_a_step_that_another_thread_closes_is_dropped_and_not_reported_in_part(
    started: Sink,
) -> None:
    before = session.GUARD.drops.counts().get(DropReason.UNCLOSED_PHASE, 0)
    step = otel_rl.step(5)
    step.__enter__()
    with otel_rl.phase("train"):
        pass
    thread = threading.Thread(target=step.__exit__, args=(None, None, None))
    thread.start()
    thread.join()
    assert otel_rl.flush(timeout_s=60)
    assert session.GUARD.drops.counts()[DropReason.UNCLOSED_PHASE] == before + 1
    assert started.measurements("rl.iteration.duration") == []
    assert [m for m in started.measurements("rl.phase.duration") if m.step == 5] == []


def test_a_step_within_a_step_is_measured_the_next_time(started: Sink) -> None:
    step = otel_rl.step(1)
    with otel_rl.step(1), step:
        pass
    with step:
        pass
    assert otel_rl.flush(timeout_s=60)
    assert len(started.measurements("rl.iteration.duration")) == 2
