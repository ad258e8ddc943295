"""Detector of one slow tool among several, by the times of calls that environments measure.

Tools whose calls are phases need no detector: such a tool is a phase like any other.
"""

import re
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import Final, NamedTuple

from otel_rl.diagnose.history.run_history import RunHistory, Track
from otel_rl.diagnose.result import Cause, Evidence, Kind
from otel_rl.diagnose.stats.levels import LevelChange, medians, settled, soon
from otel_rl.diagnose.stats.pooled import together
from otel_rl.diagnose.step_times import traces_of, usual_step_s
from otel_rl.diagnose.thresholds import (
    A_FEW,
    FEWEST_PEERS,
    IN_ORDER_OF_STEPS,
    LEAST_PART,
    MUCH_LONGER,
    STANDS_OUT,
)

# rl.env.step.duration or gen_ai.execute_tool.duration, by the attribute that names the tool.
_CALLS: Final = re.compile(
    r"^(?P<role>[^/]+)/(.*[/_])?(env/step|execute_tool|tools?(_?calls?)?|sandbox)/?_?"
    r"(duration|latency|time|seconds)(_s|_seconds)?/(?P<tool>[^/]+)$"
)


class _Tool(NamedTuple):
    role: str
    name: str
    key: str
    tracks: Mapping[str, Track]


def slow_tools(history: RunHistory) -> Iterator[Cause]:
    """Find tools whose calls take longer, where no phases or spans show each tool."""
    of_role: dict[str, list[_Tool]] = defaultdict(list)
    for key, tracks in history.workers.items():
        found = _CALLS.match(key)
        if found is not None and not _is_told_by_phases(history, found["role"], found["tool"]):
            of_role[found["role"]].append(_Tool(found["role"], found["tool"], key, tracks))
    for tools in of_role.values():
        slow = [
            (cost, tool, change)
            for tool in tools
            if (change := soon(settled(together(tool.tracks)))) is not None
            and change.is_rise(ratio=MUCH_LONGER, order=IN_ORDER_OF_STEPS, size=STANDS_OUT)
            and (cost := _cost(history, tool, change)) >= LEAST_PART
        ]
        if slow and not len(slow) == len(tools) > 1:  # all of them are the environment
            _, tool, change = max(slow, key=lambda one: one[0])
            yield _cause(history, tool, change, [of.name for _, of, _ in slow if of is not tool])


def _is_told_by_phases(history: RunHistory, role: str, tool: str) -> bool:
    return any(place.role == role and tool in place.phase for place in history.spans)


def _cost(history: RunHistory, tool: _Tool, change: LevelChange) -> float:
    calls = [
        count
        for track in history.measurements[tool.key].values()
        for step, count in track.pairs()
        if step >= change.step
    ]
    steps = max(1, history.last - change.step + 1)
    usual_s = usual_step_s(history)
    added_s = sum(calls) / len(tool.tracks) / steps * (change.after - change.before)
    return added_s / usual_s if usual_s else 0.0


def _cause(history: RunHistory, tool: _Tool, change: LevelChange, also: Sequence[str]) -> Cause:
    slow = {
        worker: found
        for worker, track in tool.tracks.items()
        if (found := medians(track, change.step, shortest=2)) is not None
        and found[1] >= MUCH_LONGER * found[0]
    }
    alone = next(iter(slow)) if len(slow) == 1 and len(tool.tracks) >= FEWEST_PEERS else None
    others = f"so do those of {', '.join(also)}" if also else "other tools do not"
    return Cause(
        Kind.STRAGGLER if alone else Kind.SLOW_TOOL,
        f"calls of the tool {tool.name} by {alone or tool.role} take {change.ratio:.1f} times as "
        f"long since step {change.step}: {change.before:.3g} s before, {change.after:.3g} s now; "
        f"{others}",
        role=tool.role,
        worker=alone,
        phase=tool.name,
        since=change.step,
        strength=1.0,
        evidence=[
            Evidence(
                f"time of one call of {tool.name}", tool.key, alone, change.before, change.after,
                "s", traces_of(history, change.step),
            ),
            *(
                Evidence("the same", tool.key, worker, *found, "s")
                for worker, found in sorted(slow.items())[:A_FEW]
                if worker != alone
            ),
        ],
    )  # fmt: skip
