"""Detectors of slow phases: which phase became slower, and for which worker.

The own time of a span, without nested spans, separates a worker that became slower from workers
that wait for it, and a worker from its peers. A slowdown common to all phases of all workers is the
machine's, and is subtracted.
"""

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import islice
from math import inf, log, sqrt
from statistics import median
from typing import NamedTuple

from otel_rl.diagnose.classify import Work, is_collective, only_waits, work_of
from otel_rl.diagnose.detectors.workload import Workload
from otel_rl.diagnose.history.run_history import PhaseKey, RunHistory, Track
from otel_rl.diagnose.logged_work import with_logged_work
from otel_rl.diagnose.off_the_path import Paths
from otel_rl.diagnose.open_work import with_open_work
from otel_rl.diagnose.result import MOST_EVIDENCE, Cause, Evidence, Kind
from otel_rl.diagnose.stats.changes import DEVIATION, LEAST_DIVISOR, spread
from otel_rl.diagnose.stats.levels import LevelChange, common_ratio, level, medians, settled, soon
from otel_rl.diagnose.stats.peers import Peers, peers_of
from otel_rl.diagnose.stats.pooled import pooled
from otel_rl.diagnose.step_times import step_time, traces_of, usual_step_s
from otel_rl.diagnose.thresholds import (
    A_FEW,
    ALIKE,
    BEYOND_NOISE,
    FELT,
    FEWEST_BEFORE,
    FEWEST_PEERS,
    FEWEST_SINCE,
    GOOD_PART,
    HALF,
    IN_ORDER_OF_MANY,
    IN_ORDER_OF_STEPS,
    LARGE_PART,
    LEAST_LONGER,
    LEAST_PART,
    LONGER,
    LONGER_NOISE,
    MANY,
    MUCH_LONGER,
    NEARLY_ALL,
    NOISE_OF_MANY,
    SMALL_PART,
    STANDS_OUT,
)
from otel_rl.goodput import duration
from otel_rl.semconv.spec import STEP_SPAN

_MOSTLY = 0.65  # order of a slowdown against peers
_FITTED = 0.8  # values that the median takes up
_MUCH = 8  # times as long as peers, or as other work: no evidence is stronger
_UNEVEN = 2  # while steps take no longer, one of two workers is slower in few steps by chance

# Waits that show how long others take, who have no phases: a transfer's, a data loader's.
_MADE_BY_OTHERS = frozenset({Work.SYNC, Work.DATA})


# A worker that joined or left has no level on one side.
_NO_LEVELS = (0.0, 0.0)

# Slowdowns that are tried to tell which would be found, and workers whose noise counts then.
_TRIED = (1.2, 1.3, 1.4, 1.5, 1.7, 2.0, 2.5, 3.0, 4.0, 6.0, 10.0)

_KINDS = {
    Work.GENERATION: Kind.SLOW_GENERATION,
    Work.REWARD: Kind.SLOW_REWARD,
    Work.TRAINING: Kind.SLOW_TRAINING,
    Work.SYNC: Kind.SLOW_SYNC,
    Work.ENVIRONMENT: Kind.SLOW_TOOL,
    Work.DATA: Kind.SLOW_DATA,
    Work.OTHER: Kind.SLOW_PHASE,
}

# All peers wait for each of these, so a single slow one is a straggler.
_IN_STEP = frozenset({Kind.SLOW_TRAINING, Kind.SLOW_PHASE, Kind.SLOW_TOOL, Kind.SLOW_DATA})


class _Slow(NamedTuple):
    """A worker's phase that takes longer than before.

    Attributes:
        step: First step of the slowdown.
        before: Duration before, in s.
        after: Duration since that step, in s.
        excess: Slowdown factor beyond that of peers or of the rest of the run.
        share: Added part of the worker's time since that step.
    """

    worker: str
    step: int
    before: float
    after: float
    excess: float
    share: float


def slow_kind(place: PhaseKey, *, is_alone: bool = False) -> Kind:
    """Return the kind of fault if a phase takes longer, for one worker alone or for its role."""
    kind = Kind.SLOW_PHASE if is_collective(place) else _KINDS[work_of(place)]
    return Kind.STRAGGLER if is_alone and kind in _IN_STEP else kind


def slow_work(history: RunHistory) -> Iterator[Cause]:
    """Find phases in which a worker, or a whole role, takes clearly longer for the same work."""
    history = with_open_work(with_logged_work(history))
    work = {place: history.spans[place] for place in history.spans if _is_tested(history, place)}
    of_role = {
        place: _least(tracks) if is_collective(place) else pooled(history, place)
        for place, tracks in work.items()
    }
    usual_s = usual_step_s(history)
    load = Workload(history)
    eased_s = load.eased_steps(step_time(history))
    longer_s = _longer_step(eased_s)
    is_felt = _takes_longer(eased_s)
    paths, grown = Paths(history), {*grown_together(history)}
    for place, tracks in work.items():
        if is_collective(place) and not is_felt:
            continue  # who comes last waits a little longer by chance
        # A part of every step has to explain a good part of the added duration of steps.
        is_of_steps = PhaseKey(place.role, STEP_SPAN) in history.spans
        least_s = max(LEAST_PART * usual_s, GOOD_PART * longer_s if is_of_steps else 0.0)
        peers = peers_of(history, place)
        alone = (
            []
            if is_collective(place)
            else _alone(
                history, place, peers, of_role[place], least_s, None if is_felt else eased_s
            )
        )
        if alone and len(alone) <= max(1, len(tracks) // FEWEST_PEERS):
            yield _cause(history, place, alone, is_alone=True)
            continue
        found = _slowdown(load, place, tracks, of_role[place])
        if found is None or place in grown:
            continue
        others = [
            track
            for other, track in of_role.items()
            if other != place and not paths.leave_out(other, found.step)
        ]
        if not load.is_known(found.step + 1) and _is_shared(found, others):
            continue  # makers are ahead of the step that tells their amount, or counts come late
        excess = found.ratio / common_ratio(others, found.step)
        slow = [
            _Slow(worker, found.step, before, after, excess, share)
            for worker, track in tracks.items()
            for before, after in [medians(track, found.step) or _NO_LEVELS]
            if (share := more_of(history, place, worker, found.step, before, after))
            > _least_share(found)
            and added_s(history, place, worker, before, after) > least_s
        ]
        if excess >= _least_ratio(found) and 2 * len(slow) >= len(tracks):
            is_alone = len(slow) == 1 < len(tracks) and _is_apart(slow[0], tracks)
            yield _cause(history, place, slow, is_alone=is_alone)


def _is_tested(history: RunHistory, place: PhaseKey) -> bool:
    is_made = work_of(place) in _MADE_BY_OTHERS or is_collective(place)
    return is_made or not only_waits(history, place)


def grown_together(history: RunHistory) -> Sequence[PhaseKey]:
    """Return kinds of work that gradually take longer in proportion to each other, in order.

    They do if answers grow while a policy learns, and no metric reports their length.
    """
    if Workload(history).what:
        return []
    ratios = {}
    for place in sorted(history.spans):
        track = settled(pooled(history, place)).finite()
        found = level(track)
        if found is None or only_waits(history, place) or is_collective(place):
            continue
        if found.is_rise(ratio=LEAST_LONGER, size=STANDS_OUT) and found.jump < HALF:
            ratios[place] = found.ratio
    return [
        place
        for place, ratio in ratios.items()
        if any(
            work_of(other) is not work_of(place) and ratio / ALIKE <= of <= ratio * ALIKE
            for other, of in ratios.items()
        )
    ]


def _alone(
    history: RunHistory,
    place: PhaseKey,
    peers: Peers,
    of_role: Track,
    least_s: float,
    unfelt: Track | None,
) -> list[_Slow]:
    """Return the workers that became slower than their peers.

    Args:
        peers: Times of the workers relative to each other.
        of_role: Times of the role as a whole.
        least_s: Least time that a slowdown has to add to a step, in s.
        unfelt: Times of steps for their work if most take no longer; None if they take longer.
    """
    # The start of a run is as odd in the ratio to peers, if these start at another time.
    begun = next(iter(settled(of_role).steps), history.first)
    relative = {worker: _since(peers.relative(worker), begun) for worker in history.spans[place]}
    shown = _farthest(relative.values())
    found = (
        _slower_than_peers(history, place, worker, relative, shown, least_s, unfelt)
        for worker in relative
    )
    return [one for one in found if one is not None]


def _slowdown(
    load: Workload, place: PhaseKey, tracks: Mapping[str, Track], of_role: Track
) -> LevelChange | None:
    """Return the slowdown of a role whose work takes longer by itself and for its amount.

    The step in progress reports its amount only at its end. If its work is long, and so was that of
    the step before for its amount, the reason is not that there is more of it.
    """
    eased = load.eased(place, of_role, ahead=int(load.is_of_its_step(tracks)))
    found, for_its_amount = soon(settled(of_role)), soon(settled(eased))
    if found is None or for_its_amount is None:
        return None
    if not (_is_slower(found) and _is_slower(for_its_amount)):
        return None
    noise = _noise_of_all(tracks.values(), found.step) / sqrt(len(tracks))
    both = (found, for_its_amount)
    return found if all(_is_slower(one, noise=noise) for one in both) else None


def _is_shared(found: LevelChange, others: Iterable[Track]) -> bool:
    """Return whether other work takes as many times as long since then, as with a larger batch."""
    levels = (medians(track, found.step, shortest=2) for track in others)
    ratios = [after / before for before, after in filter(None, levels) if before > 0]
    return any(found.ratio / ALIKE <= ratio <= found.ratio * ALIKE for ratio in ratios)


def _is_slower(found: LevelChange, *, noise: float = 0.0) -> bool:
    return found.is_rise(ratio=_least_ratio(found, noise=noise), size=STANDS_OUT)


def _least_ratio(found: LevelChange, uneven: float = 0.0, *, noise: float = 0.0) -> float:
    """Return the smallest slowdown that stands out of the noise of a series.

    Args:
        uneven: Part by which the slowdown must be larger where noise decides.
        noise: Noise of all workers, as few values of one series may agree by chance.
    """
    noise = max(noise, found.change.relative_noise)
    often = min(found.change.place, found.change.length - found.change.place)
    of_few = BEYOND_NOISE * min(1.0, sqrt(FEWEST_SINCE / often)) * noise
    of_many = min(MUCH_LONGER - 1, LONGER_NOISE * noise)
    by_noise = min(1.0, max(of_few, LONGER_NOISE * noise) / HALF)
    return max(LEAST_LONGER, (1 + max(of_few, of_many)) * (1 + uneven * by_noise))


def least_slowdowns(history: RunHistory) -> Mapping[Kind, float]:
    """Return for each kind of work the smallest slowdown of a role that is found.

    The rules that decide find it: the second half of the run is made slower in the phase with most
    time. Kinds that would not show at ten times as slow are left out.
    """
    history = with_logged_work(history)
    load, usual_s = Workload(history), usual_step_s(history)
    work = {place: of for place, of in history.spans.items() if _is_tested(history, place)}
    shares = {
        place: _share(history, place, min(tracks), history.first)
        for place, tracks in work.items()
        if tracks and not is_collective(place)
    }
    found = {}
    for place in sorted(shares, key=lambda place: shares[place]):
        others = [pooled(history, other) for other in work if other != place]
        few = dict(islice(history.spans[place].items(), MANY))
        is_seen = partial(_is_seen, load, place, few, pooled(history, place), others)
        times = bisect_left(
            _TRIED, 1, key=lambda times: is_seen(times, share=shares[place], usual_s=usual_s)
        )
        found[slow_kind(place)] = _TRIED[times] if times < len(_TRIED) else inf
    return {kind: times for kind, times in found.items() if times < inf}


def _is_seen(
    load: Workload,
    place: PhaseKey,
    tracks: Mapping[str, Track],
    of_role: Track,
    others: Sequence[Track],
    times: float,
    *,
    share: float,
    usual_s: float,
) -> bool:
    """Return whether work that takes ``times`` times as long from the middle on is found."""
    middle = len(of_role.values) // 2
    slower = [*of_role.values[:middle], *(times * one for one in of_role.values[middle:])]
    if len(slower) < FEWEST_BEFORE or (times - 1) * median(of_role.values) < (LEAST_PART * usual_s):
        return False
    found = _slowdown(load, place, tracks, Track.of(of_role.steps, of_role.times_s, slower))
    if found is None or found.ratio / common_ratio(others, found.step) < _least_ratio(found):
        return False
    added = share * (times - 1)
    return added / (1 + added) > _least_share(found)


def _least_share(found: LevelChange) -> float:
    if found.change.size >= BEYOND_NOISE:
        return LEAST_PART
    return SMALL_PART if found.change.order >= IN_ORDER_OF_MANY else LARGE_PART


def _longer_step(eased_s: Track) -> float:
    """Return by how many seconds a step takes longer for its work, if it clearly does."""
    found = level(settled(eased_s))
    if found is None or not found.is_rise(ratio=LONGER):
        return 0.0
    return found.after - found.before


def _takes_longer(eased_s: Track) -> bool:
    found = soon(settled(eased_s))
    return found is not None and found.is_rise(ratio=FELT, order=IN_ORDER_OF_STEPS)


def _shows(eased_s: Track, since: int, longer_s: float) -> bool:
    """Return whether each later step has taken as much longer, beyond the noise of steps.

    Only ended steps count: the second slow piece of work comes before the end of its step.
    """
    place = bisect_left(eased_s.steps, since)
    before, after = eased_s.values[:place], eased_s.values[place:]
    if not before or not after:
        return False
    least_s = max(HALF * longer_s, NOISE_OF_MANY * spread(before))
    return min(after) - median(before) >= least_s


def _slower_than_peers(
    history: RunHistory,
    place: PhaseKey,
    worker: str,
    of_all: Mapping[str, Track],
    shown: float,
    least_s: float,
    unfelt: Track | None,
) -> _Slow | None:
    """Return the slowdown of a worker against peers with the same work in the same steps."""
    tracks, relative = history.spans[place], of_all[worker]
    track = tracks[worker]
    values = relative.values
    if not values or max(values) < LEAST_LONGER * min(values):
        return None  # no part of it is slower than another by so much
    found = soon(relative, among=len(tracks), shown=shown * median(values))
    if found is None or not found.is_up(_MOSTLY):
        return None
    before, after = medians(track, found.step) or _NO_LEVELS
    uneven = 0.0
    more_s = added_s(history, place, worker, before, after)
    if unfelt is not None and not _shows(unfelt, found.step, more_s):
        uneven = _UNEVEN / sum(step >= found.step for step in relative.steps)
    least_ratio = _least_ratio(found, uneven, noise=_noise_of_all(of_all.values(), found.step))
    if not found.is_rise(ratio=least_ratio, order=_MOSTLY, size=STANDS_OUT):
        return None
    share = more_of(history, place, worker, found.step, before, after)
    # Its peers may have become faster, which is no slowdown of its own.
    own_ratio = min(LEAST_LONGER, NEARLY_ALL * found.ratio)
    if after < own_ratio * before or more_s < least_s or share < _least_share(found):
        return None
    return _Slow(
        worker, _begun(track, found.step, before, after), before, after, found.ratio, share
    )


def _farthest(relative: Iterable[Track]) -> float:
    """Return the largest distance of any worker from its peers, in units of its usual distance.

    Where some work takes long now and then, that holds for every worker.
    """
    return max(
        (
            max(track.values[:-A_FEW]) / median(track.values)
            for track in relative
            if len(track.values) > A_FEW
        ),
        default=0.0,
    )


def _noise_of_all(relative: Iterable[Track], step: int) -> float:
    """Return the noise of all workers around their levels before and since a step."""
    off: list[float] = []
    for track in relative:
        place = bisect_left(track.steps, step)
        for part in (track.values[:place], track.values[place:]):
            if len(part) > 1 and (usual := median(part)) > 0:
                few = len(part) / (len(part) - _FITTED)
                off += [few * abs(value / usual - 1) for value in part]
    return DEVIATION * median(off) if off else 0.0


def _begun(track: Track, step: int, before: float, after: float) -> int:
    """Return the first of a worker's slow steps; in some of them its peers may have no value."""
    begun = step
    for at, value in zip(reversed(track.steps), reversed(track.values), strict=True):
        if at < step:
            if value < sqrt(before * after):
                break
            begun = at
    return begun


def _since(track: Track, step: int) -> Track:
    return (
        track if not track.steps or track.steps[0] >= step else track.between(step, track.steps[-1])
    )


def _is_apart(one: _Slow, tracks: Mapping[str, Track]) -> bool:
    """Return whether no peer became slower by nearly as much."""
    peers = [medians(track, one.step) for name, track in tracks.items() if name != one.worker]
    limit = sqrt(one.after / one.before) if one.before else inf
    return all(after < limit * before for before, after in filter(None, peers))


def _least(tracks: Mapping[str, Track]) -> Track:
    """Return the time of the last worker to enter a collective, in each step.

    The last worker may report no wait, because it has none: then the time is unknown.
    """
    of_step: dict[int, dict[str, float]] = defaultdict(dict)
    for worker, track in tracks.items():
        for step, value in track.pairs():
            of_step[step][worker] = min(value, of_step[step].get(worker, value))
    least = Track()
    for step, of in sorted(of_step.items()):
        if len(of) == len(tracks):
            least.add(step, 0.0, min(of.values()))
    return least


def added_s(
    history: RunHistory, place: PhaseKey, worker: str | None, before: float, after: float
) -> float:
    """Return the seconds that slower work adds to a step that has it, perhaps several times.

    Args:
        worker: The slower worker; None for its role.
        before: Seconds that the work took before.
        after: Seconds that the work takes now.
    """
    return max(1.0, history.calls_in_step(place, worker)) * (after - before)


def more_of(
    history: RunHistory, place: PhaseKey, worker: str, since: int, before: float, after: float
) -> float:
    """Return the added part of the worker's time, relative to an unchanged phase."""
    return _share(history, place, worker, since) * max(0.0, 1 - before / after) if after else 0.0


def _share(history: RunHistory, place: PhaseKey, worker: str, since: int) -> float:
    """Return the part of the worker's time since then that spans of the phase take."""
    taken = begun = ended = 0.0
    counts = history.counts[place][worker]
    for step, time_s, count, mean_s in zip(
        counts.steps,
        counts.times_s,
        counts.values,
        history.spans[place][worker].values,
        strict=True,
    ):
        if step >= since:
            taken += count * mean_s
            begun, ended = begun or time_s, time_s
    steps = [s for s in history.steps if s.step >= since]
    if len(steps) > 1:
        return taken / max(LEAST_DIVISOR, (steps[-1].end_ns - steps[0].end_ns) / 1e9)
    return taken / max(LEAST_DIVISOR, ended - begun)


def _cause(history: RunHistory, place: PhaseKey, slow: list[_Slow], *, is_alone: bool) -> Cause:
    slow.sort(key=lambda one: -one.excess * one.share)
    worst = slow[0]
    ratio = worst.after / worst.before if worst.before else inf
    found = slower(
        history,
        place,
        worst.worker if is_alone or len(history.spans[place]) == 1 else None,
        f"{place.phase} of {worst.worker if is_alone else place.role} takes {ratio:.1f} times as "
        f"long since step {worst.step}: {in_seconds(worst.before)} before, "
        f"{in_seconds(worst.after)} now{'; its peers do not' if is_alone else ''}",
        strength=min(1.0, log(worst.excess) / log(_MUCH)) + HALF * min(1.0, worst.share),
        levels=(worst.before, worst.after),
        since=worst.step,
    )
    first = replace(found.evidence[0], worker=worst.worker)
    others = [replace(first, worker=one.worker, before=one.before, after=one.after, traces=())
              for one in slow[1:MOST_EVIDENCE]]  # fmt: skip
    return replace(found, evidence=[first, *others])


def slower(
    history: RunHistory,
    place: PhaseKey,
    worker: str | None,
    words: str,
    *,
    levels: tuple[float, float],
    since: int | None = None,
    until: int | None = None,
    strength: float = 0.0,
    what: str = "",
) -> Cause:
    """Return work that takes longer as a cause.

    Args:
        worker: The worker that takes longer; None for the whole role.
        words: The cause's sentence.
        levels: Seconds that the work took before, or its peers take, and seconds now.
        since: First step of the cause; None if it always was so.
        until: First step after the cause; None if it goes on.
        strength: Strength of the evidence, from 0 to 1.
        what: What the levels measure, after "time of one ...".
    """
    is_alone = worker is not None and len(history.spans[place]) > 1
    traces = traces_of(history, history.first if since is None else since)
    return Cause(
        slow_kind(place, is_alone=is_alone),
        words,
        role=place.role,
        worker=worker,
        phase=place.phase,
        since=since,
        until=until,
        strength=strength,
        evidence=[
            Evidence(
                f"time of one {place.phase}{what}", f"phase/{place}", worker, *levels, "s", traces
            )
        ],
    )


def in_seconds(value: float) -> str:
    return f"{value * 1e3:.3g} ms" if value < 1 else duration(value)
