"""Detector of memory that grows until it does not fit, found before that happens.

The memory is that of a process, of a device, of a device in one phase (also what is left while an
engine sleeps), or of a host. A leak grows by as much in each step as before. A cache that fills
levels off, a longer batch is one jump, fragmentation goes up and down, and a restart begins anew:
none of them grows evenly to the end of the series, by a large part of what is left.
"""

import re
from collections.abc import Iterator, Sequence
from itertools import pairwise
from math import inf
from statistics import median
from typing import Final, NamedTuple

from otel_rl.diagnose.history.run_history import RunHistory, Track
from otel_rl.diagnose.result import MOST_EVIDENCE, Cause, Evidence, Kind
from otel_rl.diagnose.thresholds import (
    FEWEST_VARYING,
    GOOD_PART,
    HALF,
    SMALL_PART,
)

_PROCESS: Final = re.compile(r"^(?P<role>[^/]+)/process/memory/usage$")
_DEVICE: Final = re.compile(
    r"^(?P<place>gpu/(?P<host>[^/]+)/(?P<device>[^/]+))/"
    r"(?:owner/)?memory/usage(?:/(?P<phase>[^/]+))?$"
)
_HOST: Final = re.compile(r"^(?P<place>host/(?P<host>[^/]+))/memory/usage/used$")

_PARTS: Final = 4  # of the steps, each of which has more than the one before
_AHEAD: Final = 0.6  # of the steps in which it grew: a cache that fills evenly may be full before
_OFF: Final = 0.2  # of its growth, by which memory is off the line
_NOISE: Final = 6.0  # deviations from its line, by which it has grown


class _Memory(NamedTuple):
    """Series of one kind of memory.

    Attributes:
        what: Name of the kind in words.
        track: Bytes in use.
        limit: Bytes that exist; None if unknown.
        worker: Worker that uses the memory.
        host: Host that has the memory.
        phase: Phase in which the memory is in use.
    """

    what: str
    key: str
    track: Track
    limit: float | None
    worker: str | None = None
    host: str | None = None
    phase: str | None = None


class _Growth(NamedTuple):
    """Even growth of memory, in bytes.

    Attributes:
        since: The step from which on it grows.
        before: Level at that step.
        after: The most in the last steps.
        per_step: Growth per step in the later half.
        full: The step at which the memory will not fit.
    """

    since: int
    before: float
    after: float
    per_step: float
    full: int


def memory_growth(history: RunHistory) -> Iterator[Cause]:
    """Find memory that will be full in fewer steps than it has been seen to grow."""
    found = [
        (memory, growth)
        for memory in _measured(history)
        if (growth := _growth(memory)) is not None and not _is_filling(history, memory)
    ]
    # A process is on a device and on a host, whose memory grows with it.
    named = [one for one in found if one[0].worker is not None]
    on_devices = [one for one in found if one[0].key.startswith("gpu/")]
    for memory, growth in named or on_devices[:1] or found[:1]:
        others = [one for one in found if one[0] is not memory and one[0].worker is None]
        yield Cause(
            Kind.MEMORY_GROWTH,
            f"{memory.what} grows by {_size(growth.per_step)} a step since step {growth.since}, "
            f"{_size(growth.before)} then and {_size(growth.after)} now: at about step "
            f"{growth.full} it will not fit into {_size(memory.limit or 0.0)}",
            role=None if memory.worker is None else memory.worker.rpartition("/")[0],
            worker=memory.worker,
            phase=memory.phase,
            since=growth.since,
            host=memory.host,
            strength=HALF,
            evidence=[
                Evidence(one.what, one.key, one.worker, of.before, of.after, "By")
                for one, of in [(memory, growth), *others][:MOST_EVIDENCE]
            ],
        )


def _measured(history: RunHistory) -> Iterator[_Memory]:
    for key, of_workers in history.workers.items():
        if match := _PROCESS.match(key):
            limits = history.workers.get(f"{match['role']}/process/memory/limit", {})
            for worker, track in of_workers.items():
                yield _Memory(
                    f"memory of the process of {worker}",
                    key,
                    track,
                    _last(limits.get(worker)),
                    worker=worker,
                )
    for key, track in history.rows.items():
        if match := _DEVICE.match(key):
            phase = match["phase"]
            yield _Memory(
                f"memory of {match['device']} of {match['host']}"
                f"{f' while {phase} has it' if phase else ''}",
                key,
                track,
                _last(history.rows.get(f"{match['place']}/memory/limit")),
                host=match["host"],
                phase=phase,
            )
        elif match := _HOST.match(key):
            yield _Memory(
                f"memory in use on host {match['host']}",
                key,
                track,
                _last(history.rows.get(f"{match['place']}/memory/limit")),
                host=match["host"],
            )


def _last(track: Track | None) -> float | None:
    return track.values[-1] if track is not None and track.values else None


def _growth(memory: _Memory) -> _Growth | None:
    if not memory.limit or memory.limit <= 0:
        return None
    steps, lows, highs = _of_steps(memory.track.finite())
    # From the last time on when it had the least: before a restart it may have had more.
    least = min(lows, default=0.0)
    begun = max((at for at, low in enumerate(lows) if low <= 1.01 * least), default=0)
    seen = len(lows) - begun
    if seen < FEWEST_VARYING:
        return None
    first = begun + int(GOOD_PART * seen)  # a process that starts fills its caches
    ends = [first + part * (len(lows) - first) // _PARTS for part in range(_PARTS + 1)]
    parts = [slice(begin, end) for begin, end in pairwise(ends)]
    levels = [min(lows[part]) for part in parts]
    middles = [median(steps[part]) for part in parts]
    grown = [later - before for before, later in pairwise(levels)]
    # The last part counts alone: what levels off shows it there first.
    if min(grown) <= 0 or grown[-1] < HALF * max(grown):
        return None
    whole = levels[-1] - levels[0]
    if whole < SMALL_PART * memory.limit or whole < _NOISE * _noise(steps[first:], lows[first:]):
        return None
    per_step = (levels[-1] - levels[-3]) / (middles[-1] - middles[-3])
    after = max(highs[parts[-1]])
    left = (memory.limit - after) / per_step
    if left > _AHEAD * (steps[-1] - steps[begun]):
        return None
    if after + _still_to_come(grown) < memory.limit:
        return None
    # Back along the line: before it, the process may have started, or had no leak yet.
    since, least = len(lows) - 1, lows[-1]
    while since > begun:
        line = levels[-1] - per_step * (steps[ends[-2]] - steps[since - 1])
        if abs(min(least, lows[since - 1]) - line) > _OFF * whole:
            break
        since -= 1
        least = min(least, lows[since])
    full = int(steps[-1] + max(0.0, left))
    return _Growth(int(steps[since]), lows[since], after, per_step, full)


def _still_to_come(grown: Sequence[float]) -> float:
    """Return how much memory grows at most if it goes on to slow down, as a filling cache does.

    Args:
        grown: Growth from part to part; the last one is positive.
    """
    slower = (grown[-1] / max(grown)) ** (1 / (len(grown) - 1))
    return grown[-1] * slower / (1 - slower) if slower < 1 else inf


def _of_steps(track: Track) -> tuple[Sequence[int], Sequence[float], Sequence[float]]:
    """Return (steps, least and most of each step), as memory goes up and down within a step."""
    steps: list[int] = []
    lows: list[float] = []
    highs: list[float] = []
    for step, value in track.pairs():
        if steps and step <= steps[-1]:
            lows[-1], highs[-1] = min(lows[-1], value), max(highs[-1], value)
        else:
            steps.append(step)
            lows.append(value)
            highs.append(value)
    return steps, lows, highs


def _noise(steps: Sequence[int], values: Sequence[float]) -> float:
    """Return the usual distance from the straight line through the values."""
    n = len(steps)
    middle, mean = sum(steps) / n, sum(values) / n
    spread = sum((step - middle) ** 2 for step in steps)
    slope = sum((s - middle) * (v - mean) for s, v in zip(steps, values, strict=True)) / spread
    return median(
        abs(value - mean - slope * (step - middle))
        for step, value in zip(steps, values, strict=True)
    )


def _is_filling(history: RunHistory, memory: _Memory) -> bool:
    """Return whether a buffer of the process is still filling, and its size is known."""
    if memory.worker is None:
        return False
    role = memory.worker.rpartition("/")[0]
    for key, track in history.rows.items():
        if not key.startswith(f"{role}/") or not key.endswith(("/size", "/usage")):
            continue
        limit = _last(history.rows.get(f"{key.rpartition('/')[0]}/limit"))
        if limit and "memory" not in key and track.values[-1] < limit and track.values[-1] > 0:
            half = track.values[len(track.values) // 2]
            if half < track.values[-1]:
                return True
    return False


def _size(n_bytes: float) -> str:
    for unit, size in (("GiB", 1 << 30), ("MiB", 1 << 20)):
        if abs(n_bytes) >= size:
            return f"{n_bytes / size:.3g} {unit}"
    return f"{n_bytes / 1024:.3g} KiB"
