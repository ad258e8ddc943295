"""What a run shows by itself, from its first steps: numbers beside their reference."""

from collections.abc import Mapping

import pytest

from otel_rl.diagnose.budget import budget_of
from otel_rl.diagnose.engine import diagnose
from otel_rl.diagnose.history.run_history import PhaseKey, RunHistory
from otel_rl.diagnose.observations import observations
from otel_rl.diagnose.prescriptions import prescribed
from otel_rl.diagnose.render import in_words, summary
from otel_rl.diagnose.report_json import as_json
from otel_rl.diagnose.result import Cause, Kind, Observation, Observed, Verdict
from otel_rl.diagnose.spans.span_forest import UNACCOUNTED
from tests.unit.diagnose.made import Series, changed, made
from tests.unit.diagnose.test_evidence import jittered

Spans = Mapping[tuple[str, str, int], Series]

USUAL_S = {
    ("generator", "generate", 0): 0.5,
    ("generator", "generate", 1): 0.5,
    ("reward", "reward", 0): 0.1,
    ("trainer", "load_batch", 0): 0.02,
    ("trainer", "train", 0): 0.3,
    ("trainer", "train", 1): 0.3,
    ("trainer", "weight_sync", 0): 0.05,
    ("trainer", "checkpoint", 0): 0.02,
}
STEPS = 30


def level(value: float) -> Series:
    return lambda _: value


def in_turns_of_four(index: int) -> Series:
    """Seconds of a worker that is the slow one in every fourth step."""
    return lambda step: 2.5 if step % 4 == index else 0.5


def in_turn(
    seconds: Mapping[tuple[str, str, int], float] | None = None,
    *,
    steps: int = STEPS,
    rows: Mapping[str, Series] | None = None,
    workers: Mapping[tuple[str, str], Series] | None = None,
    spans: Spans | None = None,
) -> RunHistory:
    """A run whose roles take turns, without a critical path: times of parts tell of it."""
    usual = USUAL_S | dict(seconds or {})
    every = {place: jittered(level(value)) for place, value in usual.items()} | dict(spans or {})

    def step_s(step: int) -> float:
        longest: dict[tuple[str, str], float] = {}
        for (role, phase, _), of in every.items():
            longest[role, phase] = max(of(step), longest.get((role, phase), 0.0))
        return sum(longest.values())

    history = made(
        steps,
        step_s=step_s,
        rows={"trainer/iteration/duration": step_s} | dict(rows or {}),
        workers=workers,
        spans=every,
    )
    history.steps.clear()
    return history


def seen(history: RunHistory) -> dict[Observed, Observation]:
    return {one.kind: one for one in diagnose(history, passed=True).observations}


def beyond(history: RunHistory) -> list[Observed]:
    return [one.kind for one in diagnose(history).observations if one.is_beyond]


@pytest.mark.parametrize(
    ("place", "kind", "below", "above"),
    [
        # Times the rest of the step: a third of the step is half as long as the rest.
        (("trainer", "weight_sync", 0), Observed.SYNC, 0.4, 0.62),
        (("trainer", "load_batch", 0), Observed.DATA, 0.4, 0.62),
        (("trainer", "checkpoint", 0), Observed.CHECKPOINT, 0.4, 0.62),
        # What is left of it behind generation is a third of the step.
        (("reward", "reward", 0), Observed.SLOW_ANSWERS, 1.2, 1.5),
    ],
    ids=[Observed.SYNC, Observed.DATA, Observed.CHECKPOINT, Observed.SLOW_ANSWERS],
)
def test_a_share_is_beyond_its_reference_from_a_third_of_a_step_on(
    place: tuple[str, str, int], kind: Observed, below: float, above: float
) -> None:
    rest_s = in_turn().rows["trainer/iteration/duration"].values[0] - USUAL_S[place]
    found = diagnose(in_turn({place: above * rest_s}))
    (first, *_) = found.observations
    assert (found.verdict, first.kind, first.role, first.phase) == (
        Verdict.BEYOND,
        kind,
        place[0],
        place[1],
    )
    assert first.seconds == pytest.approx(above * rest_s, rel=0.05)
    assert first.step_s - first.seconds == pytest.approx(rest_s, rel=0.05)
    less = in_turn({place: below * rest_s})
    assert diagnose(less).verdict is Verdict.HEALTHY
    assert not seen(less)[kind].is_beyond


def test_a_healthy_run_is_told_where_its_time_goes_and_is_healthy() -> None:
    found = diagnose(in_turn())
    (first, *others) = found.observations
    assert found.verdict is Verdict.HEALTHY
    assert (first.kind, first.role, first.phase) == (Observed.BOUND, "generator", "generate")
    assert first.words.startswith("the step is bound by generate of generator: ")
    assert not any(one.is_beyond for one in others)


def test_a_tail_is_of_one_worker_or_of_another_one_in_each_step() -> None:
    places = [("generator", "generate", index) for index in range(4)]
    same = in_turn(dict.fromkeys(places, 0.5) | {places[2]: 2.5})
    # A cause tells it already, with its worker.
    assert [one.worker for one in diagnose(same).causes] == ["generator/2"]
    assert Observed.TAIL not in seen(same)
    turns: Spans = {place: in_turns_of_four(place[2]) for place in places}
    found = seen(in_turn(spans=turns))[Observed.TAIL]
    assert (found.is_beyond, found.worker, found.phase) == (True, None, "generate")
    assert found.seconds == pytest.approx(2.0, rel=0.05)


def test_of_two_workers_the_slower_one_is_told_with_the_doubt() -> None:
    found = seen(in_turn({("trainer", "train", 1): 2.0}))[Observed.TAIL]
    assert (found.is_beyond, found.worker) == (True, "trainer/1")
    assert "by design" in found.doubt


def waiting(wait_s: float, generate_s: float) -> RunHistory:
    """A trainer that trains for 0.4 s of a step, and waits for samples."""
    spans: Spans = {
        ("generator", "generate", 0): jittered(lambda _: generate_s),
        ("trainer", "collector_wait", 0): jittered(lambda _: wait_s),
        ("trainer", "train", 0): jittered(lambda _: 0.4),
    }
    history = made(
        STEPS,
        step_s=lambda _: wait_s + 0.4,
        rows={"trainer/iteration/duration": lambda _: wait_s + 0.4},
        spans=spans,
        waits=["collector_wait"],
    )
    history.steps.clear()
    return history


def test_a_wait_is_a_fault_only_where_samples_are_made_meanwhile() -> None:
    beside = seen(waiting(0.6, 0.99))[Observed.STARVED]
    assert (beside.is_beyond, beside.role, beside.phase) == (True, "generator", "generate")
    assert "trainer waits for samples for 599 ms of a step of 1 s (60%)" in beside.words
    in_turns = seen(waiting(0.6, 0.6))[Observed.STARVED]
    assert (in_turns.is_beyond, in_turns.seconds) == (False, 0.0)
    assert "made in turn" in in_turns.words


def requests(running: float, waiting: float, slots: float = 64) -> RunHistory:
    return in_turn(
        {("generator", "generate", index): 1.5 for index in range(2)},
        workers={
            ("generator/generator/requests/running", "generator/0"): level(running),
            ("generator/num_requests_waiting", "generator/0"): level(waiting),
            ("generator/max_num_seqs", "generator/0"): level(slots),
        },
    )


def test_slots_that_are_too_few_or_free() -> None:
    full = seen(requests(64, 128))[Observed.QUEUED]
    assert (full.is_beyond, full.amount) == (True, 2.0)
    assert full.seconds == pytest.approx(1.0, rel=0.05)
    free = seen(requests(31, 0))
    assert free[Observed.FREE_SLOTS].words == "generation of generator runs at 31 of 64 slots"
    assert not free[Observed.FREE_SLOTS].is_beyond
    assert Observed.QUEUED not in free


@pytest.mark.parametrize(
    ("key", "kind", "below", "above"),
    [
        ("trainer/completions/clipped_ratio", Observed.TRUNCATED, 0.45, 0.6),
        ("trainer/sample/truncated", Observed.TRUNCATED, 0.45, 0.6),
        ("trainer/frac_reward_zero_std", Observed.NO_SIGNAL, 0.45, 0.6),
        ("trainer/policy/staleness", Observed.OLD_SAMPLES, 7.0, 9.0),
        ("trainer/train/mfu", Observed.MFU, 0.4, 0.9),
    ],
)
def test_samples_and_devices(key: str, kind: Observed, below: float, above: float) -> None:
    less, more = (seen(in_turn(rows={key: jittered(level(v))}))[kind] for v in (below, above))
    assert not less.is_beyond
    assert more.is_beyond is (kind is not Observed.MFU)
    assert key in more.words


def test_a_clip_ratio_of_the_policy_is_no_share_of_answers() -> None:
    assert Observed.TRUNCATED not in seen(in_turn(rows={"trainer/clip_ratio": lambda _: 0.9}))


def test_groups_without_a_signal_are_none_if_their_prompts_are_solved() -> None:
    rows: Mapping[str, Series] = {
        "trainer/frac_reward_zero_std": lambda _: 0.6,
        "trainer/reward/mean": lambda _: 0.9,
    }
    assert Observed.NO_SIGNAL not in seen(in_turn(rows=rows))


@pytest.mark.parametrize("steps", [1, 8, 9])
def test_of_few_steps_nothing_is_told(steps: int) -> None:
    assert not observations(in_turn({("trainer", "weight_sync", 0): 9.0}, steps=steps))


def test_one_long_save_is_no_state_of_a_run() -> None:
    once: Spans = {("trainer", "checkpoint", 0): lambda step: 60.0 if step == 20 else 0.0}
    assert beyond(in_turn(spans=once)) == []


def test_what_nothing_accounts_for_is_bound_by_nothing() -> None:
    history = in_turn()
    for phase in [place for place in history.spans if place.phase != "load_batch"]:
        del history.spans[phase]
    assert Observed.BOUND not in seen(history)


def test_steps_since_a_cause_tell_nothing_of_what_is_usual() -> None:
    slower: Spans = {("trainer", "weight_sync", 0): jittered(changed(0.05, 2.0, at=15))}
    history = in_turn(spans=slower)
    found = diagnose(history)
    assert [one.kind for one in found.causes] == [Kind.SLOW_SYNC]
    assert Observed.SYNC not in {one.kind for one in found.observations}
    cause = Cause(Kind.CRASH, "", since=15)
    assert not any(one.is_beyond for one in observations(history, [cause]))


def test_it_is_told_in_text_and_json() -> None:
    found = diagnose(in_turn({("trainer", "weight_sync", 0): 1.5}))
    lines = [*in_words(found)]
    assert lines[0].endswith(": beyond a reference")
    place = next(n for n, line in enumerate(lines) if line.startswith("beyond its reference: sync"))
    assert lines[place + 1].startswith("     reference: 0: the transfer can go on beside ")
    assert lines[place + 2].startswith("     doubt: ")
    assert summary(found) == found.observations[0].words
    first = as_json(found)["observations"][0]
    assert (first["kind"], first["is_beyond"], first["role"]) == ("sync_share", True, "trainer")
    assert first["step_s"] > first["seconds"] > 0
    assert first["amount"] == pytest.approx(first["seconds"] / first["step_s"], rel=1e-3)


def unproven() -> RunHistory:
    """A run whose reward leaps as answers begin to repeat themselves; no score is logged."""
    return in_turn(
        steps=80,
        rows={
            "trainer/reward/mean": jittered(changed(0.3, 0.6)),
            "trainer/rollout/repetition": jittered(changed(0.04, 0.34)),
        },
    )


def test_each_kind_has_a_reference_a_doubt_and_something_to_try() -> None:
    every = [
        in_turn(
            {("trainer", "weight_sync", 0): 0.5, ("trainer", "checkpoint", 0): 0.5,
             ("trainer", "load_batch", 0): 0.5, ("trainer", "train", 1): 1.0},
            rows={
                "trainer/sample/truncated": lambda _: 0.6, "trainer/train/mfu": lambda _: 0.3,
                "trainer/group/no_signal": lambda _: 0.6,
                "trainer/policy/staleness": lambda _: 3.0,
            },
        ),
        unproven(), waiting(0.6, 0.99), requests(64, 128), requests(31, 0), in_turn(),
    ]  # fmt: skip
    found = {kind: one for history in every for kind, one in seen(history).items()}
    assert set(found) == set(Observed)
    for one in found.values():
        assert one.reference
        assert one.doubt
        assert [*prescribed(one.against, [])], one.kind


def test_steps_in_which_the_phases_of_a_role_took_no_time_have_a_budget() -> None:
    first_s = {("trainer", "train", 0): lambda step: 0.3 if step >= 12 else 0.0}
    history = made(STEPS, spans=first_s)
    history.steps[:] = [
        one._replace(path=[("trainer", UNACCOUNTED, "trainer/0", 1.0)]) for one in history.steps
    ]
    assert diagnose(history).verdict is Verdict.HEALTHY
    assert budget_of(history, range(STEPS)) is not None
    early = budget_of(history, range(6))
    assert early is not None
    assert early.parts.keys() == {PhaseKey("trainer", UNACCOUNTED)}
