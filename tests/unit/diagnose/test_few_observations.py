"""A cause is told after few observations if these are far beyond all that the run has shown."""

import random
from collections.abc import Sequence

import pytest

from otel_rl.diagnose.detectors.processes import gc_pauses
from otel_rl.diagnose.engine import diagnose
from otel_rl.diagnose.history.records import Facts, RowFacts, SpanFacts, WorkerFacts
from otel_rl.diagnose.history.run_history import PhaseKey, RunHistory, Track
from otel_rl.diagnose.result import Kind
from tests.unit.diagnose.made import Series, made

STEPS = 40


def causes(history: RunHistory) -> list[tuple[Kind, str | None, int | None]]:
    return [(one.kind, one.worker, one.since) for one in diagnose(history).causes]


def train(index: int, step_s: float, *some: int, times: float = 3.0) -> Series:
    """Seconds of a rank's training, that takes longer in some steps; with a little noise."""
    return lambda step: (
        step_s
        / 2
        * (1 + 0.01 * ((step * 3 + index) % 7 - 3) + 0.005 * ((step * 2 + index) % 5 - 2))
        * (times if step in some else 1.0)
    )


def run(
    step_s: float,
    *some: int,
    times: float = 3.0,
    before: int | None = None,
    longest: float = 2.4,
    steps: int = STEPS,
    after: Sequence[tuple[float, Facts]] = (),
) -> RunHistory:
    """Five ranks, of which the first is slower in some steps, and the second in one before."""
    slow = train(0, step_s, *some, times=times)
    second = train(1, step_s, *([] if before is None else [before]), times=longest)
    others = [train(index, step_s) for index in (2, 3, 4)]
    spans = {("trainer", "train", index): of for index, of in enumerate((slow, second, *others))}
    return made(steps, step_s=lambda step: step_s / 2 + slow(step), spans=spans, after=after)


@pytest.mark.parametrize("step_s", [5.0, 20.0])
def test_one_far_longer_piece_is_no_cause_and_two_are(step_s: float) -> None:
    """One in a thousand is as long by accident: a file system that waits, a preempted process."""
    assert causes(run(step_s, STEPS - 1)) == []
    told = causes(run(step_s, STEPS - 2, STEPS - 1))
    assert told == [(Kind.STRAGGLER, "trainer/0", STEPS - 2)]


@pytest.mark.parametrize("every", [2, 3])
def test_what_comes_and_goes_is_told_the_third_time(every: int) -> None:
    slow = [STEPS - 1 - 2 * every, STEPS - 1 - every, STEPS - 1]
    assert causes(run(5.0, *slow)) == [(Kind.STRAGGLER, "trainer/0", slow[0])]
    assert causes(run(5.0, *slow[:2], steps=STEPS - every)) == []


def test_what_comes_and_goes_is_told_the_third_time_of_three_workers_too() -> None:
    slow = train(0, 5.0, 33, 36, STEPS - 1)
    spans = {("trainer", "train", 0): slow}
    spans |= {("trainer", "train", index): train(index, 5.0) for index in (1, 2)}
    told = causes(made(STEPS, step_s=lambda step: 2.5 + slow(step), spans=spans))
    assert told == [(Kind.STRAGGLER, "trainer/0", 33)]


@pytest.mark.parametrize("is_felt", [True, False])
def test_the_second_long_piece_is_told_where_work_is_noisy_if_the_step_of_the_first_took_longer(
    is_felt: bool,
) -> None:
    """The second piece is told before its step has ended, so steps have no other level yet."""

    def noisy(index: int, times: float) -> Series:
        def of(step: int) -> float:
            noise = random.Random(f"{index} {step}").lognormvariate(0.0, 0.12)
            return 10.0 * noise * (times if step >= STEPS - 1 else 1.0)

        return of

    works = [noisy(index, 1.0 if index else 3.0) for index in range(5)]
    second = [
        SpanFacts(STEPS, "trainer", "train", f"trainer/{index}", False, 1, of(STEPS), of(STEPS), 0)
        for index, of in enumerate(works)
    ]
    history = made(
        STEPS,
        step_s=lambda step: 20.0 + (max(of(step) for of in works) if is_felt else 12.0),
        spans={("trainer", "train", index): of for index, of in enumerate(works)},
        after=[(35.0, Facts(0, 0, spans=second))],
    )
    assert causes(history) == ([(Kind.STRAGGLER, "trainer/0", STEPS - 1)] if is_felt else [])


def test_three_long_pieces_far_from_each_other_may_be_chance() -> None:
    assert causes(run(5.0, 15, 27, STEPS - 1)) == []


def test_three_long_pieces_tell_nothing_if_another_worker_had_a_longer_one() -> None:
    assert causes(run(5.0, STEPS - 5, STEPS - 3, STEPS - 1, before=20, longest=6.0)) == []


AGE = "trainer/worker/phase/age/train"


def at_work(age_s: float, *, slow: bool = True) -> RunHistory:
    """The same and the next step: the other ranks have done its work, the first is still at it.

    Args:
        age_s: Since when.
        slow: Whether it was slow in the step before.
    """
    spans = [
        SpanFacts(STEPS, "trainer", "train", f"trainer/{index}", False, 1, of, of, 0)
        for index in range(1, 5)
        for of in [train(index, 20.0)(STEPS)]
    ]
    ages = {AGE: [WorkerFacts("trainer/0", None, 1, age_s, 0)]}
    after = [(age_s, Facts(0, 0, workers=ages, spans=spans, status="running"))]
    return run(20.0, *([STEPS - 1] if slow else []), after=after)


@pytest.mark.parametrize(
    ("age_s", "slow", "is_told"), [(14, True, True), (11, True, False), (14, False, False)]
)
def test_work_that_takes_longer_already_is_the_second_observation_and_never_the_first(
    age_s: float, slow: bool, is_told: bool
) -> None:
    told = causes(at_work(age_s, slow=slow))
    assert told == [(Kind.STRAGGLER, "trainer/0", STEPS - 1)] * is_told


def test_the_age_of_work_that_has_ended_since_is_no_second_observation() -> None:
    history = at_work(14.0)
    before_its_end_s = history.ends_s - 14.0 - 2.0
    told = Track.of([STEPS - 1], [before_its_end_s], [28.0])
    history.workers[AGE] = {**history.workers[AGE], "trainer/0": told}
    assert causes(history) == []


def test_an_age_with_that_of_nested_phases_is_no_time_of_the_work_itself() -> None:
    """Each step ends with a save within the training, after half a minute of it."""
    history = at_work(14.0)
    ages = history.workers[AGE]["trainer/0"]
    told = Track.of([5, *ages.steps], [95.0, *ages.times_s], [35.0, *ages.values])
    history.workers[AGE] = {**history.workers[AGE], "trainer/0": told}
    assert causes(history) == []


def gc(*pauses: int) -> RunHistory:
    """Workers whose collector takes a few milliseconds a step, and one of them more in some."""
    workers = {
        ("actor/gc/time", f"actor/{index}"): lambda step, index=index: (
            2.0 if not index and step in pauses else 0.001 * (1 + (7 * step + index) % 11)
        )
        for index in range(4)
    }
    return made(STEPS, step_s=lambda step: 5.0, workers=workers)


def test_two_pauses_of_the_collector_far_beyond_all_others_are_told() -> None:
    assert causes(gc(STEPS - 2, STEPS - 1)) == [(Kind.GC_PAUSES, "actor/0", STEPS - 2)]


def test_one_pause_of_the_collector_is_no_cause() -> None:
    assert causes(gc(STEPS - 1)) == []


def collected(seed: int, *, is_stopped: bool) -> list[tuple[Kind, str | None]]:
    """What is told of four workers, whose exports have one to three steps each.

    Most collections are short; those of all objects are rare, and longer on a busy machine.

    Args:
        seed: Draws the run.
        is_stopped: Whether the collector stops the second worker in each step of the second half.
    """
    chance = random.Random(f"collector-{seed}")
    steps, step_s = chance.randrange(36, 80), chance.choice([0.3, 0.5, 1.0])
    longest_s, of_export = chance.choice([0.1, 0.3, 0.5]), chance.choice([1, 2, 3])
    pauses: dict[int, list[float]] = {}
    for index in range(4):
        kinds = chance.choices(
            [(0.0, 0.001), (0.001, 0.01), (0.01, 0.06), (0.06, longest_s)], [90, 5, 3, 2], k=steps
        )
        pauses[index] = [chance.uniform(*kind) for kind in kinds]
    if is_stopped:
        for step in range(steps // 2, steps):
            pauses[1][step] += step_s * chance.uniform(0.12, 0.6)

    def told(index: int) -> Series:
        return lambda step: (
            sum(pauses[index][step - of_export + 1 : step + 1])
            if step % of_export == of_export - 1
            else 0.0
        )

    workers = {("actor/gc/time", f"actor/{index}"): told(index) for index in range(4)}
    history = made(steps, step_s=lambda step: step_s, workers=workers)
    return [(cause.kind, cause.worker) for cause in gc_pauses(history)]


def test_rare_long_collections_are_no_cause_and_those_of_each_step_are() -> None:
    assert [seed for seed in range(100) if collected(seed, is_stopped=False)] == []
    told = [collected(seed, is_stopped=True) for seed in range(40)]
    assert told == [[(Kind.GC_PAUSES, "actor/1")]] * 40


@pytest.mark.parametrize(
    ("counts", "since"),
    [((12, 24, 0), STEPS - 3), ((12, 0), None), ((2, 2, 2, 2), None)],
    ids=["two in three steps", "one before the last", "small"],
)
def test_counts_of_two_exports_far_beyond_all_others_are_told_though_a_step_has_none(
    counts: Sequence[int], since: int | None
) -> None:
    """Exports have a pace of their own: some steps have the requests of two, and others none."""
    key = "actor/generator/preemptions"
    first = STEPS - len(counts)
    workers = {(key, "actor/0"): lambda step: float(counts[step - first]) if step >= first else 0.0}
    told = causes(made(STEPS, step_s=lambda step: 7.0, workers=workers))
    assert told == ([] if since is None else [(Kind.KV_THRASH, "actor/0", since)])


def late_calls(caller: int) -> Series:
    """Seconds of a call: long in the first steps, while programs compile, and in the last ones."""
    return lambda step: (
        2.0 + 0.01 * ((step + caller) % 3)
        if step < 4 or step >= STEPS - 3
        else 0.6 + 0.01 * ((step * 3 + caller) % 5)
    )


def test_a_slow_start_hides_no_late_calls() -> None:
    workers: dict[tuple[str, str], Series] = {
        ("judge/rpc/server/call/duration/Score", "judge/0"): lambda step: 0.5
    }
    for caller in range(3):
        key = "actor/rpc/client/call/duration/Score"
        workers[key, f"actor/{caller}"] = late_calls(caller)
    told = causes(made(STEPS, step_s=lambda step: 7.0, workers=workers))
    assert told == [(Kind.NETWORK_DELAY, None, STEPS - 3)]


def score(tokens: Series) -> RunHistory:
    """A scorer that is slower in the last step, and in the next, which has not told its tokens."""
    spans = [SpanFacts(STEPS, "judge", "score", "judge/0", False, 1, 5.0, 5.0, 0)]
    return made(
        STEPS,
        step_s=lambda step: 10.0,
        spans={
            ("judge", "score", 0): lambda step: (
                2.5 * (1 + 0.01 * (step % 5 - 2)) * (2 if step == STEPS - 1 else 1)
            )
        },
        rows={"trainer/tokens": tokens},
        after=[(5.0, Facts(0, 0, spans=spans))],
    )


def test_the_work_of_a_step_that_has_not_told_it_is_that_of_the_one_before() -> None:
    assert causes(score(lambda step: 1e5)) == [(Kind.SLOW_REWARD, "judge/0", STEPS - 1)]
    assert causes(score(lambda step: 1e5 * (2 if step == STEPS - 1 else 1))) == []


def test_work_without_a_step_of_its_own_may_be_of_the_next_which_has_more_of_it() -> None:
    """Makers tell no step, so theirs is the last one that trainers told; the batch is doubled."""
    facts, second = list[Facts](), 10**9
    for step in range(STEPS):
        at_s, times = 100 + 20 * step, 2 if step >= STEPS - 2 else 1
        took_s = 5 * times * (1 + 0.01 * (step % 5 - 2))
        spans = [SpanFacts(step, "actor", "generate", "actor/0", False, 1, took_s, took_s, 0)]
        tokens = 1e5 * (2 if step >= STEPS - 1 else 1)
        rows = [RowFacts(step, at_s * second, {"trainer/tokens": tokens})]
        facts.append(Facts(at_s * second, step, rows if step < STEPS - 1 else []))
        facts.append(Facts((at_s + 11) * second, step, spans=spans))
    assert causes(RunHistory(facts)) == []


@pytest.mark.parametrize("timed", [0, 3])
def test_ranks_whose_measured_times_are_zero_are_no_peers(timed: int) -> None:
    """Programs log the time of a part that only some ranks do, as 0 by the others."""
    key = "trainer/timing_s/reward"
    workers = {
        (key, f"trainer/{rank}"): lambda step, rank=rank: 1.0 if rank <= timed else 0.0
        for rank in range(5)
    }
    assert causes(made(workers=workers)) == []


def test_rare_work_that_once_took_no_time_is_not_many_times_as_long() -> None:
    history = made(60)
    place = PhaseKey("trainer", "export")
    for step, took_s in ((5, 0.0), (15, 0.0), (25, 9.0), (35, 9.0)):
        history.spans[place]["trainer/0"].add(step, float(step), took_s)
        history.counts[place]["trainer/0"].add(step, float(step), 1.0)
    assert causes(history) == []


@pytest.mark.parametrize(
    ("some", "workers"), [((40, 45, 50, 55), 4), ((54, 56, 58, 60), 1)], ids=["all", "one"]
)
def test_what_trouble_in_some_steps_costs_is_unknown_if_all_steps_came_at_once(
    some: tuple[int, ...], workers: int
) -> None:
    """As those of an exporter that is flushed at the end."""
    spans = [
        SpanFacts(step, "actor", "generate", f"actor/{index}", False, 1, took_s, took_s, 0)
        for step in range(1, 61)
        for index in range(4)
        for took_s in [4.0 if step in some and index < workers else 1.0]
    ]
    assert causes(RunHistory([Facts(10**9, 0, spans=spans)])) == []


def exported(every: int, load_s: Series, generate_s: Series, *, logs: bool = True) -> RunHistory:
    """Steps of a second, spans without steps: an export has those of several in one record."""
    facts = []
    for step in range(60):
        time_ns = (1_000 + step) * 1_000_000_000
        rows = [RowFacts(step, time_ns, {"trainer/step_time": 1.0 + load_s(step)})]
        spans: list[SpanFacts] = []
        workers: dict[str, list[WorkerFacts]] = {}
        for phase, of in (("load", load_s), ("rollout", generate_s)):
            took = [of(step - n) for n in range(every)]
            for rank in ("trainer/0", "trainer/1"):
                if step % every == every - 1:
                    total_s, most_s = sum(took), max(took)
                    spans.append(
                        SpanFacts(step, "trainer", phase, rank, False, every, total_s, most_s, 0)
                    )
                if logs:
                    one = WorkerFacts(rank, step, 1, of(step), 0)
                    workers.setdefault(f"trainer/{phase}_time", []).append(one)
        lags = [("trainer/0", 0.1), ("trainer/1", 0.1)]
        facts.append(Facts(time_ns, step, rows, workers=workers, spans=spans, lags=lags))
    return RunHistory(facts)


@pytest.mark.parametrize("logs", [True, False])
def test_logged_times_tell_what_the_mean_of_many_spans_hides(*, logs: bool) -> None:
    late = (31, 34, 38, 42, 48, 52, 53)
    found = causes(
        exported(5, lambda step: 0.6 if step in late else 0.01, lambda _: 0.4, logs=logs)
    )
    assert found == [(Kind.SLOW_DATA, None, late[0])] * logs


def test_a_slowdown_after_the_first_third_of_a_short_series_is_no_start() -> None:
    """The few records before it tell that the first one alone was long."""

    def generate(step: int) -> float:
        return 1.0 if step < 4 else 0.4 if step < 36 else 0.8

    found = causes(exported(4, lambda _: 0.01, generate, logs=False))
    assert [one[0] for one in found] == [Kind.SLOW_GENERATION]


def test_of_many_callers_one_is_late_for_a_few_steps_by_chance() -> None:
    own = [0.746, 0.126, 0.282, 0.086, 0.102, 0.054, 0.204, 0.253, 0.127, 0.155, 0.105, 0.169,
           0.055, 0.113, 0.131, 0.09, 0.259, 0.048, 0.194, 0.159, 0.201, 0.145, 0.23, 0.158,
           0.273, 0.297, 0.298, 0.272, 0.241]  # fmt: skip

    def waited(index: int) -> Series:
        return lambda step: 0.05 + 0.025 * ((7 * step + 5 * index) % 11)

    def calls(callers: int) -> dict[tuple[str, str], Series]:
        key = "trainer/rpc/client/call/duration/Score"
        return {(key, f"trainer/{index}"): waited(index) for index in range(1, callers)} | {
            (key, "trainer/0"): lambda step: own[step],
            ("reward/rpc/server/call/duration/Score", "reward/0"): waited(0),
        }

    def named(callers: int) -> list[str | None]:
        history = made(len(own), step_s=lambda step: 3.6, workers=calls(callers))
        return [one.worker for one in diagnose(history).causes]

    assert named(9) == []
    assert named(4) == ["trainer/0"]
