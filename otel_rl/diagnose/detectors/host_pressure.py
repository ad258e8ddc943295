"""Detector of hosts that have too little CPU time, memory or disk for what runs on them.

A host is short of a resource if it has clearly less than before, and work takes longer since then.
"""

import re
from collections.abc import Iterator
from statistics import median
from typing import Final, NamedTuple

from otel_rl.diagnose.classify import only_waits
from otel_rl.diagnose.detectors.workload import Workload
from otel_rl.diagnose.history.run_history import RunHistory, Track
from otel_rl.diagnose.result import Cause, Evidence, Kind
from otel_rl.diagnose.stats.levels import LevelChange, level, medians, settled
from otel_rl.diagnose.stats.pooled import pooled
from otel_rl.diagnose.step_times import step_time, usual_step_s
from otel_rl.diagnose.thresholds import (
    BARELY,
    FELT,
    GOOD_PART,
    HALF,
    IN_ORDER_OF_MANY,
    LARGE_PART,
    NEARLY_ALL,
    NOISE_OF_MANY,
    SLACK,
    SMALL_PART,
)


class _Measure(NamedTuple):
    """Measure of a host.

    Attributes:
        pattern: Pattern of the measure's tracker keys.
        what: Name of the measure in words.
        least: Share from which on the shortage may make work slower.
        full: Share from which on work fails soon, and need not be slower yet.
        ratio: Factor over the earlier level.
    """

    pattern: re.Pattern[str]
    what: str
    least: float
    full: float
    ratio: float


_MEASURES: Final = (
    _Measure(
        re.compile(r"^host/(?P<host>[^/]+)/cpu/utilization/steal$"),
        "of the CPU time goes to other virtual machines",
        *(LARGE_PART, 2.0, 2.0),
    ),
    _Measure(
        re.compile(r"^host/(?P<host>[^/]+)/pressure/cpu$"),
        "of the time work waits for a CPU",
        *(HALF, 2.0, 2.0),
    ),
    _Measure(
        re.compile(r"^host/(?P<host>[^/]+)/pressure/memory$"),
        "of the time work waits for memory",
        *(LARGE_PART, 2.0, 2.0),
    ),
    _Measure(
        re.compile(r"^host/(?P<host>[^/]+)/pressure/io$"),
        "of the time work waits for disks",
        *(GOOD_PART, 2.0, 2.0),
    ),
    _Measure(
        re.compile(r"^host/(?P<host>[^/]+)/memory/utilization/used$"),
        "of the memory is in use",
        *(NEARLY_ALL, 0.99, FELT),
    ),
    _Measure(
        re.compile(r"^host/(?P<host>[^/]+)/filesystem/utilization/used$"),
        "of the file system is in use",
        *(0.97, 0.99, 1.02),
    ),
)


class _Short(NamedTuple):
    host: str
    key: str
    of: _Measure
    change: LevelChange


def host_pressure(history: RunHistory) -> Iterator[Cause]:
    """Find hosts with too little CPU time, memory or disk since some step."""
    of_host: dict[str, list[_Short]] = {}
    for of in _MEASURES:
        for key, track in history.rows.items():
            match = of.pattern.match(key)
            change = None if match is None else _change(track, of)
            if match is None or change is None:
                continue
            if change.after >= of.full or _is_felt(history, change.step):
                of_host.setdefault(match["host"], []).append(_Short(match["host"], key, of, change))
    for shorts in of_host.values():
        yield _cause(history, shorts)


def _change(track: Track, of: _Measure) -> LevelChange | None:
    found = level(track)
    if found is None or found.after < of.least:
        return None
    return (
        found if found.is_rise(ratio=of.ratio, order=IN_ORDER_OF_MANY, size=NOISE_OF_MANY) else None
    )


def _is_felt(history: RunHistory, since: int) -> bool:
    """Return whether steps or some work take longer since a step."""
    usual_s = usual_step_s(history)
    load = Workload(history)
    if _is_slower_since(load.eased_steps(step_time(history)), since):
        return True
    return any(
        _is_slower_since(load.eased(place, one), since)
        for place, tracks in history.spans.items()
        if not only_waits(history, place)
        for one in (pooled(history, place), *tracks.values())
        if one.values and median(one.values) >= SMALL_PART * usual_s
    )


def _is_slower_since(track: Track, since: int) -> bool:
    found = level(settled(track))
    if found is None or abs(found.step - since) > SLACK:
        return False
    return found.is_rise(ratio=BARELY) and found.jump >= HALF


def _cause(history: RunHistory, shorts: list[_Short]) -> Cause:
    shorts.sort(key=lambda one: one.change.step)
    host, key, of, change = shorts[0]
    others = [
        levels[1]
        for other, track in history.rows.items()
        if other != key
        and of.pattern.match(other)
        and (levels := medians(track, change.step)) is not None
    ]
    elsewhere = f", {median(others):.0%} on other hosts" if others else ""
    return Cause(
        Kind.HOST_PRESSURE,
        f"on host {host} {change.after:.0%} {of.what} since step {change.step}, "
        f"{change.before:.0%} before{elsewhere}",
        since=change.step,
        host=host,
        evidence=[
            Evidence(one.of.what, one.key, None, one.change.before, one.change.after)
            for one in shorts
        ],
    )
