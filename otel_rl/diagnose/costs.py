"""Cost of a cause: each step is replayed with the phase as it was before.

The slowest worker of a phase decides how long the others wait for it. So without the fault a step
is shorter by the time that the slowest worker then saves, if that phase is on the critical path.
"""

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from math import sqrt
from statistics import fmean, median, variance
from typing import Final, NamedTuple

from otel_rl.diagnose.classify import only_waits
from otel_rl.diagnose.detectors.slow_phases import more_of
from otel_rl.diagnose.detectors.workload import Workload
from otel_rl.diagnose.history.run_history import PhaseKey, RunHistory, Track
from otel_rl.diagnose.result import SLOW, Cause, Kind
from otel_rl.diagnose.spans.critical_path import IDLE
from otel_rl.diagnose.stats.levels import medians, settled
from otel_rl.diagnose.step_times import step_time
from otel_rl.diagnose.thresholds import LONGER_NOISE, SIDE, SMALL_PART, UNLIKE
from otel_rl.goodput import duration
from otel_rl.semconv.names import RlPhaseValues
from otel_rl.semconv.spec import STEP_SPAN

_LEAST: Final = 0.01  # of a step
_UNACCOUNTED: Final = str(RlPhaseValues.UNACCOUNTED)
_UNEXPLAINED: Final = frozenset({IDLE, STEP_SPAN})

# Kinds that make steps longer by other ways than a phase that is known to be slower.
_SLOWER: Final = frozenset(
    {
        Kind.NETWORK_DELAY,
        Kind.STARVATION,
        Kind.KV_THRASH,
        Kind.GC_PAUSES,
        Kind.THROTTLED,
        Kind.CRASH_LOOP,
    }
)
_HOUR_S: Final = 3600.0
_GPUS: Final = "gpu/count"


class Cost(NamedTuple):
    """Cost of a cause so far.

    Attributes:
        step_s: Median time of a step since the cause began.
        without_s: Median time of these steps without the cause.
        lost_s: Seconds that the run has lost.
        devices: Number of GPUs that have lost the time; of workers if no GPU is known.
        unit: ``GPU`` or ``worker``.
    """

    step_s: float
    without_s: float
    lost_s: float
    devices: float
    unit: str

    def __str__(self) -> str:
        """Return the text that follows the words of the cause."""
        without, usual = f"{self.without_s:.3g}", f"{self.step_s:.3g}"
        # The median step has nothing of what comes now and then.
        shorter = "" if without == usual else f"without it a step takes {without} s, not {usual}: "
        return f"; {shorter}{duration(3600 * self.lost_hours)} of {self.unit} time lost so far"

    @property
    def lost_hours(self) -> float:
        return self.lost_s * self.devices / _HOUR_S


def cost_of(history: RunHistory, cause: Cause, *, is_only: bool = False) -> Cost | None:
    """Return the cost of a cause; None if steps are not longer by it, or no data tells.

    Args:
        is_only: Whether the run has no other cause: steps may then be longer by it even if no phase
            shows it.
    """
    took = {one: value for one, value in zip(*_columns(history), strict=True) if _is_in(cause, one)}
    if not took or cause.kind is Kind.STALL:  # steps are none, and not longer
        return None
    added = _added(history, cause, took)
    if cause.phase is not None and cause.evidence and cause.evidence[0].after:
        saved = _saved_together(history, cause, took)
        if added is not None:
            saved = _at_most(saved, len(took) * (added.mean_s + added.error_s))
    elif is_only and cause.kind in _SLOWER and added is not None and added.is_clear:
        saved = dict.fromkeys(took, added.mean_s)
    else:
        return None
    lost_s = sum(saved.values())
    least = _LEAST if added is None or added.is_clear else SMALL_PART
    if lost_s < least * sum(took.values()):
        return None
    without = [max(0.0, seconds - saved.get(step, 0.0)) for step, seconds in took.items()]
    devices, unit = _devices(history)
    return Cost(median(took.values()), median(without), lost_s, devices, unit)


class _Added(NamedTuple):
    """Seconds by which a cause's steps are longer than the steps before, for their work.

    Attributes:
        mean_s: Mean of these seconds.
        error_s: Standard error of the mean.
    """

    mean_s: float
    error_s: float

    @property
    def is_clear(self) -> bool:
        """Return whether the noise of the steps cannot explain the added time."""
        return self.mean_s > LONGER_NOISE * self.error_s


def _added(history: RunHistory, cause: Cause, took: Mapping[int, float]) -> _Added | None:
    """Return the added time of a step; None if too few steps precede the cause."""
    eased = settled(Workload(history).eased_steps(step_time(history).finite()))
    columns = [*eased.pairs()]
    before = eased.before(cause.since or 0)
    since = [value for step, value in columns if step in took]
    if min(len(before), len(since)) < SIDE:
        return None
    error_s = sqrt(variance(before) / len(before) + variance(since) / len(since))
    return _Added(fmean(since) - fmean(before), error_s)


def _at_most(saved: Mapping[int, float], most_s: float) -> Mapping[int, float]:
    """Return the savings, scaled down if together they are more than ``most_s``."""
    all_s = sum(saved.values())
    if all_s <= max(0.0, most_s):
        return saved
    return {step: value * max(0.0, most_s) / all_s for step, value in saved.items()}


def ranked_by_cost(history: RunHistory, causes: Sequence[Cause]) -> Sequence[Cause]:
    """Return the causes with their costs in their words; causes that buffers hide come later.

    A loss of one replica is found though no step takes longer. It matters less than a cause that
    makes steps longer.
    """
    costs = [cost_of(history, one, is_only=len(causes) == 1) for one in causes]
    hidden = [
        "" if cost is not None else _lost_by_one(history, one)
        for one, cost in zip(causes, costs, strict=True)
    ]
    told = [
        replace(one, words=f"{one.words}{loss if cost is None else cost}")
        for one, cost, loss in zip(causes, costs, hidden, strict=True)
    ]
    if not any(costs):
        return told
    return [one for _, one in sorted(zip(map(bool, hidden), told, strict=True), key=_is_hidden)]


def _is_hidden(one: tuple[bool, Cause]) -> bool:
    return one[0]


def _lost_by_one(history: RunHistory, cause: Cause) -> str:
    """Return in words what a worker loses while steps take no longer; empty for other causes."""
    worker, phase, since = cause.worker, cause.phase, cause.since
    if worker is None or phase is None or since is None or cause.until is not None:
        return ""
    tracks = history.spans.get(PhaseKey(cause.role or "", phase), {})
    if worker not in tracks or len(tracks) == 1 or not cause.evidence:
        return ""
    took = {one: value for one, value in zip(*_columns(history), strict=True) if _is_in(cause, one)}
    added = _added(history, cause, took)
    if added is None:
        return ""
    _, unit = _devices(history)
    longer = f"steps are not longer{' by it' if added.is_clear else ''}"
    if cause.kind is Kind.STALL:
        return f"; {longer}; all of its {unit} time since then is lost"
    before, after = cause.evidence[0].before, cause.evidence[0].after
    if cause.kind not in SLOW or not before or not after:
        return ""
    place = PhaseKey(cause.role or "", phase)
    lost = min(1.0, more_of(history, place, worker, since, before, after))
    return f"; {longer}; {lost:.0%} of its {unit} time is lost"


def _devices(history: RunHistory) -> tuple[float, str]:
    """Return the number of GPUs that the workers report, else the number of workers."""
    gpus = history.rows.get(_GPUS, Track()).finite().values
    if gpus and median(gpus) > 0:
        return median(gpus), "GPU"
    return len({name for of in history.spans.values() for name in of}), "worker"


def _columns(history: RunHistory) -> tuple[Sequence[int], Sequence[float]]:
    track = step_time(history).finite()
    return track.steps, track.values


def _on_path(history: RunHistory, place: PhaseKey) -> Mapping[int, tuple[float, float]]:
    """Return a phase's seconds on each critical path, and the seconds that may be its own, too.

    A wait on the path may be for the phase, and time that no span of its role explains may be part
    of it.
    """
    may_be = {PhaseKey(place.role, _UNACCOUNTED): True}
    found = {}
    for step in history.steps:
        own_s = others_s = 0.0
        for role, phase, _, seconds in step.path:
            at = PhaseKey(role, phase)
            if at == place:
                own_s += seconds
                continue
            if at not in may_be:
                may_be[at] = phase in _UNEXPLAINED or only_waits(history, at)
            others_s += seconds if may_be[at] else 0.0
        found[step.step] = own_s, others_s
    return found


def _is_in(cause: Cause, step: int) -> bool:
    return (cause.since or 0) <= step and (cause.until is None or step < cause.until)


def _saved_together(
    history: RunHistory, cause: Cause, took: Mapping[int, float]
) -> Mapping[int, float]:
    """Return by how many seconds each step is shorter without the cause."""
    saved: dict[int, float] = defaultdict(float)
    for place, faster in _slow_places(history, cause):
        for step, seconds in _saved(history, cause, place, faster, took).items():
            saved[step] = min(saved[step] + seconds, took[step])
    return saved


def _slow_places(history: RunHistory, cause: Cause) -> Iterator[tuple[PhaseKey, float]]:
    """Yield the phase of a cause, and other phases in which its worker is slow since then.

    Each comes with the part of its time that is left without the cause.
    """
    if cause.kind is Kind.STAGE_IMBALANCE:
        yield from _unequal_places(cause)
        return
    evidence, named = cause.evidence[0], PhaseKey(cause.role or "", cause.phase or "")
    yield named, (evidence.before or 0.0) / (evidence.after or 1.0)
    if cause.worker is None:
        return
    for place, tracks in history.spans.items():
        own = tracks.get(cause.worker)
        if place.role != named.role or place == named or own is None or only_waits(history, place):
            continue
        levels = (
            _of_peers(cause.worker, tracks)
            if cause.since is None
            else medians(own, cause.since, shortest=SIDE)
        )
        if levels is not None and levels[1] >= UNLIKE * levels[0] > 0:
            yield place, levels[0] / levels[1]


def _unequal_places(cause: Cause) -> Iterator[tuple[PhaseKey, float]]:
    """Yield each phase of a long stage, and the ratio of a mean stage's time to its own."""
    for one in cause.evidence:
        role, _, phase = (one.key or "").removeprefix("phase/").partition("/")
        yield PhaseKey(role, phase), (one.before or 0.0) / (one.after or 1.0)


def _of_peers(worker: str, tracks: Mapping[str, Track]) -> tuple[float, float] | None:
    """Return the usual time of a worker's peers and the worker's own; None without any."""
    others = [median(of.values) for name, of in tracks.items() if name != worker and of.values]
    return (median(others), median(tracks[worker].values)) if others else None


def _saved(
    history: RunHistory, cause: Cause, place: PhaseKey, faster: float, took: Mapping[int, float]
) -> Mapping[int, float]:
    """Return how many seconds each step saves if a phase takes ``faster`` times as long."""
    slow = {cause.worker} if cause.worker else set(history.spans[place])
    totals: dict[int, dict[str, float]] = defaultdict(dict)
    for worker, track in history.spans[place].items():
        of = history.counts[place][worker]
        counts = dict(of.pairs())
        for step, value in track.pairs():
            if step in took:
                before = totals[step].get(worker, 0.0)
                totals[step][worker] = before + value * counts.get(step, 1.0)
    on_path = _on_path(history, place)
    saved = {}
    for step, each in totals.items():
        now = max(each.values())
        # A worker that is slow in some steps is as fast as its peers in the others.
        floor = median(each.values()) if cause.worker and len(each) > 2 else 0.0
        then = max(
            max(s * faster, min(s, floor)) if name in slow else s for name, s in each.items()
        )
        shorter = max(0.0, now - then)
        if on_path and now:
            own_s, may_be_s = on_path.get(step, (0.0, 0.0))
            shorter = min(shorter, own_s * (1 - then / now) + may_be_s)
        saved[step] = min(shorter, took[step])
    return saved
