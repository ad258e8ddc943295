"""A row is the same after the journal, and after the way to a writer process."""

import json
import math
import pickle
from dataclasses import replace
from typing import Any

from hypothesis import example, given
from hypothesis import strategies as st

from otel_rl.bridge.journal.state import decode_row, encode_row
from otel_rl.records import KeySpec, Row, Table

TEXTS = st.text(st.characters(), max_size=20)  # half surrogate pairs, too
NUMBERS = st.floats() | st.integers(-(2**70), 2**70) | st.booleans()
VALUES: st.SearchStrategy[Any] = st.recursive(
    st.none() | NUMBERS | TEXTS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXTS, inner, max_size=3),
    max_leaves=5,
)
TABLES = st.builds(
    lambda cells: Table(["a", "b"], cells),
    st.lists(st.lists(VALUES, min_size=2, max_size=2), max_size=3),
)
ROWS = st.builds(
    Row,
    number=st.integers(0, 2**63 - 1),
    step=st.integers(-(2**63), 2**63 - 1),
    time_ns=st.integers(0, 2**63 - 1),
    values=st.dictionaries(TEXTS, NUMBERS, max_size=8),
    policy_version=st.none() | st.integers(-(2**63), 2**63 - 1),
    tables=st.just({}) | st.dictionaries(TEXTS, TABLES, max_size=2),
    labels=st.just({}) | st.dictionaries(TEXTS, TEXTS, max_size=3),
    devices=st.just({}) | st.dictionaries(TEXTS, NUMBERS, max_size=3),
    new_keys=st.just(()) | st.just((KeySpec("a"),)),
    attempt=st.integers(1, 3),
)


@given(ROWS)
@example(Row(0, 0, 0, {"a": 2**64, "b": -(2**63) - 1}))
@example(Row(0, 0, 0, {"a": math.inf, "b": -math.inf}))
@example(Row(0, 0, 0, {"a": 1.7e308, "b": 1.7e308}))
@example(Row(0, 0, 0, {"a": 5e-324, "b": -0.0, "c": 1.0, "d": 1, "e": 1e16, "f": True}))
@example(Row(0, 0, 0, {"a": 10**400}))
@example(Row(0, 0, 0, {"\ud800": 1.0, "\u2028": 2.0, "": 3.0}, labels={"a": "\udfff"}))
def test_a_row_comes_back_from_the_journal(row: Row) -> None:
    back = decode_row(row.number, encode_row(row))
    assert exactly(back) == exactly(replace(row, devices={}, new_keys=()))


@given(st.lists(ROWS, max_size=3))
def test_rows_come_to_a_writer_as_they_were_handed_over(rows: list[Row]) -> None:
    there = pickle.loads(pickle.dumps(rows))
    assert [exactly(row) for row in there] == [exactly(row) for row in rows]


@given(ROWS)
def test_the_standard_library_reads_a_stored_row(row: Row) -> None:
    """So does a bridge before this one."""
    body = json.loads(encode_row(row))
    assert repr(body[3]) == repr(dict(row.values))


def exactly(row: Row) -> str:
    """Return the row as text that tells NaN, signs of zero and kinds of numbers."""
    tables = {
        key: ([*table.columns], [[*line] for line in table.rows])
        for key, table in row.tables.items()
    }
    return repr((replace(row, tables={}), tables))
