"""The points of an export have the same effect together as one by one."""

from collections.abc import Iterator

from hypothesis import given, settings
from hypothesis import strategies as st

from otel_rl.bridge.journal.state import encode
from otel_rl.bridge.otlp.known_points import KnownPoints, KnownShares
from otel_rl.bridge.otlp.shapes import Columns, ShareColumns
from otel_rl.bridge.rows.history.archived_points import ArchivedPoints
from otel_rl.bridge.rows.intake.export_intake import add_points
from otel_rl.bridge.rows.intake.point_intake import PointIntake
from otel_rl.bridge.rows.settings import AlignSettings
from otel_rl.records import Covered, Measurements, Series, SumPoint, Worker
from otel_rl.semconv.spec import Instrument
from tests.slow import examples

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
        add_points(together, export, number * S)
        for point in export:
            single.add(point, number * S)
        assert _state(together) == _state(single)
        if closes:
            assert _closed(together, number) == _closed(single, number)


@st.composite
def points_of_steps(draw: st.DrawFn) -> Measurements:
    """A point of several steps, which other series may have at the same times."""
    steps = draw(st.sampled_from([(1, 2), (1, 2), (2, 3), (2, 2), (3, 1)]))
    times_ns = draw(st.sampled_from([(S, 2 * S), (S, 2 * S), (3 * S, 2 * S)]))
    return Measurements(draw(series), times_ns, (draw(st.floats()), draw(st.floats())), steps)


@given(
    st.lists(
        st.tuples(
            st.lists(points_of_steps(), max_size=6),
            st.integers(1, 3),
            st.sampled_from([False, True]),
        )
    )
)
@settings(max_examples=examples(300), deadline=None)
def test_series_of_one_export_need_not_know_each_others_steps(
    sent: list[tuple[list[Measurements], int, bool]],
) -> None:
    knows, forgets = PointIntake(SETTINGS), PointIntake(SETTINGS)
    for export, number, closes in sent:
        for point in export:
            knows.add(point, number * S)
            forgets.add(point, number * S)
            forgets.steps.close_surplus(forgets.series, SETTINGS, number * S, {}, ("", ""))
            assert _state(knows) == _state(forgets)
        if closes:
            assert _closed(knows, number) == _closed(forgets, number)


def _closed(intake: PointIntake, number: int) -> str:
    closed = intake.steps.close(intake.series, SETTINGS, number * S, everything=True)
    return repr(closed)


def _state(intake: PointIntake) -> str:
    return repr(
        (
            intake.sample_counts,
            intake.series.state.stored(),
            intake.axis,
            intake.steps.stored(),
            intake.windows,
            intake.history.take(
                0,
                0,
                intake.series.workers.states,
                intake.series.workers.names(),
                1 << 20,
                everything=True,
            ),
            intake.warnings,
            intake.dropped,
            intake.archived and intake.archived.take(),
        )
    )


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
def columns(draw: st.DrawFn, second: int) -> KnownPoints:
    """The next export of a worker, mostly: of one step, behind the last one."""
    series = draw(st.sampled_from([KEPT, KEPT, OTHERS]))
    n, is_odd = len(series), draw(st.sampled_from([False] * 5 + [True]))
    rarely = st.sampled_from([0, 0, 0, -1, 1]) if is_odd else st.just(0)
    step = draw(st.sampled_from([second, second, second - 1]))
    return KnownPoints(
        series,
        Columns(
            [(second + draw(rarely)) * S for _ in range(n)],
            [(second + 1 + draw(rarely)) * S for _ in range(n)],
            [(second + 1) * S + draw(rarely) for _ in range(n)],
            [draw(numbers) for _ in range(n)],
            [None if is_odd and draw(st.booleans()) else step + draw(rarely) for _ in range(n)],
        ),
        second * S,
    )


@st.composite
def shares(draw: st.DrawFn, second: int) -> KnownShares:
    """The next shares of a worker's counters, mostly: of one step, behind the last ones."""
    series = draw(st.sampled_from([COUNTED, COUNTED, COUNTED_TWICE]))
    n, is_odd = len(series), draw(st.sampled_from([False] * 5 + [True]))
    rarely = st.sampled_from([0, 0, 0, -1, 1]) if is_odd else st.just(0)
    step = draw(st.sampled_from([second, second, second - 1]))
    return KnownShares(
        series,
        ShareColumns(
            [(second + draw(rarely)) * S for _ in range(n)],
            [draw(st.sampled_from([0, second * S, second * S + 1])) for _ in range(n)],
            [(second + 1 + draw(rarely)) * S for _ in range(n)],
            [draw(numbers) for _ in range(n)],
            [step + draw(rarely) for _ in range(n)],
        ),
        second * S,
    )


@st.composite
def runs_of_exports(draw: st.DrawFn) -> list[tuple[KnownPoints | KnownShares, bool]]:
    second, sent = 1, list[tuple[KnownPoints | KnownShares, bool]]()
    for _ in range(draw(st.integers(1, 8))):
        is_gauge = draw(st.booleans())
        export = draw(columns(second)) if is_gauge else draw(shares(second))
        sent.append((export, draw(st.sampled_from([False] * 4 + [True]))))
        second += draw(st.sampled_from([1, 1, 1, 0, 2]))
    return sent


@given(runs_of_exports(), st.booleans(), st.booleans())
@settings(max_examples=examples(300), deadline=None)
def test_columns_are_the_same_as_their_points(
    sent: list[tuple[KnownPoints | KnownShares, bool]], per_worker: bool, is_archived: bool
) -> None:
    own = AlignSettings(max_series=6, per_worker=per_worker, forget_s=1)
    together, single = PointIntake(own), PointIntake(own)
    if is_archived:
        together.archived, single.archived = ArchivedPoints(), ArchivedPoints()
    for number, (export, forgets) in enumerate(sent):
        add_points(together, export, number * S)
        for point in export:
            single.add(point, number * S)
        assert _state(together) == _state(single)
        assert encode(together.goodput) == encode(single.goodput)
        if forgets:
            together.series.forget(own, number * S, away_s=0)
            single.series.forget(own, number * S, away_s=0)


def test_an_export_that_goes_on_is_added_by_column() -> None:
    intake = PointIntake(SETTINGS)

    def export(second: int) -> KnownPoints:
        n = len(KEPT)
        starts, ends = [second * S] * n, [(second + 1) * S] * n
        return KnownPoints(KEPT, Columns(starts, ends, ends, [0.5] * n, [second] * n), 0)

    add_points(intake, export(1), S)
    later = export(2)
    later.__class__ = _Unread
    add_points(intake, later, 2 * S)
    assert intake.sample_counts.taken == 2 * len(KEPT)


class _Unread(KnownPoints):
    """Points of which none may be made."""

    __slots__ = ()

    def __iter__(self) -> Iterator[Measurements]:
        raise AssertionError("Each point was read.")


def test_shares_that_go_on_are_added_by_column() -> None:
    intake = PointIntake(SETTINGS)

    def export(second: int) -> KnownShares:
        n = len(COUNTED)
        starts, ends = [second * S] * n, [(second + 1) * S] * n
        return KnownShares(COUNTED, ShareColumns(starts, starts, ends, [7] * n, [second] * n), 0)

    add_points(intake, export(1), S)
    later = export(2)
    later.__class__ = _UnreadShares
    add_points(intake, later, 2 * S)
    assert intake.sample_counts.taken == 2 * len(COUNTED)


class _UnreadShares(KnownShares):
    """Shares of which none may be made."""

    __slots__ = ()

    def __iter__(self) -> Iterator[SumPoint]:
        raise AssertionError("Each share was read.")


def test_series_after_a_close_have_rows_of_their_own() -> None:
    intake = PointIntake(SETTINGS)
    for one in KEPT:
        intake.add(Measurements(one, (S, 2 * S), (1.0, 2.0), (1, 2)), S)
        closed = intake.steps.close(intake.series, SETTINGS, S, everything=True)
        assert [step.step for step in closed] == [1, 2]
