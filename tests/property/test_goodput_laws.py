"""Whatever happens to a run, each second of its allocation is in exactly one part.

Workers of several roles report phases of any length, also side by side, die, are replaced, leave,
go back to earlier steps, drop samples and abort requests. The bridge is restarted now and then.
"""

import math
from typing import Any

from hypothesis import example, given, settings
from hypothesis import strategies as st

from otel_rl.bridge.journal.state import decode, encode
from otel_rl.bridge.rows.goodput import Goodput, Place, WorkOverTime
from otel_rl.bridge.rows.series.streams import Group, Stream, WorkerState
from otel_rl.bridge.rows.steps.step_axis import ValueTimeline
from otel_rl.goodput import Spent
from otel_rl.records import Attempt
from otel_rl.semconv.spec import Reduction
from tests.support.slow import examples

S = 1_000_000_000
T0 = 1_700_000_000 * S

PHASES = ("train", "generate", "reward", "weight_sync", "weight_pull", "idle", "unaccounted", "own")
COUNTERS = (
    "rl.sample.samples",
    "rl.sample.dropped",
    "rl.replay_buffer.writes",
    "rl.replay_buffer.evictions",
    "rl.generator.requests",
)
ROLES = ("trainer", "generator", "reward")

groups: dict[tuple[str, str, tuple[tuple[str, str], ...]], Group] = {}


def group(role: str, name: str, *attributes: tuple[str, str]) -> Group:
    identity = role, name, attributes
    if identity not in groups:
        groups[identity] = Group(len(groups), name, role, name, attributes, Reduction.MEAN)
    return groups[identity]


seconds = st.one_of(
    st.floats(0, 100), st.sampled_from([0.0, math.nan, math.inf, -1.0, 3e9]), st.integers(0, 50)
)
roles = st.sampled_from(ROLES)
labels = st.integers(0, 3).map(str)
events = st.lists(
    st.one_of(
        st.tuples(st.just("phase"), roles, labels, st.sampled_from(PHASES), seconds),
        st.tuples(st.just("iteration"), roles, labels, seconds),
        st.tuples(st.just("export"), roles, labels, st.booleans(), st.booleans()),
        st.tuples(st.just("left"), roles, labels),
        st.tuples(st.just("count"), st.sampled_from(COUNTERS), st.floats(0, 1e9), st.booleans()),
        st.tuples(st.just("back"), st.integers(0, 50)),
        st.tuples(st.just("step"), st.integers(0, 50)),
        st.tuples(st.just("restart")),
        st.tuples(st.just("pause"), st.integers(0, 10_000)),
    ),
    max_size=60,
)


class World:
    """A run to which things happen, a second apart."""

    def __init__(self) -> None:
        self.goodput, self.steps = Goodput(), ValueTimeline()
        self.attempts: list[Attempt] = []
        self.workers: dict[tuple[str, str], WorkerState] = {}
        self.now_ns = T0

    def happens(self, what: str, *of: Any) -> None:
        self.now_ns += S
        getattr(self, what)(*of)

    def worker(self, role: str, label: str) -> WorkerState:
        return self.workers.setdefault((role, label), WorkerState(role, label))

    def phase(self, role: str, label: str, phase: str, took_s: float) -> None:
        of_phase = group(role, "rl.phase.duration", ("rl.phase", phase))
        stream = Stream(4 * of_phase.number + int(label), self.worker(role, label), of_phase)
        self.goodput.measured(stream, [took_s], [self.now_ns])

    def iteration(self, role: str, label: str, took_s: float) -> None:
        of_step = group(role, "rl.iteration.duration")
        stream = Stream(4 * of_step.number + int(label), self.worker(role, label), of_step)
        self.goodput.measured(stream, [took_s], [self.now_ns])

    def export(self, role: str, label: str, is_held: bool, is_new: bool) -> None:
        if is_new:
            self.workers.pop((role, label), None)
        worker = self.worker(role, label)
        self.goodput.exported(worker, self.now_ns, is_held=is_held)
        worker.first_ns = worker.first_ns or self.now_ns

    def left(self, role: str, label: str) -> None:
        self.goodput.left(WorkerState(role, label))

    def count(self, name: str, growth: float, failed: bool) -> None:
        of = (("rl.outcome", "error"),) if failed else ()
        self.goodput.counted(group("x", name, *of), growth)

    def back(self, step: int) -> None:
        self.attempts.append(Attempt(len(self.attempts) + 2, step, -1, self.now_ns))
        self.goodput.follow(self.attempts, self.steps)

    def step(self, step: int) -> None:
        self.steps.observe([(self.now_ns, step)])

    def restart(self) -> None:
        self.goodput = again(self.goodput)

    def pause(self, pause_s: int) -> None:
        self.now_ns += pause_s * S


ROUNDED: list[tuple[Any, ...]] = [
    ("phase", "trainer", "0", "train", 89.75),
    ("left", "trainer", "0"),
    ("phase", "trainer", "0", "train", 90.0),
]
"""The time of phases side by side, cut to the wall time, is a little more than it by rounding."""


@settings(max_examples=examples(200), deadline=None)
@given(events)
@example(ROUNDED)
def test_the_parts_add_up_to_the_wall_time_of_the_allocation(
    events: list[tuple[Any, ...]],
) -> None:
    world = World()
    for event in events:
        world.happens(*event)
    spent, walls = world.goodput.spent(), walls_ns(world.goodput)
    for role, of in spent.items():
        assert all(0 <= part < math.inf for part in of), (role, of)
        if role:
            assert math.isclose(of.wall_s, walls[role] / S, rel_tol=1e-9, abs_tol=1e-6)
    if spent:
        of_roles = [of for role, of in spent.items() if role]
        assert spent[""] == Spent(*(math.fsum(part) for part in zip(*of_roles, strict=True)))
    assert again(world.goodput).spent() == spent


def walls_ns(kept: Goodput) -> dict[str, int]:
    """How long the places of each role were held, by the times that are kept."""
    found = {}
    for role, of in kept._roles.items():
        places = [*of.places.of.values()]
        lasts = [max(one.begun_ns, one.exported_ns, one.phase_ns) for one in places]
        found[role] = sum(
            (max(lasts) if one.is_held else last) - one.begun_ns
            for one, last in zip(places, lasts, strict=True)
        )
    return found


def again(goodput: Goodput) -> Goodput:
    """The account after a restart of the bridge."""
    return decode(encode(goodput), Goodput)


@settings(max_examples=examples(100), deadline=None)
@given(
    st.lists(st.tuples(st.integers(0, 10**15), st.floats(0, 1e6)), max_size=1500),
    st.integers(0, 10**15),
    st.integers(0, 10**15),
)
def test_work_that_is_taken_is_not_there_any_more(
    work: list[tuple[int, float]], from_ns: int, length_ns: int
) -> None:
    over_time = WorkOverTime()
    for time_ns, took_s in work:
        over_time.add(time_ns, took_s)
    whole_s = sum(took_s for _, took_s in work)
    assert math.isclose(sum(over_time.parts.values()), whole_s, rel_tol=1e-9)
    until_ns = from_ns + length_ns
    taken_s = over_time.take(from_ns, until_ns)
    assert math.isclose(taken_s + sum(over_time.parts.values()), whole_s, rel_tol=1e-9)
    part_ns = 1 << over_time.shift
    surely_s = sum(s for t, s in work if from_ns <= t < until_ns - part_ns)
    perhaps_s = sum(s for t, s in work if from_ns - part_ns <= t <= until_ns + part_ns)
    assert surely_s * (1 - 1e-9) - 1e-9 <= taken_s <= perhaps_s * (1 + 1e-9) + 1e-9
    assert len(over_time.parts) <= 1024


def test_a_place_without_phases_is_idle_all_the_time() -> None:
    place = Place(T0)
    place.exported(T0, is_first=True, is_held=True)
    place.exported(T0 + 5 * S, is_first=False, is_held=True)
    assert place.spent(T0 + 9 * S) == (9.0, 0.0, 0.0)
