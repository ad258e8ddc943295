"""The points of an export have the same effect together as one by one."""

from hypothesis import given, settings
from hypothesis import strategies as st

from otel_rl.bridge.rows.history.archived_points import ArchivedPoints
from otel_rl.bridge.rows.intake.export_intake import add_points
from otel_rl.bridge.rows.intake.point_intake import PointIntake
from otel_rl.bridge.rows.settings import AlignSettings
from otel_rl.records import Covered, Measurements, Series, Worker
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


def _closed(intake: PointIntake, number: int) -> str:
    closed = intake.steps.close(intake.series, SETTINGS, number * S, everything=True)
    return repr(closed)


def _state(intake: PointIntake) -> str:
    return repr(
        (
            intake.sample_counts,
            intake.series.state.to_wire(),
            intake.axis.to_wire(),
            intake.steps.to_wire(),
            intake.windows.to_wire(),
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
