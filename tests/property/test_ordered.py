"""Rows in blocks, against a sorted list."""

from bisect import insort
from itertools import takewhile

import pytest
from hypothesis import given
from hypothesis import strategies as st

from otel_rl.bridge.rows.dedup import series_dedup
from otel_rl.bridge.rows.dedup.series_dedup import Changes, SortedRows

KEYS = st.tuples(st.integers(-3, 6), st.integers(0, 6))


@pytest.fixture(autouse=True)
def short_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(series_dedup, "_BLOCK", 2)


@given(st.lists(KEYS, max_size=40), KEYS, st.integers(-4, 7))
def test_rows_in_blocks_are_a_sorted_list(
    keys: list[tuple[int, int]], asked: tuple[int, int], through: int
) -> None:
    rows, model = SortedRows(2), list[tuple[int, int]]()
    for key in keys:
        if not model or key >= model[-1]:
            rows.append(key)
        else:
            rows.put(rows.after(key), key)
        insort(model, key)
        assert [tuple(row) for row in rows] == model
    assert len(rows) == len(model)
    assert list(rows.sample(0, 3)) == [first for first, _ in model][::3]
    assert not model or rows.last(1) == model[-1][1]
    place = rows.after(asked)
    assert [tuple(row) for row in rows.backward(place)] == [k for k in model if k <= asked][::-1]
    assert [tuple(row) for row in rows.forward(place)] == [k for k in model if k > asked]
    rows.forget_through(through)
    left = [key for key in model if key[0] > through]
    assert ([tuple(row) for row in rows], len(rows)) == (left, len(left))


TOLD = st.tuples(st.integers(0, 3), st.integers(0, 2), st.integers(1, 30), st.integers(0, 6))


@given(st.lists(TOLD, max_size=60))
def test_values_of_steps_are_known_as_a_look_at_all_of_them_says(
    told: list[tuple[int, int, int, int]],
) -> None:
    changes, model = Changes(), list[tuple[int, int, int, float]]()
    for step, start_ns, time_ns, number in told:
        value = float("nan") if number == 6 else float(number)
        assert changes.take(step, start_ns, time_ns, value) == is_new(
            model, step, start_ns, time_ns, value
        )


def is_new(
    model: list[tuple[int, int, int, float]], step: int, start_ns: int, time_ns: int, value: float
) -> bool:
    """What ``Changes`` promises, by a look at everything; puts in what is new."""

    def same(other: float) -> bool:
        return other == value or (other != other and value != value)

    of_step = sorted(row for row in model if row[0] == step)
    of_start = [row for row in of_step if row[1] == start_ns]
    before = list(takewhile(lambda row: row[2] <= time_ns, of_start))
    after = of_start[len(before) :]
    known = bool(before) and (same(before[-1][3]) or before[-1][2] == time_ns)
    known = known or (bool(after) and same(after[0][3]))
    returns = len(of_start) >= 4 if of_start else bool(of_step)
    known = known or (returns and any(same(row[3]) for row in of_step))
    if not known:
        model.append((step, start_ns, time_ns, value))
    return not known
