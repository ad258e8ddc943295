"""The laws of a timeline, against a model that says for every nanosecond whose it is."""

from collections import Counter
from dataclasses import dataclass, field

from hypothesis import given, settings
from hypothesis import strategies as st

from otel_rl.worker.phases import UNACCOUNTED, WHOLES
from otel_rl.worker.phases.timeline import MAX_DEPTH, MAX_PHASES, StepFrame, Timeline
from tests.support.slow import examples

PHASES = ["train", "collector_wait", "weight_sync", "weight_push", "mine"]


class Clock:
    """Nanoseconds in the hands of the test."""

    def __init__(self) -> None:
        self.now_ns = 1_000

    def __call__(self) -> int:
        return self.now_ns


@dataclass
class Opened:
    """The model's frame. ``step`` is the one that it was opened in, while that is open."""

    opener: object
    name: str
    step: "Opened | None" = None
    charged: Counter[str] = field(default_factory=Counter)
    begun_ns: int = 0
    is_step: bool = False


@dataclass
class Model:
    """Knows only that time goes to whatever is innermost."""

    stack: list[Opened] = field(default_factory=list)

    def pass_time(self, duration_ns: int) -> None:
        if not self.stack:
            return
        top = self.stack[-1]
        step = top if top.is_step else top.step
        if step is not None:
            step.charged[top.name] += duration_ns
            if top.name in WHOLES:
                step.charged[WHOLES[top.name]] += duration_ns

    def step(self) -> Opened | None:
        return next((frame for frame in self.stack if frame.is_step), None)

    def close(self, place: int) -> Opened:
        closed = self.stack.pop(place)
        for frame in self.stack:
            if frame.step is closed:
                frame.step = None
        return closed


# What to do, after how long, and to which of what is open.
EVENTS = st.lists(
    st.tuples(
        st.sampled_from(["step", "close", "close", *PHASES]),
        st.integers(0, 50),
        st.integers(0, 5),
    ),
    max_size=60,
)


@settings(max_examples=examples(300))
@given(EVENTS)
def test_phases_and_unaccounted_tile_a_step_exactly_whatever_is_closed_in_whatever_order(
    events: list[tuple[str, int, int]],
) -> None:
    clock, model = Clock(), Model()
    timeline = Timeline({}, clock)
    for kind, duration_ns, place in events:
        model.pass_time(duration_ns)
        clock.now_ns += duration_ns
        if kind == "step":
            opener = object()
            timeline.open_step(opener, 1)
            around = model.step()
            # Within a step its time goes to what is around it.
            name = UNACCOUNTED if around is None else model.stack[-1].name
            model.stack.append(
                Opened(opener, name, around, begun_ns=clock.now_ns, is_step=around is None)
            )
        elif kind != "close":
            opener = object()
            timeline.open_phase(opener, kind)
            model.stack.append(Opened(opener, kind, model.step()))
        elif model.stack:
            # Mostly the innermost one, as with statements do; any other, as generators may.
            expected = model.close(max(0, len(model.stack) - 1 - place))
            frame = timeline.close(expected.opener)
            assert frame is not None
            if isinstance(frame, StepFrame):
                durations_ns = frame.durations_ns
                assert Counter(durations_ns) == expected.charged
                whole_ns = sum(n for name, n in durations_ns.items() if name not in WHOLES)
                assert whole_ns == frame.ended_ns - frame.begun_ns
                assert frame.ended_ns - frame.begun_ns == clock.now_ns - expected.begun_ns


@given(st.lists(st.integers(-100, 100), min_size=1, max_size=30))
def test_a_clock_that_jumps_back_neither_makes_time_nor_breaks_the_tiling(
    jumps_ns: list[int],
) -> None:
    clock = Clock()
    timeline = Timeline({}, clock)
    step = object()
    timeline.open_step(step, 1)
    for jump_ns in jumps_ns:
        phase = object()
        timeline.open_phase(phase, "train")
        clock.now_ns += jump_ns
        timeline.close(phase)
    frame = timeline.close(step)
    assert isinstance(frame, StepFrame)
    assert all(duration_ns >= 0 for duration_ns in frame.durations_ns.values())
    assert sum(frame.durations_ns.values()) == frame.ended_ns - frame.begun_ns


def test_a_phase_outside_of_a_step_has_its_own_time_only() -> None:
    clock = Clock()
    timeline = Timeline({}, clock)
    timeline.open_phase("outer", "generate")
    clock.now_ns += 3
    timeline.open_phase("inner", "reward")
    clock.now_ns += 5
    inner = timeline.close("inner")
    clock.now_ns += 7
    outer = timeline.close("outer")
    assert inner is not None
    assert outer is not None
    assert (inner.charged_ns, outer.charged_ns) == (5, 10)


def test_the_time_of_a_part_goes_to_its_whole_if_that_is_open() -> None:
    clock = Clock()
    timeline = Timeline({}, clock)
    assert not timeline.credit("weight_sync", 30)
    timeline.open_phase("whole", "weight_sync")
    clock.now_ns += 2
    assert timeline.credit("weight_sync", 30)
    whole = timeline.close("whole")
    assert whole is not None
    assert whole.charged_ns == 32


def test_one_that_never_closes_is_stopped_at_a_depth_that_nobody_needs() -> None:
    timeline = Timeline({}, Clock())
    opened = [timeline.open_phase(object(), "train") for _ in range(MAX_DEPTH + 1)]
    assert opened[-1] is None
    assert timeline.clear() == MAX_DEPTH


def test_names_with_an_id_are_stopped_and_their_time_stays_where_it_was() -> None:
    clock = Clock()
    timeline = Timeline({}, clock)
    timeline.open_step("step", 1)
    opened = None
    for n in range(MAX_PHASES + 1):
        opened = timeline.open_phase(n, f"rollout-{n}")
        clock.now_ns += 1
        timeline.close(n)
    frame = timeline.close("step")
    assert opened is not None
    assert opened.name == UNACCOUNTED
    assert isinstance(frame, StepFrame)
    assert frame.durations_ns[UNACCOUNTED] == 1


def test_others_see_the_innermost_phase_its_age_and_the_step() -> None:
    clock = Clock()
    timeline = Timeline({}, clock)
    timeline.open_step("step", 7)
    clock.now_ns += 10
    timeline.open_phase("phase", "train")
    view = timeline.look(clock.now_ns + 5)
    assert view is not None
    assert (view.phase, view.phase_age_ns) == ("train", 5)
    assert (view.step, view.step_age_ns) == (7, 15)


def test_between_phases_others_see_since_when_there_is_none() -> None:
    clock = Clock()
    timeline = Timeline({}, clock)
    timeline.open_step("step", 7)
    timeline.open_phase("phase", "train")
    clock.now_ns += 10
    timeline.close("phase")
    view = timeline.look(clock.now_ns + 3)
    assert view is not None
    assert (view.phase, view.phase_age_ns) == (UNACCOUNTED, 3)


def test_what_another_flow_has_closed_is_let_go_at_the_next_event() -> None:
    clock = Clock()
    timeline = Timeline({}, clock)
    timeline.open_step("step", 1)
    timeline.open_phase("phase", "train")
    clock.now_ns += 4
    assert timeline.abandon("phase") is not None
    timeline.open_phase("next", "reward")
    clock.now_ns += 6
    timeline.close("next")
    frame = timeline.close("step")
    assert isinstance(frame, StepFrame)
    assert frame.durations_ns == {"train": 4, "reward": 6, UNACCOUNTED: 0}
