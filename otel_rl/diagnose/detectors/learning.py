"""Detectors of worse learning: values that are not numbers, wrong rewards, a degenerate policy.

Learning changes every level all the time. So only these count: a jump between two steps while the
policy does not change, or a lasting change for the worse.
"""

import math
import re
from collections.abc import Iterator, Sequence
from statistics import median

from otel_rl.diagnose.classify import Subject, Work, rows_about, tracks_about, work_of
from otel_rl.diagnose.detectors.outcomes import dead_groups
from otel_rl.diagnose.detectors.reward_hacking import held_out_scores, reward_hacking
from otel_rl.diagnose.history.run_history import PhaseKey, RunHistory, Track
from otel_rl.diagnose.history.settings import settings_changed
from otel_rl.diagnose.result import MOST_WORKERS, Cause, Evidence, Kind
from otel_rl.diagnose.stats.changes import find_fall
from otel_rl.diagnose.stats.jumps import Jump, jump
from otel_rl.diagnose.stats.levels import LevelChange, level
from otel_rl.diagnose.stats.trends import TrendDeparture, beyond_trend, departure, heading
from otel_rl.diagnose.thresholds import (
    A_FEW,
    FAR,
    FEWEST_SINCE,
    FEWEST_VARYING,
    GOOD_PART,
    IN_ORDER,
    LONGER_NOISE,
    MANY,
    SEVERAL,
    SLACK,
    START,
)

# Age of the oldest samples of a batch, in units of the usual one; and most steps of a jump.
_OLDEST, _MOST_MIXED = 2.0, FEWEST_SINCE


_LOWER, _HIGHER = 0.4, 3.0  # times the entropy or KL before

_FALL = 0.3  # part of the best score: one of several scores may fall by a quarter in a sound run


# A scorer that is a part of the reward is wrong together with it.
_PART_OF_REWARD = re.compile(r"(^|[/_])rewards?/(?!(true|gold|ground_?truth)(/|_|$))")

_OF_POLICY = (Subject.ENTROPY, Subject.RESPONSE_LENGTH, Subject.EPISODE_LENGTH, Subject.KL)

_DEGENERATE = {Kind.ENTROPY_COLLAPSE: Subject.ENTROPY, Kind.KL_GROWTH: Subject.KL}


def not_a_number(history: RunHistory) -> Iterator[Cause]:
    """Find the first measurement that was NaN or infinite, in a series that had been finite."""
    found = [
        (step, key, worker)
        for key, of in history.oddities.items()
        for worker, track in of.items()
        if (step := _turned(history, key, worker, track.steps[0])) is not None
    ]
    counted = _counted_odd(history)
    found += counted
    if not found:
        return
    begun = min(found)[0]
    first = sorted(one for one in found if one[0] == begun)
    # Sums over ranks spread it at once. A single worker with it in a series that others have, too,
    # is its source.
    alone = [one for one in first if _is_alone(history, counted, one[1], one[2], begun)]
    suspects = {worker for *_, worker in alone or first}
    _, key, worker = (alone or first)[0]
    role = worker.partition("/")[0]
    until = None if counted else _finite_again(history, found)
    since = f"is NaN or infinite since step {begun}"
    if until is not None:
        since = f"was NaN or infinite from step {begun} to {until}, and is finite again"
    yield Cause(
        Kind.NAN,
        f"{key} of {worker if len(suspects) == 1 else role} {since}",
        role=role,
        worker=worker if len(suspects) == 1 else None,
        since=begun,
        until=until,
        evidence=[
            Evidence("NaN or infinite", of, by, after=math.nan)
            for _, of, by in (alone or first)[:MOST_WORKERS]
        ],
    )


def _finite_again(history: RunHistory, found: Sequence[tuple[int, str, str]]) -> int | None:
    """Return the last odd step, if every series that was odd has long been without odd values."""
    last = max(track.steps[-1] for of in history.oddities.values() for track in of.values())
    for _, key, worker in found:
        rows, own = history.rows.get(key, Track()), history.workers[key].get(worker, Track())
        later = max(sum(step > last for step in track.steps) for track in (rows, own))
        if later < MANY:
            return None
    return last


def _turned(history: RunHistory, key: str, worker: str, first: int) -> int | None:
    """Return the first odd step of a worker's series; None if it was never finite before.

    Args:
        first: Step of the first snapshot with an odd measurement of the series.
    """
    of = history.workers.get(key, {})
    if worker not in of or min(of[worker].steps) > first:
        return None
    # A snapshot of many quick steps has the newest of them; its rows tell them apart.
    before = max((step for step in of[worker].steps if step < first), default=None)
    finite, rows = before is not None, history.rows.get(key, Track())
    for step, value in rows.pairs():
        if before is not None and step <= before:
            continue
        if before is not None and step > first:
            break
        if finite and not math.isfinite(value):
            return step
        finite = finite or math.isfinite(value)
    return None if before is None else first


def _counted_odd(history: RunHistory) -> list[tuple[int, str, str]]:
    """Return the first (step, key, worker) of each count of NaN or infinite elements."""
    found = []
    for key, worker, track in tracks_about(history, Subject.NONFINITE):
        odd = [step for step, value in track.pairs() if value > 0]
        if odd and worker is not None:
            found.append((min(odd), key, worker))
    return found


def _is_alone(
    history: RunHistory, counted: Sequence[tuple[int, str, str]], key: str, worker: str, step: int
) -> bool:
    """Return whether other workers measured the key too, none with odd values by that step."""
    others = [name for name in history.workers[key] if name != worker]
    if re.search(Subject.NONFINITE, key):
        odd = {name for at, of, name in counted if of == key and at <= step}
    else:
        # Workers of one snapshot turned at once: it does not tell their steps apart.
        seen = max(step, history.oddities[key][worker].steps[0])
        odd = {name for name, of in history.oddities[key].items() if of.steps[0] <= seen}
    return bool(others) and odd.isdisjoint(others)


def wrong_rewards(history: RunHistory) -> Iterator[Cause]:
    """Find rewards that jump, or become constant, while the policy goes on as before."""
    jumps = _jumps_of_rewards(history)
    if not jumps:
        return
    largest, key = max(jumps, key=lambda one: one[0].size)
    spreads = {of for of, _ in rows_about(history, Subject.REWARD_STD)}
    if _policy_moved(history, largest.step):
        return  # and its rewards with it
    if any(settings_changed(history, largest.step)):
        return  # other tasks have other rewards
    if _is_earned(history, largest) or _is_not_earned(history, largest):
        return
    if (
        key in spreads
        and not _is_constant(history, largest)
        and any(
            one.since is not None and abs(one.since - largest.step) <= SLACK
            for one in dead_groups(history)
        )
    ):
        return  # rewards of a group are equal, and those of groups are as before
    yield Cause(
        Kind.REWARD_BUG,
        f"rewards are computed differently since step {largest.step}: {key} jumped from "
        f"{largest.before:.3g} to {largest.after:.3g}, and the policy did not change",
        role=_scorer(history, key),
        since=largest.step,
        evidence=[_evidence(one, of) for one, of in jumps],
    )


def _is_constant(history: RunHistory, found: Jump) -> bool:
    """Return whether all rewards are one value since a jump of their spread, and were not before.

    In groups without a signal, rewards still differ from group to group.
    """
    return any(
        len(since := track.since(found.step)) >= A_FEW
        and len({*since[-SEVERAL:]}) == 1 < len({*track.before(found.step)})
        for _, track in rows_about(history, Subject.REWARD_MEAN)
    )


def _is_earned(history: RunHistory, found: Jump) -> bool:
    """Return whether a score that the reward does not make has risen with the reward."""
    return found.after > found.before and any(
        (rise := jump(track)) is not None
        and rise.after > rise.before
        and abs(rise.step - found.step) <= A_FEW
        for key, track in held_out_scores(history).items()
        if not _PART_OF_REWARD.search(key)
    )


def _is_not_earned(history: RunHistory, found: Jump) -> bool:
    """Return whether a score was left behind at the jump, and nothing measures the policy.

    In that case a shortcut that was found at once looks like a reward that is computed differently.
    """
    measured = (rows_about(history, subject) for subject in _OF_POLICY)
    return not any(
        len(track.values) >= FEWEST_VARYING for of in measured for _, track in of
    ) and any(
        cause.since is not None and abs(cause.since - found.step) <= A_FEW
        for cause in reward_hacking(history)
    )


def new_tasks(history: RunHistory) -> Iterator[str]:
    """Yield in words the settings that changed on purpose, and rewards with them."""
    steps = {found.step for found, _ in _jumps_of_rewards(history)}
    if (fall := _fall(history)) is not None:
        steps.add(fall[1].step)
    changes = {change for step in steps for change in settings_changed(history, step)}
    yield from map(str, sorted(changes))


def _jumps_of_rewards(history: RunHistory) -> Sequence[tuple[Jump, str]]:
    mixed = _mixed_steps(history)
    return [
        (found, key)
        for subject in (Subject.REWARD_MEAN, Subject.REWARD_STD)
        for key, track in rows_about(history, subject)
        if (found := jump(track, mixed, start=_start(history, track))) is not None
        if subject is not Subject.REWARD_STD or _is_new(found, track)
    ]


def _is_new(found: Jump, track: Track) -> bool:
    """Return whether a series was never near the level to which it jumped.

    The spread of rewards has no trend: by chance it stays for a while at an earlier level.
    """
    before = track.before(found.step)
    if not before:  # steps that were repeated are in order of time
        return True
    least, most = min(before), max(before)
    near = GOOD_PART * (most - least)
    return not least - near <= found.after <= most + near


def _mixed_steps(history: RunHistory) -> int:
    """Return in how many steps batches mix samples from before and after a change of rewards."""
    ages = [
        median(track.values)
        for _, _, raw in tracks_about(history, Subject.STALENESS)
        if (track := raw.finite()).values
    ]
    return min(_MOST_MIXED, math.ceil(_OLDEST * max(ages, default=0.0)))


def _start(history: RunHistory, rewards: Track) -> int:
    """Return the number of first rewards that show what the policy learns at its start.

    While generators pause, or after a buffer was filled before the first step, a trainer learns
    from samples of its first policy; rewards of the first later samples show all at once what it
    has learned.
    """
    old = Track()
    for _, ages in rows_about(history, Subject.STALENESS):
        old = max(old, ages, key=lambda one: len(one.steps))
    age = dict(old.pairs())
    for place in range(START, 2 * START):
        if place >= len(rewards.steps) or START + age.get(rewards.steps[place - 1], 0.0) <= place:
            return place
    return 2 * START


def _policy_moved(history: RunHistory, step: int) -> bool:
    mixed = _mixed_steps(history)
    return any(
        moved.step <= step
        for subject in _OF_POLICY
        for _, track in rows_about(history, subject)
        if (moved := jump(track, mixed)) is not None
    )


def _evidence(one: Jump, key: str) -> Evidence:
    return Evidence("jump of the rewards", key, None, one.before, one.after)


def degeneration(history: RunHistory) -> Iterator[Cause]:
    """Find an entropy that collapses, a KL that diverges, or a reward that falls for good."""
    fall = _fall(history)
    if fall is not None and any(settings_changed(history, fall[1].step)):
        fall = None  # of harder tasks
    if fall is not None and any(
        one.until is None and one.since is not None and one.since <= fall[1].step + SLACK
        for one in not_a_number(history)
    ):
        fall = None  # of a policy that is no number: what it did before is not why
    for kind, subject in _DEGENERATE.items():
        for key, track in rows_about(history, subject):
            if re.search(Subject.MISMATCH_KL, key):
                continue  # of two programs with one policy
            yield from _degenerate(history, kind, key, track, fall)
    if fall is not None:
        key, dropped = fall
        words = f"the reward fell from {dropped.before:.3g} to {dropped.after:.3g}"
        yield Cause(
            Kind.REWARD_DROP,
            f"{words} at step {dropped.step}",
            role=key.partition("/")[0],
            since=dropped.step,
            evidence=[Evidence("reward", key, None, dropped.before, dropped.after)],
        )


def _fall(history: RunHistory) -> tuple[str, LevelChange] | None:
    """Return the first (tracker key, change) of a reward that falls for good."""
    falls = (
        (key, found)
        for key, track in rows_about(history, Subject.REWARD_MEAN)
        if (found := lasting_fall(track)) is not None
    )
    return next(falls, None)


def _degenerate(
    history: RunHistory, kind: Kind, key: str, track: Track, fall: tuple[str, LevelChange] | None
) -> Iterator[Cause]:
    """Find a worse level before the reward falls, or a departure from a trend for no reward."""
    what = "entropy collapses" if kind is Kind.ENTROPY_COLLAPSE else "KL runs away"
    found = level(track)
    if fall is not None and found is not None and _is_worse(kind, track, found):
        reward, dropped = fall
        if found.step <= dropped.step + A_FEW:
            since = _begun(track, found.step, dropped.step)
            yield Cause(
                kind,
                f"{what}: {key} went from {found.before:.3g} to {found.after:.3g} since "
                f"step {since}, and the reward fell",
                role=key.partition("/")[0],
                since=since,
                evidence=[
                    Evidence(what, key, None, found.before, found.after),
                    Evidence("reward", reward, None, dropped.before, dropped.after),
                ],
            )
            return
    left = departure(track)
    if left is None or not left.is_sure or not _is_far_off(kind, left):
        left = heading(track, times=FAR, is_up=kind is Kind.KL_GROWTH)
    if left is None:
        return
    rewards = [
        beyond_trend(one, left.step, fewest=1)
        for _, one in rows_about(history, Subject.REWARD_MEAN)
    ]
    if any(gain is not None and gain > LONGER_NOISE for gain in rewards):
        return  # the policy becomes certain because it has learned
    yield Cause(
        kind,
        f"{what}: {key} went from {left.before:.3g} to {left.after:.3g} since step "
        f"{left.step}, faster than ever before, and the reward gained nothing by it",
        role=key.partition("/")[0],
        since=left.step,
        evidence=[Evidence(what, key, None, left.before, left.after)],
    )


def _begun(track: Track, step: int, dropped: int) -> int:
    """Return the step in which a series left its trend; ranks part a slope in its middle."""
    left = departure(track)
    is_later = left is not None and left.is_sure and step <= left.step <= dropped + SLACK
    return left.step if left is not None and is_later else step


def _is_worse(kind: Kind, track: Track, found: LevelChange) -> bool:
    """Return whether the level is far worse than before, and worse than its trend."""
    beyond = beyond_trend(track, found.step, fewest=1)
    if kind is Kind.ENTROPY_COLLAPSE:
        return found.is_fall(ratio=_LOWER) and (beyond is None or beyond < 0)
    return found.is_rise(ratio=_HIGHER) and (beyond is None or beyond > 0)


def _is_far_off(kind: Kind, left: TrendDeparture) -> bool:
    """Return whether a positive series left its trend and stays off it."""
    if kind is Kind.ENTROPY_COLLAPSE:
        return 0 <= FAR * left.after < left.before and any(
            FAR * window.found < min(window.expected) for window in left.windows
        )
    return left.after > FAR * left.before > 0 and any(
        window.found > FAR * max(window.expected) > 0 for window in left.windows
    )


def lasting_fall(track: Track) -> LevelChange | None:
    """Return the change of a score that ends clearly below its best level."""
    fall = find_fall(track.values, part=_FALL) if len(track.values) >= MANY else None
    if fall is None:
        return None
    best = fall.place
    found = level(Track(track.steps[best:], track.times_s[best:], track.values[best:]))
    return found if found is not None and found.change.order < -IN_ORDER else None


def _scorer(history: RunHistory, key: str) -> str:
    """Return the role that computes rewards, if a role's name says so."""
    roles = {place.role for place in history.spans}
    scorers = (r for r in sorted(roles) if "env" in r or work_of(PhaseKey(r, "")) is Work.REWARD)
    return next(scorers, key.partition("/")[0])
