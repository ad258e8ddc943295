"""Detector of inference and training that disagree about the probability of the same tokens.

The two differ a little by numerics and precision, and more with the age of samples. A gap that
opens by itself is a fault of one side: weights that arrived damaged or in part, another
temperature, another kernel. Rewards fall only much later.
"""

from collections.abc import Iterator, Mapping
from typing import Final, NamedTuple

from otel_rl.diagnose.classify import Subject, rows_about
from otel_rl.diagnose.detectors.workload import follows_a_change
from otel_rl.diagnose.detectors.wrong_weights import proved_equal
from otel_rl.diagnose.history.run_history import RunHistory, Track
from otel_rl.diagnose.result import MOST_EVIDENCE, Cause, Evidence, Kind
from otel_rl.diagnose.stats.levels import LevelChange, begun, level
from otel_rl.diagnose.stats.trends import departure
from otel_rl.diagnose.thresholds import (
    FAR,
    FEWEST_PEERS,
    FEWEST_VARYING,
    HALF,
    IN_ORDER,
    IN_ORDER_OF_MANY,
    NOISE_OF_MANY,
    SLACK,
    START,
    UNLIKE,
)


class _Measure(NamedTuple):
    """A measure of the gap.

    Attributes:
        what: Name of the measure in words.
        unit: Unit of the values.
        least: Value below which a gap has no effect on training.
        large: Value from which on a gap is a fault even at the first step.
        power: Power of the difference of log-probabilities with which the measure grows.
    """

    what: str
    unit: str
    least: float
    large: float
    power: int = 1


# Healthy runs in bfloat16 have about 0.005 to 0.03 nats, and a KL below 0.002; verl's documentation
# calls a KL of 0.1 significant.
_MEASURES: Final[Mapping[Subject, _Measure]] = {
    Subject.LOGPROB_GAP: _Measure("difference of log-probabilities", "nats", 0.02, 0.4),
    Subject.PROBABILITY_GAP: _Measure("difference of probabilities", "", 0.01, 0.1),
    Subject.MISMATCH_KL: _Measure("KL of inference and training", "nats", 0.002, 0.1, power=2),
}
_WIDER: Final = 2.5  # times the difference before
_BY_ITSELF: Final = 6.0  # times the difference before: no larger batch or older sample does more


class _Gap(NamedTuple):
    """A gap that is too wide.

    Attributes:
        since: First step of the gap; None if it always was too wide.
        before: Usual value before, or the value from which on it is a fault.
        after: Usual value since that step.
    """

    since: int | None
    before: float
    after: float

    def is_within(self, times: float) -> bool:
        """Return whether the gap is at most ``times`` times as wide as before."""
        return self.after <= times * self.before


def logprob_mismatch(history: RunHistory) -> Iterator[Cause]:
    """Find log-probabilities of inference that depart from those of training."""
    found = [
        (gap, key, of)
        for subject, of in _MEASURES.items()
        for key, track in rows_about(history, subject)
        if (gap := _wider(track, of)) is not None
    ]
    found = [
        one
        for one in found
        if not one[0].is_within(_BY_ITSELF ** one[2].power)
        or not _is_on_purpose(history, one[0].since)
    ]
    if not found:
        return
    found.sort(key=lambda one: (-1 if one[0].since is None else one[0].since, one[1]))
    gap, key, of = found[0]
    worker = _alone(history, key, of)
    yield Cause(
        Kind.LOGPROB_MISMATCH,
        f"inference and training disagree about the same tokens{_who(worker)}"
        f"{_since(gap)}: {of.what} {_times(gap)}, {key}; {_why(history)}",
        role=key.partition("/")[0],
        worker=worker,
        since=gap.since,
        evidence=[
            Evidence(by.what, at, worker if at == key else None, one.before, one.after, by.unit)
            for one, at, by in found[:MOST_EVIDENCE]
        ],
    )


def _who(worker: str | None) -> str:
    return f" of {worker}, and not of its peers" if worker else ""


def _since(gap: _Gap) -> str:
    return " in all steps" if gap.since is None else f" since step {gap.since}"


def _why(history: RunHistory) -> str:
    """Return whether the engines or their weights differ, as far as that is measured."""
    proved = proved_equal(history)
    if proved is None:
        return "whether weights or engines differ nobody can tell without lineage.verify"
    if not proved:
        return "the loaded weights are not those that were sent"
    ages = [track.values[-1] for _, track in rows_about(history, Subject.STALENESS) if track.values]
    if ages and max(ages) >= 1:
        return (
            "the loaded weights are those that were sent, and samples are "
            f"{max(ages):.3g} versions old: staleness, or the engines differ"
        )
    return "the loaded weights are those that were sent, so the engines differ"


def _times(gap: _Gap) -> str:
    if gap.since is None:
        return f"{gap.after:.3g}, from {gap.before:.3g} on training suffers"
    return f"{gap.before:.3g} before and {gap.after:.3g} now"


def _wider(track: Track, of: _Measure) -> _Gap | None:
    """Return a gap that opened suddenly, or faster than ever before, or was wide from the start."""
    # An estimate of a KL from samples may be negative.
    sizes = Track(track.steps, track.times_s, [abs(value) for value in track.values])
    if len(sizes.values) < FEWEST_VARYING:
        return None
    if min(sizes.values[START:]) >= of.large and min(sizes.values) >= of.large / 2:
        return _Gap(None, of.large, sorted(sizes.values)[len(sizes.values) // 2])
    found = level(sizes)
    if found is not None and found.after >= of.least and _is_jump(found, _WIDER**of.power):
        return _Gap(begun(sizes, found).step, found.before, found.after)
    left, far = departure(sizes), FAR**of.power
    if left is None or not left.is_sure or left.after < max(of.least, far * left.before):
        return None
    is_far = any(window.found > far * max(window.expected) > 0 for window in left.windows)
    return _Gap(left.step, left.before, left.after) if is_far else None


def _is_jump(found: LevelChange, wider: float) -> bool:
    is_wider = found.is_rise(ratio=wider, order=IN_ORDER_OF_MANY, size=NOISE_OF_MANY)
    return is_wider and found.jump >= HALF and found.change.place >= START


def _alone(history: RunHistory, key: str, of: _Measure) -> str | None:
    """Return the one worker that has the gap, among several that each measure their own."""
    tracks = history.workers.get(key, {})
    wide = [name for name, track in tracks.items() if _wider(track.finite(), of) is not None]
    return wide[0] if len(wide) == 1 and len(tracks) >= FEWEST_PEERS else None


def _is_on_purpose(history: RunHistory, since: int | None) -> bool:
    """Return whether samples became older, or steps larger, which widens the gap by itself.

    A fault that makes samples older is a cause of its own.
    """
    if since is None:
        return False
    if follows_a_change(history, since):
        return True
    changes = (
        level(track)
        for subject in (Subject.STALENESS, Subject.LEARNING_RATE)
        for _, track in rows_about(history, subject)
    )
    return any(
        abs(one.step - since) <= SLACK and one.ratio >= UNLIKE and one.change.order >= IN_ORDER
        for one in changes
        if one is not None
    )
