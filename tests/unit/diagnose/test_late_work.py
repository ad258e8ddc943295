"""Work that is not done is late by how long it ever took: the steadier, the sooner it is missed.

A step of 20 s: rollouts of 6 s, their scores of 2 s, training of 10 s by two ranks, and a wait for
others. What is done is told each second.
"""

import math
import random
from collections.abc import Sequence

import pytest

from otel_rl.diagnose.engine import diagnose
from otel_rl.diagnose.history.records import Facts, RowFacts, SpanFacts, WorkerFacts
from otel_rl.diagnose.history.run_history import RunHistory
from otel_rl.diagnose.result import Cause, Kind

_NS = 1_000_000_000
STEP_S = 20
STEPS = 30
#: (seconds of a step at its end, role, phase, ranks, seconds)
PARTS = (
    (6, "actor", "rollout", 1, 6.0),
    (8, "judge", "score", 1, 2.0),
    (18, "learner", "train", 2, 10.0),
)


def told(
    at_s: int,
    lost: Sequence[tuple[str, int]],
    *,
    noise: float = 0.0,
    warm: int = 0,
    longest: float = 1.0,
) -> Facts:
    """What comes at this second: work that has ended, unless it is lost in the step after."""
    step, seconds = divmod(at_s - warm * 5 * STEP_S, STEP_S)
    within = float(seconds)
    if at_s < warm * 5 * STEP_S:  # slow first steps
        step, within = at_s // (5 * STEP_S) - warm, at_s % (5 * STEP_S) / 5
    number = step + warm
    spans = [
        SpanFacts(number, role, phase, f"{role}/{rank}", False, 1, took_s, took_s, 0)
        for end_s, role, phase, ranks, usual_s in PARTS
        for rank in range(ranks)
        if within == end_s
        if step < STEPS or not _is_after(lost, role, phase, rank)
        for more in [longest if step == STEPS // 2 else 1.0]
        for took_s in [usual_s * more * (1 + noise * ((number + rank) % 7 - 3))]
        if step <= STEPS
    ]
    rows = [RowFacts(number, at_s * _NS, {"learner/loss": 1.0})] if spans else []
    lags = [(f"{role}/{rank}", 0.1) for _, role, _, ranks, _ in PARTS for rank in range(ranks)]
    last = min(number, STEPS + warm)
    return Facts((100 + at_s) * _NS, last, rows, [], {}, spans, lags, status="running")


def _is_after(lost: Sequence[tuple[str, int]], role: str, phase: str, rank: int) -> bool:
    """Whether this waits for work that is lost."""
    order = [one[1] for one in PARTS]
    return any(
        (role, rank) == (who, index) or order.index(role) > order.index(who) for who, index in lost
    )


def stall(
    lost: Sequence[tuple[str, int]],
    after_s: float,
    *,
    noise: float = 0.0,
    warm: int = 0,
    longest: float = 1.0,
) -> Cause | None:
    """What is said so many seconds after the beginning of the step whose work is lost."""
    until_s = STEPS * STEP_S + warm * 5 * STEP_S + int(after_s)
    facts = [
        told(at_s, lost, noise=noise, warm=warm, longest=longest) for at_s in range(until_s + 1)
    ]
    found = diagnose(RunHistory(facts)).causes
    return next((one for one in found if one.kind is Kind.STALL), None)


NOBODY = (("actor", 0),)
RANK = (("learner", 1),)
JUDGE = (("judge", 0),)
LEARNER = (("learner", 0),)
LEARNER_ALONE = (*LEARNER, ("learner", 1))


def test_who_alone_does_its_part_is_missed_while_the_step_has_begun() -> None:
    found = stall(JUDGE, 6 + STEP_S + 2)
    assert found is not None
    assert (found.worker, found.phase) == ("judge/0", "score")


def test_between_two_steps_there_may_be_something_new() -> None:
    assert stall(NOBODY, 6 * STEP_S) is None
    assert stall(NOBODY, 11 * STEP_S) is not None


@pytest.mark.parametrize(("noise", "longest", "after_s"), [(0, 1, 27), (0.1, 1, 31), (0, 1.6, 36)])
def test_who_has_not_done_what_others_have_is_missed_the_sooner_the_steadier_the_work_is(
    noise: float, longest: float, after_s: int
) -> None:
    """What it has once taken counts more than its usual noise."""
    assert stall(RANK, after_s - 4, noise=noise, longest=longest) is None
    found = stall(RANK, after_s, noise=noise, longest=longest)
    assert found is not None
    assert found.worker == "learner/1"


@pytest.mark.parametrize("held_up_s", [0.1, 0.5])
def test_where_a_machine_has_held_up_some_work_for_a_moment_it_may_hold_up_any(
    held_up_s: float,
) -> None:
    def at(at_s: int) -> Facts:
        one = told(at_s, RANK)
        took_s = held_up_s if one.step == STEPS // 2 else 0.1
        load = SpanFacts(one.step, "actor", "load", "actor/0", False, 1, took_s, took_s, 0)
        return one._replace(spans=[*one.spans, load] if at_s % STEP_S == 1 else one.spans)

    def is_told(after_s: int) -> bool:
        until_s = STEPS * STEP_S + after_s
        found = diagnose(RunHistory([at(at_s) for at_s in range(until_s + 1)])).causes
        return Kind.STALL in {one.kind for one in found}

    assert is_told(30) == (held_up_s == 0.1)
    assert is_told(45)


@pytest.mark.parametrize(
    ("more", "age_s", "is_late"), [(1, 19, False), (1, 22, True), (3, 38, False), (3, 42, True)]
)
def test_who_alone_does_its_part_is_missed_after_twice_its_longest_time_unless_all_have_more_to_do(
    more: int, age_s: int, is_late: bool
) -> None:
    """Its open phase tells since when it is at work, and the others' work how much there is."""
    begun_s = STEPS * STEP_S + 8
    facts = []
    for at_s in range(begun_s + age_s + 1):
        one = told(at_s, LEARNER)
        of_last = more if at_s > STEPS * STEP_S else 1
        spans = [
            span._replace(total_s=span.total_s * of_last)
            for span in one.spans
            if span.worker != "learner/1"
        ]
        age = WorkerFacts("learner/0", None, 1, float(at_s - begun_s), 0)
        ages = {"learner/worker/phase/age/train": [age]} if at_s > begun_s else {}
        facts.append(one._replace(spans=spans, workers=ages))
    found = [one for one in diagnose(RunHistory(facts)).causes if one.kind is Kind.STALL]
    assert [one.worker for one in found] == ["learner/0"] * is_late


@pytest.mark.parametrize(("more", "is_late"), [(1, True), (4, False)])
def test_work_is_not_late_before_it_takes_longer_than_others_of_the_same_batch(
    more: int, *, is_late: bool
) -> None:
    """Rollouts and scores of a batch that is four times as large are told, and no more."""
    begun_s, facts = STEPS * STEP_S, []
    for at_s in range(begun_s + more * 8 + 35):
        second = max(0, at_s - begun_s)
        one = told(begun_s + second // more if second else at_s, LEARNER_ALONE)
        spans = [
            span._replace(total_s=span.total_s * (more if second else 1))
            for span in one.spans
            if span.worker != "learner/1" and second % more == 0
        ]
        facts.append(one._replace(time_ns=(100 + at_s) * _NS, spans=spans))
    found = diagnose(RunHistory(facts)).causes
    assert [one.worker for one in found if one.kind is Kind.STALL] == ["learner/0"] * is_late


@pytest.mark.parametrize("ahead_s", [0, 20])
@pytest.mark.parametrize(("more", "is_late"), [(1, True), (4, False)])
def test_no_step_comes_for_as_many_times_as_long_as_the_pieces_of_work_take(
    more: int, ahead_s: int, *, is_late: bool
) -> None:
    """Of an actor ahead of a queue without an end; a learner waits, or hangs."""
    facts, begun_s = [], STEPS * 4
    for at_s in range(begun_s + 60):
        step = min(at_s // 4, STEPS)
        times = more if at_s > begun_s - ahead_s else 1
        done = [("actor", "rollout", 3.0 * times)] * (at_s % (4 * times) == 0)
        done += [("learner", "train", 2.0)] * (at_s % 4 == 3 and step < STEPS)
        spans = [
            SpanFacts(step, role, phase, f"{role}/0", False, 1, took_s, took_s, 0)
            for role, phase, took_s in done
        ]
        rows = [RowFacts(step, at_s * _NS, {"learner/loss": 1.0})] if spans else []
        lags = [("actor/0", 0.1), ("learner/0", 0.1)]
        facts.append(Facts((100 + at_s) * _NS, step, rows, [], {}, spans, lags, status="running"))
    found = diagnose(RunHistory(facts)).causes
    assert [one.kind for one in found if one.kind is Kind.STALL] == [Kind.STALL] * is_late


def test_a_worker_that_replaces_the_only_one_of_its_role_is_at_its_first_work() -> None:
    begun_s = STEPS * STEP_S + 8
    facts = []
    for at_s in range(begun_s + 40):
        one = told(at_s, LEARNER)
        spans = [span for span in one.spans if span.worker != "learner/1"]
        age = WorkerFacts("learner/2", None, 1, float(at_s - begun_s), 0)
        ages = {"learner/worker/phase/age/train": [age]} if at_s > begun_s else {}
        facts.append(one._replace(spans=spans, workers=ages))
    assert "learner/2" not in {one.worker for one in diagnose(RunHistory(facts)).causes}


@pytest.mark.parametrize("waits", [True, False])
def test_who_has_ended_its_wait_for_those_who_work_ahead_has_begun_its_work(waits: bool) -> None:
    """Of a learner and an actor that fills a buffer, two pieces ahead."""
    facts = []
    for at_s in range(STEPS * STEP_S + 60):
        step, second = divmod(at_s, STEP_S)
        done = [("actor", "rollout", 6.0, False)] * (second == 6 and step <= STEPS)
        done += [("actor", "rollout", 6.0, False)] * (second == 12 and step < 2)
        done += [("learner", "queue_wait", 1.0, True)] * (second == 1 and waits and step <= STEPS)
        done += [("learner", "train", 10.0, False)] * (second == 18 and step < STEPS)
        last = min(step, STEPS)
        spans = [
            SpanFacts(last, role, phase, f"{role}/0", is_wait, 1, took_s, took_s, 0)
            for role, phase, took_s, is_wait in done
        ]
        rows = [RowFacts(last, at_s * _NS, {"learner/loss": 1.0})] if second == 1 else []
        lags = [("actor/0", 0.1), ("learner/0", 0.1)]
        facts.append(Facts((100 + at_s) * _NS, last, rows, [], {}, spans, lags, status="running"))
    found = [one for one in diagnose(RunHistory(facts)).causes if one.kind is Kind.STALL]
    assert [(one.worker, one.phase) for one in found] == [("learner/0", "train")] * waits


def test_what_is_said_has_the_time_since_others_have_done_it() -> None:
    found = stall(RANK, 36)
    assert found is not None
    assert "learner/1 came to no end of train, which others have done 18 s ago" in found.words


def test_a_step_that_is_told_late_is_no_end_of_those_who_still_export() -> None:
    """The row of a step waits for the values of the rank that hangs."""
    until_s = STEPS * STEP_S + 30
    facts = [told(at_s, RANK) for at_s in range(until_s + 1)]
    late = [
        one._replace(step=min(one.step, STEPS - 1), rows=[of for of in one.rows if of.step < STEPS])
        for one in facts[:-3]
    ]
    found = diagnose(RunHistory([*late, *facts[-3:]])).causes
    assert [(one.kind, one.worker) for one in found] == [(Kind.STALL, "learner/1")]


def test_slow_first_steps_are_not_the_longest_ones() -> None:
    found = stall(RANK, 36, warm=4)
    assert found is not None


def test_a_run_whose_workers_are_all_silent_may_have_ended() -> None:
    """A stock SDK does not report its end, and exports once more after the last work."""
    silent_from_s = STEPS * STEP_S + 25
    facts = [told(at_s, RANK) for at_s in range(silent_from_s + 40)]
    heard = [
        one if at_s < silent_from_s else one._replace(lags=[]) for at_s, one in enumerate(facts)
    ]

    assert stall(RANK, 36) is not None
    assert diagnose(RunHistory(heard)).causes == []


@pytest.mark.parametrize(("age_s", "is_late"), [(30, False), (38, True)])
def test_the_longest_of_noisy_work_is_no_bound_of_the_next_one(
    age_s: int, *, is_late: bool
) -> None:
    """By chance, sixty times of 10 s, a third more or less, are at most 15 s."""
    chance, facts = random.Random(1), []
    begun_s = STEPS * STEP_S + 8
    for at_s in range(begun_s + age_s + 1):
        one = told(at_s, RANK)
        spans = [
            span._replace(total_s=span.total_s * math.exp(chance.gauss(0, 0.3)))
            for span in one.spans
        ]
        age = WorkerFacts("learner/1", None, 1, float(at_s - begun_s), 0)
        ages = {"learner/worker/phase/age/train": [age]} if at_s > begun_s else {}
        facts.append(one._replace(spans=spans, workers=ages))
    found = [one for one in diagnose(RunHistory(facts)).causes if one.kind is Kind.STALL]
    assert [one.worker for one in found] == ["learner/1"] * is_late


def test_a_step_that_others_go_on_with_is_no_stall_before_it_takes_longer_than_ever() -> None:
    """Two of four actors are removed, and still report."""
    facts, told_of = [], []
    for at_s in range(STEPS * STEP_S):
        step, second = divmod(at_s, STEP_S)
        removed = step >= STEPS - 4
        done = [("actor", rank, "rollout", 8.0) for rank in range(4 - 2 * removed) if second == 8]
        done += [("judge", 0, "score", 2.0)] * (second == 10)
        done += [("learner", 0, "train", 8.0)] * (second == 18)
        spans = [
            SpanFacts(step, role, phase, f"{role}/{rank}", False, 1, took_s, took_s, 0)
            for role, rank, phase, took_s in done
        ]
        rows = [RowFacts(step, at_s * _NS, {"learner/loss": 1.0})] if spans else []
        lags = [
            *((f"actor/{rank}", 0.1) for rank in range(4)),
            ("judge/0", 0.1),
            ("learner/0", 0.1),
        ]
        at_ns = (100 + at_s) * _NS
        facts.append(Facts(at_ns, step, rows, [], {}, spans, lags, status="running"))
        if removed and step < STEPS - 2:
            told_of += [one.kind for one in diagnose(RunHistory(facts)).causes]
    assert Kind.STALL not in told_of


@pytest.mark.parametrize(("in_step", "is_late"), [(True, False), (False, True)])
def test_a_step_that_goes_on_after_its_parts_has_a_part_that_is_told_at_its_end(
    *, in_step: bool, is_late: bool
) -> None:
    """A first evaluation of 34 s. Two samplers ahead of a buffer have filled it; one has pulled."""
    facts = []
    for at_s in range(8 * STEP_S + 34):
        step, second = divmod(at_s, STEP_S)
        done = [("ppo", 0, "backward", 14.0)] * (second == 16 and step < 8)
        done += [("ppo", 0, "rl.loop", 0.1)] * (second == 17 and step < (7 if in_step else 8))
        for rank, pulls in ((0, 8), (1, 7)):
            done += [("sampler", rank, "pull_weights", 0.4)] * (second == 1 and step < pulls)
            done += [("sampler", rank, "sample", 12.0)] * (second == 14 and step < 8)
        spans = [
            SpanFacts(min(step, 7), role, phase, f"{role}/{rank}", False, 1, took_s, took_s, 0)
            for role, rank, phase, took_s in done
        ]
        rows = [RowFacts(min(step, 7), at_s * _NS, {"ppo/loss": 1.0})] if second == 2 else []
        lags = [("sampler/0", 0.1), ("sampler/1", 0.1), ("ppo/0", 0.1)]
        at_ns = (100 + at_s) * _NS
        facts.append(Facts(at_ns, min(step, 7), rows, [], {}, spans, lags, status="running"))
    found = diagnose(RunHistory(facts)).causes
    assert [one.worker for one in found if one.kind is Kind.STALL] == ["sampler/1"] * is_late
