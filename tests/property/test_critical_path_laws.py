"""Whatever the spans, the critical path tiles its interval; a schedule's is the longest path."""

from dataclasses import dataclass

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from otel_rl.diagnose.critical_path import critical_path
from otel_rl.diagnose.forest import Forest
from otel_rl.records import SpanRecord

# On a busy machine it is slow to make thirty spans.
unhurried = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])

WORKERS = ("trainer-0", "trainer-1", "generator-0", "reward-0")


@st.composite
def forests(draw: st.DrawFn) -> list[SpanRecord]:
    """Any spans: overlapping, of no length, with parents and links to anything or nothing."""
    n = draw(st.integers(1, 30))
    ids = st.integers(0, n + 2).map(lambda number: number.to_bytes(2))
    spans = []
    for number in range(n):
        start, length = draw(st.integers(0, 40)), draw(st.integers(0, 40))
        phase = draw(st.sampled_from(["", "rank_barrier", "train"]))
        worker = draw(st.sampled_from(WORKERS))
        spans.append(
            SpanRecord(
                span_id=number.to_bytes(2),
                parent_id=draw(st.none() | ids),
                links=tuple(draw(st.lists(ids, max_size=3))),
                role=worker.partition("-")[0],
                worker=worker,
                host="",
                start_ns=start,
                end_ns=start + length,
                name="x",
                phase=phase,
                phase_class=draw(st.sampled_from(["", "compute", "wait"])),
                step=draw(st.none() | st.integers(0, 1)),
            )
        )
    return spans


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


@dataclass(frozen=True)
class Task:
    """A piece of work in a schedule.

    Attributes:
        worker: Who does it, one after another.
        length: Of the work; powers of two, so that no two sums of them are equal.
        needs: Tasks that must have ended before.
    """

    worker: int
    length: int
    needs: tuple[int, ...]


@st.composite
def schedules(draw: st.DrawFn) -> list[Task]:
    n = draw(st.integers(1, 12))
    lengths = draw(st.permutations([1 << place for place in range(n)]))
    return [
        Task(
            draw(st.integers(0, 3)),
            lengths[number],
            tuple(draw(st.sets(st.integers(0, number - 1), max_size=3)) if number else ()),
        )
        for number in range(n)
    ]


@given(schedules())
@unhurried
def test_the_path_of_a_schedule_is_its_longest(schedule: list[Task]) -> None:
    """A task begins when all that it needs, and what its worker did before, have ended.

    So what ends last is the end of a path of tasks without a gap, and no path is longer.
    """
    longest: list[tuple[int, tuple[int, ...]]] = []  # of the paths that end with each task
    spans = []
    last_of: dict[int, int] = {}
    for number, task in enumerate(schedule):
        before = set(task.needs) | ({last_of[task.worker]} if task.worker in last_of else set())
        length, path = max((longest[one] for one in before), default=(0, ()))
        longest.append((length + task.length, (*path, number)))
        last_of[task.worker] = number
        spans.append(
            SpanRecord(
                span_id=number.to_bytes(2),
                parent_id=None,
                links=tuple(one.to_bytes(2) for one in task.needs),
                role="any",
                worker=str(task.worker),
                host="",
                start_ns=length,
                end_ns=length + task.length,
                name="task",
            )
        )
    end_ns, path = max(longest)
    step = SpanRecord(
        span_id=b"step",
        parent_id=None,
        links=tuple(span.span_id for span in spans),
        role="trainer",
        worker="trainer-0",
        host="",
        start_ns=0,
        end_ns=end_ns,
        name="rl.loop",
        phase_class="wait",
        step=1,
    )
    found = critical_path(Forest([*spans, step]), step)
    assert [segment.span_id for segment in found] == [one.to_bytes(2) for one in path]
