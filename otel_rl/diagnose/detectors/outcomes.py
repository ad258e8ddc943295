"""Detectors of samples that teach the policy something wrong, or nothing.

A failure of infrastructure that enters training with a reward is a lesson that the policy did not
earn. A program that reports outcomes shows it. For other programs two signs must coincide: calls of
environments, tools or graders that fail in numbers, and a reward that falls by about as much as
zeros for the failures would lower it. A harder batch only has a lower reward, and longer answers.
"""

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from math import isfinite
from statistics import fmean, median
from typing import Final, NamedTuple

from otel_rl.diagnose.classify import Subject, Work, rows_about, work_of
from otel_rl.diagnose.history.run_history import RunHistory, Track
from otel_rl.diagnose.history.settings import settings_changed
from otel_rl.diagnose.result import MOST_EVIDENCE, Cause, Evidence, Kind
from otel_rl.diagnose.stats.changes import spread
from otel_rl.diagnose.thresholds import (
    A_FEW,
    BARELY,
    FEWEST_BEFORE,
    FEWEST_SINCE,
    FEWEST_STEPS,
    GOOD_PART,
    HALF,
    LARGE_PART,
    MANY,
    NOISE_OF_MANY,
    OFTEN,
    SEVERAL,
    SMALL_PART,
)
from otel_rl.semconv.outcomes import FAILED, Outcome

_MIXED: Final = FEWEST_SINCE  # steps until a batch has nothing but samples from after a change
_SHARE: Final = 1.0

_OUTCOMES: Final = "sample/outcomes/"
_WORDS: Final = frozenset(one.value for one in Outcome)
_OF_COUNTER: Final = frozenset({"per_step", "rate"})


class _Onset(NamedTuple):
    """A stretch in which a share is more than noise.

    Attributes:
        since: First step of the stretch.
        until: Last step of the stretch; None if it goes on.
        before: Mean share before; 0 without earlier steps.
        after: Mean share in the stretch.
        is_first: Whether nothing was measured before the stretch.
    """

    since: int
    until: int | None
    before: float
    after: float
    is_first: bool = False


def poisoned_rewards(history: RunHistory) -> Iterator[Cause]:
    """Find failures of infrastructure that enter training with a reward."""
    told = [
        (found, key)
        for key, track in rows_about(history, Subject.POISONED)
        if (found := _onset(_by_workers(history, key, track))) is not None
    ]
    if told:
        found, key = max(told, key=lambda one: one[0].after)
        yield _told(history, found, key)
        return
    if not _tells_failures(history):
        yield from _shown(history)


def _told(history: RunHistory, found: _Onset, key: str) -> Cause:
    worst = _worst(history, found)
    environment, outcome, reason = worst or ("", "", "")
    of = f" of {environment}" if environment else ""
    why = f" ({': '.join(filter(None, (outcome, reason)))})" if outcome else ""
    since = "" if found.is_first else f" since step {found.since}, {found.before:.0%} before"
    return Cause(
        Kind.POISONED_REWARDS,
        f"{found.after:.0%} of samples{of} have failed{why} and enter training with a reward"
        f"{since}",
        role=key.partition("/")[0],
        since=None if found.is_first else found.since,
        until=found.until,
        strength=min(1.0, found.after),
        evidence=[Evidence("failures with a reward", key, None, found.before, found.after)],
    )


def _onset(track: Track, least: float = SMALL_PART) -> _Onset | None:
    """Return the first lasting stretch of a share that is more than noise.

    Args:
        track: Finite shares of 0 to 1.
        least: The smallest share that matters.
    """
    values = track.values
    for at, value in enumerate(values):
        before, few = values[max(0, at - MANY) : at], values[at : at + A_FEW]
        usual = fmean(before) if before else 0.0
        noise = max(least, NOISE_OF_MANY * spread(before)) if len(before) > 1 else least
        limit = usual + noise if len(before) >= FEWEST_BEFORE else max(2 * least, usual + noise)
        is_sure = len(few) == A_FEW or value >= max(GOOD_PART, limit + LARGE_PART)
        if value >= limit and is_sure and fmean(few) >= limit:
            # The first steps tell no level without it.
            return _stretch(track, at, limit, is_first=at < A_FEW)
    if len(values) >= MANY and fmean(values) >= least:
        return _stretch(track, 0, least, is_first=True)
    return None


def _stretch(track: Track, first: int, limit: float, *, is_first: bool = False) -> _Onset:
    values, steps = track.values, track.steps
    last = max(at for at, value in enumerate(values) if at == first or value >= limit)
    later = values[last + 1 :]
    is_over = len(later) >= FEWEST_SINCE and fmean(later) < HALF * limit
    end = last + 1 if is_over else len(values)
    before = values[:first]
    return _Onset(
        steps[first],
        steps[last] if is_over else None,
        fmean(before) if before else 0.0,
        fmean(values[first:end]),
        is_first,
    )


def _worst(history: RunHistory, found: _Onset) -> tuple[str, str, str] | None:
    """Return environment, outcome and reason with the most failures in a stretch."""
    failed: dict[tuple[str, str, str], float] = defaultdict(float)
    for of, track in _outcomes(history):
        if of[1] not in FAILED:
            continue
        totals = [*track.finite().pairs()]
        before = [value for step, value in totals if step < found.since]
        until = [value for step, value in totals if found.until is None or step <= found.until]
        failed[of] += max(until, default=0.0) - max(before, default=0.0)
    return max(failed, key=lambda one: failed[one], default=None)


def _outcomes(history: RunHistory) -> Iterator[tuple[tuple[str, str, str], Track]]:
    """Yield environment, outcome and reason, with the number of such samples so far."""
    for key, track in history.rows.items():
        place = key.find(_OUTCOMES)
        parts = key[place + len(_OUTCOMES) :].split("/") if place >= 0 else []
        at = next((n for n, part in enumerate(parts) if part in _WORDS), None)
        if at is not None and parts[-1] not in _OF_COUNTER:
            yield ("/".join(parts[:at]), parts[at], "/".join(parts[at + 1 :])), track


def _tells_failures(history: RunHistory) -> bool:
    """Return whether the program distinguishes samples that ended badly from others.

    A sample that is scored with its reward alone counts as trained, and not as a failure.
    """
    return any(outcome != Outcome.TRAINED for (_, outcome, _), _ in _outcomes(history))


def _by_workers(history: RunHistory, key: str, rows: Track) -> Track:
    """Return the share weighted by its number of samples, which workers report and rows do not.

    A row is exact about its step; a worker reports one figure a second, over all steps in it.
    """
    total: dict[int, float] = defaultdict(float)
    number: dict[int, float] = defaultdict(float)
    for worker, track in history.workers.get(key, {}).items():
        counts = history.measurements[key][worker].values
        for step, value, count in zip(track.steps, track.values, counts, strict=True):
            if isfinite(value):
                total[step] += value * count
                number[step] += count
    if not number:
        return rows
    if len(rows.values) > len(number):
        each = sum(number.values()) / len(rows.values)
        return _shares(
            history,
            {step: each * value for step, value in rows.pairs()},
            dict.fromkeys(rows.steps, each),
        )
    return _shares(history, total, number)


def _shares(history: RunHistory, some: Mapping[int, float], of_all: Mapping[int, float]) -> Track:
    """Return the share of each step, or of several where one has few samples, which are noise."""
    track, part, whole, first = Track(), 0.0, 0.0, None
    for step in sorted(of_all):
        first = step if first is None else first
        part, whole = part + some.get(step, 0.0), whole + of_all[step]
        if whole >= MANY:
            track.add(first, history.begun_s.get(first, 0.0), min(1.0, part / whole))
            part, whole, first = 0.0, 0.0, None
    return track


def _shown(history: RunHistory) -> Iterator[Cause]:
    """Find failures by themselves, with a reward that falls by as much as zeros would lower it."""
    for what, key, track in _failures(history):
        found = _onset(track, LARGE_PART)
        if found is None or found.is_first or found.after - found.before < GOOD_PART:
            continue
        lasting = sum(step >= found.since for step in track.steps)
        if lasting < FEWEST_SINCE or any(settings_changed(history, found.since)):
            continue
        if _answers_are_longer(history, found):
            continue
        for reward, rewards in rows_about(history, Subject.REWARD_MEAN):
            fall = _fall(rewards, found)
            if fall is None:
                continue
            yield Cause(
                Kind.POISONED_REWARDS,
                f"{found.after:.0%} of {what} fail since step {found.since}, "
                f"{found.before:.0%} before, and {reward} fell from "
                f"{fall[0]:.3g} to {fall[1]:.3g}: failures enter training as a reward",
                role=key.partition("/")[0],
                since=found.since,
                until=found.until,
                evidence=[
                    Evidence(f"share of failed {what}", key, None, found.before, found.after),
                    Evidence("reward", reward, None, *fall),
                ][:MOST_EVIDENCE],
            )
            return


def _failures(history: RunHistory) -> Iterator[tuple[str, str, Track]]:
    """Yield what fails in words, a key or place, and the share that fails."""
    for key, track in rows_about(history, Subject.FAILED_SHARE):
        if track.values and max(track.values) <= _SHARE:
            yield "calls", key, track
    for place, of in history.failed.items():
        if work_of(place) not in {Work.ENVIRONMENT, Work.REWARD}:
            continue
        shares = _shares(history, _by_step(of), _by_step(history.counts[place]))
        yield f"spans of {place}", str(place), shares


def _by_step(of: Mapping[str, Track]) -> dict[int, float]:
    summed: dict[int, float] = defaultdict(float)
    for track in of.values():
        for step, value in track.pairs():
            summed[step] += value
    return {step: value for step, value in summed.items() if value > 0}


def _fall(track: Track, found: _Onset) -> tuple[float, float] | None:
    """Return the reward before and in a stretch, if it fell by what failures would lower it."""
    before = track.before(found.since)[-FEWEST_STEPS:]
    within = [
        value
        for step, value in track.pairs()
        if step >= found.since and (found.until is None or step <= found.until + _MIXED)
    ]
    after = within[_MIXED:] if len(within) >= _MIXED + FEWEST_SINCE else within[-FEWEST_SINCE:]
    if len(before) < SEVERAL or len(after) < FEWEST_SINCE:
        return None
    first, last = median(before), median(after)
    expected = first * (found.after - found.before)
    noise = NOISE_OF_MANY * spread(before)
    return (first, last) if first > 0 and first - last >= max(HALF * expected, noise) else None


def _answers_are_longer(history: RunHistory, found: _Onset) -> bool:
    for _, track in rows_about(history, Subject.RESPONSE_LENGTH):
        before = track.before(found.since)[-FEWEST_STEPS:]
        after = track.since(found.since)
        if before and after and median(after) > BARELY * median(before):
            return True
    return False


class _Dead(NamedTuple):
    """Groups without a signal, up to the end of the run.

    Attributes:
        since: First step; None if it was so from the beginning.
        key: Tracker key that shows the groups.
        before: Share of such groups before.
        after: Share of such groups since that step.
        is_right: Whether most of these groups are right.
    """

    since: int | None
    key: str
    before: float | None
    after: float
    is_right: bool


def dead_groups(history: RunHistory) -> Iterator[Cause]:
    """Find runs in which most groups have no signal, unless their prompts are solved."""
    for found in _dead(history):
        if found.is_right:
            continue
        since = "" if found.since is None else f" since step {found.since}"
        before = "" if found.before is None else f", {found.before:.0%} before"
        yield Cause(
            Kind.DEAD_GROUPS,
            f"{found.after:.0%} of groups have no signal{since}{before}: all their rewards are "
            "equal, and not because prompts are solved",
            role=found.key.partition("/")[0],
            since=found.since,
            evidence=[
                Evidence(
                    "share of groups without a signal", found.key, None, found.before, found.after
                )
            ],
        )
        return


def mastered_prompts(history: RunHistory) -> Iterator[str]:
    """Yield in words that most groups have no signal because prompts are solved."""
    for found in _dead(history):
        if found.is_right:
            since = "" if found.since is None else f" since step {found.since}"
            yield f"{found.after:.0%} of groups are all right{since}: these prompts teach no more"
            return


def _dead(history: RunHistory) -> Iterator[_Dead]:
    for key, track in rows_about(history, Subject.DEAD_GROUPS):
        values = track.values
        last = values[-SEVERAL:]
        if len(last) < SEVERAL or median(last) < OFTEN or min(last) < HALF:
            continue
        if median(last[-A_FEW:]) < OFTEN:
            continue  # it may be over
        # Back to where most groups had a signal; single batches differ.
        first = len(values)
        while first and median(values[max(0, first - A_FEW) : first]) >= OFTEN:
            first -= 1
        while first < len(values) - 1 and values[first] < OFTEN:
            first += 1
        before = values[:first]
        is_first = len(before) < A_FEW
        yield _Dead(
            None if is_first else track.steps[first],
            key,
            None if is_first else fmean(before),
            fmean(values[first:]),
            are_right(history, key, track.steps[first]),
        )


def are_right(history: RunHistory, key: str, since: int) -> bool:
    beside = key.rpartition("/")[0]
    shares = [
        history.rows[f"{beside}/{which}"].finite().since(since)
        for which in ("all_right", "all_wrong")
        if f"{beside}/{which}" in history.rows
    ]
    if len(shares) == 2 and all(shares):  # both
        return fmean(shares[0]) >= OFTEN * (fmean(shares[0]) + fmean(shares[1]))
    for _, rewards in rows_about(history, Subject.REWARD_MEAN):
        before, after = rewards.before(since), rewards.since(since)
        if not after:
            continue
        if len(before) >= SEVERAL:
            near: Sequence[float] = sorted(before)[-max(A_FEW, len(before) // 4) :]
            return median(after) >= median(near)
        return median(after) >= HALF  # most are solved, if nothing tells the scale of the rewards
    return False
