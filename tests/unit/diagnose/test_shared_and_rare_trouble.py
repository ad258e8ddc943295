"""Trouble of a whole role, or seen once, and workers that leave: with innocent twins."""

from collections.abc import Callable, Mapping, Sequence
from math import sin

import pytest

from otel_rl.diagnose.classify import Work, work_of
from otel_rl.diagnose.engine import diagnose
from otel_rl.diagnose.history.departures import departed
from otel_rl.diagnose.history.records import Facts, RowFacts, SpanFacts
from otel_rl.diagnose.history.run_history import PhaseKey, RunHistory, Track
from otel_rl.diagnose.result import Kind, Verdict
from tests.unit.diagnose.made import Series, changed, made

S = 1_000_000_000
RANKS = range(4)


def noisy(level: float, size: float = 0.02) -> Series:
    return lambda step: level * (1 + size * sin(7.3 * step))


def kinds(history: RunHistory) -> set[Kind]:
    return {cause.kind for cause in diagnose(history).causes}


def of_ranks(phase: str, of: Callable[[int], Series]) -> Mapping[tuple[str, str, int], Series]:
    return {("trainer", phase, index): of(index) for index in RANKS}


# A role that is slow in some steps.

ODD = (45, 49, 52, 58, 61, 67, 72)


def in_steps(steps: tuple[int, ...], times: float, of: Series) -> Series:
    return lambda step: of(step) * (times if step in steps else 1.0)


def run_with_odd_steps(
    steps: tuple[int, ...] = ODD, *, slow_ranks: int = 4, rows: Mapping[str, Series] | None = None
) -> RunHistory:
    spans = of_ranks(
        "generate",
        lambda index: in_steps(steps, 1.8 if index < slow_ranks else 1.0, noisy(2.0)),
    )
    step_s = in_steps(steps, 1.4, noisy(4.0))
    return made(step_s=step_s, spans=spans, rows=rows)


def test_generation_that_takes_all_longer_in_some_steps_is_named_with_the_first_of_them() -> None:
    (cause,) = diagnose(run_with_odd_steps()).causes
    assert (cause.kind, cause.worker, cause.since) == (Kind.SLOW_GENERATION, None, ODD[0])


def test_long_tails_that_the_run_has_had_from_its_beginning_are_its_own() -> None:
    assert not kinds(run_with_odd_steps((9, 22, 31, 45, 58, 67, 72)))


def test_tails_of_half_the_ranks_are_not_those_of_the_role() -> None:
    assert not diagnose(run_with_odd_steps(slow_ranks=2)).causes


def test_steps_that_have_more_tokens_are_longer_for_it() -> None:
    tokens = in_steps(ODD, 1.8, lambda _: 1_000.0)
    assert not kinds(run_with_odd_steps(rows={"trainer/tokens": tokens}))


# Work that is rare.


def run_with_evaluations(
    *longer: int, times: float = 6.7, tail: float = 1.0, is_felt: bool = True
) -> RunHistory:
    """Evaluations in every tenth step, of which some take longer."""

    def evaluation_s(step: int) -> float:
        return 2.0 * (times if step in longer else 1.0) if step % 10 == 9 else 0.0

    def step_s(step: int) -> float:
        return 4.0 + (evaluation_s(step) if is_felt else 0.0)

    facts, time_ns = [], 1_000 * S
    for step in range(60):
        time_ns += int(step_s(step) * S)
        train_s = 2.0 * (tail if step == 23 else 1.0)
        spans = [SpanFacts(step, "trainer", "train", "trainer/0", False, 1, train_s, train_s, 0)]
        if took_s := evaluation_s(step):
            place = step, "trainer", "evaluation", "trainer/0"
            spans.append(SpanFacts(*place, False, 1, took_s, took_s, 0))
        rows = [RowFacts(step, time_ns, {"trainer/iteration/duration": step_s(step)})]
        facts.append(Facts(time_ns, step, rows, spans=spans))
    return RunHistory(facts)


@pytest.mark.parametrize(
    ("seconds", "is_found"),
    [((1, 1.8, 2.9, 4.0, 5.2, 6.1), True), ((1, 1.3, 1.7, 2.2, 2.6, 3), False)],
    ids=["six times", "three times"],
)
def test_a_save_that_takes_longer_each_time_is_slow_once_it_takes_far_longer(
    seconds: Sequence[float], *, is_found: bool
) -> None:
    """Of a run with few saves; larger test sets let evaluations grow, too, but not so far."""

    def save_s(step: int) -> float:
        return 4.0 * seconds[step // 10] if step % 10 == 9 else 0.0

    facts, time_ns = [], 1_000 * S
    for step in range(60):
        time_ns += int((4.0 + save_s(step)) * S)
        spans = [SpanFacts(step, "trainer", "train", "trainer/0", False, 1, 2.0, 2.0, 0)]
        if took_s := save_s(step):
            place = step, "trainer", "checkpoint", "trainer/0"
            spans.append(SpanFacts(*place, False, 1, took_s, took_s, 0))
        rows = [RowFacts(step, time_ns, {"trainer/iteration/duration": 4.0 + save_s(step)})]
        facts.append(Facts(time_ns, step, rows, spans=spans))
    found = diagnose(RunHistory(facts)).causes
    assert [one.phase for one in found] == ["checkpoint"] * is_found


@pytest.mark.parametrize(("longer", "is_found"), [(6.0, False), (1.4, True)])
def test_evaluations_that_grow_as_answers_get_longer_are_no_fault(
    longer: float, *, is_found: bool
) -> None:
    """Each takes up to six times as long; answers get so many times as long meanwhile."""

    def grown(times: float) -> Series:
        return lambda step: 1 + (times - 1) * (step // 10) / 5

    def evaluation_s(step: int) -> float:
        return 4.0 * grown(6.0)(step) if step % 10 == 9 else 0.0

    facts, time_ns = [], 1_000 * S
    for step in range(60):
        time_ns += int((4.0 + evaluation_s(step)) * S)
        spans = [SpanFacts(step, "trainer", "train", "trainer/0", False, 1, 2.0, 2.0, 0)]
        if took_s := evaluation_s(step):
            place = step, "trainer", "evaluation", "trainer/0"
            spans.append(SpanFacts(*place, False, 1, took_s, took_s, 0))
        values = {
            "trainer/iteration/duration": 4.0 + evaluation_s(step),
            "generator/response_length/mean": 400.0 * noisy(1.0, 0.1)(step) * grown(longer)(step),
        }
        facts.append(Facts(time_ns, step, [RowFacts(step, time_ns, values)], spans=spans))
    found = diagnose(RunHistory(facts)).causes
    assert [one.phase for one in found] == ["evaluation"] * is_found


def test_one_long_evaluation_in_a_run_whose_work_takes_long_by_chance_is_no_fault() -> None:
    assert Kind.SLOW_PHASE not in kinds(run_with_evaluations(59, tail=6.0))


def test_one_long_evaluation_that_no_step_waits_for_is_no_fault() -> None:
    assert Kind.SLOW_PHASE not in kinds(run_with_evaluations(59, is_felt=False))


def test_one_long_evaluation_names_no_cause_and_two_are_a_slow_phase() -> None:
    assert Kind.SLOW_PHASE not in kinds(run_with_evaluations(59))
    assert Kind.SLOW_PHASE in kinds(run_with_evaluations(49, 59, tail=6.0))


# Workers that leave.

LAST = 30


def run_that_one_leaves(*, expected: float | None) -> RunHistory:
    """A run in its last step, which one of two generators has no part in any more."""
    facts = []
    for second in range(LAST * 5 + 40):
        step, is_end = min(second // 5, LAST), second >= LAST * 5
        spans, rows = [], []
        workers = ["trainer/0", "generator/0", *([] if is_end else ["generator/1"])]
        if second % 5 == 4 and second < LAST * 5 + 5:
            rows = [RowFacts(step, second * S, {"trainer/loss": 1.0})]
            spans = [
                SpanFacts(step, worker.partition("/")[0], "generate", worker, False, 1, 2.0, 2.0, 0)
                for worker in workers[1:]
            ]
        if expected is not None and second > LAST * 5 + 2:
            rows.append(RowFacts(step, second * S, {"service/generator/expected": expected}))
        lags = [(worker, 0.1) for worker in workers]
        time_ns = (1_000 + second) * S
        facts.append(Facts(time_ns, step, rows, spans=spans, lags=lags, status="running"))
    return RunHistory(facts)


def test_nothing_waits_for_a_worker_that_its_role_expects_no_more() -> None:
    history = run_that_one_leaves(expected=1.0)
    assert departed(history) == {"generator/1"}
    assert Kind.STALL not in kinds(history)


@pytest.mark.parametrize("expected", [2.0, None])
def test_a_worker_that_is_still_expected_holds_up_its_run(expected: float | None) -> None:
    history = run_that_one_leaves(expected=expected)
    assert not departed(history)
    (cause,) = diagnose(history).causes
    assert (cause.kind, cause.worker) == (Kind.STALL, "generator/1")


def run_with_silent_trainers(*, returned: bool) -> RunHistory:
    """Trainers that are missed in long steps, two in each of three: a counter tells of six."""
    facts = []
    for step in range(12):
        failures = 2.0 * min(step, 3)
        rows = [RowFacts(step, step * S, {"service/trainer/failures": failures})]
        lost = [f"trainer/{2 * step + index}" for index in (0, 1)] if 1 <= step <= 3 else ()
        back = [f"trainer/{2 * step - 2 + index}" for index in (0, 1)] if 2 <= step <= 4 else ()
        returning = back if returned else ()
        facts.append(Facts((1_000 + 60 * step) * S, step, rows, lost=lost, returned=returning))
    return RunHistory(facts)


@pytest.mark.parametrize("returned", [True, False])
def test_workers_that_were_only_silent_have_not_failed_again_and_again(*, returned: bool) -> None:
    history = run_with_silent_trainers(returned=returned)
    assert (Kind.CRASH_LOOP in kinds(history)) != returned


# Samples.


@pytest.mark.parametrize(
    ("key", "is_found"),
    [
        ("trainer/sample/age/versions", True),
        ("trainer/sample_age_versions", True),
        ("trainer/checkpoint/age", False),
    ],
)
def test_ages_of_samples_in_versions_are_known_by_their_names(key: str, *, is_found: bool) -> None:
    found = kinds(made(rows={key: changed(1.5, 6.0)}))
    assert (Kind.STALENESS_GROWTH in found) == is_found


@pytest.mark.parametrize(("phase", "is_found"), [("train_wait", True), ("barrier_wait", False)])
def test_a_trainer_that_waits_for_samples_by_any_name_starves(
    phase: str, *, is_found: bool
) -> None:
    spans = {
        **of_ranks(phase, lambda _: changed(0.1, 2.0)),
        **of_ranks("train", lambda _: noisy(1.0)),
    }
    found = kinds(made(step_s=changed(1.2, 3.1), spans=spans))
    assert (Kind.STARVATION in found) == is_found


@pytest.mark.parametrize(
    ("phase", "work"), [("gen", Work.GENERATION), ("gen_batch", Work.GENERATION), ("gentle", None)]
)
def test_gen_is_generation(phase: str, work: Work | None) -> None:
    assert work_of(PhaseKey("trainer", phase)) is (work or Work.TRAINING)


# Parts of a step.


@pytest.mark.parametrize(("calls", "is_found"), [(8, True), (1, False)])
def test_calls_in_odd_steps_count_as_often_as_they_are_made(calls: int, *, is_found: bool) -> None:
    spans = {("reward", "verify_answers", n): in_steps(ODD, 9.0, noisy(0.05)) for n in range(2)}
    times = {"reward/verify_answers": calls}
    history = made(step_s=in_steps(ODD, 1.4, noisy(4.0)), spans=spans, times=times)
    assert (Kind.SLOW_REWARD in kinds(history)) == is_found


def test_the_step_of_a_controller_is_no_work_that_takes_longer() -> None:
    """It has the parts of others, whatever it is called."""
    spans = {
        ("driver", "training_step", 0): changed(4.0, 8.0),
        ("sampler", "rollout", 0): noisy(1.0),
    }
    report = diagnose(made(step_s=changed(4.0, 8.0), spans=spans))
    assert (report.verdict, report.causes) == (Verdict.NO_CLEAR_CAUSE, [])
    alone = {key: of for key, of in spans.items() if key[0] == "driver"}
    assert diagnose(made(step_s=changed(4.0, 8.0), spans=alone)).causes


def test_a_wait_by_another_name_is_no_slow_work() -> None:
    spans = {
        ("verifier", "verify_answers", 0): changed(0.5, 2.0),
        ("sampler", "await_verdicts", 0): changed(1.0, 4.0),
    }
    (cause,) = diagnose(made(step_s=changed(4.0, 7.0), spans=spans)).causes
    assert cause.role == "verifier"


@pytest.mark.parametrize("slow", [(2,), (0, 1, 2, 3)])
def test_a_rare_phase_that_takes_one_worker_longer_names_it(slow: tuple[int, ...]) -> None:
    spans = of_ranks("save_shard", lambda index: changed(0.5, 4.0 if index in slow else 0.5))
    history = made(spans=spans)
    for of in (history.spans, history.counts):
        for tracks in of.values():
            tracks.update({who: every_eighth(track) for who, track in tracks.items()})
    (cause,) = diagnose(history).causes
    assert cause.worker == ("trainer/2" if len(slow) == 1 else None)


def every_eighth(track: Track) -> Track:
    return Track(track.steps[7::8], track.times_s[7::8], track.values[7::8])


@pytest.mark.parametrize("rest_s", [1.0, 3.0])
def test_the_rest_of_a_step_that_grows_by_as_much_as_a_slow_worker_waits_for_it(
    rest_s: float,
) -> None:
    spans = {
        **of_ranks("weight_sync", lambda index: changed(0.1, 1.1 if index == 2 else 0.1)),
        **of_ranks("rl.loop", lambda index: changed(0.002, 0.002 if index == 2 else rest_s)),
        **of_ranks("train", lambda _: noisy(1.0)),
    }
    found = diagnose(made(step_s=changed(1.1, 1.1 + rest_s), spans=spans)).causes
    assert ("trainer/2" in {one.worker for one in found[:1]}) == (rest_s == 1.0)


@pytest.mark.parametrize("since", [56, 8])
def test_rare_trouble_of_one_worker_costs_its_part_of_the_time_since_it_began(since: int) -> None:
    """Long ago, it cost little; nothing of it counts before it began."""
    odd = (since, since + 6, since + 10, since + 16)
    spans = {
        ("trainer", "load_data", n): in_steps(odd if n == 2 else (), 11.0, noisy(0.1))
        for n in range(10)
    }
    history = made(step_s=in_steps(odd, 1.25, noisy(4.0)), spans=spans)
    assert bool(kinds(history)) == (since == 56)
