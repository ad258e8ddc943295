"""Compares runs with runs: what takes longer, and what learns better, with an interval.

Times and rates are compared in the same steps, because batches and answers change with the step on
both sides alike. Several consecutive steps are one observation: neighbouring steps are alike, and
would prove less than their number says ("batch means"). That interval is about these runs, and says
nothing about how two runs of one program differ. Where each side has three runs or more, the spread
between the runs decides instead. The usual step is a median, which shows small changes; rare long
steps are only in the mean.

Learning differs by the seed more than by anything else, so its comparison takes three runs a side.
"""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from enum import StrEnum
from itertools import pairwise
from math import exp, inf, isfinite, log, sqrt
from statistics import fmean, median, stdev
from typing import Final, NamedTuple

from otel_rl.diagnose.classify import Subject
from otel_rl.diagnose.history.run_history import RunHistory, Track
from otel_rl.diagnose.history.timings import as_seconds, timed_part
from otel_rl.diagnose.step_times import told_step_time
from otel_rl.diagnose.thresholds import START

TIME_PER_STEP: Final = "time_per_step"
"""The usual time of a step."""

MEAN_TIME: Final = "time_per_step/mean"
"""The mean time of a step, with those that rarely take long: a run's time by its steps."""

_SEEDS: Final = 3
"""Runs of a side that tell how much runs of one program differ."""

_FEWEST: Final = 40
"""Steps that both sides have: fewer make too few observations."""

_MOST_PARTS: Final = 30
"""Observations that are made of the steps, of as many steps each as are alike."""

_MOST_ALIKE: Final = 0.8
"""Largest correlation of observations beside each other: with more, the interval says nothing."""

_FELT: Final = 0.01
"""Part of a value that nobody would call a change, however sure it is."""

_END: Final = 0.75
"""Part of the common axis after which values are those of the end."""

_RESOURCE: Final = re.compile(r"(/rate|utilization|(^|/)efficiency|goodput|mfu)$|memory(/|_)used")
_INTERNAL: Final = re.compile(
    r"(otel_rl|service|critical_path|diagnosis|step|workers|rpc|process|host)/"
    r"|phase/[^/]+/unaccounted$|[^/]+/(worker|pipeline)/"
)
_STATISTIC: Final = re.compile(r"/((rank_)?(max|min|std)|p\d+|count)$")
_OF_LEARNING: Final = (
    Subject.REWARD_MEAN,
    Subject.ENTROPY,
    Subject.KL,
    Subject.RESPONSE_LENGTH,
)

# Student's t for 99 of 100, by degrees of freedom; then an expansion by Cornish and Fisher.
_T: Final = (63.657, 9.925, 5.841, 4.604, 4.032)
_Z: Final = 2.5758


class About(StrEnum):
    """What a measure is about."""

    TIME = "time"
    RESOURCE = "resource"
    LEARNING = "learning"


AXES: Final = ("step", "time")
"""Names of axes that are no key."""


class Comparison(NamedTuple):
    """A measure on both sides, and its change.

    Attributes:
        name: ``time_per_step`` or a tracker key.
        about: What the measure is about.
        before: Value of the first side: the median or mean of its steps, or the mean of its end.
        after: Value of the second side, computed like that of the first.
        change: Change from the first side to the second, as a part: 0.05 is 5 % more.
        low: Lower end of the change's interval (99 of 100); -inf if it cannot be told.
        high: Upper end of the change's interval; inf if it cannot be told.
        why_not: Why the interval cannot be told; empty if it can.
    """

    name: str
    about: About
    before: float
    after: float
    change: float
    low: float
    high: float
    why_not: str = ""

    @property
    def is_sure(self) -> bool:
        """Return whether the sides surely differ, by more than a negligible amount."""
        return not self.why_not and (self.low > 0 or self.high < 0) and abs(self.change) > _FELT


class Limit(NamedTuple):
    """A change that fails a check, such as ``time_per_step>+5%``.

    Attributes:
        part: The smallest change that fails, as a part.
        is_more: Whether an increase fails; else a decrease does.
    """

    name: str
    part: float
    is_more: bool

    @classmethod
    def parse(cls, text: str) -> "Limit":
        """Read a limit.

        Raises:
            ValueError: The text is not a limit.
        """
        found = re.fullmatch(r"\s*(.+?)\s*([<>])\s*([+-]?)(\d+(?:\.\d+)?)\s*%\s*", text)
        if found is None:
            raise ValueError(f"write MEASURE>+N% or MEASURE<-N% (got {text!r})")
        name, way, sign, number = found.groups()
        if sign not in {"", "+" if way == ">" else "-"}:
            raise ValueError(f"more is >+N%, and less is <-N% (got {text!r})")
        return cls(name, float(number) / 100, way == ">")

    def is_broken_by(self, found: Comparison) -> bool:
        """Return whether a measure has surely changed, and by more than this limit."""
        if not found.is_sure:
            return False
        return found.change > self.part if self.is_more else found.change < -self.part

    def __str__(self) -> str:
        return f"{self.name}{'>+' if self.is_more else '<-'}{100 * self.part:g}%"


def measures(history: RunHistory) -> Mapping[str, tuple[About, Track]]:
    """Return the measures of a run that can be compared: times in s, rates, and learning."""
    found: dict[str, tuple[About, Track]] = {}
    times = _positive(told_step_time(history))
    if times.values:
        found[TIME_PER_STEP] = found[MEAN_TIME] = About.TIME, times
    for key, track in sorted(history.rows.items()):
        if _INTERNAL.match(key) or _STATISTIC.search(key):
            continue
        if key.startswith("phase/") and key.count("/") == 2:
            found[key] = About.TIME, _positive(track)
        elif timed_part(key) is not None:
            found[key] = About.TIME, _positive(as_seconds(key, track))
        elif _RESOURCE.search(key):
            found[key] = About.RESOURCE, _positive(track)
        else:
            found[key] = About.LEARNING, track.finite()
    return {key: (about, track) for key, (about, track) in found.items() if track.values}


def compared(
    before: Sequence[RunHistory],
    after: Sequence[RunHistory],
    *,
    axis: str = "step",
    also: Sequence[str] = (),
) -> Sequence[Comparison]:
    """Compare two sides, each of one or more runs of the same program.

    Args:
        before: Runs of the first side.
        after: Runs of the second side.
        axis: Axis by which the ends of learning are aligned: ``step``, ``time`` for the time since
            the run's begin, or the key of a total, such as that of tokens.
        also: Further keys to compare, besides times, rates and the usual signals of learning.

    Returns:
        The measures that all runs have: times, longest first, then rates, then learning.
    """
    sides = [[measures(run) for run in side] for side in (before, after)]
    first = sides[0][0]
    found = []
    for name in common_measures([*before, *after]):
        about = first[name][0]
        if about is About.LEARNING and not (name in also or _is_of_learning(name)):
            continue
        tracks = [[one[name][1] for one in side] for side in sides]
        one = (
            _learned(name, tracks, [before, after], axis)
            if about is About.LEARNING
            else _by_steps(name, about, tracks)
        )
        if one is not None:
            found.append(one)
    return sorted(found, key=_place)


def common_measures(histories: Iterable[RunHistory]) -> Sequence[str]:
    found = [set(measures(one)) for one in histories]
    return sorted(set.intersection(*found)) if found else []


def _place(one: Comparison) -> tuple[int, bool, float, str]:
    is_part = one.name not in {TIME_PER_STEP, MEAN_TIME}
    longest = -one.before if one.about is About.TIME and is_part else 0.0
    return [*About].index(one.about), is_part, longest, one.name


def _is_of_learning(key: str) -> bool:
    return any(re.search(subject.value, key) for subject in _OF_LEARNING)


def _by_steps(name: str, about: About, sides: Sequence[Sequence[Track]]) -> Comparison | None:
    """Compare the steps that all runs have, except for the first steps of each run."""
    values = [[_by_step(track) for track in side] for side in sides]
    runs = [one for side in values for one in side]
    steps = sorted(set.intersection(*(set(one) for one in runs)))
    steps = steps[START:] if len(steps) >= _FEWEST + START else steps
    if not steps:
        return None
    centre = fmean if name == MEAN_TIME else median
    before, after = (
        fmean(centre([one[step] for step in steps]) for one in side) for side in values
    )
    if min(len(side) for side in values) >= _SEEDS:
        logs = [[log(centre([one[step] for step in steps])) for one in side] for side in values]
        return _comparison(name, about, before, after, *_welch(*logs))
    if len(steps) < _FEWEST:
        why_not = f"{len(steps)} common steps, of {_FEWEST} that it takes"
        return Comparison(name, about, before, after, after / before - 1, -inf, inf, why_not)
    means = [[fmean(one[step] for one in side) for step in steps] for side in values]
    return _comparison(name, about, before, after, *_by_parts(means[0], means[1], centre))


def _comparison(
    name: str, about: About, before: float, after: float, mean: float, error: float, t: float
) -> Comparison:
    """Return a comparison by the logarithm of the ratio, its standard error and Student's t."""
    low, high = (exp(mean + sign * t * error) - 1 for sign in (-1, 1))
    return Comparison(name, about, before, after, exp(mean) - 1, low, high)


def _by_parts(
    before: Sequence[float], after: Sequence[float], centre: Callable[[Sequence[float]], float]
) -> tuple[float, float, float]:
    """Return the logarithm of the ratio, its standard error, and Student's t."""
    parts = min(_MOST_PARTS, max(5, int(sqrt(len(before)))))
    ends = [round(n * len(before) / parts) for n in range(parts + 1)]
    ratios = [log(centre(after[a:b]) / centre(before[a:b])) for a, b in pairwise(ends)]
    mean, moves = fmean(ratios), stdev(ratios)
    # Parts beside each other are alike where steps are for longer than a part.
    products = [(a - mean) * (b - mean) for a, b in pairwise(ratios)]
    alike = min(_MOST_ALIKE, max(0.0, fmean(products) / moves**2 if moves else 0.0))
    return mean, moves * sqrt((1 + alike) / (1 - alike) / parts), _t(parts - 1)


def _welch(before: Sequence[float], after: Sequence[float]) -> tuple[float, float, float]:
    """Return the difference of two means, its standard error, and Student's t, by Welch."""
    parts = [stdev(side) ** 2 / len(side) for side in (before, after)]
    whole = sum(parts)
    degrees = len(before) + len(after) - 2.0
    if whole:
        below = sum(
            one**2 / (len(side) - 1) for one, side in zip(parts, (before, after), strict=True)
        )
        degrees = whole**2 / below
    return fmean(after) - fmean(before), sqrt(whole), _t(int(degrees))


def _learned(
    name: str,
    sides: Sequence[Sequence[Track]],
    histories: Sequence[Sequence[RunHistory]],
    axis: str,
) -> Comparison | None:
    curves = [
        [curve(track, history, axis) for track, history in zip(*side, strict=True)]
        for side in zip(sides, histories, strict=True)
    ]
    every = [one for side in curves for one in side]
    if not all(every):
        return None
    end = min(one[-1][0] for one in every)
    begin = max(one[0][0] for one in every)
    last = [
        [[value for x, value in one if begin + _END * (end - begin) <= x <= end] for one in side]
        for side in curves
    ]
    if not all(one for side in last for one in side):
        return None
    means = [[fmean(one) for one in side] for side in last]
    before, after = map(fmean, means)
    scale = abs(before) or abs(after) or 1.0
    change = (after - before) / scale
    fewest = min(len(side) for side in means)
    if fewest < _SEEDS:
        seeds = "one seed" if fewest == 1 else f"{fewest} seeds"
        why_not = f"{seeds} a side: cannot tell"
        return Comparison(name, About.LEARNING, before, after, change, -inf, inf, why_not)
    mean, error, t = _welch(*means)
    low, high = ((mean + sign * t * error) / scale for sign in (-1, 1))
    return Comparison(name, About.LEARNING, before, after, change, low, high)


def curve(track: Track, history: RunHistory, axis: str) -> Sequence[tuple[float, float]]:
    """Return the points of a series along an axis, see ``compared``."""
    if axis == "step":
        return [*zip(map(float, track.steps), track.values, strict=True)]
    if axis == "time":
        return [*zip(track.times_s, track.values, strict=True)]
    totals = _by_step(history.rows.get(axis, Track()).finite())
    return sorted((totals[step], value) for step, value in track.pairs() if step in totals)


def _by_step(track: Track) -> Mapping[int, float]:
    return dict(track.pairs())


def _positive(track: Track) -> Track:
    """Return the values of a series that have a logarithm, which are the positive ones."""
    found = Track()
    for step, time_s, value in zip(track.steps, track.times_s, track.values, strict=True):
        if isfinite(value) and value > 0:
            found.add(step, time_s, value)
    return found


def _t(degrees: int) -> float:
    """Return Student's t for an interval of 99 of 100."""
    if degrees <= len(_T):
        return _T[max(1, degrees) - 1]
    z = _Z
    first = (z**3 + z) / 4
    second = (5 * z**5 + 16 * z**3 + 3 * z) / 96
    third = (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / 384
    return z + first / degrees + second / degrees**2 + third / degrees**3
