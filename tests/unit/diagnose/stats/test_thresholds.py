"""What is told from which size on, on either side of each threshold, mostly without noise."""

import random
from collections.abc import Mapping, Sequence

import pytest

from otel_rl.diagnose.engine import diagnose
from otel_rl.diagnose.history.records import Facts, WorkerFacts
from otel_rl.diagnose.history.run_history import RunHistory
from otel_rl.diagnose.result import Cause, Kind, Verdict
from otel_rl.diagnose.stats.changes import Change
from otel_rl.diagnose.stats.levels import LevelChange
from otel_rl.semconv.spec import STEP_SPAN
from tests.unit.diagnose.made import AT, Series, changed, made

Spans = dict[tuple[str, str, int], Series]


def kinds(history: RunHistory, steps: tuple[int, int] | None = None) -> set[Kind]:
    return {cause.kind for cause in diagnose(history, steps).causes}


def only(history: RunHistory) -> Cause:
    (cause,) = diagnose(history).causes
    return cause


def ranks(phase: str, *of: Series, role: str = "trainer") -> Spans:
    return {(role, phase, index): one for index, one in enumerate(of)}


# Phases that take longer.


@pytest.mark.parametrize(("after_s", "is_told"), [(0.59, False), (0.62, True)])
def test_work_that_takes_less_than_1_2_times_as_long_is_not_told(
    after_s: float, is_told: bool
) -> None:
    history = made(spans=ranks("train", *[changed(0.5, after_s)] * 2))
    assert kinds(history) == ({Kind.SLOW_TRAINING} if is_told else set())


@pytest.mark.parametrize(
    ("before_s", "after_s", "is_told"), [(0.04, 0.13, False), (0.04, 0.15, True)]
)
def test_noisy_work_that_takes_up_less_than_a_tenth_more_of_the_time_is_not_told(
    before_s: float, after_s: float, is_told: bool
) -> None:
    noise = (0.2, 1.4, 1.0, 1.8, 0.6)
    usual = changed(before_s, after_s)
    history = made(spans=ranks("train", *[lambda step: usual(step) * noise[step % 5]] * 2))
    assert kinds(history) == ({Kind.SLOW_TRAINING} if is_told else set())


def test_steady_work_that_takes_up_little_more_of_the_time_is_told() -> None:
    history = made(spans=ranks("train", *[changed(0.04, 0.13)] * 2))
    assert kinds(history) == {Kind.SLOW_TRAINING}


@pytest.mark.parametrize(
    ("before_s", "after_s", "times", "is_told"), [(0.005, 0.02, 10, False), (0.01, 0.035, 8, True)]
)
def test_work_that_takes_longer_by_less_than_a_fiftieth_of_a_step_is_not_told(
    before_s: float, after_s: float, times: int, is_told: bool
) -> None:
    spans = ranks("train", *[changed(before_s, after_s)] * 2)
    assert kinds(made(spans=spans, times={"train": times})) == (
        {Kind.SLOW_TRAINING} if is_told else set()
    )


@pytest.mark.parametrize(("after_s", "is_told"), [(0.34, False), (0.37, True)])
def test_work_within_steps_explains_at_least_a_quarter_of_what_steps_take_longer(
    after_s: float, is_told: bool
) -> None:
    spans = ranks("train", *[changed(0.1, after_s)] * 2) | ranks(
        STEP_SPAN, *[changed(0.01, 0.01)] * 2
    )
    assert kinds(made(step_s=changed(1.0, 2.0), spans=spans)) == (
        {Kind.SLOW_TRAINING} if is_told else set()
    )


@pytest.mark.parametrize(("after_s", "is_told"), [(0.72, False), (0.78, True)])
def test_a_worker_whose_peers_became_faster_is_no_straggler_unless_it_became_slower(
    after_s: float, is_told: bool
) -> None:
    spans = ranks("train", changed(0.6, after_s), *[changed(0.6, 0.3)] * 3)
    found = diagnose(made(spans=spans)).causes
    assert [(cause.kind, cause.worker) for cause in found] == (
        [(Kind.STRAGGLER, "trainer/0")] if is_told else []
    )


def always(*seconds: float) -> Spans:
    return ranks("train", *[changed(s, s) for s in _in_the_middle(seconds)])


def always_uneven(*seconds: float) -> Spans:
    """Like ``always``; each takes up to a quarter longer or less in a step, in another order."""
    return ranks(
        "train",
        *[
            lambda step, s=s, n=n: s * (1 + 0.08 * ((step * (n + 2) + n) % 7 - 3))
            for n, s in enumerate(_in_the_middle(seconds))
        ],
    )


def _in_the_middle(seconds: Sequence[float]) -> Sequence[float]:
    """Put the last one between the others: it is no end of a pipeline."""
    return [*seconds[:1], seconds[-1], *seconds[1:-1]]


@pytest.mark.parametrize(
    ("history", "is_told"),
    [
        (made(spans=always(0.2, 0.5)), False),
        (made(spans=always(0.2, 0.2, 0.5)), True),
        (made(9, spans=always(0.2, 0.2, 0.5)), False),
        (made(11, spans=always(0.2, 0.2, 0.5)), True),
        (made(spans=always(0.2, 0.27, 0.6)), False),
        (made(spans=always(0.2, 0.25, 0.6)), True),
        (made(spans=always(0.4, 0.4, 0.54)), False),
        (made(spans=always(0.4, 0.4, 0.58)), True),
        (made(spans=always(0.4, 0.48, 0.7)), False),
        (made(spans=always_uneven(0.4, 0.4, 0.6)), False),
        (made(spans=always_uneven(0.4, 0.4, 0.8)), True),
    ],
    ids=[
        "one peer",
        "two peers",
        "9 steps",
        "11 steps",
        "peers unlike",
        "peers alike",
        "not much slower",
        "slower",
        "not much slower than peers that are unlike",
        "not much slower for the noise",
        "slower than the noise",
    ],
)
def test_who_was_always_slower_is_told_by_two_peers_that_are_alike_over_ten_steps(
    history: RunHistory, is_told: bool
) -> None:
    found = [(cause.kind, cause.since) for cause in diagnose(history).causes]
    assert found == ([(Kind.STRAGGLER, None)] if is_told else [])


@pytest.mark.parametrize(("often", "is_told"), [(7, False), (8, True)])
def test_who_was_always_slower_was_so_in_three_of_four_steps(often: int, is_told: bool) -> None:
    spans = always(0.2, 0.2) | {
        ("trainer", "train", 2): lambda step: 0.5 if step * 7 % 10 < often else 0.2
    }
    assert kinds(made(spans=spans)) == ({Kind.STRAGGLER} if is_told else set())


# Between processes.


@pytest.mark.parametrize(
    ("before_s", "after_s", "is_told"),
    [(0.05, 0.28, False), (0.05, 0.32, True), (0.3, 0.7, False), (0.3, 0.8, True)],
    ids=["small part", "good part", "twice", "2.7 times"],
)
def test_trainers_starve_if_they_wait_2_5_times_as_long_and_by_a_quarter_of_a_step(
    before_s: float, after_s: float, is_told: bool
) -> None:
    spans = ranks("fetch_samples", *[changed(before_s, after_s)] * 2)
    assert kinds(made(spans=spans, waits=["fetch_samples"])) == (
        {Kind.STARVATION} if is_told else set()
    )


def test_who_starves_since_when_and_by_how_much_is_said() -> None:
    spans = ranks("fetch_samples", *[changed(0.05, 0.4)] * 2)
    cause = only(made(spans=spans, waits=["fetch_samples"]))
    assert (cause.kind, cause.role, cause.phase, cause.since) == (
        Kind.STARVATION,
        "trainer",
        "fetch_samples",
        AT,
    )
    assert (cause.evidence[0].before, cause.evidence[0].after) == (0.05, 0.4)


def test_a_wait_that_grows_slowly_is_no_starvation() -> None:
    spans = ranks("fetch_samples", lambda step: 0.05 + step / 80)
    assert kinds(made(spans=spans, waits=["fetch_samples"])) == set()


@pytest.mark.parametrize(("evicted", "is_told"), [(8.0, False), (12.0, True)])
def test_evictions_are_told_from_a_tenth_of_what_comes_in(evicted: float, is_told: bool) -> None:
    rows = {
        "replay_buffer/evictions": changed(1.0, evicted),
        "replay_buffer/writes": changed(100.0, 100.0),
    }
    assert kinds(made(rows=rows)) == ({Kind.EVICTION} if is_told else set())


@pytest.mark.parametrize(
    ("before", "after", "is_told"),
    [(1.0, 3.4, False), (1.0, 3.6, True), (5.0, 8.5, False), (5.0, 9.5, True)],
    ids=["little older", "older", "not twice", "nearly twice"],
)
def test_samples_grow_stale_by_2_5_versions_and_1_8_times(
    before: float, after: float, is_told: bool
) -> None:
    history = made(rows={"trainer/policy/staleness/mean": changed(before, after)})
    assert kinds(history) == ({Kind.STALENESS_GROWTH} if is_told else set())
    if is_told:
        cause = only(history)
        assert (cause.role, cause.since) == ("trainer", AT)


@pytest.mark.parametrize(("behind", "is_told"), [(2, False), (3, True)])
def test_a_generator_is_stale_from_two_versions_further_behind_on(
    behind: int, is_told: bool
) -> None:
    workers: dict[tuple[str, str], Series] = {
        ("trainer/policy/version", "trainer/0"): float,
        ("generator/policy/version", "generator/0"): lambda step: step - 1.0,
        ("generator/policy/version", "generator/1"): lambda step: float(
            step - (behind if step >= AT else 1)
        ),
    }
    found = [(cause.kind, cause.worker) for cause in diagnose(made(workers=workers)).causes]
    assert found == ([(Kind.STALE_POLICY, "generator/1")] if is_told else [])


# What is learned.


def jagged(level: Series, by: float) -> Series:
    """Up and down from one step to the next."""
    return lambda step: level(step) + (by if step % 2 else 0.0)


@pytest.mark.parametrize(("after", "is_told"), [(0.47, False), (0.53, True)])
def test_rewards_jump_by_four_times_what_is_usual_from_step_to_step(
    after: float, is_told: bool
) -> None:
    history = made(rows={"trainer/reward/mean": jagged(changed(0.0, after), 0.1)})
    assert kinds(history) == ({Kind.REWARD_BUG} if is_told else set())


@pytest.mark.parametrize(
    ("key", "after", "kind"),
    [
        ("trainer/entropy", 0.55, None),
        ("trainer/entropy", 0.45, Kind.ENTROPY_COLLAPSE),
        ("trainer/kl", 7.5, None),
        ("trainer/kl", 8.5, Kind.KL_GROWTH),
    ],
)
def test_a_policy_degenerates_if_it_is_four_times_off_its_way(
    key: str, after: float, kind: Kind | None
) -> None:
    rows = {key: changed(2.0, after), "trainer/reward/mean": jagged(changed(1.0, 1.0), 0.01)}
    assert kinds(made(rows=rows)) == ({kind} if kind else set())


@pytest.mark.parametrize("usual", [0.1, 0.6, 1.0, 1.3, 2.0, 7.7])
def test_a_policy_that_did_not_change_at_all_has_changed_where_it_did(usual: float) -> None:
    rows = {"trainer/entropy": changed(usual, usual / 10)}
    assert [one.since for one in diagnose(made(rows=rows)).causes] == [AT]


@pytest.mark.parametrize(("gain", "is_told"), [(0.008, True), (0.022, False)])
def test_a_policy_that_becomes_sure_has_to_gain_twice_the_noise_of_its_reward(
    gain: float, is_told: bool
) -> None:
    rows = {
        "trainer/entropy": changed(2.0, 0.2),
        "trainer/reward/mean": jagged(changed(1.0, 1.0 + gain), 0.01),
    }
    assert kinds(made(rows=rows)) == ({Kind.ENTROPY_COLLAPSE} if is_told else set())


@pytest.mark.parametrize(("worst", "is_told"), [(0.75, False), (0.55, True)])
def test_a_reward_that_falls_by_a_third_and_stays_there_is_told(
    worst: float, is_told: bool
) -> None:
    def reward(step: int) -> float:
        return max(worst, 1.0 - max(0, step - AT) / 40)

    history = made(rows={"trainer/reward/mean": reward})
    assert kinds(history) == ({Kind.REWARD_DROP} if is_told else set())
    if is_told:
        cause = only(history)
        assert cause.role == "trainer"
        assert cause.since is not None
        assert AT <= cause.since < AT + 20


def test_a_reward_that_comes_back_has_not_dropped() -> None:
    def reward(step: int) -> float:
        return 1.0 - max(0, 20 - abs(step - 40)) / 40

    assert kinds(made(rows={"trainer/reward/mean": reward})) == set()


# Processes.


@pytest.mark.parametrize(
    ("lost", "is_told"),
    [
        ({30: ["actor/0"], 42: ["actor/1"]}, False),
        ({30: ["actor/0"], 42: ["actor/1"], 55: ["actor/2"]}, True),
        ({30: ["actor/0"], 42: ["actor/0"]}, True),
    ],
    ids=["two of two", "three of three", "one twice"],
)
def test_failures_are_a_loop_from_three_on_or_two_of_one_worker(
    lost: Mapping[int, list[str]], is_told: bool
) -> None:
    assert kinds(made(lost=lost)) == ({Kind.CRASH_LOOP} if is_told else set())


@pytest.mark.parametrize(("apart_s", "is_told"), [(8.0, False), (12.0, True)])
def test_workers_that_are_lost_within_ten_seconds_of_each_other_are_lost_at_once(
    apart_s: float, is_told: bool
) -> None:
    second, third = (Facts(0, 0, lost=[f"actor/{n}", f"actor/{n + 1}"]) for n in (2, 4))
    history = made(
        lost={79: ["actor/0", "actor/1"]}, after=[(apart_s, second), (2 * apart_s, third)]
    )
    assert kinds(history) == ({Kind.CRASH_LOOP} if is_told else set())


@pytest.mark.parametrize(("ahead_s", "is_told"), [(1.4, False), (1.6, True)])
def test_a_clock_is_off_by_its_exports_from_1_5_seconds_on(ahead_s: float, is_told: bool) -> None:
    lags = {f"actor/{n}": 0.1 for n in range(3)} | {"actor/3": 0.1 - ahead_s}
    assert kinds(made(lags=lags)) == ({Kind.CLOCK_SKEW} if is_told else set())


@pytest.mark.parametrize(("ahead_s", "is_told"), [(0.015, False), (0.025, True)])
def test_a_clock_is_off_by_its_spans_from_a_fiftieth_of_a_second_on(
    ahead_s: float, is_told: bool
) -> None:
    assert kinds(made(clocks={"actor/3": ahead_s})) == ({Kind.CLOCK_SKEW} if is_told else set())


@pytest.mark.parametrize(
    ("key", "after", "kind"),
    [
        ("actor/gc/time", 0.04, None),
        ("actor/gc/time", 0.06, Kind.GC_PAUSES),
        ("actor/num_preemptions", 0.015, None),
        ("actor/num_preemptions", 0.025, Kind.KV_THRASH),
        ("trainer/gpu/throttled", 0.04, None),
        ("trainer/gpu/throttled", 0.06, Kind.THROTTLED),
    ],
)
def test_a_process_is_held_up_from_a_share_of_its_time_on(
    key: str, after: float, kind: Kind | None
) -> None:
    role = key.partition("/")[0]
    workers = {(key, f"{role}/{n}"): changed(0.001, after if n else 0.001) for n in range(2)}
    found = [(c.kind, c.worker, c.since) for c in diagnose(made(workers=workers)).causes]
    assert found == ([(kind, f"{role}/1", AT)] if kind else [])


def test_a_device_that_is_throttled_as_much_as_ever_is_how_it_is() -> None:
    workers = {("trainer/gpu/throttled", "trainer/0"): changed(0.4, 0.6)}
    assert kinds(made(workers=workers)) == set()


def test_a_device_that_works_at_its_power_limit_is_not_throttled() -> None:
    workers = {("trainer/gpu/throttled/power_cap", "trainer/0"): changed(0.1, 1.0)}
    assert kinds(made(workers=workers)) == set()


@pytest.mark.parametrize(("watts", "kind"), [(690, None), (500, Kind.THROTTLED)])
def test_a_device_whose_power_limit_is_lowered_is_throttled(
    watts: float, kind: Kind | None
) -> None:
    workers = {
        ("trainer/gpu/power/limit", f"trainer/{n}"): changed(700, watts if n else 700)
        for n in range(2)
    }
    found = [(c.kind, c.worker, c.since) for c in diagnose(made(workers=workers)).causes]
    assert found == ([(kind, "trainer/1", AT)] if kind else [])


@pytest.mark.parametrize("seed", [5, 9, 11])
def test_a_power_limit_that_always_moves_is_not_lowered(seed: int) -> None:
    chance = random.Random(seed)
    watts = [chance.choice([600.0, 650.0, 700.0]) for _ in range(80)]
    workers = {("trainer/gpu/power/limit", "trainer/0"): lambda step: watts[step]}
    assert kinds(made(workers=workers)) == set()


@pytest.mark.parametrize(
    ("steps", "step_s", "stands_s", "is_told"),
    [
        (40, 0.1, 9.0, False),
        (40, 0.1, 11.0, True),
        (40, 20.0, 190.0, False),
        (40, 20.0, 230.0, True),
        (7, 1.0, 65.0, False),
        (9, 1.0, 65.0, True),
    ],
)
def test_a_run_stands_still_after_ten_seconds_and_ten_steps_if_it_ever_went(
    steps: int, step_s: float, stands_s: float, is_told: bool
) -> None:
    ages = {"trainer/worker/phase/age/train": [WorkerFacts("trainer/0", None, 1, stands_s, 0)]}
    history = made(steps, step_s=lambda _: step_s, after=[(stands_s, Facts(0, 0, workers=ages))])
    assert kinds(history) == ({Kind.STALL} if is_told else set())


# What a diagnosis comes to.


def test_a_phase_of_no_known_work_that_takes_longer_is_a_slow_phase() -> None:
    spans = ranks("crunch", *[changed(0.2, 0.6)] * 3, role="worker")
    cause = only(made(spans=spans))
    assert (cause.kind, cause.role, cause.phase, cause.since) == (
        Kind.SLOW_PHASE,
        "worker",
        "crunch",
        AT,
    )


@pytest.mark.parametrize(
    ("factor", "verdict"), [(1.4, Verdict.HEALTHY), (2.0, Verdict.NO_CLEAR_CAUSE)]
)
def test_a_machine_on_which_everything_takes_longer_has_no_clear_cause(
    factor: float, verdict: Verdict
) -> None:
    spans: Spans = {}
    for phase, seconds in (("forward", 0.2), ("backward", 0.3), ("optimize", 0.1), ("pack", 0.2)):
        spans |= ranks(phase, *[changed(seconds, factor * seconds)] * 2)
    report = diagnose(made(step_s=changed(1.0, factor), spans=spans))
    assert report.verdict is verdict
    assert report.causes == []
    assert bool(report.symptoms) is (verdict is Verdict.NO_CLEAR_CAUSE)


def test_a_busy_machine_that_slows_some_work_more_than_other_has_no_clear_cause() -> None:
    spans: Spans = {}
    factors = {"forward": 1.4, "backward": 1.6, "optimize": 2.2, "pack": 2.6, "generate": 3.0}
    for phase, factor in factors.items():
        spans |= ranks(phase, *[changed(0.2, 0.2 * factor)] * 2)
    assert kinds(made(step_s=changed(1.0, 2.4), spans=spans)) == set()


def test_work_that_is_too_short_to_be_interrupted_does_not_make_a_busy_machine_quiet() -> None:
    spans: Spans = {}
    for phase, seconds in (("forward", 0.2), ("backward", 0.3), ("optimize", 0.1), ("pack", 0.2)):
        spans |= ranks(phase, *[changed(seconds, 2 * seconds)] * 2)
    for phase in ("dispatch", "copy", "tokenize", "count", "log"):
        spans |= ranks(phase, *[changed(1e-4, 1e-4)] * 2)
    assert kinds(made(step_s=changed(1.0, 2.0), spans=spans)) == set()


@pytest.mark.parametrize(("since", "is_told"), [(AT - 7, False), (AT - 12, True)])
def test_what_began_more_than_eight_steps_before_is_not_explained(
    since: int, is_told: bool
) -> None:
    spans = ranks("generate", *[changed(0.3, 0.9)] * 2, role="generator") | ranks(
        "fetch_samples", changed(0.05, 0.5, since)
    )
    expected = {Kind.SLOW_GENERATION} | ({Kind.STARVATION} if is_told else set())
    assert kinds(made(spans=spans, waits=["fetch_samples"])) == expected


@pytest.mark.parametrize(("longer_s", "is_told"), [(0.15, False), (0.25, True)])
def test_a_few_steps_are_explained_by_what_takes_a_fifth_longer(
    longer_s: float, is_told: bool
) -> None:
    history = made(step_s=lambda step: 1.0 + (longer_s if 30 <= step < 33 else 0.0))
    assert bool(kinds(history, (30, 32))) is is_told


@pytest.mark.parametrize(("before", "is_told"), [(2, False), (3, True)])
def test_a_step_is_explained_by_what_was_usual_in_three_before_it(
    before: int, is_told: bool
) -> None:
    history = made(before + 1, step_s=lambda step: 3.0 if step == before else 1.0)
    assert bool(kinds(history, (before, before))) is is_told


def test_work_that_takes_longer_by_much_less_is_no_part_of_what_takes_longer() -> None:
    spans = ranks("train", *[changed(0.1, 0.3)] * 2) | ranks(
        "generate", *[changed(0.3, 1.1)] * 2, role="generator"
    )
    assert kinds(made(spans=spans)) == {Kind.SLOW_TRAINING, Kind.SLOW_GENERATION}


def test_in_a_range_of_many_steps_the_change_is_found_where_it_is() -> None:
    history = made(spans=ranks("train", *[changed(0.2, 0.6)] * 2))
    (cause,) = diagnose(history, (20, 60)).causes
    assert (cause.kind, cause.since) == (Kind.SLOW_TRAINING, AT)


def change(place: int, length: int, order: float, *, among: int = 1) -> LevelChange:
    return LevelChange(place, Change([1.0] * place + [2.0] * (length - place), place, order), among)


@pytest.mark.parametrize(
    ("level", "is_clear"),
    [
        (change(10, 20, 0.75), False),
        (change(10, 20, 1.0), True),
        (change(20, 40, 0.75), True),
        (change(4, 12, 0.94), False),
        (change(4, 12, 0.96), True),
        (change(4, 12, 0.97, among=9), False),
        (change(4, 12, 0.995, among=9), True),
    ],
)
def test_a_change_is_clear_if_chance_hardly_makes_it_or_nearly_all_values_are_in_order(
    level: LevelChange, is_clear: bool
) -> None:
    assert level.is_clear is is_clear
    assert level.is_rise(ratio=1.5, order=0.7) is is_clear


@pytest.mark.parametrize(("after_s", "is_told"), [(0.013, False), (0.017, True)])
def test_messages_are_late_from_a_hundredth_of_a_second_on(after_s: float, is_told: bool) -> None:
    workers = {
        ("actor/rpc/client/call/duration/Score", f"actor/{n}"): changed(0.005, after_s)
        for n in range(4)
    } | {("judge/rpc/server/call/duration/Score", "judge/0"): changed(0.004, 0.004)}
    assert kinds(made(workers=workers)) == ({Kind.NETWORK_DELAY} if is_told else set())
