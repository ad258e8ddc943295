"""Spans of a lane nest, and those of a process take few lanes."""

from collections.abc import Sequence
from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from otel_rl.perfetto import Lanes

STEP, WAIT, TRAIN, PARENT, CHILD, LONG, SHORT = range(7)

_SPANS = st.lists(
    st.tuples(st.integers(0, 50), st.integers(0, 20), st.none() | st.integers(0, 30)), max_size=40
)


def placed(spans: Sequence[tuple[int, int | None, int, int]]) -> list[int]:
    lanes = Lanes()
    return [lanes.place(*span)[0] for span in spans]


def test_a_child_is_in_the_lane_of_its_parent() -> None:
    assert placed([(STEP, None, 0, 9), (WAIT, STEP, 0, 4), (TRAIN, STEP, 4, 9)]) == [
        0,
        0,
        0,
    ]


def test_requests_at_one_time_have_a_lane_each_and_the_lowest_is_taken_again() -> None:
    requests = [(1, None, 0, 5), (2, None, 1, 9), (3, None, 2, 4), (4, None, 5, 6)]
    assert placed(requests) == [0, 1, 2, 0]


def test_a_child_that_outlasts_its_parent_has_a_lane_of_its_own() -> None:
    assert placed([(PARENT, None, 0, 5), (CHILD, PARENT, 2, 8)]) == [0, 1]


def test_a_request_is_not_drawn_within_another_that_is_no_parent_of_it() -> None:
    assert placed([(LONG, None, 0, 9), (SHORT, None, 2, 3)]) == [0, 1]


@given(_SPANS)
def test_spans_of_a_lane_nest_whatever_comes(spans: list[tuple[int, int, int | None]]) -> None:
    ordered = sorted(
        ((place, start, start + took, parent) for place, (start, took, parent)
         in enumerate(spans)),
        key=lambda span: (span[1], -span[2]),
    )  # fmt: skip
    lanes: dict[int, list[tuple[int, int]]] = {}
    lane_of = Lanes()
    for span_id, start, end, parent in ordered:
        lane, _ = lane_of.place(span_id, parent, start, end)
        lanes.setdefault(lane, []).append((start, end))
    assert sorted(lanes) == list(range(len(lanes)))
    for found in lanes.values():
        open_ends: list[int] = []
        for start, end in found:
            while open_ends and open_ends[-1] <= start:
                open_ends.pop()
            assert not open_ends or end <= open_ends[-1]
            open_ends.append(end)
        assert all(one[0] <= other[0] for one, other in pairwise(found))
