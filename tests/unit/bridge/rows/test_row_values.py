"""Rows with every single measurement."""

from collections import defaultdict
from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from otel_rl.bridge.rows.row_values import single_rows

MEASURED = st.dictionaries(
    st.sampled_from("abcd"),
    st.lists(st.tuples(st.integers(0, 5), st.floats(0, 1)), min_size=1, max_size=3),
)


def test_series_that_were_measured_once_share_one_row_of_the_latest_time() -> None:
    assert [*single_rows({"a": [(7, 1.0)], "b": [(9, 2.0)], "c": [(8, 3.0)]})] == [
        (9, {"a": 1.0, "b": 2.0, "c": 3.0})
    ]


@given(MEASURED)
def test_every_measurement_is_in_one_row_in_order_of_time(
    single: dict[str, list[tuple[int, float]]],
) -> None:
    rows = [*single_rows(single)]
    held: dict[str, list[float]] = defaultdict(list)
    for _, values in rows:
        for key, value in values.items():
            held[key].append(value)
    ordered = {
        key: [value for _, value in sorted(made, key=lambda one: one[0])]
        for key, made in single.items()
    }
    assert held == ordered
    assert all(one <= other for (one, _), (other, _) in pairwise(rows))
