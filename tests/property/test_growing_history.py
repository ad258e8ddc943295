"""A history that grows by a snapshot at a time is, at any time, that of all snapshots at once.

So is what is derived from its series.
"""

import random
from collections import defaultdict
from collections.abc import Sequence
from operator import itemgetter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from exams.first.case import draw
from exams.first.intake import Intake
from exams.first.play import play
from exams.first.requests import arrivals
from otel_rl.diagnose.engine import diagnose
from otel_rl.diagnose.history.records import Facts, RowFacts, SpanFacts, StepFacts, WorkerFacts
from otel_rl.diagnose.history.run_history import GrowingHistory, RunHistory
from otel_rl.diagnose.stats.medians import ToMedian
from otel_rl.diagnose.stats.peers import peers_of
from otel_rl.diagnose.stats.pooled import pooled
from tests.support.slow import slow_after

SEED = 20
LOOKS = 6


def drawn_records(number: int) -> Sequence[Facts]:
    case = draw(SEED, number)
    made = play(case.program, case.effects, has_end_reports=case.how.is_ours)
    intake = Intake()
    for at_ns, arrived in arrivals(case.program, case.how, case.effects, made):
        intake.take(at_ns, arrived)
    return intake.records


def as_plain(history: RunHistory) -> dict[str, object]:
    return {name: value for name, value in vars(history).items() if not name.startswith("_")}


@pytest.mark.parametrize("number", slow_after(1, range(1, 9)))
def test_every_look_finds_what_a_look_at_the_whole_run_finds(number: int) -> None:
    records = drawn_records(number)
    growing, read = GrowingHistory(), 0
    cuts = random.Random(number).sample(range(1, len(records)), LOOKS - 1)
    for until in (*sorted(cuts), len(records)):
        for facts in records[read:until]:
            growing.add(facts)
        read = until
        found, whole = growing.history(), RunHistory(records[:until])
        assert as_plain(found) == as_plain(whole)
        assert diagnose(found, silent_s=3.0) == diagnose(whole, silent_s=3.0)


_STEPS = st.integers(0, 5)
_WORKERS = st.sampled_from(["a/0", "a/1", "a/2", "b/0"])
_VALUES = st.floats(0, 9)
_KEYS = st.sampled_from(["phase/a/train", "phase/b/act", "a/timing_s/score", "a/loss"])
_ATTEMPTS = st.integers(1, 3)
_NONE: st.SearchStrategy[list[tuple[str, str, str, float]]] = st.just([])


@st.composite
def snapshots(draw_: st.DrawFn) -> list[Facts]:
    time_ns, some = 0, []
    for _ in range(draw_(st.integers(1, 8))):
        time_ns += draw_(st.integers(1, 3_000_000_000))
        some.append(draw_(_facts(time_ns)))
    return some


def _facts(time_ns: int) -> st.SearchStrategy[Facts]:
    rows = st.builds(
        RowFacts, _STEPS, st.integers(1, 10**10), st.dictionaries(_KEYS, _VALUES), _ATTEMPTS
    )
    steps = st.builds(
        StepFacts,
        _STEPS,
        st.just(1),
        st.just([]),
        st.just([]),
        st.just([]),
        st.just("t"),
        _ATTEMPTS,
    )
    workers = st.builds(
        WorkerFacts, _WORKERS, st.none() | _STEPS, st.integers(0, 3), _VALUES, st.integers(0, 1)
    )
    spans = st.builds(
        SpanFacts,
        _STEPS,
        st.sampled_from(["a", "b"]),
        st.sampled_from(["train", "score"]),
        _WORKERS,
        st.booleans(),
        st.integers(1, 3),
        _VALUES,
        _VALUES,
        st.just(0),
    )
    return st.builds(
        Facts,
        st.just(time_ns),
        _STEPS,
        rows=st.lists(rows, max_size=2),
        steps=st.lists(steps, max_size=2),
        workers=st.dictionaries(_KEYS, st.lists(workers, max_size=3), max_size=2),
        spans=st.lists(spans, max_size=3),
        lags=st.lists(st.tuples(_WORKERS, _VALUES), max_size=2),
        lost=st.lists(_WORKERS, max_size=1),
        status=st.sampled_from(["", "running", "crashed"]),
        attempt=_ATTEMPTS,
    )


@given(snapshots(), st.data())
def test_a_look_in_between_changes_nothing(some: list[Facts], data: st.DataObject) -> None:
    growing = GrowingHistory()
    for number, facts in enumerate(some, 1):
        growing.add(facts)
        if data.draw(st.booleans()):
            assert as_plain(growing.history()) == as_plain(RunHistory(some[:number]))
    assert as_plain(growing.history()) == as_plain(RunHistory(some))


def derived(history: RunHistory) -> dict[object, object]:
    """What rules derive from the series."""
    found: dict[object, object] = {}
    for place, tracks in history.spans.items():
        peers, middles = peers_of(history, place), ToMedian(tracks, 1)
        found[place] = (
            pooled(history, place).copy(),
            {worker: peers.relative(worker).copy() for worker in tracks},
            [
                (worker, [*of.steps], [*of.own], of.usual)
                for worker, of in middles.of_workers.items()
            ],
            middles.steps,
        )
    return found


_SPANS = st.builds(
    lambda step, worker, seconds: SpanFacts(
        step, "a", "train", f"a/{worker}", False, 1, seconds, seconds, 0
    ),
    st.integers(1, 4),
    st.integers(0, 3),
    st.sampled_from([0.0, 1.0, 2.0, 3.0]),
)


@given(st.lists(st.lists(_SPANS, max_size=9), max_size=5))
def test_what_a_look_derives_is_what_a_look_at_the_whole_run_derives(
    ended: list[list[SpanFacts]],
) -> None:
    some = [Facts(number, 1, spans=spans) for number, spans in enumerate(ended, 1)]
    growing = GrowingHistory()
    for number, facts in enumerate(some, 1):
        growing.add(facts)
        assert derived(growing.history()) == derived(RunHistory(some[:number]))


@given(snapshots())
def test_series_have_each_measurement_once_in_order_of_steps(some: list[Facts]) -> None:
    told = [Facts(facts.time_ns, facts.step, workers=facts.workers) for facts in some]
    expected: dict[tuple[str, str], list[tuple[int, float, float, int]]] = defaultdict(list)
    for facts in told:
        at_s = (facts.time_ns - told[0].time_ns) / 1e9
        for key, of in facts.workers.items():
            for one in of:
                step = facts.step if one.step is None else one.step
                if one.measurements:
                    mean = one.total / one.measurements
                    expected[key, one.worker].append((step, at_s, mean, one.measurements))
    history = RunHistory(Facts.decode(facts.encode()) for facts in told)
    assert {(key, worker) for key, of in history.workers.items() for worker in of} == {*expected}
    for (key, worker), columns in expected.items():
        means, numbers = history.workers[key][worker], history.measurements[key][worker]
        found = zip(means.steps, means.times_s, means.values, numbers.values, strict=True)
        assert [*found] == sorted(columns, key=itemgetter(0))
        assert [*numbers.steps] == [*means.steps]
