"""How samples end, and what a batch of them teaches, as a worker reports it."""

from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import otel_rl
from otel_rl.semconv import names
from otel_rl.semconv.outcomes import EFFECTIVE, FAILED, Outcome
from otel_rl.worker import session
from otel_rl.worker.api import learning, lineage
from otel_rl.worker.drops import DropReason
from tests.support.otlp_sink import Sink, sums


def told(sink: Sink, name: str) -> list[tuple[float, dict[str, object]]]:
    assert otel_rl.flush(timeout_s=60)
    return [(m.value, dict(m.attributes)) for m in sink.measurements(name)]


def shares(sink: Sink, name: str) -> list[float]:
    return [value for value, _ in told(sink, name)]


def outcomes(sink: Sink) -> dict[tuple[object, ...], float]:
    """Samples by the values of environment, outcome and reason."""
    assert otel_rl.flush(timeout_s=60)
    return {key[1:]: value for key, value in sums(sink.metrics, names.RL_SAMPLE_OUTCOMES).items()}


@pytest.fixture(autouse=True)
def _no_names() -> None:
    learning._known.clear()


def test_samples_are_counted_by_environment_outcome_and_reason(started: Sink) -> None:
    lineage.score({}, reward=1.0, environment="math")
    for _ in range(2):
        lineage.score(
            {}, reward=0.0, outcome="environment_failed", reason="reset", environment="swe"
        )
    lineage.score({}, outcome=Outcome.CANCELLED)
    counted = Counter({frozenset(key): value for key, value in outcomes(started).items()})
    assert counted == {
        frozenset({"math", "trained"}): 1,
        frozenset({"swe", "environment_failed", "reset"}): 2,
        frozenset({"cancelled"}): 1,
    }


def test_a_failure_with_a_reward_is_poison_and_one_without_is_not(started: Sink) -> None:
    for outcome in Outcome:
        lineage.score({}, reward=0.0, outcome=outcome)
        lineage.score({}, outcome=outcome)
    assert sum(shares(started, names.RL_SAMPLE_POISONED)) == len(FAILED)
    assert len(shares(started, names.RL_SAMPLE_POISONED)) == 2 * len(Outcome)


def test_a_failure_that_is_told_after_the_reward_is_poison_too(started: Sink) -> None:
    text = lineage.score(lineage.stamp(), reward=0.0)
    lineage.score(text, outcome="grader_failed")
    assert shares(started, names.RL_SAMPLE_POISONED) == [0.0, 1.0]
    assert shares(started, names.RL_SAMPLE_REWARD) == [0.0]


def test_the_effective_reward_is_of_samples_that_carry_a_signal(started: Sink) -> None:
    for outcome in (None, *Outcome):
        reward = 1.0 if outcome is None or outcome in EFFECTIVE else 0.0
        lineage.score({}, reward=reward, outcome=outcome)
    assert set(shares(started, names.RL_SAMPLE_REWARD_EFFECTIVE)) == {1.0}
    assert len(shares(started, names.RL_SAMPLE_REWARD)) == 1 + len(Outcome)


def test_the_share_of_truncated_samples_is_told_where_the_program_tells_both(started: Sink) -> None:
    lineage.score({}, reward=1.0)
    lineage.score({}, reward=1.0, outcome="trained")
    lineage.score({}, reward=1.0, outcome="truncated")
    assert shares(started, names.RL_SAMPLE_TRUNCATED) == [0.0, 1.0]


def test_reasons_are_bounded_and_the_rest_is_counted_as_other(started: Sink) -> None:
    for number in range(40):
        lineage.score({}, outcome="dropped", reason=f"error {number}")
    counted = outcomes(started)
    assert sum(counted.values()) == 40
    assert len(counted) == 17
    assert max(counted.values()) == 24


def test_an_unknown_outcome_is_counted_and_the_reward_stays(started: Sink) -> None:
    before = session.GUARD.drops.counts().get(DropReason.BAD_STATUS, 0)
    lineage.score({}, reward=0.5, outcome="exploded")
    assert session.GUARD.drops.counts()[DropReason.BAD_STATUS] == before + 1
    assert shares(started, names.RL_SAMPLE_REWARD) == [0.5]


def test_parts_of_a_reward_are_told_by_name(started: Sink) -> None:
    lineage.score({}, reward=1.5, components={"format": 0.5, "correct": np.float32(1.0)})
    found = {of["rl.reward.name"]: value for value, of in told(started, names.RL_REWARD_COMPONENT)}
    assert found == {"format": 0.5, "correct": 1.0}


def test_tokens_tell_the_length_and_what_repeats(started: Sink) -> None:
    text = lineage.score(lineage.stamp(), tokens=np.array([1, 2, 3, 4] * 4))
    origin = lineage.read(text)
    assert origin is not None
    assert origin.length == 16
    assert shares(started, names.RL_SAMPLE_REPETITION) == [pytest.approx(1 - 4 / 13)]


@pytest.mark.parametrize("tokens", [np.array([[1, 2, 3, 4] * 4]), [[1, 2, 3, 4] * 4]])
def test_tokens_of_a_batch_of_one_are_those_of_a_sample(started: Sink, tokens: object) -> None:
    origin = lineage.read(lineage.score(lineage.stamp(), tokens=tokens))
    assert origin is not None
    assert origin.length == 16
    assert shares(started, names.RL_SAMPLE_REPETITION) == [pytest.approx(1 - 4 / 13)]


@pytest.mark.parametrize(
    ("tokens", "reason"),
    [
        (np.zeros((8, 5)), DropReason.BAD_SAMPLE),
        ([{}, {}, {}, {}, {}], DropReason.INTERNAL),  # not ids
    ],
)
def test_odd_tokens_cost_neither_stamp_nor_outcome(
    started: Sink, tokens: object, reason: DropReason
) -> None:
    before = session.GUARD.drops.counts().get(reason, 0)
    text = lineage.score(lineage.stamp(), reward=0.5, outcome="timeout", tokens=tokens)
    origin = lineage.read(text)
    assert origin is not None
    assert (origin.reward, origin.outcome) == (0.5, Outcome.TIMEOUT)
    assert outcomes(started) == {("timeout",): 1}
    assert shares(started, names.RL_SAMPLE_REWARD) == [0.5]
    assert session.GUARD.drops.counts()[reason] == before + 1


def batch(rewards: Sequence[Sequence[float]]) -> list[str]:
    return [
        lineage.score(lineage.stamp(policy_version=1), reward=reward, group=f"prompt {number}")
        for number, group in enumerate(rewards)
        for reward in group
    ]


def test_groups_all_right_and_all_wrong_are_told_where_the_batch_is_used(started: Sink) -> None:
    with otel_rl.step(3):
        lineage.link(batch([[1, 1], [0, 0], [0, 0], [0, 1]]))
    assert shares(started, names.RL_GROUP_NO_SIGNAL) == [0.75]
    assert shares(started, names.RL_GROUP_ALL_RIGHT) == [0.25]
    assert shares(started, names.RL_GROUP_ALL_WRONG) == [0.5]
    assert shares(started, names.RL_SAMPLE_NO_SIGNAL) == [0.75]


def test_a_masked_sample_has_no_vote_in_its_group_and_no_gradient(started: Sink) -> None:
    masked = lineage.score(lineage.stamp(), reward=1.0, group="prompt 0", outcome="masked")
    lineage.link([*batch([[0, 0], [0, 1]]), masked])
    assert shares(started, names.RL_GROUP_NO_SIGNAL) == [0.5]
    assert shares(started, names.RL_SAMPLE_NO_SIGNAL) == [pytest.approx(3 / 5)]


def test_nothing_is_said_of_groups_without_groups(started: Sink) -> None:
    lineage.link([lineage.score(lineage.stamp(), reward=1.0) for _ in range(4)])
    lineage.link(batch([[1.0], [0.0]]))
    assert shares(started, names.RL_GROUP_NO_SIGNAL) == []


@given(st.lists(st.lists(st.sampled_from([0.0, 1.0]), min_size=2, max_size=8), min_size=1))
def test_the_shares_of_groups_are_those_of_a_deviation_of_zero(rewards: list[list[float]]) -> None:
    samples = [(str(n), one, None) for n, group in enumerate(rewards) for one in group]
    found: dict[str, float] = dict(learning.batch_figures(samples))
    dead = [float(np.std(group)) == 0 for group in rewards]
    assert found[names.RL_GROUP_NO_SIGNAL] == pytest.approx(np.mean(dead))
    whole = found[names.RL_GROUP_ALL_RIGHT] + found[names.RL_GROUP_ALL_WRONG]
    assert whole == pytest.approx(found[names.RL_GROUP_NO_SIGNAL])


def test_the_effective_sample_size_is_told_of_all_and_by_lag(started: Sink) -> None:
    stamps = [lineage.stamp(policy_version=version) for version in (9, 9, 8, 8, 2)]
    lineage.link(stamps, policy_version=9, weights=np.array([1.0, 1.0, 1.0, 3.0, 2.0]))
    found: dict[Any, float] = {
        of.get("rl.sample.lag"): value
        for value, of in told(started, names.RL_SAMPLE_EFFECTIVE_SIZE)
    }
    assert found == {None: pytest.approx(64 / (5 * 16)), "0": 1.0, "1": 0.8, "4+": 1.0}


def test_weights_that_fit_no_samples_are_counted(started: Sink) -> None:
    before = session.GUARD.drops.counts().get(DropReason.NOT_A_NUMBER, 0)
    lineage.link([lineage.stamp()], weights=[1.0, 2.0])
    assert session.GUARD.drops.counts()[DropReason.NOT_A_NUMBER] == before + 1


@given(
    st.sampled_from([None, *Outcome]),
    st.none() | st.integers() | st.text(max_size=40),
    st.none() | st.floats(allow_nan=False),
)
def test_a_stamp_keeps_how_its_sample_ended(
    outcome: Outcome | None, group: object, reward: float | None
) -> None:
    text = lineage.score(";t=17", reward=reward, outcome=outcome, group=group)
    origin = lineage.read(lineage.score(text, length=3))
    assert origin is not None
    assert origin.outcome == (outcome or (None if reward is None else Outcome.TRAINED))
    assert (origin.group is None) == (group is None)
    assert (origin.reward, origin.length) == (reward, 3)
