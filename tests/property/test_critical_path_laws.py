"""Whatever the spans, the critical path tiles its interval; a schedule's is the longest path."""

from hypothesis import given

from otel_rl.diagnose.spans.critical_path import critical_path
from otel_rl.diagnose.spans.span_forest import Forest
from otel_rl.records import SpanRecord
from tests.property.span_forests import Task, forests, schedules, spans_of, unhurried


@given(forests())
@unhurried
def test_the_segments_tile_the_interval_exactly(spans: list[SpanRecord]) -> None:
    forest = Forest(spans)
    for root in spans:
        segments = critical_path(forest, root)
        assert sum(one.end_ns - one.start_ns for one in segments) == root.end_ns - root.start_ns
        at_ns = root.start_ns
        for segment in segments:
            assert segment.start_ns == at_ns
            assert segment.end_ns > at_ns
            at_ns = segment.end_ns
        assert at_ns == root.end_ns


@given(forests())
@unhurried
def test_the_order_of_the_spans_makes_no_difference(spans: list[SpanRecord]) -> None:
    # Of ends at one instant either may be the reason: then there is no one answer.
    ends = [span.end_ns for span in spans] + [span.start_ns for span in spans]
    if len(set(ends)) < len(ends):
        return
    for root in spans:
        there = critical_path(Forest(spans), root)
        assert there == critical_path(Forest(spans[::-1]), root)


@given(schedules())
@unhurried
def test_the_path_of_a_schedule_is_its_longest(schedule: list[Task]) -> None:
    """What ends last is the end of a path of tasks without a gap, and no path is longer."""
    longest: list[tuple[int, tuple[int, ...]]] = []  # of the paths that end with each task
    last_of: dict[int, int] = {}
    for number, task in enumerate(schedule):
        before = set(task.needs) | ({last_of[task.worker]} if task.worker in last_of else set())
        length, path = max((longest[one] for one in before), default=(0, ()))
        longest.append((length + task.length, (*path, number)))
        last_of[task.worker] = number
    _, path = max(longest)
    spans, step = spans_of(schedule)
    found = critical_path(Forest([*spans, step]), step)
    assert [segment.span_id for segment in found] == [one.to_bytes(2) for one in path]
