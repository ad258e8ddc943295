"""What decided how long a step took."""

import pytest

from otel_rl.diagnose.spans.critical_path import Segment, critical_path
from otel_rl.diagnose.spans.span_forest import Forest
from otel_rl.records import SpanRecord
from tests.unit.diagnose.span_builder import span


def path(*spans: SpanRecord, of: str = "step") -> list[tuple[int, int, str]]:
    """(start, end, worker/phase) of each segment."""
    forest = Forest(spans)
    root = forest.get(of.encode())
    assert root is not None
    return [written(segment) for segment in critical_path(forest, root)]


def written(segment: Segment) -> tuple[int, int, str]:
    return segment.start_ns, segment.end_ns, f"{segment.worker}/{segment.phase}"


def test_a_step_of_one_process_is_its_phases() -> None:
    assert path(
        span("step", 0, 100, step=1),
        span("collector_wait", 0, 30, within="step", waits=True),
        span("train", 30, 90, within="step"),
    ) == [
        (0, 30, "trainer-0/collector_wait"),
        (30, 90, "trainer-0/train"),
        (90, 100, "trainer-0/unaccounted"),
    ]


def test_a_span_of_a_library_that_has_the_number_of_its_step_keeps_its_name() -> None:
    assert path(
        span("step", 0, 100, step=1),
        span("step_over_http", 30, 90, within="step", step=1),
    ) == [
        (0, 30, "trainer-0/unaccounted"),
        (30, 90, "trainer-0/step_over_http"),
        (90, 100, "trainer-0/unaccounted"),
    ]


def test_phases_back_to_back_are_all_there() -> None:
    assert path(
        span("step", 0, 3, step=1),
        *(span(f"train#{n}", n, n + 1, within="step") for n in range(3)),
    ) == [(0, 1, "trainer-0/train"), (1, 2, "trainer-0/train"), (2, 3, "trainer-0/train")]


def test_a_phase_within_a_phase_takes_its_time_out() -> None:
    assert path(
        span("step", 0, 10, step=1),
        span("train", 0, 10, within="step"),
        span("checkpoint", 4, 6, within="train"),
    ) == [
        (0, 4, "trainer-0/train"),
        (4, 6, "trainer-0/checkpoint"),
        (6, 10, "trainer-0/train"),
    ]


def test_a_phase_that_took_no_time_does_not_cut_the_one_around_it() -> None:
    assert path(
        span("step", 0, 10, step=1),
        span("train", 1, 10, within="step"),
        span("mark", 6, 6, within="train"),
    ) == [(0, 1, "trainer-0/unaccounted"), (1, 10, "trainer-0/train")]


def test_of_children_side_by_side_the_last_to_end_decided() -> None:
    assert path(
        span("step", 0, 10, step=1),
        span("train", 0, 10, within="step"),
        span("fast", 0, 6, within="train"),
        span("slow", 2, 9, within="train"),
    ) == [(0, 2, "trainer-0/train"), (2, 9, "trainer-0/slow"), (9, 10, "trainer-0/train")]


def test_a_wait_is_explained_by_what_it_waited_for() -> None:
    assert path(
        span("step", 0, 100, step=1, uses=["generate"]),
        span("collector_wait", 0, 60, within="step", waits=True),
        span("train", 60, 100, within="step"),
        span("generate", 5, 55, worker="generator-0"),
    ) == [
        (0, 5, "generator-0/idle"),
        (5, 55, "generator-0/generate"),
        (55, 60, "trainer-0/collector_wait"),
        (60, 100, "trainer-0/train"),
    ]


def test_of_many_samples_the_last_to_come_decided() -> None:
    found = path(
        span("step", 0, 100, step=1, uses=["generate#0", "generate#1", "generate#2"]),
        span("collector_wait", 0, 60, within="step", waits=True),
        span("train", 60, 100, within="step"),
        span("generate#0", 0, 50, worker="generator-0"),
        span("generate#1", 0, 58, worker="generator-1"),
        span("generate#2", 0, 30, worker="generator-2"),
    )
    assert found[0] == (0, 58, "generator-1/generate")


def test_samples_that_were_ready_before_the_wait_do_not_explain_it() -> None:
    assert path(
        span("step", 50, 100, step=1, uses=["generate"]),
        span("collector_wait", 50, 80, within="step", waits=True),
        span("train", 80, 100, within="step"),
        span("generate", 0, 40, worker="generator-0"),
    ) == [(50, 80, "trainer-0/collector_wait"), (80, 100, "trainer-0/train")]


def test_a_generator_that_waited_for_weights_leads_back_to_who_sent_them() -> None:
    assert path(
        span("step", 0, 100, step=2, uses=["generate"]),
        span("weight_push", 0, 20, within="step"),
        span("collector_wait", 20, 90, within="step", waits=True),
        span("train", 90, 100, within="step"),
        span("weight_pull", 5, 25, worker="generator-0", waits=True, uses=["weight_push"]),
        span("generate", 25, 85, worker="generator-0"),
    ) == [
        (0, 20, "trainer-0/weight_push"),
        (20, 25, "generator-0/weight_pull"),
        (25, 85, "generator-0/generate"),
        (85, 90, "trainer-0/collector_wait"),
        (90, 100, "trainer-0/train"),
    ]


def test_a_barrier_is_explained_by_the_rank_that_came_last() -> None:
    assert path(
        span("step", 0, 100, step=1),
        span("train", 0, 40, within="step"),
        span("rank_barrier", 40, 90, within="step", waits=True, step=1),
        span("param_sync", 90, 100, within="step"),
        span("step#1", 0, 100, worker="trainer-1", step=1),
        span("train#1", 0, 88, worker="trainer-1", within="step#1"),
        span("rank_barrier#1", 88, 90, worker="trainer-1", within="step#1", waits=True, step=1),
    ) == [
        (0, 88, "trainer-1/train"),
        (88, 90, "trainer-0/rank_barrier"),
        (90, 100, "trainer-0/param_sync"),
    ]


def test_an_all_reduce_is_explained_by_the_rank_that_came_last() -> None:
    sync = "sync"
    assert path(
        span("step", 0, 100, step=1),
        span("train", 0, 40, within="step"),
        span("param_sync", 40, 90, within="step", phase_class=sync, step=1),
        span("optimize", 90, 100, within="step"),
        span("step#1", 0, 100, worker="trainer-1", step=1),
        span("train#1", 0, 85, worker="trainer-1", within="step#1"),
        span("param_sync#1", 85, 90, worker="trainer-1", within="step#1", phase_class=sync, step=1),
    ) == [
        (0, 85, "trainer-1/train"),
        (85, 90, "trainer-0/param_sync"),
        (90, 100, "trainer-0/optimize"),
    ]


@pytest.mark.parametrize("depth", [0, 1, 2])
def test_an_all_reduce_without_a_step_of_its_own_has_that_of_the_span_around_it(depth: int) -> None:
    def rank(name: str, worker: str, arrives: int) -> list[SpanRecord]:
        inside = [f"{name}-in{n}" for n in range(depth)]
        within = [f"step{name}", *inside]
        return [
            span(f"step{name}", 0, 100, worker=worker, step=1),
            *(
                span(f"train#{one}", 0, 91, worker=worker, within=around)
                for one, around in zip(inside, _ids(within), strict=False)
            ),
            span(f"forward#{name}", 0, arrives, worker=worker, within=_ids(within)[-1]),
            span(
                f"param_sync#{name}",
                arrives,
                90,
                worker=worker,
                within=_ids(within)[-1],
                phase_class="sync",
            ),
        ]

    found = path(*rank("a", "trainer-0", 40), *rank("b", "trainer-1", 85), of="stepa")
    assert found[:2] == [(0, 85, "trainer-1/forward"), (85, 90, "trainer-0/param_sync")]


def _ids(names: list[str]) -> list[str]:
    return [names[0], *(f"train#{name}" for name in names[1:])]


def test_a_remote_call_is_explained_by_its_server() -> None:
    assert path(
        span("step", 0, 50, step=1),
        span("weight_sync", 0, 50, within="step"),
        span("weight_pull", 10, 40, worker="generator-0", within="weight_sync"),
        span("model_load", 15, 40, worker="generator-0", within="weight_pull"),
    ) == [
        (0, 10, "trainer-0/weight_sync"),
        (10, 15, "generator-0/weight_pull"),
        (15, 40, "generator-0/model_load"),
        (40, 50, "trainer-0/weight_sync"),
    ]


def test_work_that_its_parent_did_not_wait_for_leads_back_to_it() -> None:
    assert path(
        span("step", 0, 100, step=1, uses=["reward"]),
        span("collector_wait", 0, 80, within="step", waits=True),
        span("train", 80, 100, within="step"),
        span("generate", 0, 40, worker="generator-0"),
        span("reward", 50, 75, worker="reward-0", within="generate"),
    ) == [
        (0, 40, "generator-0/generate"),
        (40, 50, "reward-0/idle"),
        (50, 75, "reward-0/reward"),
        (75, 80, "trainer-0/collector_wait"),
        (80, 100, "trainer-0/train"),
    ]


def test_a_busy_worker_is_the_reason_and_not_its_waiting_input() -> None:
    """The reward worker had another sample to score when this one came."""
    found = path(
        span("step", 0, 100, step=1, uses=["reward#2"]),
        span("collector_wait", 0, 90, within="step", waits=True),
        span("generate", 0, 20, worker="generator-0"),
        span("reward#1", 10, 60, worker="reward-0"),
        span("reward#2", 60, 85, worker="reward-0", uses=["generate"]),
    )
    assert found[:3] == [
        (0, 10, "reward-0/idle"),
        (10, 60, "reward-0/reward"),
        (60, 85, "reward-0/reward"),
    ]


def test_a_wait_that_nobody_explains_is_its_own_reason() -> None:
    assert path(
        span("step", 0, 10, step=1),
        span("collector_wait", 0, 10, within="step", waits=True, uses=["lost"]),
    ) == [(0, 10, "trainer-0/collector_wait")]


def test_an_empty_interval_has_no_path() -> None:
    assert path(span("step", 5, 5, step=1)) == []


def test_a_span_that_comes_twice_counts_once() -> None:
    once = span("train", 0, 10, within="step")
    assert path(span("step", 0, 10, step=1), once, once) == [(0, 10, "trainer-0/train")]


def test_what_became_of_a_sample_before_it_came_is_a_part_of_the_way() -> None:
    """The step links to the sample; that it was scored in between is known by its parent."""
    assert path(
        span("step", 0, 100, step=1, uses=["generate"]),
        span("collector_wait", 0, 80, within="step", waits=True),
        span("train", 80, 100, within="step"),
        span("generate", 0, 30, worker="generator-0"),
        span("reward", 35, 78, worker="reward-0", within="generate"),
    ) == [
        (0, 30, "generator-0/generate"),
        (30, 35, "reward-0/idle"),
        (35, 78, "reward-0/reward"),
        (78, 80, "trainer-0/collector_wait"),
        (80, 100, "trainer-0/train"),
    ]


def test_samples_that_are_handed_over_one_by_one_wait_for_each_other() -> None:
    assert path(
        span("step", 0, 100, step=1, uses=["generate#0", "generate#1"]),
        span("collector_wait", 0, 90, within="step", waits=True),
        span("train", 90, 100, within="step"),
        span("generate#0", 0, 30, worker="generator-0"),
        span("generate#1", 0, 30, worker="generator-0"),
        span("replay#0", 30, 60, worker="generator-0", within="generate#0"),
        span("reward#0", 31, 59, worker="reward-0", within="replay#0"),
        span("replay#1", 60, 90, worker="generator-0", within="generate#1"),
        span("reward#1", 61, 90, worker="reward-1", within="replay#1"),
    ) == [
        (0, 30, "generator-0/generate"),
        (30, 31, "generator-0/replay"),
        (31, 59, "reward-0/reward"),
        (59, 60, "generator-0/replay"),
        (60, 61, "generator-0/replay"),
        (61, 90, "reward-1/reward"),
        (90, 100, "trainer-0/train"),
    ]


def test_what_trainers_make_of_a_sample_is_no_part_of_its_way_to_them() -> None:
    found = path(
        span("step", 0, 100, step=1, uses=["generate"]),
        span("collector_wait", 0, 80, within="step", waits=True),
        span("generate", 0, 30, worker="generator-0"),
        span("train#1", 35, 70, worker="trainer-1", within="generate"),
    )
    assert {who for _, _, who in found} == {
        "trainer-0/collector_wait",
        "trainer-0/unaccounted",
        "generator-0/generate",
    }


def test_of_very_much_that_became_of_a_sample_the_last_counts() -> None:
    scores = [
        span(f"score#{n}", 30 + n, 31 + n, worker="reward-0", within="generate")
        for n in range(2_000)
    ]
    found = path(
        span("step", 0, 3_000, step=1, uses=["generate"]),
        span("collector_wait", 0, 2_900, within="step", waits=True),
        span("generate", 0, 30, worker="generator-0"),
        *scores,
    )
    assert found[1:-2] == [(30 + n, 31 + n, "reward-0/score") for n in range(2_000)]


def apart(wait: str = "collector_wait", *more: SpanRecord) -> list[tuple[int, int, str]]:
    """The path of a step that nothing links to, beside samples in traces of their own."""
    return path(
        span("step", 0, 100, step=1),
        span(wait, 0, 60, within="step", waits=True),
        span("train", 60, 100, within="step"),
        span("generate#0", 0, 50, worker="generator-0"),
        span("generate#1", 0, 58, worker="generator-1"),
        span("generate#2", 0, 90, worker="generator-2"),
        *more,
    )


def test_in_traces_apart_a_wait_for_samples_ended_with_the_last_one() -> None:
    assert apart() == [
        (0, 58, "generator-1/generate"),
        (58, 60, "trainer-0/collector_wait"),
        (60, 100, "trainer-0/train"),
    ]


def test_in_traces_apart_other_waits_are_their_own_reason() -> None:
    assert apart("rank_barrier")[0] == (0, 60, "trainer-0/rank_barrier")


def test_where_spans_link_a_sample_without_a_link_explains_no_wait() -> None:
    linked = span("train#2", 100, 110, uses=["generate#0"])
    assert apart("collector_wait", linked)[0] == (0, 60, "trainer-0/collector_wait")
