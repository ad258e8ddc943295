"""From facts to causes: the right one first, the right worker, and none where nothing is wrong."""

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace

import pytest

from otel_rl.diagnose.engine import diagnose
from otel_rl.diagnose.history.records import Facts, RowFacts, StepFacts, WorkerFacts
from otel_rl.diagnose.history.run_history import RunHistory
from otel_rl.diagnose.render import in_words
from otel_rl.diagnose.report_json import as_json
from otel_rl.diagnose.result import Diagnosis, Kind, Verdict
from otel_rl.records import WorkerFailure
from tests.support.slow import slow_after
from tests.unit.diagnose.made import made
from tests.unit.diagnose.worlds import World, healthy

AT = 40


def said(world: World) -> Diagnosis:
    return diagnose(world.history())


@pytest.mark.parametrize("seed", slow_after(15, range(60)))
def test_nothing_is_said_of_a_run_that_learns_on_a_machine_with_slow_moments(seed: int) -> None:
    report = said(healthy(seed))
    assert [(cause.kind, cause.words) for cause in report.causes] == []


def slower(role: str, phase: str, factor: float, index: int | None = None) -> World:
    def of(a_role: str, a_phase: str, an_index: int, step: int) -> float:
        is_it = (a_role, a_phase) == (role, phase) and index in {None, an_index} and step >= AT
        return factor if is_it else 1.0

    return World(slower=of)


@pytest.mark.parametrize(
    ("world", "kind", "worker"),
    [
        (slower("actor", "rollout", 4), Kind.SLOW_GENERATION, None),
        (slower("actor", "rollout", 4, index=2), Kind.SLOW_GENERATION, "actor/2"),
        (slower("judge", "score", 20), Kind.SLOW_REWARD, None),
        (slower("learner", "backward", 3), Kind.SLOW_TRAINING, None),
        (slower("learner", "backward", 3, index=1), Kind.STRAGGLER, "learner/1"),
        (slower("learner", "push_weights", 12), Kind.SLOW_SYNC, None),
    ],
    ids=["all actors", "one actor", "judges", "all learners", "one learner", "weights"],
)
def test_who_works_slower_is_named(world: World, kind: Kind, worker: str | None) -> None:
    report = said(world)
    first = report.causes[0]
    assert (first.kind, first.worker) == (kind, worker)
    assert first.since is not None
    assert abs(first.since - AT) <= 2


@pytest.mark.parametrize(
    ("factors", "kind", "role"),
    [
        ({"score": 8.0, "forward": 2.2}, Kind.SLOW_REWARD, "judge"),
        ({"push_weights": 10.0, "rollout": 2.35}, Kind.SLOW_SYNC, "learner"),
    ],
    ids=["scores", "weights"],
)
def test_who_calls_is_not_named_if_calls_take_as_much_longer_as_their_answers(
    factors: dict[str, float], kind: Kind, role: str
) -> None:
    def of(a_role: str, phase: str, index: int, step: int) -> float:
        return factors.get(phase, 1.0) if step >= AT else 1.0

    report = said(World(slower=of))
    assert [(cause.kind, cause.role) for cause in report.causes] == [(kind, role)]


@pytest.mark.parametrize(
    ("role", "phase", "kind"),
    [("learner", "backward", Kind.STRAGGLER), ("actor", "rollout", Kind.SLOW_GENERATION)],
)
def test_who_is_slower_than_its_peers_from_the_first_step_on_is_named(
    role: str, phase: str, kind: Kind
) -> None:
    def of(a_role: str, a_phase: str, index: int, _: int) -> float:
        return 2.5 if (a_role, a_phase, index) == (role, phase, 1) else 1.0

    causes = said(World(sizes={"actor": 4, "judge": 2, "learner": 3}, slower=of)).causes
    found = [(cause.kind, cause.worker, cause.since) for cause in causes]
    assert found == [(kind, f"{role}/1", None)]


@pytest.mark.parametrize(("factor", "is_told"), [(1.9, False), (4.0, True)])
def test_who_is_slower_in_the_last_few_steps_and_not_felt_has_to_be_much_slower(
    factor: float, *, is_told: bool
) -> None:
    def of(role: str, phase: str, index: int, step: int) -> float:
        return factor if (role, phase, index) == ("judge", "score", 1) and step >= 76 else 1.0

    found = [(one.kind, one.worker) for one in said(World(slower=of, noise=0.1)).causes]
    assert found == ([(Kind.SLOW_REWARD, "judge/1")] if is_told else [])


def test_the_rank_with_the_first_nan_is_named_though_all_have_it_later() -> None:
    def odd(name: str, index: int, step: int) -> bool:
        own = name == "grad_norm" and index == 1 and step == AT
        return own or step > AT

    report = said(World(odd=odd))
    assert (report.causes[0].kind, report.causes[0].worker) == (Kind.NAN, "learner/1")
    assert report.causes[0].since == AT
    assert len(report.causes) == 1


def test_of_a_reward_that_fell_with_a_nan_nothing_before_it_is_the_cause() -> None:
    """The divergence from the reference grows while a policy learns."""

    def values(key: str, step: int, usual: float) -> float:
        if key.endswith("reward/mean"):
            return 0.03 + 0.46 * (step / AT) ** 2 if step <= AT else 0.0
        if key.endswith("kl"):
            return 0.03 * step + 0.03 * max(0, step - 19) if step <= AT else math.nan
        return usual

    def odd(name: str, index: int, step: int) -> bool:
        return name == "grad_norm" and (step > AT or (step == AT and index == 1))

    (cause,) = said(World(values=values, odd=odd)).causes
    assert (cause.kind, cause.worker, cause.since) == (Kind.NAN, "learner/1", AT)


def test_a_nan_that_has_passed_is_no_cause_of_what_is_wrong_now() -> None:
    world = World(odd=lambda _name, _index, step: step in {AT, AT + 1})
    (cause,) = diagnose(world.history(), passed=True).causes
    assert (cause.kind, cause.since, cause.until) == (Kind.NAN, AT, AT + 1)
    assert f"from step {AT} to {AT + 1}, and is finite again" in cause.words
    assert diagnose(world.history(), passed=False).verdict is Verdict.HEALTHY


def of_value(name: str, change: Callable[[int, float], float]) -> World:
    def values(key: str, step: int, usual: float) -> float:
        return change(step, usual) if key.endswith(name) and step >= AT else usual

    return World(values=values)


@pytest.mark.parametrize(
    "world",
    [
        of_value("reward/mean", lambda _, usual: -usual),
        of_value("reward/mean", lambda _, usual: 1.0),
        of_value("reward/std", lambda _, usual: 0.0),
    ],
    ids=["turned around", "all one", "all the same"],
)
def test_rewards_that_jump_while_the_policy_does_not_are_wrong(world: World) -> None:
    report = said(world)
    assert (report.causes[0].kind, report.causes[0].role) == (Kind.REWARD_BUG, "judge")
    assert abs((report.causes[0].since or 0) - AT) <= 1


def test_entropy_that_collapses_while_the_reward_falls_is_the_cause_of_it() -> None:
    def values(key: str, step: int, usual: float) -> float:
        gone = max(0.0, min(1.0, (step - AT) / 12))
        if key.endswith("entropy"):
            return usual * (1 - 0.95 * gone)
        return usual * (1 - 0.7 * gone) if key.endswith("reward/mean") else usual

    report = said(World(values=values))
    assert report.causes[0].kind is Kind.ENTROPY_COLLAPSE


def test_one_failure_is_an_accident_and_three_are_a_loop() -> None:
    once = said(World(lost={30: ["actor/1"]}))
    assert once.verdict is Verdict.HEALTHY
    again = said(World(lost={30: ["actor/1"], 42: ["actor/1"], 55: ["actor/1"]}))
    assert (again.causes[0].kind, again.causes[0].worker) == (Kind.CRASH_LOOP, "actor/1")


def test_a_run_whose_workers_are_all_lost_in_its_last_step_has_no_crash_loop() -> None:
    learners = [f"learner/{index}" for index in range(4)]
    report = said(World(sizes={"actor": 4, "judge": 2, "learner": 4}, lost={79: learners}))
    assert report.causes == []
    assert report.doubts == [f"{', '.join(learners)} stopped reporting"]


@pytest.mark.parametrize(("by_exports_s", "is_told"), [(-0.3, True), (0.0, False)])
def test_what_links_say_of_a_clock_counts_unless_its_exports_come_in_time(
    by_exports_s: float, is_told: bool
) -> None:
    facts = [
        one._replace(steps=[step._replace(clocks=[("actor/1", -0.3)]) for step in one.steps])
        for one in World(ahead_s={"actor/1": by_exports_s}).facts()
    ]
    workers = [cause.worker for cause in diagnose(RunHistory(facts)).causes]
    assert workers == (["actor/1"] if is_told else [])


def test_a_clock_that_is_off_is_named() -> None:
    report = said(World(ahead_s={"judge/1": 20.0}))
    assert (report.causes[0].kind, report.causes[0].worker) == (Kind.CLOCK_SKEW, "judge/1")


@pytest.mark.parametrize(
    "late_s",
    [(34.2, 31.2, 27.5, 23.1, 18.7), (44.8, 39.8, 34.2, 30.5, 26.0)],
    ids=["of a generator", "of a buffer"],
)
def test_exports_that_have_waited_for_the_bridge_are_no_wrong_clock(
    late_s: Sequence[float],
) -> None:
    facts = [
        one._replace(
            lags=[(name, late if name == "judge/1" else lag_s) for name, lag_s in one.lags]
        )
        for one, late in zip(World().facts(), late_s, strict=False)
    ]
    assert diagnose(RunHistory(facts)).causes == []


def counted(key: str, worker: str, value: float) -> World:
    def counters(a_key: str, a_worker: str, step: int, usual: float) -> float:
        return value if (a_key, a_worker) == (key, worker) and step >= AT else usual

    return World(counters=counters)


def test_a_collector_of_garbage_that_stops_a_process_is_named() -> None:
    report = said(counted("gc/time", "actor/3", 0.6))
    assert (report.causes[0].kind, report.causes[0].worker) == (Kind.GC_PAUSES, "actor/3")


def test_a_cache_that_is_too_small_is_named() -> None:
    report = said(counted("num_preemptions", "actor/0", 8.0))
    assert (report.causes[0].kind, report.causes[0].worker) == (Kind.KV_THRASH, "actor/0")


def test_samples_that_are_thrown_away_are_named() -> None:
    report = said(counted("evictions", "buffer/0", 60.0))
    assert report.causes[0].kind is Kind.EVICTION


def test_samples_that_are_thrown_away_more_and_more_are_named_from_the_first_on() -> None:
    def counters(key: str, _worker: str, step: int, usual: float) -> float:
        thrown = 60.0 if step < AT + 60 else 110.0
        return usual + thrown if key == "evictions" and step >= AT else usual

    report = said(World(steps=160, counters=counters))
    assert report.causes[0].kind is Kind.EVICTION
    assert abs((report.causes[0].since or 0) - AT) <= 3


def test_a_worker_that_keeps_its_old_weights_is_named() -> None:
    report = said(counted("policy/version", "actor/1", float(AT)))
    assert (report.causes[0].kind, report.causes[0].worker) == (Kind.STALE_POLICY, "actor/1")


@pytest.mark.parametrize(
    ("who", "named"), [("actor/", None), ("actor/2", "actor/2")], ids=["all", "one"]
)
def test_weights_that_are_taken_up_more_rarely_are_named_though_nobody_says_a_version(
    who: str, named: str | None
) -> None:
    def pulls(worker: str, step: int) -> bool:
        return step < AT or not worker.startswith(who) or step % 3 == 0

    def counters(key: str, _worker: str, step: int, usual: float) -> float:
        return float(step) if key in {"version", "policy/version"} else usual

    report = said(World(pulls=pulls, counters=counters))
    assert (report.causes[0].kind, report.causes[0].worker) == (Kind.STALE_POLICY, named)
    assert abs((report.causes[0].since or 0) - AT) <= 3


def of_learner(name: str, change: Callable[[int, float], float], *, reward: float) -> World:
    """A world whose rewards come to so much more or less than they were, from AT on."""

    def values(key: str, step: int, usual: float) -> float:
        if step < AT:
            return usual
        if key.endswith("reward/mean"):
            return usual + reward * min(1.0, (step - AT) / 10)
        return change(step - AT, usual) if key.endswith(name) else usual

    return World(values=values)


@pytest.mark.parametrize(
    ("world", "kind"),
    [
        (
            of_learner("entropy", lambda n, usual: usual * math.exp(-n / 4), reward=0),
            Kind.ENTROPY_COLLAPSE,
        ),
        (of_learner("entropy", lambda _, usual: usual / 20, reward=0), Kind.ENTROPY_COLLAPSE),
        (
            of_learner("kl", lambda n, usual: usual * math.exp(min(3, n / 5)), reward=0),
            Kind.KL_GROWTH,
        ),
    ],
    ids=["fast", "at once", "KL"],
)
def test_a_policy_that_degenerates_for_nothing_is_named_though_the_reward_stays(
    world: World, kind: Kind
) -> None:
    report = said(world)
    assert report.causes[0].kind is kind
    assert abs((report.causes[0].since or 0) - AT) <= 8


@pytest.mark.parametrize(
    "world",
    [
        of_learner("entropy", lambda n, usual: usual * math.exp(-n / 4), reward=0.5),
        of_learner("kl", lambda n, usual: usual * math.exp(min(3, n / 5)), reward=0.5),
        World(values=lambda key, step, usual: 2.6 - step / 32 if "entropy" in key else usual),
        World(values=lambda key, step, usual: 3 * 0.95**step if "entropy" in key else usual),
        World(values=lambda key, step, usual: 0.01 * 1.08**step if "kl" in key else usual),
    ],
    ids=["entropy pays", "KL pays", "straight", "exponential", "exponential KL"],
)
def test_a_policy_that_becomes_sure_as_it_always_did_or_because_it_learns_is_healthy(
    world: World,
) -> None:
    assert said(world).verdict is Verdict.HEALTHY


def test_a_trend_that_leads_beyond_all_numbers_is_none() -> None:
    def values(key: str, step: int, usual: float) -> float:
        return 10.0 ** min(step - 12, 0) if key.endswith("kl") else usual

    assert said(World(steps=600, values=values)).verdict is Verdict.HEALTHY


def test_a_role_of_one_worker_is_that_worker() -> None:
    def slower(role: str, _phase: str, _index: int, step: int) -> float:
        return 20.0 if role == "judge" and step >= AT else 1.0

    report = said(World(sizes={"actor": 4, "judge": 1, "learner": 2}, slower=slower))
    assert (report.causes[0].kind, report.causes[0].worker) == (Kind.SLOW_REWARD, "judge/0")
    both = said(World(slower=slower))
    assert (both.causes[0].kind, both.causes[0].worker) == (Kind.SLOW_REWARD, None)


@pytest.mark.parametrize("seed", [33, 94])
def test_of_many_workers_one_that_is_odd_by_chance_is_not_named_first(seed: int) -> None:
    def slower(_role: str, phase: str, _index: int, step: int) -> float:
        return 4.0 if phase in {"forward", "backward"} and step >= AT else 1.0

    sizes = {"actor": 64, "judge": 16, "learner": 16}
    report = said(World(seed, sizes=sizes, noise=0.2, slower=slower))
    assert [cause.kind for cause in report.causes] == [Kind.SLOW_TRAINING]


def test_that_generators_fall_behind_the_first_weights_is_how_every_run_begins() -> None:
    def counters(key: str, _worker: str, step: int, usual: float) -> float:
        return float(max(0, step - 5)) if key == "policy/version" else usual

    assert said(World(counters=counters)).verdict is Verdict.HEALTHY


def test_what_was_wrong_for_a_while_is_said_if_it_is_asked_for() -> None:
    def slower(role: str, _phase: str, _index: int, step: int) -> float:
        return 20.0 if role == "judge" and 30 <= step < 50 else 1.0

    history = World(slower=slower).history()
    assert diagnose(history).verdict is Verdict.HEALTHY
    (cause,) = diagnose(history, passed=True).causes
    assert cause.kind is Kind.SLOW_REWARD
    assert abs((cause.since or 0) - 30) <= 2
    assert abs((cause.until or 0) - 50) <= 2
    assert "over since step" in cause.words


@pytest.mark.parametrize("seed", slow_after(8, range(60, 90)))
def test_nothing_was_ever_wrong_with_a_healthy_run(seed: int) -> None:
    assert diagnose(healthy(seed).history(), passed=True).causes == []


def test_a_range_is_explained_by_what_is_different_in_it() -> None:
    world = slower("judge", "score", 20)
    assert diagnose(world.history(), (0, 30)).verdict is Verdict.HEALTHY
    assert diagnose(world.history(), (35, 70)).causes[0].kind is Kind.SLOW_REWARD


def test_one_slow_step_is_explained_by_the_worker_and_phase_that_decided_it() -> None:
    def of(role: str, phase: str, index: int, step: int) -> float:
        return 8.0 if (role, phase, index, step) == ("actor", "rollout", 2, 33) else 1.0

    report = diagnose(World(slower=of).history(), (33, 33))
    first = report.causes[0]
    assert (first.kind, first.worker, first.phase) == (
        Kind.SLOW_GENERATION,
        "actor/2",
        "rollout",
    )
    assert first.evidence[0].traces == [f"{33:032x}"]


def test_a_run_that_makes_no_step_any_more_hangs_in_the_worker_that_does_not_wait() -> None:
    facts = World(steps=50).facts()
    for number in range(1, 13):
        age_s = 10.0 * number
        ages = {
            "learner/worker/phase/age/rank_barrier": [
                WorkerFacts("learner/0", None, 1, age_s + 1, 0)
            ],
            "learner/worker/phase/age/backward": [WorkerFacts("learner/1", None, 1, age_s, 0)],
        }
        last = facts[-1]
        facts.append(Facts(last.time_ns + 10_000_000_000, last.step, workers=ages))
    first = diagnose(RunHistory(facts)).causes[0]
    assert (first.kind, first.worker, first.phase) == (Kind.STALL, "learner/1", "backward")
    assert first.since == 49


def test_of_a_run_that_nothing_is_known_of_nothing_is_said() -> None:
    assert diagnose(World(steps=0).history()).verdict is Verdict.CANNOT_TELL


RPC = ("rpc/client/call/duration/Score", "rpc/server/call/duration/Score")
HTTP = (
    "http/client/request/duration/POST/200/10.0.0.7/8000",
    "http/server/request/duration/POST/200/score/1.1/http",
)


def calls_take(
    late_s: float, workers: int, keys: tuple[str, str] = RPC, answered: int = 4
) -> RunHistory:
    return RunHistory(calls_facts(late_s, workers, keys, answered))


def calls_facts(
    late_s: float, workers: int, keys: tuple[str, str], answered: int
) -> Iterable[Facts]:
    """Steps of a second; so many of four actors wait longer for answers, from AT on."""
    client, server = keys
    return (
        Facts(
            (1_000 + step) * 10**9,
            step,
            rows=[
                RowFacts(
                    step,
                    (1_000 + step) * 10**9,
                    {
                        f"actor/{client}/count": 4,
                        f"judge/{server}/count": answered,
                    },
                )
            ],
            steps=[
                StepFacts(
                    step, (1_000 + step) * 10**9, [("learner", "train", "l", 1.0)], [], [], ""
                )
            ],
            workers={
                f"actor/{client}": [
                    WorkerFacts(f"actor/{n}", None, 1, took_s(step, n < workers, late_s), 0)
                    for n in range(4)
                ],
                f"judge/{server}": [WorkerFacts("judge/0", None, 1, took_s(step, False, 0.0), 0)],
            },
        )
        for step in range(80)
    )


def took_s(step: int, is_late: bool, late_s: float) -> float:
    return 0.005 + 0.0001 * (step % 7) + (late_s if is_late and step >= AT else 0.0)


@pytest.mark.parametrize(
    ("late_s", "workers", "is_told"), [(0.015, 1, False), (0.015, 3, True), (0.1, 1, True)]
)
def test_a_call_that_takes_longer_counts_by_what_a_step_takes_unless_all_do(
    late_s: float, workers: int, is_told: bool
) -> None:
    kinds = [cause.kind for cause in diagnose(calls_take(late_s, workers)).causes]
    assert kinds == ([Kind.NETWORK_DELAY] if is_told else [])


@pytest.mark.parametrize(("answered", "is_told"), [(4, True), (1, False)])
def test_calls_are_late_on_their_way_if_those_who_answer_any_have_answered_them_all(
    answered: int, is_told: bool
) -> None:
    kinds = [cause.kind for cause in diagnose(calls_take(0.1, 4, HTTP, answered)).causes]
    assert kinds == ([Kind.NETWORK_DELAY] if is_told else [])


def test_calls_that_nobody_tells_the_answer_of_are_not_late_on_their_way_if_others_are_told() -> (
    None
):
    facts = calls_facts(0.1, 4, ("rpc/client/call/duration/Pull", RPC[1]), 40)
    told = {f"actor/{RPC[0]}": [WorkerFacts("actor/0", None, 1, 0.005, 0)]}
    history = RunHistory(one._replace(workers={**one.workers, **told}) for one in facts)
    assert [cause.kind for cause in diagnose(history).causes] == []


def ended(*failures: WorkerFailure, status: str = "crashed") -> RunHistory:
    return made(30, after=[(1.0, Facts(0, 0, failures=failures, status=status))])


RUNTIME_ERROR = WorkerFailure(
    "trainer/0", 10**12, "RuntimeError", "no memory", step=29, is_in_step=True
)
KILLED = WorkerFailure("generator/1", 10**12, step=12, recovery_s=1.25)


def test_the_error_that_ended_the_run_is_its_first_cause() -> None:
    report = diagnose(ended(WorkerFailure("trainer/1", 10**12 + 1, step=29), RUNTIME_ERROR))
    first, *others = report.causes
    assert not others
    assert (first.kind, first.worker, first.since) == (Kind.CRASH, "trainer/0", 29)
    lines = [*in_words(report)]
    assert lines[2] == "  trainer/1 ended without an exit report after step 29"
    assert lines[3:5] == ["1. crash: crashed: trainer/0, RuntimeError at step 29", "     no memory"]


def test_a_killed_worker_ends_no_run_that_goes_on() -> None:
    report = diagnose(ended(WorkerFailure("trainer/1", 10**12, step=29), status="running"))
    assert report.verdict is Verdict.CANNOT_TELL
    assert report.failures == ["trainer/1 ended without an exit report after step 29"]


def test_an_error_is_a_cause_while_others_live() -> None:
    (cause,) = diagnose(ended(RUNTIME_ERROR, status="running")).causes
    assert cause.words == "trainer/0, RuntimeError at step 29"


def test_a_replaced_worker_is_named_in_a_healthy_run() -> None:
    report = diagnose(ended(KILLED, status="complete"))
    assert report.verdict is Verdict.HEALTHY
    assert [*in_words(report)][2:3] == [
        "  generator/1 ended without an exit report after step 12; replaced after 1.2 s"
    ]
    assert as_json(report)["failures"] == [str(KILLED)]


def test_what_a_person_has_ended_is_no_fault() -> None:
    interrupted = WorkerFailure("trainer/0", 10**12, "KeyboardInterrupt", step=29)
    assert diagnose(ended(interrupted)).verdict is Verdict.HEALTHY
    assert interrupted.as_crash == "interrupted: trainer/0 after step 29"


def test_a_replacement_that_is_told_later_changes_what_is_known() -> None:
    gone = replace(KILLED, recovery_s=None)
    facts = [Facts(n + 1, 0, failures=[one]) for n, one in enumerate((gone, KILLED))]
    assert RunHistory(facts).failures == [KILLED]


def test_only_failures_of_the_asked_steps_are_told() -> None:
    history = made(60, after=[(1.0, Facts(0, 0, failures=[KILLED], status="complete"))])
    assert diagnose(history, (0, 11)).failures == []
    assert diagnose(history, (0, 12)).failures == [str(KILLED)]


@pytest.mark.parametrize("shift_s", [-24.0, 24.0])
def test_a_clock_of_the_bridge_that_is_set_is_no_worker_s(shift_s: float) -> None:
    facts = [
        one._replace(
            lags=[
                (worker, lag_s + shift_s * (one.step >= AT))
                for worker, lag_s in one.lags
                if one.step < AT or worker != "judge/1"
            ]
        )
        for one in World().facts()
    ]
    assert [cause.words for cause in diagnose(RunHistory(facts)).causes] == []
