"""Steps of spans that do not tell theirs."""

from otel_rl.bridge.rows.history import SpanSteps
from tests.traces import span

LOOP = span("rl.loop", 0, 100, step=22)
PART = span("train", 10, 90, within="rl.loop")


def test_metrics_tell_the_step_of_all_spans_whether_or_not_the_one_around_has_come() -> None:
    """It ends later, and comes in a later message of some workers."""
    steps = SpanSteps()

    with_loop = {of.name: step for of, step in steps.of([PART, LOOP], lambda _: 21)}
    alone = {of.name: step for of, step in steps.of([PART], lambda _: 21)}

    assert with_loop == {"train": 21, "rl.loop": 22}
    assert alone == {"train": 21}


def test_without_metrics_a_span_has_the_step_of_the_one_around() -> None:
    found = {of.name: step for of, step in SpanSteps().of([PART, LOOP], _no_metric)}

    assert found == {"train": 22, "rl.loop": 22}


def _no_metric(_: int) -> None:
    return None
