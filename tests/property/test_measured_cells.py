"""Measurements of workers are recorded the same, whichever way they come."""

import math
from collections.abc import Sequence

from hypothesis import given, settings
from hypothesis import strategies as st

from otel_rl.bridge.rows.measured_cells import MAX_KEYS, MeasuredCells
from otel_rl.bridge.rows.series.streams import Group, Stream, WorkerState
from otel_rl.diagnose.history.records import ALL_RECORDED
from otel_rl.semconv.spec import Reduction
from tests.support.slow import examples

WORKERS = [WorkerState("trainer", str(number)) for number in range(4)]
KEY_TUPLES = (("a", "b", "c"), ("c", "d"), ("e",), ("a", "a", "b"))

Values = Sequence[float]
Place = tuple[str, str, int]
Made = tuple[tuple[str, ...], int, int, Values, bool]


def stream(worker: WorkerState, key: str) -> Stream:
    return Stream(0, worker, Group(0, key, "trainer", key, (), Reduction.MEAN))


numbers = st.one_of(
    st.floats(-5, 5), st.sampled_from([math.nan, math.inf, -math.inf, -0.0, 2**62, -3])
)


@st.composite
def measurements(draw: st.DrawFn) -> list[Made]:
    found = list[Made]()
    for _ in range(draw(st.integers(1, 12))):
        keys = draw(st.sampled_from(KEY_TUPLES))
        values = draw(st.tuples(*[numbers] * len(keys)))
        worker, step = draw(st.integers(0, len(WORKERS) - 1)), draw(st.integers(0, 2))
        found.append((keys, worker, step, values, draw(st.booleans())))
    return found


@given(measurements())
@settings(max_examples=examples(300), deadline=None)
def test_exports_are_recorded_as_their_measurements(
    made: list[Made],
) -> None:
    cells, expected = MeasuredCells(), dict[Place, list[float]]()
    for keys, number, step, values, is_export in made:
        worker = WORKERS[number]
        if is_export:
            cells.add_export(keys, worker, step, values)
        for key, value in zip(keys, values, strict=True):
            if not is_export:
                cells.add(stream(worker, key), (value,), (step,))
            cell = expected.setdefault((key, f"trainer/{number}", step), [0, 0.0, 0])
            if math.isfinite(value):
                cell[0] += 1
                cell[1] += value
            else:
                cell[2] += 1
    found: dict[Place, list[float]] = {}
    for key, facts in cells.fields().items():
        for fact in facts:
            place = key, fact.worker, fact.step or 0
            assert place not in found
            found[place] = [fact.measurements, fact.total, fact.oddities]
    assert found.keys() == expected.keys()
    for place, (count, total, oddities) in found.items():
        assert (count, oddities) == (expected[place][0], expected[place][2])
        assert math.isclose(total, expected[place][1], rel_tol=1e-9, abs_tol=1e-6)


def test_of_many_workers_few_are_recorded_also_with_keys_of_their_own() -> None:
    cells = MeasuredCells()
    for number in range(512):
        keys = "shared", f"own_{number % 128}"
        cells.add_export(keys, WorkerState("trainer", str(number)), 1, (float(number), 1.0))
    assert len(cells.fields()["shared"]) <= ALL_RECORDED + 1


def test_the_number_of_keys_is_bounded() -> None:
    cells = MeasuredCells()
    most = MAX_KEYS - 10
    cells.add_export(tuple(f"a{n}" for n in range(most)), WORKERS[0], 1, (1.0,) * most)
    cells.add_export(tuple(f"b{n}" for n in range(most)), WORKERS[1], 1, (math.nan,) * most)
    assert len(cells.fields()) == MAX_KEYS
