"""A row comes back from the journal as it went in."""

import tracemalloc

import pytest

from otel_rl.bridge.journal.state import decode_row, encode_row
from otel_rl.records import Row, Table

TABLE = Table(("prompt", "reward"), [("a", 1.0)])


@pytest.mark.parametrize(
    "row",
    [
        Row(3, 7, 10**18, {}),
        Row(3, 7, 10**18, {"a": float("inf"), "b": float("-inf"), "c": 2**62, "d": 0.1}, 5),
        Row(3, 7, 10**18, {"a": 1}, None, {}, {"attempt": "second"}),
    ],
)
def test_a_row_comes_back(row: Row) -> None:
    assert decode_row(3, encode_row(row)) == row


def test_not_a_number_comes_back() -> None:
    (value,) = decode_row(0, encode_row(Row(0, 0, 0, {"a": float("nan")}))).values.values()
    assert repr(value) == "nan"


def test_a_table_comes_back() -> None:
    back = decode_row(0, encode_row(Row(0, 0, 0, {}, None, {"samples": TABLE}))).tables["samples"]
    assert (list(back.columns), [list(cells) for cells in back.rows]) == (
        ["prompt", "reward"],
        [["a", 1.0]],
    )


def test_rows_that_wait_for_a_commit_take_the_room_of_their_bytes() -> None:
    row = Row(0, 7, 10**18, {f"trainer/metric_{n}": n / 7 for n in range(180)})
    encode_row(row)
    tracemalloc.start()
    try:
        waiting = [encode_row(row) for _ in range(100)]
        taken_bytes, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert taken_bytes < 1.2 * sum(map(len, waiting))
