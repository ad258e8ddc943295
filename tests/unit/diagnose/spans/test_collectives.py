"""Collectives of programs whose spans have names of their own."""

from collections import Counter
from collections.abc import Iterator
from dataclasses import replace

import pytest

from otel_rl.diagnose.spans.critical_path import critical_path
from otel_rl.diagnose.spans.span_forest import Forest, collectives_in
from otel_rl.records import SpanRecord
from otel_rl.semconv.spec import STEP_SPAN
from tests.unit.diagnose.span_builder import span

RANKS, STEPS, LENGTH = 3, 5, 1_000
SLOW = "trainer-2"


def program(*, collective: bool) -> Iterator[SpanRecord]:
    """Ranks that compute and exchange gradients; the last one computes for longest.

    Without a collective, the work behind takes each rank as long as the others.
    """
    for step in range(STEPS):
        for rank in range(RANKS):
            worker, begin = f"trainer-{rank}", step * LENGTH
            computed = begin + (800 if worker == SLOW else 200 + 20 * rank)
            ended = begin + 900 + rank if collective else computed + 100
            root = f"{step}/{rank}"
            for name, start, end in (
                (STEP_SPAN, begin, max(ended, begin + 950 - rank)),
                ("my_compute", begin, computed),
                ("my_exchange", computed, ended),
            ):
                within = None if name == STEP_SPAN else f"{STEP_SPAN}{root}"
                made = span(f"{name}{root}", start, end, worker=worker, within=within, step=step)
                yield replace(made, name=name, phase="")


def seconds(spans: list[SpanRecord], *, finds: bool) -> Counter[tuple[str, str]]:
    """Time of the critical path of the last step by worker and name."""
    forest = Forest(spans, finds_collectives=finds)
    roots = [one for one in spans if one.name == STEP_SPAN and one.step == STEPS - 1]
    root = max(roots, key=lambda one: one.end_ns)
    took: Counter[tuple[str, str]] = Counter()
    for part in critical_path(forest, root):
        took[part.worker, part.phase] += part.end_ns - part.start_ns
    return took


def with_steps(spans: list[SpanRecord]) -> Iterator[tuple[SpanRecord, int]]:
    for one in spans:
        if one.name != STEP_SPAN and one.step is not None:
            yield one, one.step


def test_the_path_goes_on_at_the_rank_that_all_wait_for() -> None:
    spans = [*program(collective=True)]
    assert seconds(spans, finds=False).most_common(1)[0][0][0] != SLOW
    assert seconds(spans, finds=True).most_common(1)[0][0] == (SLOW, "my_compute")


def test_work_that_ends_apart_is_no_collective() -> None:
    assert collectives_in(with_steps([*program(collective=True)])) == {("trainer", "my_exchange")}
    assert collectives_in(with_steps([*program(collective=False)])) == set()


@pytest.mark.parametrize(("steps", "found"), [(2, 0), (3, 1)])
def test_a_few_steps_tell_nothing(steps: int, found: int) -> None:
    spans = [one for one in program(collective=True) if (one.step or 0) < steps]
    assert len(collectives_in(with_steps(spans))) == found
