"""Detector of rewards that are gained without what they stand for.

The reward rises, and something that it does not see becomes worse: the score on held-out tasks or
of a verifier falls, answers repeat themselves, or their length leaves its trend. Longer answers
alone are no proof: a policy that learns to reason writes more.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from statistics import median
from typing import Final, NamedTuple

from otel_rl.diagnose.classify import Subject, rows_about
from otel_rl.diagnose.detectors.workload import follows_a_change
from otel_rl.diagnose.history.run_history import RunHistory, Track
from otel_rl.diagnose.history.timings import timed_part
from otel_rl.diagnose.result import Cause, Evidence, Kind
from otel_rl.diagnose.stats.changes import find_fall, least_noise, spread
from otel_rl.diagnose.stats.levels import begun, level
from otel_rl.diagnose.stats.trends import beyond_trend, departure
from otel_rl.diagnose.thresholds import (
    A_FEW,
    FEWEST_BEFORE,
    FEWEST_SINCE,
    FEWEST_STEPS,
    GOOD_PART,
    HALF,
    IN_ORDER_OF_MANY,
    LARGE_PART,
    LONGER_NOISE,
    MOSTLY,
    NOISE_OF_MANY,
    SEVERAL,
)

# Scores that the reward does not make: of held-out tasks, and of a verifier or a part of it.
_HELD_OUT: Final = re.compile(
    r"(^|/)(eval(uation|uator)?|val(id|idation)?|test|held_?out)([-_/]|$)"
    r"|(^|[/_])(accuracy|correct(ness)?|verifi(er|ed|cation)|exact_match|gold|true|ground_?truth)(_|/|$)"
)
# What the reward stands for, on the same samples.
_TRUE: Final = re.compile(r"(^|[/_])(true|gold|ground_?truth|verifi(er|ed|cation))(_|/|$)")
_SCORE: Final = re.compile(
    r"(score|acc(uracy)?|rewards?|pass|success|correct|verif|match|gold|win)([^a-z]|$)"
    r"|(avg|mean|maj|best)(@|_x40_)\d+$|(^|/)eval/[^/]+$"  # a key has _x40_ for @
)
_NO_SCORE: Final = re.compile(
    r"loss|len(gth)?([/_]|$)|tokens?|time|secs?|seconds|duration|std|entropy|kl([/_]|$)|count|num_"
    r"|ratio|frac|clip|value|samples|steps?([/_]|$)|/(min|max|p\d+|rank_\w+|rate|per_step)$"
)

_APART: Final = 0.03  # of the range of the reward: as far is a score that it follows
# Of the range, and of the gain, of the reward: form may be paid beside what the score tells.
_MOST_OF_IT = 0.7
_REPEATED: Final = 2.0  # times before
_LONGER: Final = 1.6  # times what the trend lets expect


class _Sign(NamedTuple):
    """A sign that the reward no longer means what it should.

    Attributes:
        since: First step of the sign.
        what: The sign in words.
        key: Tracker key that shows the sign.
        before: Usual value before.
        after: Usual value since that step.
    """

    since: int
    what: str
    key: str
    before: float
    after: float


def reward_hacking(history: RunHistory) -> Iterator[Cause]:
    """Find a reward that rises while what it stands for does not."""
    scores = held_out_scores(history)
    rewards = _rewards(history, scores)
    parted = _parted(rewards, scores)
    if parted:
        yield min(parted, key=lambda cause: cause.since or 0)
        return
    found = _gained(history, rewards, scores)
    if scores and found:
        sign, key, gain = found[0]  # the strongest sign
        # Scores are measured now and then: other signs may have come before.
        yield _cause(sign, key, gain, min(one.since for one, *_ in found))


def unproven_rewards(history: RunHistory) -> Iterator[tuple[str, str]]:
    """Yield a reward, and in words why it is doubtful, where no score can prove it.

    Of two runs with the same curves one may have earned its reward.
    """
    scores = held_out_scores(history)
    found = () if scores else _gained(history, _rewards(history, scores), scores)
    for sign, reward, gain in found[:1]:
        seen = (
            f"{sign.what} since step {sign.since} ({sign.key} from {sign.before:.3g} to "
            f"{sign.after:.3g}), while {reward} went from {gain[0]:.3g} to {gain[1]:.3g}"
        )
        yield reward, seen


def _rewards(history: RunHistory, scores: Mapping[str, Track]) -> list[tuple[str, Track]]:
    return [
        (key, track)
        for key, track in rows_about(history, Subject.REWARD_MEAN)
        if key not in scores and not _HELD_OUT.search(key)
    ]


def _gained(
    history: RunHistory, rewards: list[tuple[str, Track]], scores: dict[str, Track]
) -> Sequence[tuple[_Sign, str, tuple[float, float]]]:
    """Return signs with the rewards that rise meanwhile, the strongest first."""
    signs = [*_falling(scores), *_repeating(history), *_of_length(history, rewards, scores)]
    return [
        (sign, key, gain)
        for sign in signs
        for key, track in rewards
        if (gain := _gain(track, sign.since)) is not None
    ]


def _cause(sign: _Sign, reward: str, gain: tuple[float, float], since: int) -> Cause:
    return Cause(
        Kind.REWARD_HACKING,
        f"the reward rises and is not earned since step {since}: {reward} went from "
        f"{gain[0]:.3g} to {gain[1]:.3g}, while {sign.what}: {sign.key} from {sign.before:.3g} to "
        f"{sign.after:.3g}",
        role=reward.partition("/")[0],
        since=since,
        evidence=[
            Evidence(sign.what, sign.key, None, sign.before, sign.after),
            Evidence("reward", reward, None, *gain),
        ],
    )


def held_out_scores(history: RunHistory) -> dict[str, Track]:
    return {
        key: track.finite()
        for key, track in history.rows.items()
        if _HELD_OUT.search(key.partition("/")[2])
        and _SCORE.search(key)
        and not _NO_SCORE.search(key)
        and not key.startswith(("otel_rl/", "phase/", "critical_path/", "goodput/", "service/"))
        and not timed_part(key)
    }


def _gain(track: Track, since: int) -> tuple[float, float] | None:
    """Return the reward before and at the end, if it is clearly higher since a step."""
    before = track.before(since)
    after = track.values[len(before) :]
    if len(before) < FEWEST_STEPS or len(after) < FEWEST_SINCE:
        return None
    noise = spread([b - a for a, b in pairwise(track.values)])
    first, last = median(before[-FEWEST_STEPS:]), median(after[len(after) // 2 :])
    is_higher = last - first > LONGER_NOISE * max(noise, least_noise(first))
    return (first, last) if is_higher and last == max(first, last) else None


def _rise(track: Track, since: int) -> float | None:
    """Return how far a score is above its last earlier values, in units of its noise.

    It is not compared with its trend: the trend of a score that grows less and less is too high.
    """
    before = track.before(since)
    after = track.values[len(before) :]
    if min(len(before), len(after)) < A_FEW:
        return None
    noise = spread([b - a for a, b in pairwise(track.values)])
    first, last = median(before[-A_FEW:]), median(after[len(after) // 2 :])
    return (last - first) / max(noise, least_noise(first))


def _parted(rewards: Sequence[tuple[str, Track]], scores: Mapping[str, Track]) -> Sequence[Cause]:
    """Find scores of the same scale that a reward has followed, and then left behind.

    A policy always does better on what it trains on: a score of held-out tasks that rises less
    proves nothing, unlike a score of what the reward stands for. If a reward follows most scores,
    the tasks have changed places.
    """
    found = []
    for reward_key, reward in rewards:
        paid = dict(reward.pairs())
        parted = []
        both = {key: _both(paid, score) for key, score in scores.items()}
        both = {key: values for key, values in both.items() if len(values) >= FEWEST_BEFORE}
        for key, values in both.items():
            since = _parts_at([gap for _, gap, _ in values], reward)
            if since is None:
                continue
            before, after = values[max(0, since - FEWEST_STEPS) : since], values[since:]
            true = [median(value for *_, value in part) for part in (before, after)]
            got = [median(gap + value for _, gap, value in part) for part in (before, after)]
            gap, scale = got[1] - true[1], max(reward.values) - min(reward.values)
            is_bonus = gap < GOOD_PART * scale and true[1] - true[0] > _MOST_OF_IT * (
                got[1] - got[0]
            )
            if true[1] <= true[0] or (_TRUE.search(key) and not is_bonus):
                parted.append(_left_behind(reward_key, key, values[since][0], got, true))
        if 2 * len(parted) > len(both):
            found += parted
    return found


def _both(paid: Mapping[int, float], score: Track) -> Sequence[tuple[int, float, float]]:
    """Return for each step with a score: step, reward above the score, score."""
    of_steps = score.pairs()
    return [(step, paid[step] - value, value) for step, value in of_steps if step in paid]


def _left_behind(
    reward: str, key: str, step: int, got: Sequence[float], true: Sequence[float]
) -> Cause:
    return Cause(
        Kind.REWARD_HACKING,
        f"the reward is not earned since step {step}: {reward} had followed {key}, and is "
        f"{got[1]:.3g} now, where that is {true[1]:.3g}",
        role=reward.partition("/")[0],
        since=step,
        evidence=[
            Evidence("a score that the reward had followed", key, None, true[0], true[1]),
            Evidence("reward", reward, None, got[0], got[1]),
        ],
    )


def _parts_at(gaps: Sequence[float], reward: Track) -> int | None:
    """Return the place since which a reward stays above a score; None if it never did."""
    if len(gaps) < FEWEST_BEFORE:
        return None
    margin = _APART * (max(reward.values) - min(reward.values))
    last = max((place for place, gap in enumerate(gaps) if gap <= margin), default=-1)
    before, after = gaps[: last + 1], gaps[last + 1 :]
    if len(before) < A_FEW or len(after) < FEWEST_SINCE:
        return None
    near = sum(abs(gap) <= margin for gap in before)
    noise = LONGER_NOISE * spread([b - a for a, b in pairwise(before)])
    is_clear = median(after) > max(2 * margin, noise)
    return last + 1 if near >= MOSTLY * len(before) and is_clear else None


def _falling(scores: dict[str, Track]) -> Iterator[_Sign]:
    """Find scores that end clearly below their best, unless others rise, which is an exchange."""
    falls = [sign for key, track in scores.items() if (sign := _fall(key, track)) is not None]
    known = [track for track in scores.values() if len(track.values) >= SEVERAL]
    if 2 * len(falls) > len(known):
        yield from falls


def _fall(key: str, track: Track) -> _Sign | None:
    fall = find_fall(track.values, part=GOOD_PART)
    if fall is None:
        return None
    # The last value that is still as good as the best ones begins the fall.
    limit = fall.best - max((fall.best - fall.last) / 4, fall.noise)
    last = max(place for place, value in enumerate(track.values) if value >= limit)
    if last + A_FEW > len(track.values):
        return None
    since = track.steps[last + 1]
    return _Sign(since, "the score of held-out tasks falls", key, fall.best, fall.last)


def _repeating(history: RunHistory) -> Iterator[_Sign]:
    for key, track in rows_about(history, Subject.REPETITION):
        found = level(track)
        if found is None or found.change.place < FEWEST_BEFORE or found.after < LARGE_PART:
            continue
        if found.is_rise(ratio=_REPEATED, order=IN_ORDER_OF_MANY, size=NOISE_OF_MANY):
            first = begun(track, found)
            yield _Sign(first.step, "answers repeat themselves", key, found.before, found.after)


def _of_length(
    history: RunHistory, rewards: list[tuple[str, Track]], scores: dict[str, Track]
) -> Iterator[_Sign]:
    """Find a length that leaves its trend as the reward does, if no score gains by it."""
    for key, track in rows_about(history, Subject.RESPONSE_LENGTH):
        left = departure(track)
        if left is None or not left.is_sure or follows_a_change(history, left.step):
            continue
        gains = [gain for _, one in rewards if (gain := beyond_trend(one, left.step)) is not None]
        others = [rise for one in scores.values() if (rise := _rise(one, left.step)) is not None]
        if max(gains, default=0.0) < NOISE_OF_MANY or max(others, default=0.0) >= LONGER_NOISE:
            continue
        expected = left.windows[-1].expected
        shorter = left.after < HALF * min(*expected, left.before)
        # A policy that learns to reason writes more, and its score on other tasks rises.
        longer = bool(others) and left.after > _LONGER * max(*expected, left.before)
        if shorter or longer:
            what = "answers become much shorter" if shorter else "answers become much longer"
            yield _Sign(left.step, what, key, left.before, left.after)
