"""A run that stands still is told of, however short its steps: many may come in one snapshot."""

import pytest

from otel_rl.diagnose.engine import diagnose
from otel_rl.diagnose.history.records import Facts, SpanFacts, WorkerFacts
from otel_rl.diagnose.history.rhythm import Rhythm
from otel_rl.diagnose.history.run_history import RunHistory
from otel_rl.diagnose.result import Cause, Kind
from otel_rl.records import ExperimentStatus, WorkerFailure
from tests.unit.diagnose.standing import AGE, hung, snapshots


def stalls(facts: list[Facts]) -> list[Cause]:
    return [one for one in diagnose(RunHistory(facts)).causes if one.kind is Kind.STALL]


@pytest.mark.parametrize("phase", ["train", None])
@pytest.mark.parametrize(
    ("step_s", "for_s"), [(0.05, 60), (0.2, 60), (0.7, 60), (1, 60), (5, 60), (20, 230), (60, 700)]
)
@pytest.mark.parametrize("steps", [30, 100])
def test_no_step_for_far_longer_than_steps_take_is_a_stall_whatever_their_length(
    step_s: float, for_s: float, steps: int, phase: str | None
) -> None:
    (cause,) = stalls(hung(step_s, steps, for_s, phase=phase))
    assert cause.since == steps - 1
    stands = cause.evidence[0]
    assert stands.before == pytest.approx(step_s, rel=0.1, abs=0.5)  # snapshots are a second apart
    assert stands.after == pytest.approx(for_s, rel=0.1)


@pytest.mark.parametrize(("step_s", "for_s"), [(0.05, 8), (0.2, 8), (5, 40), (60, 500)])
def test_no_step_for_a_few_of_them_is_none(step_s: float, for_s: float) -> None:
    assert not stalls(hung(step_s, 30, for_s))


@pytest.mark.parametrize("step_s", [0.05, 0.2, 0.5, 1.0])
def test_the_usual_time_of_a_step_is_told_where_many_come_in_a_snapshot(step_s: float) -> None:
    rhythm = Rhythm.of(RunHistory(hung(step_s, 200, 0)))
    assert rhythm is not None
    assert rhythm.usual_s == pytest.approx(step_s, rel=0.1)
    assert rhythm.steps == 200


def test_steps_that_all_came_at_once_tell_of_no_time() -> None:
    assert Rhythm.of(RunHistory(hung(0.05, 12, 60))) is None


def test_exports_a_minute_apart_are_no_stall() -> None:
    assert not stalls(hung(0.2, 900, 100, every_s=60.0, phase=None))
    assert stalls(hung(0.2, 900, 300, every_s=60.0, phase=None))


def test_saves_as_long_as_those_before_are_none() -> None:
    ends_s, now_s = [], 0.0
    for step in range(400):
        now_s += 30.2 if step % 100 == 99 else 0.2
        ends_s.append(now_s)
    upto = ends_s[:399]  # in the fourth save
    assert not stalls(list(snapshots(upto, until_s=upto[-1] + 35)))
    assert stalls(list(snapshots(upto, until_s=upto[-1] + 90)))


@pytest.mark.parametrize("phase", ["checkpoint", "save_ckpt", "evaluate", "validation"])
def test_the_first_save_or_evaluation_of_a_run_may_take_minutes_and_no_hour(phase: str) -> None:
    assert not stalls(hung(0.2, 100, 224, phase=phase))
    assert stalls(hung(0.2, 100, 400, phase=phase))


@pytest.mark.parametrize("phase", ["weight_push", "load_new_weights", "forward"])
def test_a_phase_of_every_step_may_take_no_minutes(phase: str) -> None:
    assert stalls(hung(0.2, 100, 224, phase=phase))


def test_a_save_of_a_run_that_has_saved_is_known_by_its_time() -> None:
    facts = hung(0.2, 100, 60, phase="checkpoint")
    saved = SpanFacts(40, "trainer", "checkpoint", "trainer/0", False, 1, 0.1, 0.1, 0)
    facts[8] = facts[8]._replace(spans=[saved])
    assert stalls(facts)


@pytest.mark.parametrize("status", [ExperimentStatus.COMPLETE, ExperimentStatus.ABORTED])
def test_a_run_that_has_ended_stands_not_still(status: ExperimentStatus) -> None:
    facts = hung(0.2, 100, 60, phase=None)
    facts[-1] = facts[-1]._replace(status=status)
    assert not stalls(facts)


def test_a_run_whose_sender_stopped_stands_not_still() -> None:
    assert not stalls(hung(0.2, 100, 2))  # the last snapshot is of two seconds after the last step


def with_exports(facts: list[Facts], *, trainer_until_s: float) -> list[Facts]:
    """The same where a generator exports to the end, and the trainer up to this time."""
    return [
        one._replace(
            lags=[("generator/0", 0.1)]
            + ([("trainer/0", 0.1)] if one.time_ns / 1e9 - 100 <= trainer_until_s else [])
        )
        for one in facts
    ]


def test_generators_that_outlive_the_trainer_are_no_stall() -> None:
    facts = hung(0.2, 100, 40, phase=None)
    assert not stalls(with_exports(facts, trainer_until_s=22))
    assert stalls(with_exports(facts, trainer_until_s=60))  # it lives, and makes no step


def test_a_trainer_that_is_lost_stands_still() -> None:
    facts = with_exports(hung(0.2, 100, 60, phase=None), trainer_until_s=22)
    facts[60] = facts[60]._replace(lost=["trainer/0"])
    assert stalls(facts)


def test_a_phase_reported_before_the_end_is_no_stall_of_a_run_that_is_complete() -> None:
    facts = hung(0.2, 100, 40)
    facts[-1] = facts[-1]._replace(status=ExperimentStatus.COMPLETE)
    assert not stalls(facts)


def test_a_stopped_process_is_named_and_not_those_that_have_left_the_phase_since() -> None:
    """It reports nothing any more; what its peers last reported of that phase is over."""
    ranks, facts = ("trainer/0", "trainer/1", "trainer/2"), hung(1, 60, 13, phase=None)
    for number, one in enumerate(facts):
        second = number - 60  # of the stall
        heard = ranks if second <= 0 else ranks[::2]
        phase, age_s = ("train", 0.5) if second <= 0 else ("rank_barrier", float(second))
        ages = {AGE + phase: [WorkerFacts(rank, None, 1, age_s, 0) for rank in heard]}
        facts[number] = one._replace(workers=ages, lags=[(rank, 0.1) for rank in heard])
    (found,) = stalls(facts)
    assert (found.worker, found.phase) == ("trainer/1", "train")
    assert "trainer/1 has been in train for 12.5 s" in found.words


def test_a_stall_names_the_end_of_the_worker_that_all_wait_for() -> None:
    facts = hung(1, 60, 60, phase=None)
    for step, one in enumerate(facts[:60]):
        train = SpanFacts(step, "trainer", "train", "trainer/0", False, 1, 0.5, 0.5, 0)
        facts[step] = one._replace(spans=[train])
    for place, one in enumerate(facts):
        heard = ["trainer/0", "reward/0"] if place < 61 else ["reward/0"]
        facts[place] = one._replace(lags=[(worker, 0.1) for worker in heard])
    lost = WorkerFailure("trainer/0", facts[60].time_ns, step=59, reports_ends=False)
    facts[75] = facts[75]._replace(lost=["trainer/0"], failures=[lost])
    (found,) = diagnose(RunHistory(facts)).causes
    assert (found.kind, found.worker) == (Kind.STALL, "trainer/0")
    assert "trainer/0 has reported nothing since step 59: killed, stopped in" in found.words


@pytest.mark.parametrize(("own", "told"), [(58.0, [58.0]), (59.0, [])])
def test_who_stands_still_behind_others_tells_its_own_step(own: float, told: list[float]) -> None:
    facts = hung(1, 60, 30)
    facts[-1] = facts[-1]._replace(
        workers={
            **facts[-1].workers,
            "trainer/worker/step/number": [WorkerFacts("trainer/0", None, 1, own, 0)],
        }
    )
    (found,) = stalls(facts)
    assert found.worker == "trainer/0"
    assert [one.after for one in found.evidence if one.what == "step"] == told


def test_a_push_that_does_not_end_holds_up_all_who_wait_for_weights() -> None:
    facts = hung(1, 60, 30, phase=None)
    ages = {
        AGE + "weight_push": [WorkerFacts("trainer/0", None, 1, 29.0, 0)],
        AGE + "weight_sync": [WorkerFacts("trainer/1", None, 1, 29.5, 0)],
        "generator/worker/phase/age/idle": [WorkerFacts("generator/0", None, 1, 20.0, 0)],
    }
    facts[-1] = facts[-1]._replace(workers={**facts[-1].workers, **ages})
    (found,) = stalls(facts)
    assert (found.worker, found.phase) == ("trainer/0", "weight_push")


@pytest.mark.parametrize(("missed", "behind"), [(20, None), (59, "reward/1")])
def test_who_told_its_work_in_one_step_less_is_behind_only_if_it_was_the_newest(
    missed: int, behind: str | None
) -> None:
    facts = hung(1, 60, 120, phase=None)
    for step, one in enumerate(facts[:60]):
        workers = ["reward/0", "reward/1"] if step != missed else ["reward/0"]
        spans = [SpanFacts(step, "reward", "reward", who, False, 1, 0.2, 0.2, 0) for who in workers]
        train = SpanFacts(step, "trainer", "train", "trainer/0", False, 1, 0.5, 0.5, 0)
        facts[step] = one._replace(spans=[*spans, train])
    (found,) = stalls(facts)
    assert (found.worker if found.worker == "reward/1" else None) == behind


def test_who_came_last_to_the_last_barrier_did_not_stop_before_the_others() -> None:
    """It has no wait to tell of; the generators are the ones who stopped, ahead of the steps."""
    facts = hung(5, 30, 300, phase=None)
    for step in range(30):
        last = f"trainer/{step % 3}"
        spans = [
            SpanFacts(step, "trainer", phase, rank, phase != "learn", 1, 0.5, 0.5, 0)
            for rank in ("trainer/0", "trainer/1", "trainer/2")
            for phase in ("learn", "wait_for_ranks")
            if (phase, rank) != ("wait_for_ranks", last)
        ]
        place = 5 * step + 4
        facts[place] = facts[place]._replace(spans=spans)
        made = [
            SpanFacts(step, "generator", "generate", f"generator/{n}", False, calls, calls, 1.0, 0)
            for n in range(2)
            for calls in [2 + (step + n) % 3]
            if step < 29
        ]
        facts[place - 2] = facts[place - 2]._replace(spans=made)
    (found,) = stalls(facts)
    assert found.role != "trainer"


def test_weights_that_move_every_few_steps_do_not_hide_the_work_of_each_step() -> None:
    facts = hung(5, 30, 300, phase=None)
    ranks = ("trainer/0", "trainer/1", "trainer/2")
    for step in range(30):
        spans = [
            SpanFacts(step, "trainer", "learn", rank, False, 1, 0.5, 0.5, 0)
            for rank in ranks
            if (step, rank) != (29, "trainer/1")
        ]
        if step % 3 == 2 and step < 29:
            spans += [
                SpanFacts(step, role, phase, rank, False, 1, 0.1, 0.1, 0)
                for rank in ranks
                for role, phase in (("trainer", "push_weights"), ("trainer", "publish_weights"))
            ]
            spans.append(
                SpanFacts(step, "sampler", "pull_weights", "sampler/0", False, 1, 0.1, 0.1, 0)
            )
        place = 5 * step + 3
        facts[place] = facts[place]._replace(spans=spans)
    (found,) = stalls(facts)
    assert (found.worker, found.phase) == ("trainer/1", "learn")


@pytest.mark.parametrize(("apart", "is_named"), [(2, True), (0, False)])
def test_the_first_part_of_a_step_is_named_only_if_exports_tell_which_it_is(
    apart: int, *, is_named: bool
) -> None:
    facts = hung(5, 30, 300, phase=None)
    workers = {"sampler": ["sampler/0", "sampler/1"], "trainer": ["trainer/0"]}
    for step in range(30):
        for role, phase, second in (("trainer", "train", 3), ("sampler", "generate", 3 - apart)):
            place = 5 * step + second
            spans = [
                SpanFacts(step, role, phase, who, False, 1, 0.5, 0.5, 0) for who in workers[role]
            ]
            facts[place] = facts[place]._replace(spans=[*facts[place].spans, *spans])
    (found,) = stalls(facts)
    assert found.role == ("sampler" if is_named else None)
    assert is_named or "generate of sampler, train of trainer is done; which comes" in found.words


def test_a_generator_that_has_not_pulled_yet_holds_up_nobody() -> None:
    facts = hung(5, 30, 300, phase=None)
    for step in range(30):
        told = [
            (1, "generator", "pull_weights", index) for index in range(3 if step < 29 else 2)
        ] + [(2, "generator", "generate", index) for index in range(3)]
        told += [(4, "trainer", "train", index) for index in range(2 if step < 29 else 1)]
        for second, role, phase, index in told:
            place = 5 * step + second
            span = SpanFacts(step, role, phase, f"{role}/{index}", False, 1, 0.5, 0.5, 0)
            facts[place] = facts[place]._replace(spans=[*facts[place].spans, span])
    (found,) = stalls(facts)
    assert (found.worker, found.phase) == ("trainer/1", "train")


def called(ratio: float) -> list[Facts]:
    """Ranks train for 0.8 s in each step; a controller has a phase of so many times that.

    It has been in it for a minute, and one rank in its own.
    """
    ranks = [f"trainer/{index}" for index in range(4)]
    work = [("controller", "update", "controller/0", 0.8 * ratio)]
    work += [("trainer", "train", rank, 0.8) for rank in ranks]
    facts = [
        one._replace(
            spans=[
                SpanFacts(row.step, role, phase, worker, False, 1, s, s, 0)
                for row in one.rows
                for role, phase, worker, s in work
            ]
        )
        for one in hung(1.0, 30, 60.0, phase=None)
    ]
    ages = {
        "controller/worker/phase/age/update": [WorkerFacts("controller/0", None, 1, 60.0, 0)],
        AGE + "train": [WorkerFacts("trainer/2", None, 1, 59.0, 0)],
    }
    facts[-1] = facts[-1]._replace(workers={**facts[-1].workers, **ages})
    return facts


def test_the_rank_that_a_controller_waits_for_is_named() -> None:
    (cause,) = stalls(called(1.05))
    assert (cause.worker, cause.phase) == ("trainer/2", "train")


@pytest.mark.parametrize("ratio", [0.9, 1.3])
def test_work_of_another_length_is_no_call(ratio: float) -> None:
    (cause,) = stalls(called(ratio))
    assert cause.worker == "controller/0"
