"""Changes made on purpose are named as what they are, and small or passing trouble is found."""

import math
import random
from collections.abc import Sequence
from statistics import median

import pytest

from exams.first.changes import GrowingLengths, LargerBatch, LateJoiner, Removal
from exams.first.effects import Death, Effect
from exams.first.faults import Deaths, Hang, Slower, Throttled
from exams.first.programs import Job, Program, Stage, Topology
from exams.first.styles import Style
from otel_rl.diagnose.costs import cost_of
from otel_rl.diagnose.detectors.workload import Workload, changes
from otel_rl.diagnose.engine import diagnose
from otel_rl.diagnose.history.records import Facts, RowFacts, SpanFacts, WorkerFacts
from otel_rl.diagnose.history.run_history import RunHistory, Track
from otel_rl.diagnose.result import Kind, Verdict
from tests.support.slow import slow_after
from tests.unit.diagnose.made import AT, Series, changed, made
from tests.unit.diagnose.played import Played
from tests.unit.diagnose.test_evidence import jittered

SINCE = 30
NS = 1_000_000_000


def stage(program: Program, job: Job = Job.GENERATION) -> Stage:
    found = program.stage_of(job)
    assert found is not None
    return found


@pytest.mark.parametrize("seed", slow_after(1, range(3)))
def test_a_batch_doubled_on_purpose_is_no_fault_and_named(seed: int) -> None:
    run = Played(seed, Topology.COLOCATED, Style.PHASES, lambda _: [LargerBatch(SINCE, 2.0)])
    report = diagnose(run.history, passed=True)
    assert report.verdict is Verdict.HEALTHY
    assert any("2.0 times" in change for change in report.changes)


@pytest.mark.parametrize("times", [2.0, 1.0])
def test_a_batch_doubled_in_the_last_steps_is_known_by_what_each_worker_counts(
    times: float,
) -> None:
    """Rows have the total only now and then."""
    tokens = changed(1_000.0, times * 1_000.0)
    history = made(
        AT + 5,
        step_s=changed(0.7, 1.4),
        workers={("trainer/tokens", f"trainer/{index}"): tokens for index in range(3)},
        spans={("trainer", "train", index): changed(0.5, 1.0) for index in range(3)},
    )
    for step in range(0, AT + 5, 5):
        total = 3 * sum(tokens(each) for each in range(step))
        history.rows["trainer/tokens"].add(step, float(step), total)
        history.rows["trainer/tokens/rate"].add(step, float(step), 0.0)
    assert bool(diagnose(history).causes) == (times == 1.0)


def test_counts_of_exports_are_right_as_a_sum_though_some_steps_have_two_or_none() -> None:
    """Exports of a plain SDK come at their own times: one of three steps is told with another."""

    def tokens(step: int, rank: int) -> WorkerFacts:
        reports = (0, 1, 2)[step % 3] if rank % 2 and step >= AT else 1
        total = reports * (2_000.0 if step >= AT else 1_000.0)
        return WorkerFacts(f"trainer/{rank}", None, max(1, reports), total, 0)

    facts = [
        Facts(
            (1_000 + 16 * step) * 1_000_000_000,
            step,
            [RowFacts(step, 0, {"trainer/tokens": 1_000.0 * step, "trainer/tokens/rate": 1.0})],
            workers={"trainer/tokens": [tokens(step, rank) for rank in range(4)]},
        )
        for step in range(2 * AT)
    ]
    of_step = Workload(RunHistory(facts)).of_step
    before = [work for step, work in of_step.items() if step < AT - 10]
    since = [work for step, work in of_step.items() if step >= AT + 10]
    assert 1.8 <= median(since) / median(before) <= 2.2
    assert max(since) <= 1.3 * min(since)


@pytest.mark.parametrize(
    ("scored_s", "is_found"), [(0.8, False), (0.4, True)], ids=["a larger batch", "slow"]
)
def test_makers_ahead_of_a_queue_work_for_a_batch_that_is_not_told_yet(
    scored_s: float, *, is_found: bool
) -> None:
    """A trainer tells the amount of a step at its end; makers had more to do before."""
    made_s, scoring_s = changed(0.9, 1.8), changed(0.4, scored_s)
    spans = {("sampler", "generate", index): jittered(made_s) for index in range(2)}
    spans |= {("grader", "grading", index): jittered(scoring_s) for index in range(2)}
    rows = {"trainer/num_tokens": lambda step: 1_000.0 if step <= AT else math.nan}
    found = diagnose(made(AT + 2, step_s=jittered(lambda _: 3.0), spans=spans, rows=rows)).causes
    assert [one.kind for one in found] == [Kind.SLOW_GENERATION] * is_found


@pytest.mark.parametrize("step_s", [2.0, 6.0, 9.0, 11.0, 40.0])
@pytest.mark.parametrize("times", [1.0, 2.0])
def test_counts_that_are_exported_between_steps_are_no_change_of_work(
    step_s: float, times: float
) -> None:
    """Three workers export each 10 s, at times of their own; the first one's tell the step."""
    steps, key = 90, "trainer/tokens"
    facts = [Facts(int(1e9 * (1_000 + step_s * step)), step) for step in range(steps)]
    history = RunHistory(facts)
    history.rows[f"{key}/rate"].add(0, 0.0, 0.0)
    means = {f"trainer/{index}": Track() for index in range(3)}
    numbers = {worker: track.beside() for worker, track in means.items()}
    history.workers[key], history.measurements[key] = means, numbers
    for index in range(3):
        total = before = 0.0
        for at_s in range(3 * index, int(steps * step_s), 10):
            done = int(at_s / step_s)
            total = sum(1_000.0 * (times if step >= SINCE else 1.0) for step in range(done))
            known = int(at_s // 10 * 10 / step_s)
            if total > before:
                means[f"trainer/{index}"].add(known, float(at_s), total - before)
                numbers[f"trainer/{index}"].values.append(1.0)
            before = total
        history.rows[key].add(steps - 1, 0.0, total)
    found = list(changes(history))
    assert [one[:9] for one in found] == (["2.0 times"] if times == 2.0 else [])


def test_the_work_is_that_of_the_series_which_tells_it_of_most_steps() -> None:
    history = made(
        rows={"trainer/num_tokens": changed(1_000.0, 2_000.0)},
        spans={("trainer", "train", index): changed(0.5, 1.0) for index in range(3)},
    )
    coarse = Track()
    for step in range(0, 80, 5):
        coarse.add(step, float(step), 1_000.0 * step)
    history.rows = {"generator/tokens": coarse, "generator/tokens/rate": coarse} | history.rows
    assert not diagnose(history).causes


@pytest.mark.parametrize(("length", "is_found"), [(2.0, False), (1.0, True)])
def test_answers_of_each_step_tell_a_change_among_the_steps_of_one_count(
    length: float, *, is_found: bool
) -> None:
    """Tokens are counted over five steps, so their mean changes before the step, and after it."""
    key, tokens = "trainer/tokens", changed(1_000.0, length * 1_000.0)
    for last in (AT + 12, AT + 30):
        history = made(
            last,
            rows={"trainer/completion_length": changed(900.0, length * 900.0)},
            step_s=changed(0.7, 1.2),
            spans={("trainer", "train", index): changed(0.5, 1.0) for index in range(3)},
        )
        counts, numbers, total = Track(), Track(), Track()
        for step in range(5, last, 5):
            count = sum(tokens(each) for each in range(step - 5, step))
            counts.add(step, float(step), count)
            numbers.add(step, float(step), 1.0)
            total.add(step, float(step), sum(counts.values))
        history.rows |= {key: total, f"{key}/rate": total}
        history.workers[key] = {"trainer/0": counts}
        history.measurements[key] = {"trainer/0": numbers}
        assert bool(diagnose(history).causes) == is_found, last


def test_work_that_is_slower_in_a_doubled_batch_is_still_a_fault() -> None:
    def both(program: Program) -> Sequence[Effect]:
        return [LargerBatch(SINCE, 2.0), Slower(stage(program), 3.0, SINCE)]

    report = diagnose(Played(1, Topology.LOCKSTEP, Style.PHASES, both).history)
    assert [cause.kind for cause in report.causes] == [Kind.SLOW_GENERATION]


def test_growing_answers_are_no_fault_and_named() -> None:
    run = Played(2, Topology.LOCKSTEP, Style.PHASES, lambda _: [GrowingLengths(60, 2.4)])
    report = diagnose(run.history, passed=True)
    assert not report.causes
    assert any("gradually" in change for change in report.changes)


def test_makers_that_leave_in_order_are_a_resize_and_no_slow_generation() -> None:
    def fewer(program: Program) -> Sequence[Effect]:
        makers = program.workers(program.maker)
        return [Removal(frozenset(makers[len(makers) // 2 :]), SINCE)]

    report = diagnose(Played(3, Topology.LOCKSTEP, Style.PHASES, fewer).history, passed=True)
    assert not report.causes
    assert any("workers of" in change for change in report.changes)


def test_a_late_joiner_is_named() -> None:
    def joiner(program: Program) -> Sequence[Effect]:
        return [LateJoiner(program.workers(program.maker)[-1], SINCE)]

    report = diagnose(Played(4, Topology.LOCKSTEP, Style.PHASES, joiner).history, passed=True)
    assert not report.causes
    assert any("workers of" in change for change in report.changes)


def test_a_worker_that_died_is_no_deliberate_change() -> None:
    def dies(program: Program) -> Sequence[Effect]:
        return [Deaths(program.workers(program.maker)[-1], frozenset({SINCE}), Death.RAISED)]

    report = diagnose(Played(12, Topology.QUEUE, Style.PHASES, dies).history, passed=True)
    assert report.causes[0].kind is Kind.CRASH
    assert not report.changes


def test_a_worker_that_exports_without_work_is_idle_and_not_removed() -> None:
    history = Played(5, Topology.LOCKSTEP, Style.PHASES).history
    place = next(one for one, tracks in history.spans.items() if len(tracks) > 1)
    worker = max(history.spans[place])
    for tracks in history.spans.values():
        if worker in tracks:
            idle = tracks[worker]
            kept = [at for at, step in enumerate(idle.steps) if step < history.last - 8]
            tracks[worker] = Track()
            for at in kept:
                tracks[worker].add(idle.steps[at], idle.times_s[at], idle.values[at])
    assert history.lags[worker].steps[-1] > history.last - 5
    assert not [*changes(history)]


def test_a_run_without_a_change_names_none() -> None:
    report = diagnose(Played(5, Topology.LOCKSTEP, Style.PHASES).history, passed=True)
    assert report.verdict is Verdict.HEALTHY
    assert not report.changes


@pytest.mark.parametrize("job", slow_after(1, [Job.GENERATION, Job.TRAINING]))
def test_a_quarter_more_time_is_found_where_steps_are_steady(job: Job) -> None:
    def slower(program: Program) -> Sequence[Effect]:
        return [Slower(stage(program, job), 1.25, SINCE)]

    report = diagnose(Played(6, Topology.COLOCATED, Style.PHASES, slower, noise=0.01).history)
    assert report.causes
    assert report.causes[0].since in range(SINCE - 3, SINCE + 4)


def test_a_quarter_more_time_is_not_claimed_where_steps_are_noisy() -> None:
    report = diagnose(Played(7, Topology.COLOCATED, Style.PHASES, noise=0.25).history)
    assert not report.causes


def test_a_role_that_was_slow_for_a_while_is_found_afterwards() -> None:
    def passing(program: Program) -> Sequence[Effect]:
        return [Slower(stage(program), 2.5, 25, until=38)]

    (first, *_) = diagnose(
        Played(8, Topology.LOCKSTEP, Style.PHASES, passing).history, passed=True
    ).causes
    assert first.kind is Kind.SLOW_GENERATION
    assert first.since in range(23, 28)
    assert first.until in range(36, 41)


def test_times_that_a_program_logs_itself_take_the_place_of_phases() -> None:
    def slower(program: Program) -> Sequence[Effect]:
        return [Slower(stage(program), 2.5, SINCE, program.workers(program.maker)[1])]

    run = Played(9, Topology.LOCKSTEP, Style.METRICS, slower)
    (first, *_) = diagnose(run.history).causes
    assert first.worker == str(run.program.workers(run.program.maker)[1])


def test_workers_of_a_stock_sdk_that_all_stop_at_once_have_not_crashed() -> None:
    run = Played(10, Topology.LOCKSTEP, Style.SPANS, stock=True, later_s=60.0)
    report = diagnose(run.history, passed=True)
    assert report.verdict is Verdict.CANNOT_TELL
    assert "at once" in report.doubts[0]


@pytest.mark.parametrize("job", slow_after(1, [Job.GENERATION, Job.TRAINING]))
def test_the_cost_is_that_of_the_run_without_the_fault(job: Job) -> None:
    def slower(program: Program) -> Sequence[Effect]:
        return [Slower(stage(program, job), 3.0, SINCE)]

    run = Played(11, Topology.LOCKSTEP, Style.PHASES, slower)
    healthy = Played(11, Topology.LOCKSTEP, Style.PHASES)
    (first, *_) = diagnose(run.history).causes
    cost = cost_of(run.history, first)
    assert cost is not None
    ends_s = [0.0, *healthy.made.step_ends_s]
    truth_s = median(b - a for a, b in zip(ends_s[SINCE:], ends_s[SINCE + 1 :], strict=False))
    assert cost.without_s == pytest.approx(truth_s, rel=0.1)
    lost_s = run.made.step_ends_s[-1] - healthy.made.step_ends_s[-1]
    gpus = run.history.rows["gpu/count"].values[-1]
    assert cost.lost_hours == pytest.approx(lost_s * gpus / 3600, rel=0.15)
    assert "of GPU time lost so far" in first.words


def test_a_killed_worker_of_a_stock_sdk_is_a_crash_while_the_others_wait() -> None:
    def killed(program: Program) -> Sequence[Effect]:
        return [Deaths(program.workers(program.maker)[0], frozenset({SINCE}), Death.KILLED)]

    runs = (Played(s, Topology.LOCKSTEP, Style.SPANS, killed, stock=True) for s in range(20, 40))
    run = next(run for run in runs if len(run.made.ends) == 1)  # the launcher ends no other
    (first, *_) = diagnose(run.history).causes
    assert (first.kind, first.worker) == (Kind.CRASH, str(run.program.workers()[0]))
    assert first.since in range(SINCE - 2, SINCE + 2)


def test_a_worker_that_hangs_is_told_from_its_peers_without_phases() -> None:
    def hangs(program: Program) -> Sequence[Effect]:
        return [Hang(program.workers(program.maker)[1], stage(program), SINCE)]

    run = Played(41, Topology.LOCKSTEP, Style.SPANS, hangs, stock=True)
    assert run.program.sizes[run.program.maker] > 2
    (first, *_) = diagnose(run.history).causes
    assert (first.kind, first.worker) == (Kind.STALL, str(run.program.workers()[1]))


@pytest.mark.parametrize("seed", slow_after(1, range(50, 53)))
def test_a_buffer_that_fills_up_is_no_growing_staleness(seed: int) -> None:
    report = diagnose(Played(seed, Topology.QUEUE, Style.PHASES).history, passed=True)
    assert Kind.STALENESS_GROWTH not in {cause.kind for cause in report.causes}


def test_a_wait_that_is_one_by_its_name_only_is_not_slow_work() -> None:
    def slower(program: Program) -> Sequence[Effect]:
        return [
            Slower(stage(program, Job.TRAINING), 3.0, SINCE, program.workers(program.learner)[0])
        ]

    runs = (Played(s, Topology.LOCKSTEP, Style.SPANS, slower, stock=True) for s in range(60, 99))
    run = next(one for one in runs if one.program.sizes[one.program.learner] > 2)
    causes = diagnose(run.history, passed=True).causes
    assert causes[0].worker == str(run.program.workers(run.program.learner)[0])
    assert not any("wait" in (cause.phase or "") for cause in causes)


def test_a_throttled_device_is_named_once_with_the_role_of_its_worker() -> None:
    def hot(program: Program) -> Sequence[Effect]:
        who = program.workers(program.maker)[0]
        return [Throttled(stage(program), 2.5, SINCE, who)]

    run = Played(70, Topology.LOCKSTEP, Style.PHASES, hot)
    first, *others = diagnose(run.history).causes
    assert (first.kind, first.role) == (Kind.THROTTLED, run.program.maker)
    assert Kind.THROTTLED not in {cause.kind for cause in others}


def test_trainers_that_wait_after_a_larger_batch_are_not_starved() -> None:
    waits = {("trainer", "wait_for_batch", 0): changed(0.01, 1.0)}
    larger = made(spans=waits, waits=["wait_for_batch"], rows={"trainer/tokens": changed(100, 150)})
    assert not diagnose(larger).causes
    assert "1.5 times the tokens" in diagnose(larger).changes[0]
    same = made(spans=waits, waits=["wait_for_batch"], rows={"trainer/tokens": lambda _: 100})
    assert [cause.kind for cause in diagnose(same).causes] == [Kind.STARVATION]


@pytest.mark.parametrize(
    ("name", "is_work"),
    [
        ("trainer/tokens_per_step", True),
        ("trainer/perf/total_num_tokens", True),
        ("trainer/batch_size", True),
        ("trainer/tokens_per_s", False),
        ("trainer/tokens_per_sec", False),
        ("trainer/tokens_per_second", False),
        ("trainer/tokens_per_gpu", False),
    ],
)
def test_the_work_of_a_step_is_no_rate(name: str, *, is_work: bool) -> None:
    history = made(
        rows={name: changed(1_000.0, 2_000.0)},
        spans={("trainer", "train", index): changed(0.5, 1.0) for index in range(3)},
        step_s=changed(0.7, 1.4),
    )
    assert bool(Workload(history).of_step) == is_work
    assert bool(diagnose(history).causes) != is_work


@pytest.mark.parametrize(("tokens", "is_starved"), [(200, False), (100, True)])
@pytest.mark.parametrize("told_late", [1, 2, 3])
def test_a_longer_wait_is_judged_once_its_steps_have_told_their_work(
    told_late: int, tokens: float, *, is_starved: bool
) -> None:
    """Makers of a larger batch take longer, though not one of its parts; it is told at its end."""
    waits = {("trainer", "wait_for_batch", 0): changed(0.01, 1.0)}
    told = []
    for steps in range(AT + 1, AT + 10):
        rows = {
            "trainer/tokens": lambda step, steps=steps: (
                changed(100, tokens)(step) if step < steps - told_late else math.nan
            )
        }
        history = made(steps, spans=waits, waits=["wait_for_batch"], rows=rows)
        told += [cause.kind for cause in diagnose(history).causes]
    assert {*told} == ({Kind.STARVATION} if is_starved else set())


def test_samples_that_grow_old_as_workers_join_are_no_fault() -> None:
    age = {"trainer/policy/staleness": changed(0.5, 4.0)}
    generators = {("generator", "generate", 0): lambda _: 0.5}
    joined = {**generators, ("generator", "generate", 1): lambda _: 0.5}
    fewer = made(spans=generators, rows=age)
    assert Kind.STALENESS_GROWTH in {cause.kind for cause in diagnose(fewer).causes}
    more = made(spans=joined, rows=age, begun={("generator", "generate", 1): AT - 3})
    assert Kind.STALENESS_GROWTH not in {cause.kind for cause in diagnose(more).causes}


def test_samples_grow_old_while_a_buffer_fills_for_the_first_time() -> None:
    def kinds(since: int) -> set[Kind]:
        filling = made(rows={"trainer/policy/staleness": changed(2.0, 8.0, since)})
        return {cause.kind for cause in diagnose(filling).causes}

    assert Kind.STALENESS_GROWTH not in kinds(11)
    assert Kind.STALENESS_GROWTH in kinds(40)


def test_workers_of_which_the_journal_keeps_the_extreme_ones_alone_are_there_all_along() -> None:
    """Of many workers it has those with the longest and shortest times of each step."""
    chance, steps, workers = random.Random(1), 100, [f"trainer/{n}" for n in range(60)]
    told = [
        Facts(
            (step + 1) * 1_000_000_000,
            step,
            spans=[
                SpanFacts(step, "trainer", "train", worker, *(False, 1, 1.0, 1.0, 0))
                for worker in chance.sample(there, 32)
            ],
            lags=[(worker, 0.0) for worker in there],
        )
        for step in range(steps)
        for there in [workers if step < 50 else workers[:40]]
    ]
    found = [change for change in changes(RunHistory(told)) if "workers of" in change]
    assert found == ["40 workers of trainer since step 50, 60 before"]


@pytest.mark.parametrize(("longer", "verdict"), [(2.0, Verdict.HEALTHY), (4.0, "no clear cause")])
def test_steps_take_longer_as_fewer_workers_make_their_samples(longer: float, verdict: str) -> None:
    history = made(
        step_s=changed(3.0, 3.0 * longer),
        spans={("agent", "episode", index): jittered(lambda _: 2.0) for index in range(6)},
    )
    for place, of in history.spans.items():
        for index in range(3, 6):
            of[f"agent/{index}"] = of[f"agent/{index}"].between(0, AT)
            counts = history.counts[place]
            counts[f"agent/{index}"] = counts[f"agent/{index}"].between(0, AT)
    report = diagnose(history)
    assert any("3 workers of agent" in change for change in report.changes)
    assert report.verdict == verdict


@pytest.mark.parametrize(("name", "is_on_purpose"), [("browser", True), ("retry", False)])
def test_another_tool_since_a_step_is_named_and_no_want_of_samples(
    name: str, *, is_on_purpose: bool
) -> None:
    spans: dict[tuple[str, str, int], Series] = {
        ("agent", f"execute_tool {name}", index): jittered(lambda _: 3.0) for index in range(4)
    }
    begun = dict.fromkeys(spans, AT)
    spans |= {("agent", "chat", index): jittered(lambda _: 1.5) for index in range(4)}
    spans[("trainer", "wait_for_batch", 0)] = jittered(changed(1.0, 3.0))
    history = made(spans=spans, begun=begun, step_s=changed(6.0, 8.0), waits=["wait_for_batch"])
    report = diagnose(history)
    told = f"execute_tool {name} of agent since step {AT}, and not before" in report.changes
    assert told == is_on_purpose
    assert [one.kind for one in report.causes] == [Kind.STARVATION] * (not is_on_purpose)


def growing(*, together: bool, tokens: bool = False) -> RunHistory:
    """Three trainers whose rollouts take gradually longer, with or without their updates."""

    def longer(step: int) -> float:
        return 1.0 + step / 80

    def update(step: int) -> float:
        return 3.0 * (longer(step) if together else 1.0)

    rollout = {("trainer", "rollout", n): jittered(lambda s: 4.0 * longer(s)) for n in range(3)}
    updates = {("trainer", "update", n): jittered(update) for n in range(3)}
    rows: dict[str, Series] = {"trainer/response/length": lambda step: 600.0 * longer(step)}
    return made(
        spans=rollout | updates,
        step_s=lambda step: 4.0 * longer(step) + update(step),
        rows=rows if tokens else {},
    )


def test_work_that_grows_in_proportion_and_is_not_measured_leaves_a_doubt() -> None:
    report = diagnose(growing(together=True))
    assert report.verdict is Verdict.CANNOT_TELL
    assert any("rollout and update take longer and longer" in one for one in report.doubts)
    assert diagnose(growing(together=True, tokens=True)).verdict is Verdict.HEALTHY
    assert diagnose(growing(together=False)).causes[0].kind is Kind.SLOW_GENERATION


def test_what_generators_make_while_a_longer_update_lasts_is_no_more_work() -> None:
    """They generate at all times, so a longer step has more of their tokens."""
    update_s = jittered(changed(4.0, 8.0))
    counts: dict[str, Series] = {
        "trainer/tokens": jittered(lambda _: 1_800.0, 0.02),
        "generator/tokens": jittered(changed(5_000.0, 9_000.0), 0.02),
    }
    history = made(
        spans={
            ("trainer", "train", 0): update_s,
            ("trainer", "train_step", 0): lambda _: 0.5,
            **{("generator", "generate", index): jittered(lambda _: 1.5) for index in range(2)},
        },
        workers={(key, f"{key.partition('/')[0]}/0"): of for key, of in counts.items()},
        step_s=lambda step: update_s(step) + 1.0,
    )
    for key, of in counts.items():
        for step in range(80):
            # The exports of a trainer are told in a few steps less.
            if step % 8 or key.startswith("generator/"):
                history.rows[key].add(step, float(step), step * of(0))
                history.rows[f"{key}/rate"].add(step, float(step), 0.0)
    (cause,) = diagnose(history).causes
    assert (cause.kind, cause.phase, cause.since) == (Kind.SLOW_TRAINING, "train", AT)


@pytest.mark.parametrize("apart", [1, 2_048, 50_000])
@pytest.mark.parametrize("is_more", [True, False])
def test_steps_may_count_samples(apart: int, *, is_more: bool) -> None:
    """Some programs pass the number of samples so far as the step: most numbers are no step."""
    facts, tokens = [], changed(1_000.0, 2_000.0 if is_more else 1_000.0)
    for place in range(100):
        step, time_ns = place * apart, (1_000 + 2 * place) * NS
        row = {"trainer/tokens": sum(map(tokens, range(place))), "trainer/tokens/rate": 500.0}
        took_s = changed(1.0, 2.0)(place)
        told = {
            "trainer/tokens": [WorkerFacts("trainer/0", None, 1, tokens(place), 0)],
            "trainer/timing/update": [WorkerFacts("trainer/0", step, 1, took_s, 0)],
        }
        facts.append(Facts(time_ns, step, [RowFacts(step, time_ns, row)], workers=told))
    report = diagnose(RunHistory(Facts.decode(one.encode()) for one in facts))
    found = [(one.kind, one.since) for one in report.causes]
    assert found == ([] if is_more else [(Kind.SLOW_TRAINING, AT * apart)])
    assert any("2.0 times the tokens" in change for change in report.changes) == is_more
