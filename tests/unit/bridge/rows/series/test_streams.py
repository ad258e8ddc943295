"""The step below which a worker reports no more."""

from hypothesis import given
from hypothesis import strategies as st

from otel_rl.bridge.rows.series.streams import Group, Stream, WorkerState
from otel_rl.semconv.spec import Reduction

GROUP = Group(0, "trainer/loss", "trainer", "loss", (), Reduction.MEAN)

REPORTS = st.tuples(st.integers(0, 4), st.integers(0, 6), st.booleans())
"""Of a stream, of a step; whether the number is asked for after it."""


@given(st.lists(st.one_of(REPORTS, st.none()), max_size=40))
def test_it_is_the_last_step_of_the_slowest_stream(
    reports: list[tuple[int, int, bool] | None],
) -> None:
    """Streams come late, move in any order, and begin anew (None)."""
    worker = WorkerState("trainer", "trainer/0")
    streams = [Stream(number, worker, GROUP) for number in range(5)]
    last: dict[int, int] = {}
    for report in reports:
        if report is None:
            worker.start_again()
            last.clear()
            continue
        number, step, is_asked = report
        streams[number].reported(step)
        last[number] = max(step, last.get(number, 0))
        if is_asked:
            assert worker.passed_below() == min(last.values())
