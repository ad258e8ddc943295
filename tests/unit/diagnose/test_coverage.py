"""What "healthy" rests on, and when it is not said."""

import pytest

from otel_rl.diagnose.coverage import Coverage, coverage, doubts
from otel_rl.diagnose.engine import diagnose
from otel_rl.diagnose.history.records import Facts, RowFacts, StepFacts, WorkerFacts
from otel_rl.diagnose.history.run_history import RunHistory
from otel_rl.diagnose.render import in_words, summary
from otel_rl.diagnose.report_json import as_json
from otel_rl.diagnose.result import Kind, Verdict
from otel_rl.records import WorkerFailure
from tests.unit.diagnose.drawn import Style, drawn
from tests.unit.diagnose.made import changed, made
from tests.unit.diagnose.worlds import World

S = 1_000_000_000


def test_healthy_tells_how_many_steps_and_workers_and_what_would_have_been_seen() -> None:
    report = diagnose(World(sizes={"actor": 4, "judge": 2, "learner": 2}, noise=0.05).history())
    assert report.verdict is Verdict.HEALTHY
    seen = "80 steps, 9 workers, spans or phases of 8; steps that take 1.5 times, "
    assert report.seen.startswith(seen)
    assert [*in_words(report)][-1] == f"  seen: {report.seen}"
    assert as_json(report)["seen"] == report.seen


@pytest.mark.parametrize(
    ("ratios", "words"),
    [
        (
            (1.5, {Kind.SLOW_TRAINING: 2.0, Kind.SLOW_DATA: 1.2}),
            "steps that take 1.5 times, data 1.2 times, training 2 times as long would be seen",
        ),
        ((1.5, {}), "steps that take 1.5 times as long would be seen"),
        (
            (None, {Kind.SLOW_SYNC: 2.0}),
            "nothing measures how long steps take, weight sync 2 times as long would be seen",
        ),
        ((None, {}), "nothing measures how long steps take"),
    ],
)
def test_each_part_of_what_would_have_been_seen_is_a_sentence(
    ratios: tuple[float | None, dict[Kind, float]], words: str
) -> None:
    assert (
        str(Coverage(30, 1, 0, True, *ratios)) == f"30 steps, 1 worker, no spans or phases; {words}"
    )


def test_what_would_have_been_seen_is_less_where_steps_are_noisy() -> None:
    noisy = coverage(made(step_s=lambda step: 1.0 + 0.5 * (step % 3))).least_ratio
    assert noisy is not None
    assert noisy > 1.9
    steady = made(step_s=changed(1.0, 1.49))
    assert diagnose(steady).verdict is Verdict.HEALTHY
    assert coverage(made()).least_ratio == 1.5
    assert diagnose(made(step_s=changed(1.0, 1.51))).verdict is Verdict.NO_CLEAR_CAUSE


@pytest.mark.parametrize(
    ("longest_s", "words"),
    [(4.9, ""), (9.0, ""), (20.0, "; step 25 alone took 20 s, 40 times as long as usual")],
)
def test_one_step_that_took_far_longer_is_told_beside_healthy(longest_s: float, words: str) -> None:
    report = diagnose(made(step_s=lambda step: longest_s if step == 25 else 0.5))
    assert report.verdict is Verdict.HEALTHY
    assert report.seen.partition("be seen")[2] == words


def test_without_spans_it_is_said_that_there_is_no_critical_path() -> None:
    assert (
        "no critical path (no span rl.loop, as otel_rl.step(n) makes)"
        in diagnose(drawn(1, Style.PHASES).history()).seen
    )


@pytest.mark.parametrize(("steps", "is_healthy"), [(1, False), (7, False), (8, True)])
def test_few_steps_are_not_called_healthy(steps: int, *, is_healthy: bool) -> None:
    report = diagnose(made(steps))
    assert (report.verdict is Verdict.HEALTHY) is is_healthy


def test_no_step_is_not_called_healthy() -> None:
    report = diagnose(RunHistory([Facts(1, 0), Facts(2, 0)]))
    assert summary(report) == "cannot tell: no step was seen"
    assert next(iter(in_words(report))) == "step 0: cannot tell: no step was seen"


@pytest.mark.parametrize(
    ("status", "silent_s", "is_told"),
    [
        ("running", 55.0, False),
        ("running", 65.0, True),
        ("complete", 1e6, False),
        ("", 1e6, False),
    ],
)
def test_a_run_that_fell_silent_is_not_called_healthy(
    status: str, silent_s: float, *, is_told: bool
) -> None:
    history = made(40, after=[(0.1, Facts(0, 0, status=status))])
    assert bool([*doubts(history, silent_s=silent_s)]) is is_told


def test_slow_steps_may_be_silent_for_ten_of_them() -> None:
    history = made(40, step_s=lambda _: 30.0, after=[(0.1, Facts(0, 0, status="running"))])
    assert [*doubts(history, silent_s=290.0)] == []
    assert len([*doubts(history, silent_s=310.0)]) == 1


def test_a_dead_worker_is_told_at_the_step_of_its_last_sign() -> None:
    killed = WorkerFailure("sampler/1", 10**12, step=26)
    for status in ("running", "complete", "crashed"):
        history = made(60, after=[(1.0, Facts(0, 0, failures=[killed], status=status))])
        report = diagnose(history)
        assert killed.worker in " ".join([*in_words(report)])
        assert "after step 26" in " ".join([*in_words(report)])
        assert report.verdict is not Verdict.HEALTHY


@pytest.mark.parametrize(("own", "told"), [(19.0, 20), (20.0, 20), (21.0, 21), (23.0, 21)])
@pytest.mark.parametrize("error", [None, "RuntimeError"])
def test_a_dead_worker_was_in_the_step_after_the_last_known_one_if_it_told_a_later_one(
    own: float, told: int, error: str | None
) -> None:
    number = {"trainer/worker/step/number": [WorkerFacts("trainer/1", None, 1, own, 0)]}
    lost = WorkerFailure("trainer/1", 20 * S, error, step=20)
    facts = [Facts(20 * S, 20, workers=number), Facts(35 * S, 22, failures=[lost])]
    (failure,) = RunHistory(facts).failures
    assert failure.step == (20 if error else told)


def test_a_cause_without_a_critical_path_is_told_with_why_there_is_none() -> None:
    slower = {("trainer", "train", rank): changed(1.0, 1.0 + (rank == 1)) for rank in range(4)}
    history = made(spans=slower, step_s=changed(1.0, 2.0))
    assert not [line for line in in_words(diagnose(history)) if line.startswith("  seen: ")]
    history.steps.clear()
    report = diagnose(history)
    assert report.causes
    assert [*in_words(report)][-1] == f"  seen: {report.seen}"


def test_a_lost_worker_that_reports_again_is_not_gone() -> None:
    assert [*doubts(World(lost={30: ["actor/1"]}).history())] == []
    assert [*doubts(World(lost={30: ["actor/9"]}).history())] == ["actor/9 stopped reporting"]


def test_healthy_says_so_where_no_time_was_measured() -> None:
    learning = [
        Facts(step * S, step, rows=[RowFacts(step, step * S, {"trainer/loss": 1 / step})])
        for step in range(1, 41)
    ]
    report = diagnose(RunHistory(learning))
    assert report.verdict is Verdict.HEALTHY
    assert summary(report) == "no fault found, but nothing measures how long steps take"
    first = next(iter(in_words(report)))
    assert first.endswith(": healthy, but nothing measures how long steps take")
    assert summary(diagnose(made())) == "no fault found"


@pytest.mark.parametrize(
    ("key", "told"),
    [
        ("trainer/update/latency", "logged times of 1"),
        ("phase/trainer/update", "spans or phases of 1"),
        ("trainer/loss", "no spans or phases"),
    ],
)
def test_logged_times_are_called_neither_spans_nor_phases(key: str, told: str) -> None:
    facts = [
        Facts(
            step * S,
            step,
            rows=[RowFacts(step, step * S, {key: 0.5})],
            workers={key: [WorkerFacts("trainer/0", step, 1, 0.5, 0)]},
        )
        for step in range(1, 21)
    ]
    assert f"20 steps, 1 worker, {told}" in diagnose(RunHistory(facts)).seen


def test_one_step_is_called_a_step() -> None:
    assert next(iter(in_words(diagnose(made(), (30, 30))))).startswith("step 30: ")


def test_paths_that_may_lack_spans_are_told_beside_what_they_say() -> None:
    path, partial = [("trainer", "train", "trainer/0", 1.0)], {"critical_path/partial": 2.0}
    steps = [
        StepFacts(step, step * S, path, (), (), "", 1, partial if step % 2 else {})
        for step in range(1, 21)
    ]
    report = diagnose(RunHistory([Facts(S, 20, steps=steps)]))
    told = "  most of the time of a step: trainer/train, 100%; spans of 10 steps may be missing"
    assert told in [*in_words(report)]
    bound = as_json(report)["bound"]
    assert bound is not None
    assert bound["partial"] == 10


def test_phases_without_spans_are_told_instead_of_what_spans_leave_unaccounted() -> None:
    """Stable-Baselines3's algorithms with a buffer take thousands of turns in a step."""
    took = {"generate": 0.3, "train": 0.6, "unaccounted": 0.1}
    values = {f"phase/trainer/{phase}": seconds for phase, seconds in took.items()}
    path = [("trainer", "unaccounted", "trainer/0", 1.0)]
    facts = [
        Facts(
            step * S,
            step,
            rows=[RowFacts(step, step * S, values)],
            workers={
                key: [WorkerFacts("trainer/0", step, 1, seconds, 0)]
                for key, seconds in values.items()
            },
            steps=[StepFacts(step, step * S, path, (), (), "", 1)],
        )
        for step in range(1, 21)
    ]
    bound = diagnose(RunHistory(facts)).bound
    assert bound is not None
    assert bound[:2] == ("trainer", "train")
    assert bound[2] == pytest.approx(0.6)


@pytest.mark.parametrize("noise", [0.05, 0.3])
@pytest.mark.parametrize(
    ("role", "phase", "kind"),
    [
        ("actor", "rollout", Kind.SLOW_GENERATION),
        ("judge", "score", Kind.SLOW_REWARD),
        ("learner", "backward", Kind.SLOW_TRAINING),
    ],
)
def test_what_would_be_seen_is_seen_and_half_of_it_need_not_be(
    role: str, phase: str, kind: Kind, noise: float
) -> None:
    least = coverage(World(seed=3, noise=noise).history()).least_work[kind]

    def is_named(times: float) -> bool:
        def slower(of: str, work: str, index: int, step: int) -> float:
            return times if (of, work) == (role, phase) and step >= 40 else 1.0

        found = diagnose(World(seed=3, noise=noise, slower=slower).history())
        return any((one.kind, one.phase) == (kind, phase) for one in found.causes)

    assert is_named(least)
    assert not is_named(1 + (least - 1) / 4)
