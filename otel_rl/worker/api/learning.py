"""Learning figures: how each sample ended when it was scored, and groups in training.

Names that a program gives, of reasons, environments and parts of rewards, become keys. A process
keeps the first 16 names of each kind, and records the rest as ``other``, whose count is in the key.
"""

import math
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final

from opentelemetry.metrics import Meter

from otel_rl.semconv import names
from otel_rl.semconv.outcomes import EFFECTIVE, FAILED, Outcome
from otel_rl.semconv.spec import described
from otel_rl.worker import session
from otel_rl.worker.drops import DropReason

_MOST_NAMES: Final = 16
"""Of one kind. A key for each error message would fill a tracker with keys of one value."""

_LONGEST_NAME: Final = 48
_OTHER: Final = "other"
_GRAM: Final = 4  # tokens
_MOST_LAG: Final = 4  # versions, and more
_ALIKE: Final = 1e-8
"""Rewards of a group that differ by less are equal: TRL's own tolerance."""

Attributes = Mapping[str, str | int]

_known: defaultdict[str, dict[str, str]] = defaultdict(dict)


def outcome_word(given: object, caller: str) -> Outcome | None:
    """Return an outcome; None without one, or for an unknown word, which is counted."""
    if given is None:
        return None
    try:
        return Outcome(str(given))
    except ValueError:
        session.GUARD.drop(
            DropReason.BAD_STATUS,
            f"{caller}: an outcome is one of {', '.join(Outcome)} (got {str(given)[:64]!r}).",
        )
        return None


def _folded(kind: str, name: object) -> str:
    """Return a name of a kind, or ``other`` once the kind has many names."""
    known, text = _known[kind], str(name)
    found = known.get(text)
    if found is None:
        short = " ".join(text.split())[:_LONGEST_NAME] or _OTHER
        if len(known) >= _MOST_NAMES:
            session.GUARD.warn(
                f"learning.{kind}",
                f"lineage.score: this process has told {_MOST_NAMES} names as {kind}; further ones "
                f"are {_OTHER!r}, such as {short!r}. Leave ids and messages out of them.",
            )
            return _OTHER
        found = known[text] = short
    return found


def record_end(
    meter: Meter,
    outcome: Outcome,
    *,
    is_first: bool,
    is_told: bool,
    reward: float | None,
    reason: object,
    environment: object,
    components: Mapping[str, float],
) -> None:
    """Record how a sample ended, at the caller's step.

    Args:
        is_first: Whether no end of the sample was recorded before; the reward counts once.
        is_told: Whether the program gave the outcome, and not only the reward.
        reward: Reward of the sample, given now or before.
        reason: Reason of the end; None for no reason.
        environment: Name of the environment; None for none.
        components: Parts of the reward by name.
    """
    of: dict[str, str | int] = {}
    if environment is not None:
        of[names.RL_ENVIRONMENT_NAME] = _folded(names.RL_ENVIRONMENT_NAME, environment)
    by_end = {**of, names.RL_SAMPLE_OUTCOME: outcome.value}
    if reason is not None:
        by_end[names.RL_SAMPLE_REASON] = _folded(names.RL_SAMPLE_REASON, reason)
    meter.create_counter(*described(names.RL_SAMPLE_OUTCOMES)).add(1, by_end)
    is_poisoned = outcome in FAILED and reward is not None
    if is_first or is_poisoned:
        poisoned = meter.create_gauge(*described(names.RL_SAMPLE_POISONED))
        poisoned.set(float(is_poisoned))
    if not is_first:
        return
    if is_told and outcome in EFFECTIVE:
        truncated = meter.create_gauge(*described(names.RL_SAMPLE_TRUNCATED))
        truncated.set(float(outcome is Outcome.TRUNCATED))
    if reward is not None and outcome in EFFECTIVE:
        effective = meter.create_gauge(*described(names.RL_SAMPLE_REWARD_EFFECTIVE))
        effective.set(reward)
        if of and len(_known[names.RL_ENVIRONMENT_NAME]) > 1:  # of one it is the same
            effective.set(reward, of)
    if components:
        part = meter.create_gauge(*described(names.RL_REWARD_COMPONENT))
        for name, value in components.items():
            part.set(value, {names.RL_REWARD_NAME: _folded(names.RL_REWARD_NAME, name)})


def repetition(tokens: Sequence[object]) -> float | None:
    """Return the share of 4-token sequences that occurred before; None for under four tokens."""
    runs = len(tokens) - _GRAM + 1
    if runs < 1:
        return None
    distinct = set(zip(*(tokens[first : first + runs] for first in range(_GRAM)), strict=True))
    return 1 - len(distinct) / runs


def batch_figures(
    samples: Iterable[tuple[str | None, float | None, Outcome | None]],
) -> Iterator[tuple[str, float]]:
    """Yield name and value of each figure of the groups in a batch.

    A sample that is masked, filtered or dropped has no gradient, and no vote in its group. A sample
    that failed and has a reward has both. A group of one sample has no advantage, and does not
    count as a group. A group is all right if all its rewards are the best of the batch, and above
    0: with partial credit a group of equal answers may be neither solved nor hopeless, and counts
    as wrong.

    Args:
        samples: Group, reward and outcome of each sample; None for what is unknown.
    """
    groups: defaultdict[str, list[float]] = defaultdict(list)
    idle, known = 0, 0
    for group, reward, outcome in samples:
        if group is None or reward is None or math.isnan(reward):
            continue
        known += 1
        if outcome is None or outcome in EFFECTIVE or outcome in FAILED:
            groups[group].append(reward)
        else:
            idle += 1
    whole = [rewards for rewards in groups.values() if len(rewards) > 1]
    if not whole:
        return
    equal = [rewards for rewards in whole if max(rewards) - min(rewards) <= _ALIKE]
    best = max(map(max, whole))
    right = sum(rewards[0] > 0 and rewards[0] >= best - _ALIKE for rewards in equal)
    yield names.RL_GROUP_NO_SIGNAL, len(equal) / len(whole)
    yield names.RL_GROUP_ALL_RIGHT, right / len(whole)
    yield names.RL_GROUP_ALL_WRONG, (len(equal) - right) / len(whole)
    yield names.RL_SAMPLE_NO_SIGNAL, (idle + sum(map(len, equal))) / known


def effective_sizes(
    weights: Sequence[float], lags: Sequence[int | None]
) -> Iterator[tuple[Attributes, float]]:
    """Yield the effective share of samples, (sum w)^2 / (n sum w^2): overall, and by lag.

    Args:
        weights: Importance weight of each sample.
        lags: Age of each sample in policy versions; None if unknown.
    """
    by_lag: defaultdict[str, list[float]] = defaultdict(list)
    for weight, lag in zip(weights, lags, strict=True):
        if lag is not None and lag >= 0:
            by_lag[str(lag) if lag < _MOST_LAG else f"{_MOST_LAG}+"].append(weight)
    of: list[tuple[Attributes, Sequence[float]]] = [({}, weights)]
    of += [({names.RL_SAMPLE_LAG: lag}, some) for lag, some in by_lag.items()]
    for attributes, some in of:
        squares = sum(weight * weight for weight in some)
        if squares > 0 and math.isfinite(squares):
            yield attributes, sum(some) ** 2 / (len(some) * squares)
