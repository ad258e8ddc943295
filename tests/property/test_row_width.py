"""A row that is too long for a tracker becomes several, and they hold all of it."""

import json

from hypothesis import given
from hypothesis import strategies as st

from otel_rl.bridge.rows.run import Run
from otel_rl.bridge.rows.settings import AlignSettings
from otel_rl.bridge.rows.table_rows import MAX_ROW_BYTES, parts
from otel_rl.records import Decoded, Export, Measurements, Series, Worker

VALUES = st.dictionaries(
    st.text("abc/_", min_size=1, max_size=30), st.floats(allow_nan=False), max_size=30
)


@given(VALUES, st.integers(1, 300))
def test_the_parts_hold_everything_once_and_in_order(values: dict[str, float], limit: int) -> None:
    joined = [pair for part in parts(values, limit) for pair in part.items()]
    assert joined == list(values.items())


@given(VALUES, st.integers(1, 300))
def test_a_part_is_too_long_only_if_it_is_one_value(values: dict[str, float], limit: int) -> None:
    for part in parts(values, limit):
        assert len(part) <= 1 or len(json.dumps(part)) <= limit


def test_a_wide_step_is_several_rows_of_that_step() -> None:
    worker = Worker("trainer", "solo", index=0, count=1)
    points = [
        Measurements(
            Series(worker, f"m{n}", attributes=(("a", "x" * 900),)), [10**18 + n], [1.0], [7]
        )
        for n in range(5_000)
    ]
    aligner = Run(AlignSettings())
    aligner.add(Decoded(points, [Export(worker, 10**18)]), received_ns=10**18)
    rows = aligner.close(10**18, everything=True)
    assert [row.number for row in rows] == [0, 1]
    assert {row.step for row in rows} == {7}
    assert sum(key.startswith("trainer/") for row in rows for key in row.values) == 5_000
    assert all(len(json.dumps(dict(row.values))) <= MAX_ROW_BYTES for row in rows)
