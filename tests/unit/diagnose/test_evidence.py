"""Evidence that rules did not use, or took for what it is not: each was wrong in a drawn run."""

import pytest

from otel_rl.diagnose.detectors.workload import Workload
from otel_rl.diagnose.engine import diagnose
from otel_rl.diagnose.history.records import Facts, SpanFacts, WorkerFacts
from otel_rl.diagnose.history.run_history import PhaseKey, RunHistory
from otel_rl.diagnose.result import Cause, Kind
from otel_rl.diagnose.stats.changes import find_step, find_sudden
from tests.unit.diagnose.made import AT, Series, changed, made


def jittered(of: Series, by: float = 0.01) -> Series:
    """The same with a little noise that repeats itself after 35 steps."""
    return lambda step: of(step) * (1 + by * ((step * 3) % 7 - 3) + by / 2 * ((step * 2) % 5 - 2))


def role(phase: str, *of: Series, name: str = "trainer") -> dict[tuple[str, str, int], Series]:
    return {(name, phase, index): jittered(one) for index, one in enumerate(of)}


def steady(step: int) -> float:
    return 0.5


def causes(history: RunHistory) -> list[tuple[Kind, str | None, int | None]]:
    return [(one.kind, one.worker, one.since) for one in diagnose(history, passed=True).causes]


def in_steps(*some: int, times: float = 7.0) -> Series:
    return lambda step: 0.5 * times if step in some else 0.5


def test_the_only_far_slower_steps_of_a_few_workers_are_told_if_they_cost_much() -> None:
    slow = in_steps(26, 49, 58, 62)
    spans = role("train", slow, *[steady] * 4)
    (found,) = causes(made(step_s=lambda step: 0.5 + slow(step), spans=spans))
    assert found == (Kind.STRAGGLER, "trainer/0", 26)


def test_a_worker_that_takes_less_time_after_each_step_with_more_is_not_slow_now_and_then() -> None:
    more, less = (21, 25, 40, 44, 52, 60, 67), (22, 26, 41, 45, 53, 61, 68)

    def own(step: int) -> float:
        return 0.75 if step in more else 0.25 if step in less else 0.5

    assert causes(made(spans=role("train", own, *[steady] * 4))) == []
    slow = role("train", in_steps(*more, times=1.5), *[steady] * 4)
    assert causes(made(spans=slow)) == [(Kind.STRAGGLER, "trainer/0", more[0])]


def test_a_worker_that_makes_up_only_a_part_of_its_long_steps_is_slow_now_and_then() -> None:
    more, less = (21, 25, 40, 44, 52, 60, 67), (22, 26, 41, 45, 53, 61, 68)

    def own(step: int) -> float:
        return 1.0 if step in more else 0.2 if step in less else 0.5

    assert causes(made(spans=role("train", own, *[steady] * 4))) == [
        (Kind.STRAGGLER, "trainer/0", more[0])
    ]


@pytest.mark.parametrize("within", [1, 5, 11])
def test_a_collapse_begins_with_its_first_step_however_gradual_it_is(within: int) -> None:
    def entropy(step: int) -> float:
        usual = 1.8 - 0.005 * step
        return usual * (1 - 0.97 * min(1.0, max(0, step - AT + 1) / within))

    ((kind, _, since),) = causes(made(rows={"trainer/entropy": jittered(entropy)}))
    assert (kind, abs((since or 0) - AT) <= 1) == (Kind.ENTROPY_COLLAPSE, True)


@pytest.mark.parametrize(("steps", "found"), [(13, False), (30, True)])
def test_rewards_that_leap_in_the_first_steps_are_no_bug(steps: int, *, found: bool) -> None:
    at = 5 if steps == 13 else 20
    rows = {"trainer/reward/mean": jittered(changed(0.17, 0.23, at))}
    assert (Kind.REWARD_BUG in {kind for kind, *_ in causes(made(steps, rows=rows))}) == found


def test_the_usual_move_of_few_rewards_is_not_known_well_enough_for_a_small_jump() -> None:
    values = [0.131, 0.161, 0.148, 0.178, 0.186, 0.191, 0.186, 0.186]
    values += [0.232, 0.24, 0.229, 0.228, 0.234]
    rows: dict[str, Series] = {"trainer/reward/mean": lambda step: values[step]}
    assert causes(made(len(values), rows=rows)) == []


def test_rewards_that_rise_in_every_step_do_not_jump_in_the_largest() -> None:
    values = [0.153, 0.188, 0.175, 0.186, 0.183, 0.182, 0.198, 0.233, 0.229, 0.218, 0.241]
    values += [0.238, 0.299, 0.299, 0.307, 0.307, 0.310, 0.344, 0.348, 0.350, 0.342]
    rows: dict[str, Series] = {"trainer/reward/mean": lambda step: values[step]}
    assert causes(made(len(values), rows=rows)) == []


def test_levels_of_rewards_that_scatter_as_far_as_they_are_apart_are_no_bug() -> None:
    values = [0.17, 0.16, 0.17, 0.165] * 2 + [0.15, 0.175, 0.16, 0.13, 0.17]
    values += [0.2, 0.23, 0.25, 0.24, 0.22]
    rows: dict[str, Series] = {"trainer/reward/mean": lambda step: values[step]}
    assert causes(made(len(values), rows=rows)) == []


@pytest.mark.parametrize(("to", "steps"), [(1.0, 2), (0.65, 3)])
def test_rewards_are_told_after_the_fewer_steps_the_farther_they_are_off(
    to: float, steps: int
) -> None:
    rows = {"trainer/reward/mean": jittered(lambda step: 0.4 if step < 37 else to)}
    assert (Kind.REWARD_BUG, None, 37) in causes(made(37 + steps, rows=rows))
    assert causes(made(36 + steps, rows=rows)) == []


@pytest.mark.parametrize(
    "key", ["reward/worker/phase/age/reward", "reward/reward/duration", "reward/reward/latency"]
)
def test_times_and_ages_of_rewards_are_no_rewards(key: str) -> None:
    rows = {key: jittered(lambda step: 6.5 if step < 20 else 1.2)}
    assert causes(made(rows=rows)) == []


@pytest.mark.parametrize("key", ["rollout/raw_reward", "mean_reward", "reward/avg_raw_reward"])
def test_rewards_are_known_by_the_names_that_programs_log(key: str) -> None:
    rows = {f"trainer/{key}": jittered(lambda step: 0.6 - 0.5 * min(1, max(0, step - AT) / 10))}
    assert [kind for kind, *_ in causes(made(rows=rows))] == [Kind.REWARD_DROP]


def test_a_total_of_tokens_is_no_work_of_a_step() -> None:
    counted = {"trainer/tokens": lambda step: 7e5 * (step + 1), "trainer/tokens/rate": steady}
    spans = role("train", *[changed(0.5, 1.2)] * 2)
    found = diagnose(made(step_s=changed(1.0, 1.7), spans=spans, rows=counted))
    assert found.causes[0].kind is Kind.SLOW_TRAINING
    assert not found.changes


def test_a_total_tells_of_a_larger_batch() -> None:
    counted: dict[str, Series] = {
        "trainer/tokens": lambda step: 7e5 * (step + 1 + max(0, step - AT + 1)),
        "trainer/tokens/rate": steady,
    }
    spans = role("train", *[changed(0.5, 1.0)] * 2)
    found = diagnose(made(step_s=changed(1.0, 2.0), spans=spans, rows=counted))
    assert not found.causes
    assert "2.0 times the tokens" in found.changes[0]


def test_longer_answers_are_no_slow_generation_while_a_step_has_told_a_part_of_its_tokens() -> None:
    def grown(step: int) -> float:
        return 1.0 + min(1.0, max(0, step - AT) / 10)

    last = AT + 16
    rows: dict[str, Series] = {
        "trainer/tokens": lambda step: 7e5 * grown(step) * (0.2 if step == last else 1)
    }
    spans = role("generate", *[grown] * 4, name="generator")
    history = made(last + 2, step_s=lambda step: 2 * grown(step), spans=spans, rows=rows)
    told = history.rows["trainer/tokens"]
    for column in (told.steps, told.times_s, told.values):
        column.pop()  # the step in progress
    assert causes(history) == []


def test_steps_of_a_larger_batch_are_no_slow_training_before_they_have_told_their_tokens() -> None:
    rows: dict[str, Series] = {"trainer/tokens": changed(7e5, 14e5)}
    spans = role("train", *[changed(0.5, 1.0)] * 2)
    history = made(AT + 2, step_s=changed(1.0, 2.0), spans=spans, rows=rows)
    told = history.rows["trainer/tokens"]
    for column in (told.steps, told.times_s, told.values):
        del column[AT:]
    assert causes(history) == []


def test_a_total_that_is_told_in_every_second_step_tells_of_a_larger_batch() -> None:
    counted: dict[str, Series] = {
        "trainer/tokens": lambda step: 7e5 * (step + 1 + max(0, step - AT + 1)),
        "trainer/tokens/rate": steady,
    }
    spans = role("train", *[changed(0.5, 1.0)] * 2)
    history = made(step_s=changed(1.0, 2.0), spans=spans, rows=counted)
    told = history.rows["trainer/tokens"]
    for column in (told.steps, told.times_s, told.values):
        del column[::2]
    assert causes(history) == []


def test_weights_that_take_as_long_in_smaller_batches_were_not_slow_for_a_while() -> None:
    rows = {"trainer/tokens": jittered(lambda step: 7e5 * (0.3 if 30 <= step < 45 else 1.0))}
    spans = role("weight_pull", *[steady] * 3, name="generator")
    assert causes(made(step_s=lambda step: 2.0, spans=spans, rows=rows)) == []


def test_a_slow_tool_is_no_slow_reward() -> None:
    spans = role("tool_search", *[changed(0.5, 2.0)] * 3, name="env")
    (found,) = causes(made(step_s=changed(3.0, 4.5), spans=spans))
    assert found == (Kind.SLOW_TOOL, None, AT)


def test_one_of_two_workers_that_was_slow_for_a_while_is_named() -> None:
    spans = role("generate", in_steps(*range(30, 37), times=3.0), steady, name="generator")
    (found,) = causes(made(spans=spans))
    assert found == (Kind.SLOW_GENERATION, "generator/0", 30)


@pytest.mark.parametrize(("many", "found"), [(3, False), (4, True)])
def test_who_was_slow_for_few_steps_was_so_in_four_at_least(many: int, *, found: bool) -> None:
    slow = in_steps(*range(30, 30 + many), times=1.55)
    assert bool(causes(made(spans=role("generate", slow, steady, name="generator")))) == found


@pytest.mark.parametrize(
    ("saves", "found"), [((2.5, 14.9, 16.2, 12.4), True), ((2.5, 14.9, 30.0, 12.4), False)]
)
def test_saves_that_are_alike_are_slower_than_a_single_one_before_them(
    saves: tuple[float, ...], *, found: bool
) -> None:
    of = dict(zip((11, 22, 33, 44), saves, strict=True))
    history = made(50, spans=role("train", steady))
    track = history.spans[PhaseKey("trainer", "save")]["trainer/0"]
    for step, seconds in of.items():
        track.add(step, float(step), seconds)
        history.counts[PhaseKey("trainer", "save")]["trainer/0"].add(step, float(step), 1.0)
    assert ((Kind.SLOW_PHASE, "trainer/0", 22) in causes(history)) == found


@pytest.mark.parametrize(("longer_s", "found"), [(0.02, True), (0.0, False)])
def test_a_collector_that_is_told_every_other_step_is_found_where_work_takes_as_much_longer(
    longer_s: float, *, found: bool
) -> None:
    def pauses(step: int) -> float:
        return 0.06 * (step % 2) if step >= AT else 0.0005 * (step % 3)

    workers = {("critic/worker/gc/time", "critic/0"): pauses}
    spans = role("train_critic", changed(0.04, 0.04 + longer_s), name="critic")
    kinds = {kind for kind, *_ in causes(made(workers=workers, spans=spans))}
    assert (Kind.GC_PAUSES in kinds) == found


def test_workers_that_do_not_report_in_each_step_share_no_work() -> None:
    history = made(30, spans=role("generate", steady, steady, name="generator"))
    place = PhaseKey("generator", "generate")
    second = history.spans[place]["generator/1"]
    history.spans[place]["generator/1"] = second.between(0, 9)
    for step in (12, 15, 18, 21, 25, 29):
        history.spans[place]["generator/1"].add(step, float(step), 0.5)
    first = history.spans[place]["generator/0"]
    eased = Workload(history).eased(place, first)
    assert eased.values == first.values


@pytest.mark.parametrize(("since", "found"), [(38, True), (39, False)])
def test_two_steps_far_beyond_all_others_are_told_at_once_and_one_is_not(
    since: int, *, found: bool
) -> None:
    slow = changed(0.5, 1.1, since)
    history = made(40, step_s=lambda step: 0.5 + slow(step), spans=role("train", slow, slow))
    assert causes(history) == ([(Kind.SLOW_TRAINING, None, since)] if found else [])


def uneven(*of: Series) -> dict[tuple[str, str, int], Series]:
    """Trainers whose noise is not that of the others."""
    noise = jittered(lambda step: 1.0)

    def own(one: Series, index: int) -> Series:
        return lambda step: one(step) * noise(step + 3 * index)

    return {("trainer", "train", index): own(one, index) for index, one in enumerate(of)}


@pytest.mark.parametrize(("times", "steps"), [(1.25, 2), (1.2, 3)])
def test_one_of_several_workers_is_told_after_the_fewer_steps_the_slower_it_is(
    times: float, steps: int
) -> None:
    slow = changed(0.5, 0.5 * times, 40 - steps)
    spans = uneven(slow, *[steady] * 4)
    assert causes(made(40, step_s=slow, spans=spans)) == [(Kind.STRAGGLER, "trainer/0", 40 - steps)]
    assert causes(made(39, step_s=slow, spans=spans)) == []


def test_one_long_step_of_a_worker_is_no_change_however_long_it_is() -> None:
    slow = in_steps(39, times=9.0)
    assert causes(made(40, step_s=slow, spans=uneven(slow, *[steady] * 4))) == []


def test_long_work_of_which_all_pieces_are_of_one_step_is_no_slow_time() -> None:
    history = made(40, spans=role("reward", steady, steady, name="reward"))
    place = PhaseKey("reward", "reward")
    of, numbers = history.spans[place]["reward/1"], history.counts[place]["reward/1"]
    for _ in range(6):
        of.steps.insert(20, 20)  # the numbers share the steps and times
        of.times_s.insert(20, of.times_s[20])
        of.values.insert(20, 1.4)
        numbers.values.insert(20, 1.0)
    assert causes(history) == []


@pytest.mark.parametrize(("falls", "found"), [(0.12, True), (0.03, False)])
def test_an_entropy_that_will_soon_be_gone_is_told_after_three_steps(
    falls: float, *, found: bool
) -> None:
    def entropy(step: int) -> float:
        return 1.8 * (1 - falls * max(0, step - 36))

    history = made(40, rows={"trainer/entropy": jittered(entropy, 0.001)})
    told = [(Kind.ENTROPY_COLLAPSE, None, 37)]
    assert causes(history) == (told if found else [])


@pytest.mark.parametrize(("falls", "found"), [(0.12, True), (0.06, False)])
def test_an_entropy_that_falls_far_faster_is_told_after_two_steps(
    falls: float, *, found: bool
) -> None:
    def entropy(step: int) -> float:
        return 1.8 * (1 - falls * max(0, step - 37))

    history = made(40, rows={"trainer/entropy": jittered(entropy, 0.005)})
    assert causes(history) == ([(Kind.ENTROPY_COLLAPSE, None, 38)] if found else [])


def test_two_steps_as_far_as_one_before_are_no_change() -> None:
    values = [1.0 + 0.01 * (step % 5) for step in range(30)]
    assert find_sudden([*values, 2.0, 2.1]) is not None
    assert find_sudden([*values[:12], 1.7, *values[12:], 2.0, 2.1]) is None


def test_a_large_step_is_found_in_the_drift_of_all_values() -> None:
    drift = [1.0 + 0.002 * step for step in range(40)]
    found = find_step([*drift[:34], *(1.8 * one for one in drift[34:])])
    assert found is not None
    assert found.place == 34


@pytest.mark.parametrize(("pieces", "found"), [(False, False), (True, True)])
def test_who_works_longer_on_each_piece_pulls_weights_less_often_and_is_not_stale(
    pieces: bool, *, found: bool
) -> None:
    history = made(60, spans=role("generate", steady, name="generator"))
    work = PhaseKey("generator", "generate")
    pulls = PhaseKey("generator", "weight_pull")
    for step in range(60):
        if step < 20 or not step % 3:
            history.spans[pulls]["generator/0"].add(step, float(step), 0.1)
            history.counts[pulls]["generator/0"].add(step, float(step), 1.0)
    if not pieces:
        rare = [step for step in range(60) if step < 20 or not step % 3]
        for tracks in (history.spans[work], history.counts[work]):
            whole = tracks["generator/0"]
            tracks["generator/0"] = type(whole)(
                rare, [float(s) for s in rare], [whole.values[s] for s in rare]
            )
    assert (Kind.STALE_POLICY in {kind for kind, *_ in causes(history)}) == found


@pytest.mark.parametrize(("pause_s", "found"), [(3.0, False), (0.0, True)])
def test_a_buffer_that_fills_while_trainers_evaluate_is_full_and_not_stale(
    pause_s: float, *, found: bool
) -> None:
    def step_s(step: int) -> float:
        return 1.0 + (pause_s if step == AT - 2 else 0.0)

    rows: dict[str, Series] = {"trainer/policy/staleness": changed(1.5, 6.0)}
    kinds = {kind for kind, *_ in causes(made(step_s=step_s, rows=rows))}
    assert (Kind.STALENESS_GROWTH in kinds) == found


def test_samples_that_grow_old_after_a_slow_start_are_no_fault() -> None:
    rows: dict[str, Series] = {"trainer/policy/staleness": changed(0.7, 3.7, 9)}
    slow = made(40, step_s=lambda step: 30.0 if step < 4 else 8.0, rows=rows)
    assert Kind.STALENESS_GROWTH not in {kind for kind, *_ in causes(slow)}
    usual = made(40, step_s=lambda step: 8.0, rows=rows)
    assert Kind.STALENESS_GROWTH in {kind for kind, *_ in causes(usual)}


def test_both_sides_of_a_transfer_that_takes_many_times_as_long_are_one_cause() -> None:
    spans = role("weight_push", changed(1.0, 4.7)) | role(
        "weight_pull", changed(0.3, 1.4), name="generator"
    )
    found = diagnose(made(step_s=changed(3.0, 6.7), spans=spans)).causes
    assert [(one.kind, one.role) for one in found] == [(Kind.SLOW_SYNC, "trainer")]


def test_a_worker_that_is_slow_ever_more_often_is_so_since_the_first_time() -> None:
    often = [*range(20, 70, 6), *range(70, 80)]
    spans = role("train", in_steps(*often, times=4.0), *[steady] * 4)
    slow = in_steps(*often, times=4.0)
    (found,) = causes(made(step_s=lambda step: 0.5 + slow(step), spans=spans))
    assert found == (Kind.STRAGGLER, "trainer/0", 20)


def standing(for_s: float, *, behind: bool) -> list[Cause]:
    """Two trainers, of which one does not come to the end of its part of the last step."""
    spans = role("train", steady, steady)
    beat = {"trainer/gc/time": [WorkerFacts("trainer/0", None, 1, 0.0, 0)]}
    later = [(s, Facts(0, 0, workers=beat, status="running")) for s in range(1, int(for_s) + 1)]
    history = made(30, step_s=lambda step: 5.0, spans=spans, after=later)
    if behind:
        for tracks in (history.spans, history.counts):
            of = tracks[PhaseKey("trainer", "train")]
            of["trainer/1"] = of["trainer/1"].between(0, 28)
    return [one for one in diagnose(history).causes if one.kind is Kind.STALL]


def test_who_has_not_done_what_others_have_stands_still_after_ten_seconds() -> None:
    assert not standing(9, behind=True)
    (found,) = standing(11, behind=True)
    assert found.worker == "trainer/1"


def test_without_such_a_worker_it_may_be_something_new_and_takes_ten() -> None:
    assert not standing(45, behind=False)
    assert standing(52, behind=False)


def test_spans_without_any_metric_tell_the_steps_of_their_roots() -> None:
    def snapshot(step: int) -> Facts:
        took = {"generate": 2.0, "publish": 0.5 if step < 30 else 4.0, "training_step": 0.03}
        spans = [
            SpanFacts(
                step if phase == "training_step" else 0,
                *("trainer", phase, f"trainer/{rank}", False, 1),
                *(seconds * (1 + 0.01 * (step % 5)), seconds, 0),
            )
            for phase, seconds in took.items()
            for rank in range(3)
        ]
        ended_s = 100 + 3 * step + max(0, step - 29) * 3.5
        return Facts(int(ended_s * 1e9), 0, spans=spans)

    found = diagnose(RunHistory(snapshot(step) for step in range(60)))
    assert found.last == 59
    (cause,) = found.causes
    assert (cause.phase, cause.since) == ("publish", 30)


def test_weights_that_are_taken_up_no_more_are_old_though_no_version_tells_it() -> None:
    history = made(60, spans=role("generate", steady, steady, name="generator"))
    pulls = PhaseKey("generator", "weight_pull")
    for step in range(60):
        for worker in ("generator/0", "generator/1"):
            if step < 30 or worker == "generator/1":
                history.spans[pulls][worker].add(step, float(step), 0.1)
                history.counts[pulls][worker].add(step, float(step), 1.0)
    assert causes(history) == [(Kind.STALE_POLICY, "generator/0", 30)]


def test_spans_that_come_later_than_measurements_tell_of_no_old_weights() -> None:
    """On a busy machine those of seven steps are late, of pulls and of what is generated since."""
    workers: dict[tuple[str, str], Series] = {
        ("phase/generator/tokenize", f"generator/{index}"): lambda step: 0.01 for index in range(2)
    }
    history = made(60, spans=role("train", steady), workers=workers)
    for phase in ("generate", "weight_pull"):
        for worker in ("generator/0", "generator/1"):
            for step in range(53):
                history.spans[PhaseKey("generator", phase)][worker].add(step, float(step), 0.1)
                history.counts[PhaseKey("generator", phase)][worker].add(step, float(step), 1.0)
    assert PhaseKey("generator", "tokenize") in history.unspanned
    assert causes(history) == []


@pytest.mark.parametrize("name", ["policy/version", "policy_version", "weight_version"])
def test_versions_are_known_by_the_names_that_programs_give_them(name: str) -> None:
    workers: dict[tuple[str, str], Series] = {
        (f"trainer/{name}", "trainer/0"): float,
        (f"generator/{name}", "generator/0"): lambda step: float(min(step, 30)),
        (f"generator/{name}", "generator/1"): float,
    }
    ((kind, worker, since),) = causes(made(60, workers=workers))
    assert (kind, worker) == (Kind.STALE_POLICY, "generator/0")
    assert abs((since or 0) - 30) <= 3


@pytest.mark.parametrize(("until", "is_told"), [(30, True), (60, False)])
def test_who_is_behind_its_peers_is_told_though_they_report_before_the_trainer(
    until: int, *, is_told: bool
) -> None:
    workers: dict[tuple[str, str], Series] = {
        ("trainer/policy/version", "trainer/0"): lambda step: float(step - 1),
        ("sampler/policy/version", "sampler/0"): lambda step: float(min(step, until)),
        ("sampler/policy/version", "sampler/1"): float,
        ("sampler/policy/version", "sampler/2"): lambda step: float(step - step % 2),
    }
    found = causes(made(60, workers=workers))
    assert [one[:2] for one in found] == [(Kind.STALE_POLICY, "sampler/0")] * is_told


def test_every_third_step_is_told_however_little_slower_where_steps_are_steady() -> None:
    slow = in_steps(*range(36, 79, 3), times=1.6)
    spans = role("train", slow, *[steady] * 10)
    (found,) = causes(made(step_s=lambda step: 0.5 + slow(step), spans=spans))
    assert found == (Kind.STRAGGLER, "trainer/0", 36)


def test_steps_whose_work_is_not_told_yet_have_as_much_as_those_before() -> None:
    rows = {"trainer/tokens": changed(100.0, 200.0, 20)}
    history = made(40, rows=rows, spans=role("train", changed(0.5, 1.0, 20)))
    track = history.rows["trainer/tokens"]
    history.rows["trainer/tokens"] = track.between(0, 35)
    eased = Workload(history).eased_steps(history.spans[PhaseKey("trainer", "train")]["trainer/0"])
    assert max(eased.values) < 1.1 * min(eased.values)


def test_a_call_is_as_long_as_all_that_it_asks_for() -> None:
    spans = role("rm", changed(0.2, 1.2)) | role("rm", changed(0.01, 0.05), name="reward")
    found = diagnose(made(step_s=changed(1.0, 2.0), spans=spans)).causes
    assert [(one.kind, one.role) for one in found] == [(Kind.SLOW_REWARD, "reward")]


def test_a_worker_is_slow_since_its_own_first_slow_piece_of_work() -> None:
    slow = changed(1.0, 3.4, 31)
    history = made(60, spans=role("rollout", slow, *[lambda step: 1.0] * 3, name="generator"))
    place = PhaseKey("generator", "rollout")
    for worker in ("generator/1", "generator/2", "generator/3"):
        whole = history.spans[place][worker]
        kept = [step for step in range(60) if step not in (31, 32, 33)]
        history.spans[place][worker] = type(whole)(
            kept, [float(step) for step in kept], [whole.values[step] for step in kept]
        )
        history.counts[place][worker] = type(whole)(
            kept, [float(step) for step in kept], [1.0 for _ in kept]
        )
    assert causes(history)[0] == (Kind.SLOW_GENERATION, "generator/0", 31)


def test_of_three_clocks_the_one_that_differs_is_wrong() -> None:
    lags = {"generator/0": 0.1, "reward/0": 120.1, "trainer/0": 0.12}
    (found,) = causes(made(30, lags=lags))
    assert found == (Kind.CLOCK_SKEW, "reward/0", None)


@pytest.mark.parametrize(
    ("late_s", "is_told"),
    [
        pytest.param((-18.0, 0.5), True, id="no export comes before its time"),
        pytest.param((18.5, 0.5), True, id="later than any export that is sent again"),
        pytest.param((9.0, 0.5), False, id="as late as exports may be"),
        pytest.param((18.5, -18.0), False, id="neither agrees with the bridge"),
        pytest.param((18.5, 18.4), False, id="both tell the same: the bridge's clock is wrong"),
    ],
)
def test_of_two_clocks_the_one_that_differs_from_the_bridges_too_is_wrong(
    late_s: tuple[float, float], *, is_told: bool
) -> None:
    found = causes(made(30, lags={"trainer/0": late_s[0], "trainer/1": late_s[1]}))
    assert found == ([(Kind.CLOCK_SKEW, "trainer/0", None)] if is_told else [])


_OTHERS = ("trainer/1", "trainer/2", "generator/0", "generator/1")


def late_in_turn(of_step: Series) -> list[tuple[Kind, str | None, int | None]]:
    return causes(made(60, lags=dict.fromkeys(_OTHERS, 0.1) | {"trainer/0": of_step}))


@pytest.mark.parametrize("late_s", [8.0, 20.0])
def test_a_clock_that_is_set_back_in_a_run_is_wrong_since_then(late_s: float) -> None:
    def late(step: int) -> float:
        return 0.1 + step % 3 / 20 + (late_s if step >= 30 else 0.0)

    assert late_in_turn(late) == [(Kind.CLOCK_SKEW, "trainer/0", 30)]


@pytest.mark.parametrize(
    "late",
    [
        pytest.param(lambda step: 0.1 + 20.0 * (30 <= step < 33), id="three that are sent again"),
        pytest.param(lambda step: max(0.1, 20.0 - step + 30) if step >= 30 else 0.1, id="a queue"),
        pytest.param(
            lambda step: max(0.1, 20.0 - (step - 30) / 3) if step >= 30 else 0.1,
            id="a queue that empties slowly",
        ),
        pytest.param(lambda step: 0.1 + max(0, min(step - 30, 20)) / 1.1, id="a queue that fills"),
        pytest.param(lambda step: 0.1 + (1.2 if step >= 30 else 0.0), id="a slower link"),
    ],
)
def test_exports_that_come_late_for_a_while_are_no_clock_that_is_set(late: Series) -> None:
    assert late_in_turn(late) == []


def test_the_bridges_own_clock_may_be_set() -> None:
    late: Series = lambda step: 0.1 + (20.0 if step >= 30 else 0.0)  # noqa: E731
    assert causes(made(60, lags=dict.fromkeys(("trainer/0", *_OTHERS), late))) == []


def test_a_clock_that_was_ahead_and_is_set_right_was_wrong() -> None:
    found = late_in_turn(lambda step: 0.1 if step >= 30 else -20.0)
    assert found == [(Kind.CLOCK_SKEW, "trainer/0", None)]


def test_samples_that_are_a_little_older_each_time_fill_a_buffer() -> None:
    ages = [1.0] * 20 + [1.5, 2.0, 2.0, 2.0, 2.0, 2.0, 2.5, 2.5, 2.5, 2.5, 2.5]
    ages += [3.0, 2.5, 2.5, 3.0, 3.0, 3.0, 3.0]
    rows: dict[str, Series] = {"trainer/policy/staleness": lambda step: ages[step]}
    assert causes(made(len(ages), rows=rows)) == []


def test_work_that_is_long_of_any_worker_now_and_then_tells_nothing_of_one_in_two_steps() -> None:
    slow, others = in_steps(38, 39, times=2.0), [in_steps(9 + n, times=2.0) for n in range(4)]
    assert causes(made(40, step_s=slow, spans=uneven(slow, *others))) == []
    assert causes(made(40, step_s=slow, spans=uneven(slow, *[steady] * 4))) != []
