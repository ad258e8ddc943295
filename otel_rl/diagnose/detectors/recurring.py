"""Detectors of trouble that comes and goes: every third step, rarely, or for a while.

A median does not show such trouble. So steps are counted in which a worker takes far longer than
its peers for the same work, and compared with how often that happens to the others. If it happens
to a whole role at once, the steps before the first one are compared with those after it.

A role, or one of two workers, may also be slow for a while: then the slow steps are the stretch of
values that are longest, and longer than all others. With more workers, peers show it.
"""

from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from math import comb, exp, factorial, inf, log, sqrt
from statistics import fmean, median
from typing import NamedTuple

from otel_rl.diagnose.classify import Work, only_waits, work_of
from otel_rl.diagnose.detectors.slow_phases import added_s, slower
from otel_rl.diagnose.detectors.workload import Workload
from otel_rl.diagnose.history.rhythm import BEGINNING
from otel_rl.diagnose.history.run_history import PhaseKey, RunHistory, Track
from otel_rl.diagnose.logged_work import with_logged_work
from otel_rl.diagnose.result import Cause
from otel_rl.diagnose.stats.changes import LEAST_DIVISOR, spread
from otel_rl.diagnose.stats.levels import settled
from otel_rl.diagnose.stats.medians import Ratios, ToMedian
from otel_rl.diagnose.stats.pooled import pooled
from otel_rl.diagnose.step_times import step_time, usual_step_s
from otel_rl.diagnose.thresholds import (
    A_FEW,
    BEYOND_NOISE,
    CHANCE,
    CLEARLY,
    FEWEST_PEERS,
    FEWEST_SINCE,
    FEWEST_VARYING,
    HALF,
    LEAST_PART,
    LONGER,
    MOSTLY,
    OFTEN,
    SEVERAL,
    SMALL_PART,
    UNLIKE,
)

_FEWEST_STEPS = 20  # that are compared, also before the first odd one
_FAR = 1.35  # times its peers
_FAR_NOISE = 4.5  # times the noise of that ratio
_MOST_EXPONENT = 300.0  # times any value, it is a number
_LIKELY = 0.02  # chance of odd steps that cost much, or that all workers have
_KNOWN = 100  # steps of other runs without one: accidents are rare, also in a short run
_MUCH_LONGER = 3.0  # times the usual: no busy machine
_TWO = 2  # workers: neither has peers, and their mean may show nothing


class _Odd(NamedTuple):
    """A step in which a worker took far longer than its peers.

    Attributes:
        peers_s: Median time of the peers.
        own_s: Time of the worker.
    """

    step: int
    peers_s: float
    own_s: float

    @property
    def times(self) -> float:
        """Return the ratio of the worker's time to that of its peers."""
        return self.own_s / self.peers_s


def recurring(history: RunHistory) -> Iterator[Cause]:
    """Find workers that are far slower than their peers in some of the steps."""
    history = with_logged_work(history)
    whole_s = sum(step_time(history).finite().values) or history.ends_s
    if not whole_s:
        return  # all steps came at once: what they lost is unknown
    for place, tracks in history.spans.items():
        waits = only_waits(history, place) and work_of(place) is not Work.SYNC
        if waits or len(tracks) < FEWEST_PEERS:
            continue
        found = _odd_steps(history, place)
        if found.compared < _FEWEST_STEPS:
            continue
        every = sorted(one.times for odd in found.of.values() for one in odd)
        for worker in found.of:
            if steps := _own_trouble(history, found, worker, every, whole_s):
                yield _cause(history, place, worker, steps, _longer_s(steps) / whole_s)


def _own_trouble(
    history: RunHistory,
    found: "_OddSteps",
    worker: str,
    every: Sequence[float],
    whole_s: float,
) -> Sequence[_Odd]:
    """Return the odd steps of a worker that chance does not explain; none if chance may."""
    if len(found.of[worker]) < A_FEW:
        return ()
    steps, others = _alike(found.of[worker], every)
    if len(steps) < A_FEW:
        return ()
    workers, faster = len(found.of), found.faster[worker]
    cost = _longer_s(steps) / max(LEAST_DIVISOR, whole_s)
    chance = _LIKELY if cost >= SMALL_PART else CHANCE
    if (
        len(steps) >= FEWEST_SINCE
        and _lost_part(history, steps, faster, whole_s) >= LEAST_PART
        and workers * _tail(len(steps) + others, len(steps), 1 / workers) < chance
    ):
        return steps
    newest, rate = steps[-A_FEW:], (others + 1) / (found.compared * (workers - 1) + _KNOWN)
    is_near = (
        found.beyond[worker] > 1
        and workers * _chance_of(newest, rate) < CHANCE
        and _lost_s(newest, faster) >= SMALL_PART * _since_s(history, newest[0].step)
    )
    return newest if is_near else ()


def _alike(own: Sequence[_Odd], every: Sequence[float]) -> tuple[Sequence[_Odd], int]:
    """Return a worker's odd steps, and how many equally odd ones the others have.

    Small trouble, of which each worker has some, does not explain large trouble of one.

    Args:
        own: The worker's odd steps; at least one.
        every: Ratios of the odd steps of all workers, in order.
    """
    far = sqrt(median(one.times for one in own))
    alike = [one for one in own if one.times >= far]
    return alike, len(every) - bisect_left(every, far) - len(alike)


def recurring_of_all(history: RunHistory) -> Iterator[Cause]:
    """Find work that takes a whole role far longer in some steps, and never did before."""
    history = with_logged_work(history)
    steps = step_time(history).finite()
    took_s = dict(steps.pairs())
    if len(took_s) < 2 * _FEWEST_STEPS or not any(took_s.values()):
        return
    load, usual_s, mean_s = Workload(history), median(took_s.values()), fmean(took_s.values())
    for place, tracks in history.spans.items():
        if only_waits(history, place):
            continue
        of_all = settled(load.eased(place, pooled(history, place)))
        odd = _odd_of_all(of_all)
        longer_s = _longer_s(odd) / max(1, len(of_all.values))  # each, on average
        cost = history.calls_in_step(place) * longer_s / mean_s
        is_felt = all(
            took_s.get(one.step, 0.0) >= usual_s + HALF * (one.own_s - one.peers_s) for one in odd
        )
        if len(odd) >= FEWEST_SINCE and cost >= LEAST_PART and is_felt and _is_of_all(tracks, odd):
            yield _cause(history, place, None, odd, cost)


def _odd_of_all(track: Track) -> list[_Odd]:
    """Return a series' odd steps if none came for long before, and the rest is as before."""
    if len(track.values) < 2 * _FEWEST_STEPS:
        return []
    usual = median(track.values)
    far = usual * max(CLEARLY, _beyond_noise(spread([log(one) for one in track.values])))
    places = [place for place, value in enumerate(track.values) if value >= far]
    if not places or places[0] < _FEWEST_STEPS:
        return []
    if len(places) > HALF * len(track.values):
        return []  # another level
    odd = [_Odd(track.steps[place], usual, track.values[place]) for place in places]
    return odd if _chance_of_all(places, len(track.values), odd) <= _LIKELY else []


def _beyond_noise(noise: float) -> float:
    """Return the ratio that is far beyond a noise of logarithms."""
    return exp(min(_FAR_NOISE * noise, _MOST_EXPONENT))


def _chance_of_all(places: Sequence[int], length: int, odd: Sequence[_Odd]) -> float:
    """Return the chance that all odd steps are after the first, or near to each other.

    A busy machine slows neighbouring steps, too, but less.
    """
    further = len(places) - 1
    chance = ((length - places[0]) / length) ** further
    if min(one.times for one in odd) >= _MUCH_LONGER:
        near = (places[-1] - places[0] + 1) / length
        chance = min(chance, len(places) * near**further)
    return chance


def _is_of_all(tracks: Mapping[str, Track], odd: Sequence[_Odd]) -> bool:
    """Return whether every worker was slow in most of these steps."""
    steps, far = {one.step for one in odd}, sqrt(median(one.times for one in odd))
    for track in tracks.values():
        usual = median(track.values)
        slow = {s for s, v in track.pairs() if v >= far * usual}
        if len(slow & steps) < OFTEN * len(steps):
            return False
    return True


def _longer_s(steps: Sequence[_Odd]) -> float:
    return sum(one.own_s - one.peers_s for one in steps)


def _chance_of(steps: Sequence[_Odd], rate: float) -> float:
    """Return the chance that the first of these steps is followed by the others so soon.

    Args:
        steps: The newest few odd steps.
        rate: Highest rate of odd steps of other workers.
    """
    return (rate * (steps[-1].step - steps[0].step)) ** (len(steps) - 1) / factorial(len(steps) - 1)


def _since_s(history: RunHistory, step: int) -> float:
    """Return the seconds since the first news of a step; infinite if the step itself had none."""
    return history.ends_s - history.begun_s[step] if step in history.begun_s else inf


def _lost_s(steps: Sequence[_Odd], faster: Sequence[_Odd]) -> float:
    """Return the time that these steps took longer, less what the worker made up around them.

    Work that is counted in the next step is missing in its own.
    """
    return _longer_s(steps) + _longer_s([one for one in faster if one.step >= steps[0].step - 1])


def _lost_part(
    history: RunHistory, steps: Sequence[_Odd], faster: Sequence[_Odd], whole_s: float
) -> float:
    """Return the lost part of the run's time, or of the time since the first of these steps."""
    since_s = min(max(LEAST_DIVISOR, whole_s), _since_s(history, steps[0].step))
    return _lost_s(steps, faster) / since_s if since_s > 0 else 0.0


class _OddSteps(NamedTuple):
    """The odd steps of all workers.

    Attributes:
        compared: Number of steps that were compared.
        beyond: By worker with a few odd steps, how odd the least of them is, in units of the
            largest distance of any other value from the usual one.
        faster: By such a worker, the steps in which it was as far below its usual ratio to its
            peers.
    """

    of: Mapping[str, Sequence[_Odd]]
    compared: int
    beyond: Mapping[str, float]
    faster: Mapping[str, Sequence[_Odd]]


def _odd_steps(history: RunHistory, place: PhaseKey) -> _OddSteps:
    found = ToMedian(history.spans[place], history.first + BEGINNING)
    ratios = found.of_workers
    usual = {worker: one.usual for worker, one in ratios.items()}
    if all(one.most < _FAR * one.least for one in usual.values()):
        return _OddSteps({}, found.steps, {}, {})
    # The noise of all: that of the worker itself may be its fault.
    far = max(_FAR, _beyond_noise(median(one.noise for one in usual.values())))
    odd = {worker: _odd(one, far) for worker, one in ratios.items()}
    often = [worker for worker, steps in odd.items() if len(steps) >= A_FEW]
    most = {worker: one.most / one.ratio - 1 for worker, one in usual.items()}
    beyond = {worker: _beyond(ratios[worker], len(odd[worker]), worker, most) for worker in often}
    return _OddSteps(
        odd, found.steps, beyond, {worker: _faster(ratios[worker], far) for worker in often}
    )


def _odd(of: Ratios, far: float) -> list[_Odd]:
    least = far * of.usual.ratio
    if of.usual.most < least:
        return []
    columns = zip(of.values, of.steps, of.medians, of.own, strict=True)
    return [_Odd(step, middle, own) for ratio, step, middle, own in columns if ratio >= least]


def _faster(of: Ratios, far: float) -> list[_Odd]:
    usual = of.usual.ratio
    columns = zip(of.values, of.steps, of.medians, of.own, strict=True)
    return [
        _Odd(step, usual * middle, own)
        for ratio, step, middle, own in columns
        if ratio <= usual / far
    ]


def _beyond(of: Ratios, count: int, worker: str, most: Mapping[str, float]) -> float:
    """Return the factor by which a worker's least odd value exceeds all others.

    Args:
        of: Values of the worker.
        count: Number of odd values.
        most: The farthest value of each worker above its usual one.
    """
    own = [ratio / of.usual.ratio - 1 for ratio in sorted(of.values)]
    others = [one for other, one in most.items() if other != worker]
    usual = max(own[: len(own) - count], default=0.0)
    return own[-count] / max(LEAST_DIVISOR, usual, *others)


def _tail(n: int, least: int, chance: float) -> float:
    """Return the probability of ``least`` or more of ``n`` events."""
    if n > 1_000:  # the terms exceed a float
        return 0.0 if least > 2 * n * chance else 1.0
    return sum(comb(n, k) * chance**k * (1 - chance) ** (n - k) for k in range(least, n + 1))


def _cause(
    history: RunHistory, place: PhaseKey, worker: str | None, odd: Sequence[_Odd], cost: float
) -> Cause:
    first, last = odd[0].step, odd[-1].step
    before, after = median(one.peers_s for one in odd), median(one.own_s for one in odd)
    gaps = [b.step - a.step for a, b in pairwise(odd)]
    gap = median(gaps)
    is_over = history.last - last > FEWEST_SINCE * max(gap, max(gaps) / 2)
    if gap > 1 and len(gaps) > 1 and sum(one == gap for one in gaps) >= OFTEN * len(gaps):
        when = f"every {gap:.0f} steps since step {first}"
    elif sum(one == 1 for one in gaps) >= OFTEN * len(gaps):
        when = f"in steps {first} to {last}"
    else:
        when = f"in {len(odd)} of the steps {first} to {last}"
    # What has just begun in a long run has cost little yet.
    part = f", {cost:.0%} of the time of all steps" if cost >= LEAST_PART else ""
    over = f"; over since step {last + 1}" if is_over else ""
    return slower(
        history,
        place,
        worker,
        f"{place.phase} of {worker or place.role} takes {after / before:.1f} times as long as "
        f"{'usual' if worker is None else 'that of its peers'} {when}{part}{over}",
        strength=min(1.0, cost),
        levels=(before, after),
        since=first,
        until=last + 1 if is_over else None,
        what=" in these steps, usual and then"
        if worker is None
        else " in these steps, of its peers and its own",
    )


class _Stretch(NamedTuple):
    """Part of a series that is longer than the rest.

    Attributes:
        since: First step of the part.
        until: First step after the part.
        usual: Median of the rest.
        now: Median of the part.
    """

    since: int
    until: int
    usual: float
    now: float


def passing_slowdowns(history: RunHistory) -> Iterator[Cause]:
    """Find phases of roles or workers that took longer for some steps, and then no more."""
    history = with_logged_work(history)
    load = Workload(history)
    least_s = LEAST_PART * usual_step_s(history)
    for place, tracks in history.spans.items():
        if only_waits(history, place) and work_of(place) is not Work.SYNC:
            continue
        of_role = pooled(history, place)
        found = _passing(settled(load.eased(place, of_role)))
        if found is not None and not _has(of_role, found):
            found = None  # only the work changed, which this phase does not depend on
        if found is None and len(tracks) != _TWO:
            continue
        own = {worker: settled(load.eased(place, track)) for worker, track in tracks.items()}
        slow = [worker for worker, track in own.items() if _has(track, found)]
        worker = slow[0] if len(slow) == 1 < len(own) else None
        if worker is not None:
            found = _passing(own[worker]) or found
        if found is not None and added_s(history, place, worker, found.usual, found.now) >= least_s:
            yield _cause_for_a_while(history, place, worker, found)


def _has(track: Track, found: _Stretch | None) -> bool:
    """Return whether the worker was slow while its role was, or at all if the role was not."""
    if found is None:
        return _passing(track) is not None
    columns = [*track.pairs()]
    inside = [value for step, value in columns if found.since <= step < found.until]
    others = [value for step, value in columns if not found.since <= step < found.until]
    return bool(inside and others) and median(inside) >= sqrt(found.now / found.usual) * median(
        others
    )


def _passing(track: Track) -> _Stretch | None:
    """Return the part of a series that is clearly longer than what is before and after it."""
    found = _longest(track.values)
    if found is None:
        return None
    begin, end = found
    inside = track.values[begin:end]
    others = [*track.values[:begin], *track.values[end:]]
    usual = median(others)
    least = usual * max(LONGER, 1 + BEYOND_NOISE * spread(others) / usual)
    if len(inside) < SEVERAL and min(inside) < UNLIKE * max(others):
        return None
    if len({*track.steps[begin:end]}) < FEWEST_SINCE:
        return None  # several values of a step have one reason
    is_clear = sum(value >= least for value in inside) >= MOSTLY * len(inside)
    is_apart = sum(value >= least for value in others) <= (1 - MOSTLY) / 2 * len(others)
    cost = sum(value - usual for value in inside) / max(LEAST_DIVISOR, sum(track.values))
    if not (is_clear and is_apart and cost >= LEAST_PART):
        return None
    return _Stretch(track.steps[begin], track.steps[end], usual, median(inside))


def _longest(values: Sequence[float]) -> tuple[int, int] | None:
    """Return the stretch that is most above the median, if it lies within the series."""
    if len(values) < FEWEST_SINCE + FEWEST_VARYING or min(values) <= 0:
        return None
    middle = median(values)
    above = [log(value / middle) - log(LONGER) / 2 for value in values]
    best, total, begin, found = 0.0, 0.0, 0, (0, 0)
    for place, one in enumerate(above):
        if total <= 0:
            total, begin = 0.0, place
        total += one
        if total > best:
            best, found = total, (begin, place + 1)
    first, end = found
    is_within = first >= FEWEST_SINCE and len(values) - end >= FEWEST_SINCE
    return found if end - first >= FEWEST_SINCE and is_within else None


def _cause_for_a_while(
    history: RunHistory, place: PhaseKey, worker: str | None, found: _Stretch
) -> Cause:
    since, until, usual, now = found
    return slower(
        history,
        place,
        worker,
        f"{place.phase} of {worker or place.role} took {now / usual:.1f} times as long in steps "
        f"{since} to {until - 1}; over since step {until}",
        levels=(usual, now),
        since=since,
        until=until,
    )
