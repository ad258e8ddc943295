"""The points of an export have the same effect together as one by one."""

from hypothesis import given, settings
from hypothesis import strategies as st

from otel_rl.bridge.journal.state import encode
from otel_rl.bridge.otlp.columns import Columns
from otel_rl.bridge.rows.archived_points import ArchivedPoints
from otel_rl.bridge.rows.intake import PointIntake
from otel_rl.bridge.rows.settings import AlignSettings
from otel_rl.bridge.rows.steps.step_closing import Check, ClosedStep
from otel_rl.diagnose.history.records import Facts, WorkerFields
from otel_rl.records import Covered, Measurements, Point, Series, SumPoint, Temporality, Worker
from otel_rl.semconv.spec import Instrument
from tests.support.slow import examples

S = 1_000_000_000
SETTINGS = AlignSettings(max_series=6, per_worker=True)

workers = st.builds(
    Worker,
    role=st.sampled_from(["trainer", "generator"]),
    instance=st.sampled_from(["a", "b"]),
    index=st.sampled_from([0, 1, None]),
)
series = st.builds(
    Series,
    worker=workers,
    name=st.sampled_from(["rl.train.loss", "own", "rl.policy.version"]),
)
seconds = st.integers(1, 6)


@st.composite
def points(draw: st.DrawFn) -> Measurements:
    n = draw(st.sampled_from([1, 1, 1, 1, 2]))
    end = draw(seconds)
    covers = Covered(draw(st.sampled_from([end - 1, end - 1, 0])) * S, end * S)
    return Measurements(
        draw(series),
        tuple(draw(seconds) * S for _ in range(n)),
        tuple(draw(st.floats()) for _ in range(n)),
        tuple(draw(st.sampled_from([1, 2, 3, 3, None])) for _ in range(n)),
        draw(st.sampled_from([covers, covers, covers, None])),
    )


# With each export, whether open steps are closed behind it.
exports = st.lists(
    st.tuples(st.lists(points(), max_size=8), st.sampled_from([False, False, True])), max_size=10
)


@given(exports)
@settings(max_examples=examples(300), deadline=None)
def test_points_are_the_same_together_as_one_by_one(
    sent: list[tuple[list[Measurements], bool]],
) -> None:
    together, single = PointIntake(SETTINGS), PointIntake(SETTINGS)
    together.archived, single.archived = ArchivedPoints(), ArchivedPoints()
    for number, (export, closes) in enumerate(sent):
        sent_together = Columns.of(export)
        together.add_all(sent_together, number * S)
        for point in sent_together:
            single.add(point, number * S)
        assert _state(together) == _state(single)
        if closes:
            assert _closed(together, number) == _closed(single, number)


def _closed(intake: PointIntake, number: int) -> str:
    return repr(_close(intake, number * S))


def _close(intake: PointIntake, now_ns: int) -> list[ClosedStep]:
    check = Check(
        table=intake.series,
        settings=SETTINGS,
        now_ns=now_ns,
        standings={},
        leader=("", ""),
        everything=True,
    )
    return intake.steps.close(check)


def _state(intake: PointIntake) -> str:
    return repr(
        (
            intake.sample_counts,
            intake.series.state.stored(),
            intake.axis,
            intake.steps.stored(),
            intake.windows,
            _history(intake),
            intake.warnings,
            intake.dropped,
            intake.archived and intake.archived.take(),
        )
    )


def _history(intake: PointIntake) -> object:
    """What a diagnosis is told, whatever the order of its keys."""
    workers = intake.series.workers
    took = intake.history.take(0, 0, workers.states, workers.names(), 1 << 20, everything=True)
    if took is None:
        return None
    facts = Facts.decode(took.body)
    told = sorted((key, sorted(map(repr, of))) for key, of in facts.workers.items())
    return told, facts._replace(workers=WorkerFields({}))


KEPT = tuple(
    Series(worker=Worker("trainer", "a", index=0), name=name)
    for name in ("rl.train.loss", "own", "rl.phase.duration")
)
OTHERS = tuple(
    Series(worker=Worker("trainer", "b", index=1), name=name) for name in ("rl.train.loss", "own")
)
COUNTED = tuple(
    Series(
        worker=Worker("trainer", "a", index=0),
        name=name,
        instrument=Instrument.COUNTER,
        data="share",
    )
    for name in ("rl.train.tokens", "own.count")
)
COUNTED_TWICE = COUNTED[0], COUNTED[0]
numbers = st.one_of(st.floats(), st.integers(-3, 3))


@st.composite
def gauges(draw: st.DrawFn, second: int) -> list[Point]:
    """The next export of a worker, mostly: of one step, behind the last one."""
    is_odd = draw(st.sampled_from([False] * 5 + [True]))
    rarely = st.sampled_from([0, 0, 0, -1, 1]) if is_odd else st.just(0)
    step = draw(st.sampled_from([second, second, second - 1]))
    return [
        Measurements(
            one,
            ((second + 1) * S + draw(rarely),),
            (draw(numbers),),
            (None if is_odd and draw(st.booleans()) else step + draw(rarely),),
            Covered((second + draw(rarely)) * S, (second + 1 + draw(rarely)) * S),
        )
        for one in draw(st.sampled_from([KEPT, KEPT, OTHERS]))
    ]


@st.composite
def shares(draw: st.DrawFn, second: int) -> list[Point]:
    """The next shares of a worker's counters, mostly: of one step, behind the last ones."""
    is_odd = draw(st.sampled_from([False] * 5 + [True]))
    rarely = st.sampled_from([0, 0, 0, -1, 1]) if is_odd else st.just(0)
    step = draw(st.sampled_from([second, second, second - 1]))
    return [
        SumPoint(
            one,
            draw(st.sampled_from([0, second * S, second * S + 1])),
            (second + 1) * S,
            draw(numbers),
            Temporality.DELTA,
            Covered((second + draw(rarely)) * S, (second + 1 + draw(rarely)) * S),
            step + draw(rarely),
            is_share=True,
        )
        for one in draw(st.sampled_from([COUNTED, COUNTED, COUNTED_TWICE]))
    ]


@st.composite
def runs_of_exports(draw: st.DrawFn) -> list[tuple[list[Point], bool]]:
    second, sent = 1, list[tuple[list[Point], bool]]()
    for _ in range(draw(st.integers(1, 8))):
        export = draw(st.one_of(gauges(second), shares(second)))
        sent.append((export, draw(st.sampled_from([False] * 4 + [True]))))
        second += draw(st.sampled_from([1, 1, 1, 0, 2]))
    return sent


@given(runs_of_exports(), st.booleans(), st.booleans())
@settings(max_examples=examples(300), deadline=None)
def test_columns_are_the_same_as_their_points(
    sent: list[tuple[list[Point], bool]], per_worker: bool, is_archived: bool
) -> None:
    own = AlignSettings(max_series=6, per_worker=per_worker, forget_s=1)
    together, single = PointIntake(own), PointIntake(own)
    if is_archived:
        together.archived, single.archived = ArchivedPoints(), ArchivedPoints()
    for number, (export, forgets) in enumerate(sent):
        together.add_all(export, number * S)
        for point in export:
            single.add(point, number * S)
        assert _state(together) == _state(single)
        assert encode(together.goodput) == encode(single.goodput)
        if forgets:
            together.series.forget(own, number * S, away_s=0)
            single.series.forget(own, number * S, away_s=0)


def test_series_after_a_close_have_rows_of_their_own() -> None:
    intake = PointIntake(SETTINGS)
    for one in KEPT:
        intake.add(Measurements(one, (S, 2 * S), (1.0, 2.0), (1, 2)), S)
        closed = _close(intake, S)
        assert [step.step for step in closed] == [1, 2]
