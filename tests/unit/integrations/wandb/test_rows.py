from hypothesis import given, settings
from hypothesis import strategies as st

from otel_rl.integrations.wandb._values import Row, Rows

Values = dict[str, object]


def rows_of(*calls: tuple[Values, int | None, bool | None]) -> list[tuple[int, Values]]:
    """(step, values) of every row that these calls of ``log`` and an end make."""
    rows = Rows()
    done: list[Row] = []
    for number, (values, step, commit) in enumerate(calls):
        done += rows.add(Row(0, number, dict(values)), step, commit=commit) or []
    done += rows.complete()
    return [(row.step, row.values) for row in done]


def test_a_call_without_a_step_is_a_row() -> None:
    assert rows_of(({"a": 1}, None, None), ({"a": 2}, None, None)) == [(0, {"a": 1}), (1, {"a": 2})]


def test_what_is_not_committed_joins_the_next_call() -> None:
    assert rows_of(({"a": 1}, None, False), ({"b": 2}, None, None)) == [(0, {"a": 1, "b": 2})]


def test_calls_of_one_step_are_one_row_and_the_last_value_wins() -> None:
    assert rows_of(({"a": 1, "b": 1}, 7, None), ({"a": 2}, 7, None)) == [(7, {"a": 2, "b": 1})]


def test_a_higher_step_completes_the_row_below() -> None:
    rows = Rows()
    assert rows.add(Row(0, 1, {"a": 1}), 7, commit=None) == []
    assert rows.add(Row(0, 2, {"a": 2}), 9, commit=None) == [Row(7, 1, {"a": 1})]


def test_a_lower_step_is_refused() -> None:
    rows = Rows()
    rows.add(Row(0, 1, {"a": 1}), 7, commit=None)
    assert rows.add(Row(0, 2, {"a": 2}), 6, commit=None) is None
    assert rows.complete() == [Row(7, 1, {"a": 1})]


def test_a_committed_step_is_past() -> None:
    rows = Rows()
    assert rows.add(Row(0, 1, {"a": 1}), 7, commit=True) == [Row(7, 1, {"a": 1})]
    assert rows.add(Row(0, 2, {"a": 2}), 7, commit=None) is None


def test_a_row_has_the_time_of_its_last_call() -> None:
    rows = Rows()
    rows.add(Row(0, 10, {"a": 1}), None, commit=False)
    assert rows.add(Row(0, 20, {"b": 1}), None, commit=None) == [Row(0, 20, {"a": 1, "b": 1})]


def test_what_is_forgotten_is_in_no_row() -> None:
    rows = Rows()
    rows.add(Row(0, 1, {"a": 1}), 3, commit=None)
    rows.forget()
    assert (rows.step, rows.complete()) == (3, [])


@settings(deadline=None)
@given(
    st.lists(
        st.tuples(
            st.dictionaries(st.sampled_from("abc"), st.integers(0, 9), max_size=2),
            st.none() | st.integers(0, 12),
            st.sampled_from([None, True, False]),
        )
    )
)
def test_rows_stand_at_growing_steps_and_none_is_empty(
    calls: list[tuple[Values, int | None, bool | None]],
) -> None:
    made = rows_of(*calls)
    steps = [step for step, _ in made]
    assert steps == sorted(set(steps))
    assert all(values for _, values in made)


def test_calls_in_a_block_are_one_row_and_a_call_after_it_is_another() -> None:
    rows = Rows()
    done = [
        rows.add(Row(0, 1, {"a": 1, "b": 1}), None, commit=None, block=7),
        rows.add(Row(0, 2, {"a": 2}), None, commit=None, block=7),
        rows.add(Row(0, 3, {"a": 3}), None, commit=None),
        rows.complete(),
    ]
    assert done == [[], [], [Row(7, 2, {"a": 2, "b": 1}), Row(8, 3, {"a": 3})], []]


def test_a_block_of_a_past_step_has_rows_of_its_own() -> None:
    rows = Rows()
    rows.add(Row(0, 1, {"a": 1}), None, commit=None, block=7)
    assert rows.add(Row(0, 2, {"a": 2}), None, commit=None, block=3) == [Row(3, 2, {"a": 2})]
    assert rows.complete() == [Row(7, 1, {"a": 1})]


def test_in_a_block_a_step_at_the_call_and_a_commit_count() -> None:
    rows = Rows()
    assert rows.add(Row(0, 1, {"a": 1}), None, commit=True, block=7) == [Row(7, 1, {"a": 1})]
    assert rows.add(Row(0, 2, {"a": 2}), 9, commit=None, block=7) == []
    assert rows.add(Row(0, 3, {"b": 3}), None, commit=None) == [Row(9, 3, {"a": 2, "b": 3})]
