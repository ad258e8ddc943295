"""The same work with today's alternatives: CPU and memory of all processes together.

Contenders take turns; medians over rounds, of the ratios within a round.

8 workers x 20 metrics x 5,000 steps, to W&B offline: one run for each worker, a queue to one
process that owns the run, and otel_rl. Each from its first import to its finished run.
"""

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import median

from bench.family import Cost, measured
from bench.figures import Figure

OURS = {
    "otel_rl, every worker": "all metrics",
    "otel_rl, mean over workers": "means",
}
"""Content of the run: all that the others write too, or, by default, each metric once."""

ROUNDS = 3

GOALS: Mapping[str, Mapping[str, tuple[float, float | None]]] = {
    "run per worker": {"all metrics": (0.33, 0.5), "means": (0.25, 0.5)},
    "queue to a controller": {"all metrics": (1.0, None), "means": (0.7, None)},
}
"""CPU and memory as shares of the other's, by the content of the run."""


def figures(*, tiny: bool) -> Iterator[Figure]:
    """Yield the totals and their parts, then the rest without workers that report nothing."""
    if tiny:
        os.environ["BENCH_STEPS"] = "20"
    names = ("nothing", *OURS, *GOALS)
    rounds = [{name: _cost(name) for name in names} for _ in range(1 if tiny else ROUNDS)]
    nothing = _each(rounds, "nothing")
    for name, goals in GOALS.items():
        theirs = _each(rounds, name)
        for contender, text in OURS.items():
            cpu, memory = goals[text]
            ours, what = _each(rounds, contender), f"{text}, {name}"
            yield _figure(f"total CPU: {what}", "s", ours.cpu_s, theirs.cpu_s, name, cpu)
            yield _figure(f"memory: {what}", "MB", ours.peak_mb, theirs.peak_mb, name, memory)
            for part, seconds in ours.parts_cpu_s.items():
                yield _figure(
                    f"CPU of {part}: {what}", "s", seconds, theirs.parts_cpu_s[part], name
                )
            what += ", telemetry alone"
            yield _figure(
                f"total CPU: {what}",
                "s",
                _beyond(ours.cpu_s, nothing.cpu_s),
                _beyond(theirs.cpu_s, nothing.cpu_s),
                name,
            )
            yield _figure(
                f"memory: {what}",
                "MB",
                _beyond(ours.peak_mb, nothing.peak_mb),
                _beyond(theirs.peak_mb, nothing.peak_mb),
                name,
            )


@dataclass(frozen=True, slots=True)
class _Costs:
    """Costs of one contender, by round."""

    cpu_s: Sequence[float]
    peak_mb: Sequence[float]
    parts_cpu_s: Mapping[str, Sequence[float]]


def _each(rounds: Sequence[Mapping[str, Cost]], name: str) -> _Costs:
    costs = [found[name] for found in rounds]
    parts = {
        "workers": [cost.spawned_cpu_s for cost in costs],
        "bridge or controller": [cost.own_cpu_s for cost in costs],
        "other processes": [cost.others_cpu_s for cost in costs],
    }
    return _Costs([cost.cpu_s for cost in costs], [cost.peak_mb for cost in costs], parts)


def _beyond(values: Sequence[float], nothing: Sequence[float]) -> Sequence[float]:
    return [value - less for value, less in zip(values, nothing, strict=True)]


def _cost(name: str) -> Cost:
    return measured("bench.contenders.today", name)


def _figure(
    what: str,
    unit: str,
    ours: Sequence[float],
    theirs: Sequence[float],
    name: str,
    goal: float | None = None,
) -> Figure:
    ratios = [one / other for one, other in zip(ours, theirs, strict=True) if other > 0]
    return Figure(
        what,
        unit,
        median(ours),
        median(theirs),
        f"W&B offline, {name}",
        median(ratios) if ratios else None,
        goal,
        spread=(min(ratios), max(ratios)) if ratios else None,
    )
