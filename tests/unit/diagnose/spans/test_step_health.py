"""How well a step used its processes."""

from dataclasses import replace

import pytest

from otel_rl.diagnose.spans.activity import Activity
from otel_rl.diagnose.spans.critical_path import critical_path
from otel_rl.diagnose.spans.span_forest import Forest
from otel_rl.diagnose.spans.step_health import Observer, StepHealth, Straggler
from otel_rl.records import SpanRecord
from tests.unit.diagnose.span_builder import span

# 0    20    60     100
# [ wait    ][ train ]   trainer-0
# [ generate     ]       generator-0, of which the first is used
#      [ reward ]        reward-0
ASYNCHRONOUS = (
    span("step", 0, 100, step=1, uses=["reward"]),
    span("collector_wait", 0, 60, within="step", waits=True),
    span("train", 60, 100, within="step"),
    span("generate#1", 0, 20, worker="generator-0"),
    span("reward", 20, 55, worker="reward-0", within="generate#1"),
    span("generate#2", 30, 80, worker="generator-0"),
)


def judged(*spans: SpanRecord, of: str = "step") -> StepHealth:
    forest = Forest(spans)
    root = forest.get(of.encode())
    assert root is not None
    observer = Observer(forest, Activity(forest, root.start_ns, root.end_ns))
    return observer.judge(root, critical_path(forest, root))


def test_each_role_is_busy_waits_or_is_idle() -> None:
    roles = judged(*ASYNCHRONOUS).roles
    assert {
        role: (of.workers, of.busy_ns, of.bubble_ns, of.idle_ns) for role, of in roles.items()
    } == {
        "trainer": (1, 40, 60, 0),
        "generator": (1, 70, 0, 30),
        "reward": (1, 35, 0, 65),
    }


def test_making_samples_overlaps_learning_from_them() -> None:
    assert judged(*ASYNCHRONOUS).overlap_ns == 20


def test_roles_that_are_seen_alone_overlap_nothing() -> None:
    assert (
        judged(span("step", 0, 10, step=1), span("train", 0, 10, within="step")).overlap_ns is None
    )


def test_a_step_is_bound_by_the_stage_that_has_most_of_its_critical_path() -> None:
    health = judged(*ASYNCHRONOUS)
    assert health.bound_ns == {"generator": 25, "reward": 35, "trainer": 40}
    assert health.bound == "trainer"


def test_roles_and_phases_of_any_name_are_told_apart() -> None:
    renamed = {"trainer": "learner", "generator": "actor", "reward": "judge"}
    phases = {"train": "update", "generate": "play", "reward": "look"}
    spans = [
        replace(one, role=renamed[one.role], phase=phases.get(one.phase, one.phase))
        for one in ASYNCHRONOUS
    ]
    health = judged(*spans)
    assert health.overlap_ns == 20
    assert health.bound_ns == {"generator": 60, "trainer": 40}


def test_the_ideal_step_is_as_long_as_the_busiest_role() -> None:
    health = judged(*ASYNCHRONOUS)
    assert health.ideal_ns == 70
    assert health.efficiency == pytest.approx(0.7)


def test_a_second_worker_halves_what_its_role_has_to_do_at_best() -> None:
    other = span("generate#3", 0, 10, worker="generator-1")
    last = span("generate#4", 90, 100, worker="generator-1")
    assert judged(*ASYNCHRONOUS, other, last).ideal_ns == 45


@pytest.mark.parametrize(
    ("ends", "slack"),
    [((50, 50), 0), ((40, 50), 0), ((40, 30), 10)],
    ids=["both decide", "the other decides", "another role decides"],
)
def test_slack_is_what_a_role_could_have_ended_later(ends: tuple[int, int], slack: int) -> None:
    health = judged(
        span("step", 0, 100, step=1, uses=["generate#1", "generate#2", "reward"]),
        span("collector_wait", 0, 60, within="step", waits=True),
        span("train", 60, 100, within="step"),
        span("generate#1", 0, ends[0], worker="generator-0"),
        span("generate#2", 0, ends[1], worker="generator-1"),
        span("reward", 0, 50, worker="reward-0"),
    )
    assert health.roles["generator"].slack_ns == slack


def test_samples_that_were_there_before_have_slack_until_they_were_used() -> None:
    health = judged(
        span("step", 100, 200, step=1),
        span("train", 120, 200, within="step", uses=["generate"]),
        span("generate", 0, 30, worker="generator-0"),
        span("reward", 10, 25, worker="reward-0", within="generate"),
        span("generate#2", 30, 300, worker="generator-0"),
        span("reward#2", 40, 290, worker="reward-0"),
    )
    assert health.roles["generator"].slack_ns == 90
    assert health.roles["reward"].slack_ns == 95


def test_a_role_that_the_step_did_not_need_has_no_slack_to_tell() -> None:
    health = judged(span("step", 0, 10, step=1), span("generate", 0, 10, worker="generator-0"))
    assert health.roles["generator"].slack_ns is None


def test_a_straggler_is_named_with_its_excess_over_the_median_of_its_peers() -> None:
    ranks = [
        part
        for rank, length in enumerate((40, 42, 41, 90))
        for part in (
            span(f"step#{rank}", 0, 100, worker=f"trainer-{rank}", step=1),
            span(f"train#{rank}", 0, length, worker=f"trainer-{rank}", within=f"step#{rank}"),
            span(
                f"rank_barrier#{rank}",
                length,
                100,
                worker=f"trainer-{rank}",
                within=f"step#{rank}",
                waits=True,
                step=1,
            ),
        )
    ]
    assert judged(*ranks, of="step#0").roles["trainer"].straggler == Straggler(
        "trainer-3", "train", 49
    )


def test_a_slow_replica_is_a_straggler_though_all_are_busy_all_the_time() -> None:
    fast = [span(f"generate#f{n}", n * 10, n * 10 + 10, worker="generator-0") for n in range(10)]
    slow = [span(f"generate#s{n}", n * 25, n * 25 + 25, worker="generator-1") for n in range(4)]
    health = judged(span("step", 0, 100, step=1), *fast, *slow)
    assert health.roles["generator"].straggler == Straggler("generator-1", "generate", 60)


def test_what_only_one_worker_does_makes_it_no_straggler() -> None:
    health = judged(
        span("step#0", 0, 100, step=1),
        span("weight_push", 0, 50, within="step#0"),
        span("step#1", 0, 100, worker="trainer-1", step=1),
        of="step#0",
    )
    assert health.roles["trainer"].straggler is None


def test_a_step_that_took_no_time_lacks_nothing_and_says_so() -> None:
    health = judged(span("step", 5, 5, step=1), span("train", 0, 10))
    assert (health.efficiency, health.bound, health.ideal_ns) == (None, "idle", 0)
