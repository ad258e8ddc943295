"""Spans of all kinds, for laws of a diagnosis."""

from dataclasses import dataclass

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st

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


def spans_of(schedule: list[Task]) -> tuple[list[SpanRecord], SpanRecord]:
    """A span for each task, and a step that waits for all of them.

    A task begins when all that it needs, and what its worker did before, have ended.
    """
    ends: list[int] = []
    last_of: dict[int, int] = {}
    spans = []
    for number, task in enumerate(schedule):
        before = [*task.needs, *([last_of[task.worker]] if task.worker in last_of else [])]
        start = max((ends[one] for one in before), default=0)
        ends.append(start + task.length)
        last_of[task.worker] = number
        spans.append(
            SpanRecord(
                span_id=number.to_bytes(2),
                parent_id=None,
                links=tuple(one.to_bytes(2) for one in task.needs),
                role="any",
                worker=str(task.worker),
                host="",
                start_ns=start,
                end_ns=ends[number],
                name="task",
            )
        )
    step = SpanRecord(
        span_id=b"step",
        parent_id=None,
        links=tuple(span.span_id for span in spans),
        role="trainer",
        worker="trainer-0",
        host="",
        start_ns=0,
        end_ns=max(ends),
        name="rl.loop",
        phase_class="wait",
        step=1,
    )
    return spans, step
