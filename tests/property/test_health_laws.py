"""Whatever the spans, the figures of a step's health fit together."""

from collections import defaultdict
from dataclasses import replace

from hypothesis import given

from otel_rl.diagnose.spans.activity import Activity
from otel_rl.diagnose.spans.critical_path import critical_path
from otel_rl.diagnose.spans.slack import slack_of_roles
from otel_rl.diagnose.spans.span_forest import Forest
from otel_rl.diagnose.spans.step_health import Observer, StepHealth
from otel_rl.records import SpanRecord
from tests.property.span_forests import Task, forests, schedules, spans_of, unhurried


def judged(spans: list[SpanRecord], root: SpanRecord) -> StepHealth:
    forest = Forest(spans)
    observer = Observer(forest, Activity(forest, root.start_ns, root.end_ns))
    return observer.judge(root, critical_path(forest, root))


@given(forests())
@unhurried
def test_what_workers_did_adds_up_to_the_step_for_each(spans: list[SpanRecord]) -> None:
    for root in spans[:5]:
        for role in judged(spans, root).roles.values():
            took_ns = role.workers * (root.end_ns - root.start_ns)
            assert role.busy_ns + role.bubble_ns + role.idle_ns == took_ns
            assert min(role.busy_ns, role.bubble_ns, role.idle_ns) >= 0


@given(forests())
@unhurried
def test_no_role_overlaps_another_for_longer_than_either_is_busy(spans: list[SpanRecord]) -> None:
    for root in spans[:5]:
        health = judged(spans, root)
        busy = [role.busy_ns for role in health.roles.values()]
        assert (health.overlap_ns or 0) <= min(root.end_ns - root.start_ns, sum(busy))


@given(forests())
@unhurried
def test_no_step_is_more_efficient_than_the_ideal_one(spans: list[SpanRecord]) -> None:
    for root in spans[:5]:
        health = judged(spans, root)
        assert health.ideal_ns <= health.took_ns
        assert health.efficiency is None or 0 <= health.efficiency <= 1
        assert sum(health.bound_ns.values()) == health.took_ns


@given(forests())
@unhurried
def test_a_process_does_one_thing_at_a_time(spans: list[SpanRecord]) -> None:
    activity = Activity(Forest(spans), 10, 50)
    for stretches in activity.within(20, 40).values():
        at_ns = 20
        for stretch in stretches:
            assert at_ns <= stretch.start_ns < stretch.end_ns <= 40
            at_ns = stretch.end_ns


@given(forests())
@unhurried
def test_a_role_on_the_critical_path_has_no_slack_and_none_has_less(
    spans: list[SpanRecord],
) -> None:
    forest = Forest(spans)
    for root in spans[:5]:
        path = critical_path(forest, root)
        slack_ns = slack_of_roles(forest, root, path)
        assert all(slack_ns[segment.role] == 0 for segment in path)
        assert all(slack >= 0 for slack in slack_ns.values())


@given(schedules())
@unhurried
def test_work_may_end_later_by_its_slack_and_no_more(schedule: list[Task]) -> None:
    """Each worker has a role of its own here, so the slack of the role is of its tightest task."""
    spans, step = spans_of(schedule)
    spans = [replace(span, role=span.worker) for span in spans]
    forest = Forest([*spans, step])
    slack_ns = slack_of_roles(forest, step, critical_path(forest, step))
    took_with_more: dict[str, set[int]] = defaultdict(set)
    for number, task in enumerate(schedule):
        role = str(task.worker)
        took = [end_of(schedule, number, slack_ns[role] + more) for more in (0, 1)]
        assert took[0] == step.end_ns
        took_with_more[role].add(took[1])
    assert all(max(took) > step.end_ns for took in took_with_more.values())


def end_of(schedule: list[Task], number: int, more: int) -> int:
    """When the schedule ends if one task takes longer."""
    longer = [*schedule]
    longer[number] = replace(schedule[number], length=schedule[number].length + more)
    return spans_of(longer)[1].end_ns
