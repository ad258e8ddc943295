"""Findings of runs that were not tuned on: each was wrong once."""

import math
from array import array

import pytest

from otel_rl.diagnose.classify import Work, work_of
from otel_rl.diagnose.detectors.learning import not_a_number
from otel_rl.diagnose.engine import diagnose
from otel_rl.diagnose.history.records import Facts, RowFacts, WorkerFacts
from otel_rl.diagnose.history.run_history import PhaseKey, RunHistory
from otel_rl.diagnose.result import Kind, Verdict
from tests.unit.diagnose.made import AT, Series, changed, made
from tests.unit.diagnose.worlds import World


def versions(roles: tuple[str, str], behind: int) -> RunHistory:
    """The second role has each version of the first at once, and from AT on only later."""
    leader, follower = roles
    workers: dict[tuple[str, str], Series] = {
        (f"{follower}/policy/version", f"{follower}/0"): lambda step: float(
            step - behind if AT <= step < 78 else step
        ),
        (f"{leader}/policy/version", f"{leader}/0"): float,
    }
    return made(workers=workers)


@pytest.mark.parametrize("roles", [("trainer", "generator"), ("zeta", "alpha"), ("alpha", "zeta")])
def test_who_has_new_weights_first_leads_though_all_end_with_the_same(
    roles: tuple[str, str],
) -> None:
    first = diagnose(versions(roles, behind=6)).causes[0]
    assert (first.kind, first.role) == (Kind.STALE_POLICY, roles[1])


@pytest.mark.parametrize("roles", [("learner", "sampler"), ("zeta", "alpha"), ("alpha", "zeta")])
def test_who_tells_its_versions_late_leads_if_it_alone_has_further_ones(
    roles: tuple[str, str],
) -> None:
    leader, follower = roles
    workers: dict[tuple[str, str], Series] = {
        (f"{follower}/policy/version", f"{follower}/0"): lambda step: float(min(step + 1, AT)),
        (f"{leader}/policy/version", f"{leader}/0"): float,
    }
    (cause,) = diagnose(made(workers=workers)).causes
    assert (cause.kind, cause.role) == (Kind.STALE_POLICY, follower)


def test_who_counts_versions_on_its_own_does_not_lead() -> None:
    workers: dict[tuple[str, str], Series] = {
        ("engine/weights/version", "engine/0"): lambda step: 1000.0 + 7 * step,
        ("learner/policy/version", "learner/0"): float,
        ("sampler/policy/version", "sampler/0"): lambda step: float(min(step, AT)),
    }
    roles = [one.role for one in diagnose(made(workers=workers)).causes]
    assert roles == ["sampler"]


@pytest.mark.parametrize(("steps", "takes_up", "is_told"), [(4, 12, False), (20, 0, True)])
def test_a_replacement_has_old_weights_only_if_it_does_not_take_up_newer_ones(
    steps: int, takes_up: int, *, is_told: bool
) -> None:
    def restarted(step: int) -> float:
        return float(step if step < AT else 4 + takes_up * (step - AT))

    workers: dict[tuple[str, str], Series] = {
        ("generator/policy/version", "generator/0"): float,
        ("generator/policy/version", "generator/1"): restarted,
        ("trainer/policy/version", "trainer/0"): float,
    }
    kinds = [one.kind for one in diagnose(made(AT + steps, workers=workers)).causes]
    assert kinds == ([Kind.STALE_POLICY] if is_told else [])


@pytest.mark.parametrize("behind", [4, 6])
def test_old_weights_are_farther_behind_than_a_busy_host_has_left_them_before(behind: int) -> None:
    def own(step: int) -> float:
        return float(step - behind if step >= AT else step // 5 * 5)

    workers: dict[tuple[str, str], Series] = {
        ("generator/policy/version", "generator/0"): own,
        ("trainer/policy/version", "trainer/0"): float,
    }
    kinds = [one.kind for one in diagnose(made(workers=workers)).causes]
    assert kinds == ([Kind.STALE_POLICY] if behind > 4 else [])


def test_versions_that_one_role_alone_has_had_are_no_lead_of_it() -> None:
    """One generator tells means of two versions; the trainer tells each other version."""
    late = changed(0.0, 6.0)
    workers: dict[tuple[str, str], Series] = {
        ("generator/policy/version", "generator/0"): lambda step: step - 1.5 - late(step),
        ("generator/policy/version", "generator/1"): lambda step: step - 1 - late(step),
        ("trainer/policy/version", "trainer/0"): lambda step: float(step // 2 * 2),
    }
    first = diagnose(made(workers=workers)).causes[0]
    assert (first.kind, first.role) == (Kind.STALE_POLICY, "generator")


def calls(series: int, late: int, *, felt_s: float = 0.0, usual_s: float = 0.02) -> RunHistory:
    """So many callers, of which some wait longer from AT on, while the answer takes as long."""
    workers: dict[tuple[str, str], Series] = {
        ("judge/rpc/server/call/duration/Score", "judge/0"): lambda step: 0.01
    }
    for caller in range(series):
        waits = changed(0.02, 0.08) if caller < late else changed(usual_s, usual_s)
        workers["actor/rpc/client/call/duration/Score", f"actor/{caller}"] = waits
    return made(step_s=changed(1.0, 1.0 + felt_s), workers=workers)


@pytest.mark.parametrize(
    ("series", "late", "felt_s", "is_told"),
    [(35, 1, 0.0, False), (35, 1, 0.06, True), (35, 5, 0.0, True), (8, 1, 0.0, True)],
)
def test_one_odd_series_of_many_is_no_slow_network_unless_steps_feel_it(
    series: int, late: int, felt_s: float, *, is_told: bool
) -> None:
    kinds = [one.kind for one in diagnose(calls(series, late, felt_s=felt_s)).causes]
    assert kinds == ([Kind.NETWORK_DELAY] if is_told else [])


@pytest.mark.parametrize(("others_s", "is_told"), [(0.02, True), (0.07, False)])
def test_a_caller_that_waits_no_longer_than_others_have_to_has_no_slow_way(
    others_s: float, *, is_told: bool
) -> None:
    """The servers' queue is long for one caller, and then for another."""
    kinds = [one.kind for one in diagnose(calls(8, 1, usual_s=others_s)).causes]
    assert kinds == ([Kind.NETWORK_DELAY] if is_told else [])


def test_a_caller_that_is_always_far_away_hides_no_slow_way_of_another() -> None:
    history = calls(8, 1)
    far = history.workers["actor/rpc/client/call/duration/Score"]["actor/7"].values
    far[:] = array("d", [0.07] * len(far))
    assert [one.worker for one in diagnose(history).causes] == ["actor/0"]


@pytest.mark.parametrize(("felt_s", "is_told"), [(0.1, True), (3.0, False)])
def test_calls_that_take_a_little_of_what_steps_take_longer_are_not_why(
    felt_s: float, *, is_told: bool
) -> None:
    kinds = [one.kind for one in diagnose(calls(8, 8, felt_s=felt_s)).causes]
    assert kinds == ([Kind.NETWORK_DELAY] if is_told else [])


def test_the_calls_of_a_histogram_are_counted_in_its_rows() -> None:
    """A caller makes 40 of them in each step, and tells one mean of all."""
    history = calls(8, 8, felt_s=3.0)
    assert not diagnose(history).causes
    key = "actor/rpc/client/call/duration/Score/count"
    for step in range(80):
        history.rows[key].add(step, float(step), 8 * 40.0)
    assert [one.kind for one in diagnose(history).causes] == [Kind.NETWORK_DELAY]


@pytest.mark.parametrize(("fastest_s", "is_told"), [(0.02, False), (0.08, True)])
def test_a_queue_before_the_answer_is_no_slow_way_because_some_calls_are_as_fast_as_before(
    fastest_s: float, *, is_told: bool
) -> None:
    workers: dict[tuple[str, str], Series] = {
        ("judge/rpc/server/call/duration/Score", "judge/0"): lambda step: 0.01,
        ("actor/rpc/client/call/duration/Score", "actor/0"): lambda step: (
            0.02 if step < AT else fastest_s if step % 5 == 0 else 0.08
        ),
    }
    kinds = [one.kind for one in diagnose(made(workers=workers)).causes]
    assert kinds == ([Kind.NETWORK_DELAY] if is_told else [])


def test_a_busy_host_that_slows_all_work_alike_does_not_make_messages_slow() -> None:
    """Callers wait for a CPU too, and those who answer measure only their own part."""
    history = calls(8, 8)
    busy = made(
        step_s=changed(0.05, 0.2),
        workers={
            (key, worker): of.values.__getitem__
            for key, some in history.workers.items()
            for worker, of in some.items()
        },
        spans={
            (role, phase, index): changed(0.01, 0.04)
            for role in ("learner", "actor", "judge")
            for phase in ("load", "compute", "store")
            for index in range(2)
        },
    )

    assert diagnose(busy).causes == []


def transfer(pull_longer_s: float) -> RunHistory:
    spans: dict[tuple[str, str, int], Series] = {
        ("trainer", "weight_push", 0): changed(0.1, 0.9),
        ("generator", "weight_pull", 0): changed(0.08, 0.08 + pull_longer_s),
    }
    return made(step_s=changed(1.0, 1.8), spans=spans)


@pytest.mark.parametrize(("pull_longer_s", "listed"), [(0.8, 1), (0.3, 2)])
def test_one_slow_transfer_of_weights_is_listed_once(pull_longer_s: float, listed: int) -> None:
    kinds = [cause.kind for cause in diagnose(transfer(pull_longer_s)).causes]
    assert kinds == [Kind.SLOW_SYNC] * listed


@pytest.mark.parametrize(
    ("role", "phase", "work"),
    [
        ("trainer", "checkpoint", Work.OTHER),
        ("learner", "save_state", Work.OTHER),
        ("rollout", "evaluate", Work.OTHER),
        ("trainer", "save_weights", Work.SYNC),
        ("trainer", "crunch", Work.TRAINING),
        ("trainer", "h2d_copy", Work.TRAINING),
    ],
)
def test_the_checkpoint_of_a_trainer_is_no_training(role: str, phase: str, work: Work) -> None:
    assert work_of(PhaseKey(role, phase)) is work


def test_most_of_the_time_of_a_step_is_that_since_it_changed() -> None:
    history = made(step_s=changed(1.0, 2.5, at=70))
    for step in history.steps:
        phase, seconds = ("sync", 1.5) if step.step >= 70 else ("train", 0.0)
        step.path.append(("trainer", phase, "trainer/0", seconds))  # type: ignore[attr-defined]
    report = diagnose(history)
    assert report.verdict is not Verdict.HEALTHY
    assert report.bound is not None
    assert report.bound[1] == "rl.loop"
    assert report.bound[2] == pytest.approx(2.5 / 4)


def several(*slow: tuple[str, str, int | None, float, int], nan: bool = False) -> World:
    """A run with each of some workers' work, or that of a whole role, slower from a step on."""

    def slower(role: str, phase: str, index: int, step: int) -> float:
        factor = 1.0
        for a_role, a_phase, an_index, by, at in slow:
            if (role, phase) == (a_role, a_phase) and an_index in {None, index} and step >= at:
                factor *= by
        return factor

    def odd(name: str, index: int, step: int) -> bool:
        return nan and name == "grad_norm" and index == 0 and step >= AT

    sizes = {"actor": 4, "judge": 2, "learner": 4}
    return World(sizes=sizes, noise=0.1, slower=slower, odd=odd)


def found_in(world: World) -> set[tuple[Kind, str | None]]:
    return {(one.kind, one.worker) for one in diagnose(world.history()).causes}


def test_a_nan_does_not_hide_a_straggler() -> None:
    world = several(("learner", "backward", 1, 3.0, AT + 5), nan=True)
    assert found_in(world) == {(Kind.NAN, "learner/0"), (Kind.STRAGGLER, "learner/1")}


def test_a_nan_explains_samples_that_take_longer_everywhere() -> None:
    world = several(("actor", "rollout", None, 3.0, AT + 2), nan=True)
    assert found_in(world) == {(Kind.NAN, "learner/0")}


def test_a_slower_reward_does_not_hide_a_straggler_of_the_same_size() -> None:
    # Both take 0.8 s longer, at the same time.
    world = several(("judge", "score", None, 17.0, AT), ("learner", "backward", 1, 2.6, AT))
    assert found_in(world) == {(Kind.SLOW_REWARD, None), (Kind.STRAGGLER, "learner/1")}


def test_calls_that_become_slower_much_later_than_answers_have_another_reason() -> None:
    world = several(("judge", "score", None, 9.0, 25), ("actor", "rollout", None, 2.0, 55))
    assert {Kind.SLOW_REWARD, Kind.SLOW_GENERATION} <= {kind for kind, _ in found_in(world)}


def test_a_wrong_clock_does_not_hide_slow_work_of_another_role() -> None:
    world = several(("learner", "backward", 1, 3.0, AT))
    world.ahead_s = {"judge/1": 20.0}
    assert found_in(world) == {(Kind.CLOCK_SKEW, "judge/1"), (Kind.STRAGGLER, "learner/1")}


@pytest.mark.parametrize(("odd", "since"), [({7, 8, 9}, 7), ({1}, None)])
def test_a_nan_among_many_quick_steps_has_the_step_of_its_row(
    odd: set[int], since: int | None
) -> None:
    rows = [
        RowFacts(step, step, {"trainer/loss": math.nan if step in odd else 1.0})
        for step in range(1, 10)
    ]
    seen = [WorkerFacts("trainer/0", 9, 9 - len(odd), 9.0 - len(odd), len(odd))]
    history = RunHistory([Facts(9, 9, rows=rows, workers={"trainer/loss": seen})])
    assert [one.since for one in not_a_number(history)] == ([since] if since else [])


def test_a_nan_in_a_later_snapshot_of_many_quick_steps_has_its_step_and_its_source() -> None:
    def snapshot(first: int, last: int, since: int) -> Facts:
        rows = [
            RowFacts(
                step, step, dict.fromkeys(("loss", "norm"), math.nan if step >= since else 1.0)
            )
            for step in range(first, last + 1)
        ]

        def seen(worker: str, turns: bool) -> WorkerFacts:
            odd = max(0, last + 1 - since) if turns else 0
            number = last + 1 - first - odd
            return WorkerFacts(worker, last, number, float(number), odd)

        workers = {
            "loss": [seen("trainer/0", True), seen("trainer/1", True)],
            "norm": [seen("trainer/0", False), seen("trainer/1", True)],
        }
        return Facts(last, last, rows=rows, workers=workers)

    history = RunHistory([snapshot(1, 9, 14), snapshot(10, 18, 14), snapshot(19, 27, 14)])
    (cause,) = not_a_number(history)
    assert (cause.since, cause.worker) == (14, "trainer/1")


def collective(seconds: Series, of_all: Series) -> RunHistory:
    """Two ranks that end a collective together; one of them comes late to it."""
    spans: dict[tuple[str, str, int], Series] = {
        ("trainer", "train", 0): lambda step: 0.4,
        ("trainer", "train", 1): seconds,
        ("trainer", "all_reduce", 0): lambda step: of_all(step) + seconds(step) - 0.4,
        ("trainer", "all_reduce", 1): of_all,
    }
    return made(spans=spans, step_s=lambda step: 0.4 + seconds(step) + of_all(step))


def test_who_waits_in_a_collective_is_not_slow() -> None:
    history = collective(changed(0.4, 0.9), lambda step: 0.002)
    assert [(one.kind, one.worker) for one in diagnose(history).causes] == [
        (Kind.STRAGGLER, "trainer/1")
    ]


def test_a_collective_that_takes_all_longer_is_slow() -> None:
    history = collective(lambda step: 0.4, changed(0.1, 0.5))
    (cause,) = diagnose(history).causes
    assert (cause.phase, cause.worker, cause.since) == ("all_reduce", None, AT)
    assert cause.kind is Kind.SLOW_PHASE  # no GPU takes longer


def with_whole_steps(role: str, part_s: Series, ranks: int) -> RunHistory:
    """Workers whose spans of whole steps have no parts nested in them, and no other step time."""
    whole: Series = lambda step: 0.5 + part_s(step)  # noqa: E731
    spans: dict[tuple[str, str, int], Series] = {}
    for rank in range(3):
        spans |= {("trainer", "train", rank): lambda step: 0.5}
        spans |= {("trainer", "all_reduce", rank): part_s}
    spans |= {(role, "training_step", rank): whole for rank in range(ranks)}
    spans |= {(role, "next_batch", rank): lambda step: 0.02 for rank in range(ranks)}
    history = made(spans=spans, step_s=whole)
    history.steps = []
    return history


@pytest.mark.parametrize(("role", "ranks"), [("trainer", 3), ("controller", 1)])
def test_a_span_of_a_whole_step_tells_its_time_and_is_no_part_of_it(role: str, ranks: int) -> None:
    report = diagnose(with_whole_steps(role, changed(0.1, 0.6), ranks))
    assert [one.phase for one in report.causes] == ["all_reduce"]
    assert report.symptoms


def test_a_span_of_a_step_with_parts_beside_its_own_work_is_work() -> None:
    spans = {
        ("trainer", "training_step", 0): changed(0.5, 1.0),
        ("trainer", "all_reduce", 0): lambda step: 0.3,
    }
    history = made(spans=spans, step_s=changed(0.8, 1.3))
    assert [one.phase for one in diagnose(history).causes] == ["training_step"]
