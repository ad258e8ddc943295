"""Names of measured times: the part of a program whose time a tracker key holds.

Programs log ``timing_s/generate``, ``perf/update_seconds`` or ``reward_time`` of each worker: where
there are neither spans nor phases, these count as its phases.
"""

import re
from functools import lru_cache
from itertools import pairwise
from typing import Final

from otel_rl.diagnose.history.track import Track
from otel_rl.diagnose.thresholds import MANY
from otel_rl.semconv.spec import STEP_SPAN, TOOL_SPAN

_TIME: Final = r"(?:timings?|times?|durations?|latency|elapsed)(?:_s|_ms|_sec|_seconds|_raw|_perf)?"
# ``mean_reward/time`` and ``rewards/time`` are rewards with the time as their axis.
_VALUE: Final = re.compile(
    r"(^|_)(mean|avg)_|(^|_)(rewards|returns?|scores|lengths?|losses|loss|success(es)?)$"
)
_MILLISECONDS: Final = re.compile(r"_ms(/|$)")
_WHOLE: Final = re.compile(rf"{_TIME}$")
_AFTER: Final = re.compile(rf"^(?P<part>.+?)_(?:{_TIME}|seconds|secs)$")
_BEFORE: Final = re.compile(r"^(?:time|timing|duration)_(?P<part>.+)$")
_STEP: Final = re.compile(
    r"^(per_|train_|training_|one_|total_|this_)?(step|iteration|iter|loop)(_total|_s)?$"
)

_TOOL: Final = re.compile(r"(execute_)?tools?$|sandbox$")  # by an attribute that names it

_STATISTIC: Final = re.compile(r"(rank_)?(mean|max|min|std)$|p\d+$|count$|rate$|per_step$")

# Times that are no work of a step.
_OTHER: Final = re.compile(
    r"(^|_|/)(cpu|gc|idle|age|uptime|wall|eta|total|epoch|queue|worker|wait)(_|/|$)"
    r"|(^|/)(time_|timing_)?call(_|/|$)"
)

# Numbers that programs log beside times, such as ``time/fps`` and ``time/iterations``.
_NO_TIME: Final = re.compile(
    r"(.*_)?(fps|sps|iterations?|iters|timesteps?|steps|samples|tokens|batches|episodes|elapsed"
    r"|remaining|progress|percent|now|cumulative|throughput|speed|per_s(ec(ond)?)?)$|since_|num_"
)


# A live run is looked at every few seconds, and most of its keys are those of before.
_remembered: Final = lru_cache(maxsize=1 << 14)


@_remembered
def timed_part(key: str) -> tuple[str, str] | None:
    """Return (role, part) of a key with the time of a step's part; None for any other key."""
    role, _, name = key.partition("/")
    part = _part(name)
    if not part or _STEP.match(part) or _OTHER.search(name) or _NO_TIME.match(part):
        return None
    return role, part


@_remembered
def is_step_time(key: str) -> bool:
    return is_step(_part(key.partition("/")[2]))


def is_step(name: str) -> bool:
    return bool(_STEP.match(name))


def is_whole_step(phase: str) -> bool:
    return phase == STEP_SPAN or is_step(phase)


def as_seconds(key: str, track: Track) -> Track:
    """Return measured times in seconds: those of a key that ends in ``_ms`` are milliseconds."""
    if not _MILLISECONDS.search(key):
        return track
    return Track.of(track.steps, track.times_s, [value / 1e3 for value in track.values])


def each_time(track: Track) -> Track:
    """Return the times of a series; for a series that grows at each step, the increments.

    Some programs log the total so far. No time of a step is always longer than the one before.
    """
    values = track.values
    if len(values) < MANY or not all(a < b for a, b in pairwise(values)):
        return track
    added = [b - a for a, b in pairwise(values)]
    return Track.of(track.steps, track.times_s, [added[0], *added])


def _part(name: str) -> str:
    *groups, last = name.split("/")
    if groups and _WHOLE.match(groups[-1]):
        is_tool = len(groups) > 1 and _TOOL.match(groups[-2])
        return f"{TOOL_SPAN}{last}" if is_tool else last
    if groups and _WHOLE.match(groups[0]):  # a dotted name, such as time.actor.update
        return "" if _STATISTIC.match(last) else ".".join([*groups[1:], last])
    if groups and _WHOLE.match(last):
        return "" if _VALUE.search(groups[-1]) else groups[-1]
    found = _AFTER.match(last) or _BEFORE.match(last)
    return found["part"] if found else ""
