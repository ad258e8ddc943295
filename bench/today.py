"""The same work with today's alternatives: CPU and memory of all processes together.

8 workers x 20 metrics x 5,000 steps, to W&B offline: one run for each worker, a queue to one
process that owns the run, and otel_rl. Each from its first import to its finished run.
"""

import os
from collections.abc import Iterator

from bench.family import Cost, measured
from bench.figures import Figure

OURS = {
    "otel_rl, every worker": "all metrics",
    "otel_rl, mean over workers": "means",
}
"""Content of the run: all that the others write too, or, by default, each metric once."""

GOALS = {"run per worker": (1 / 3, 1 / 2), "queue to a controller": (0.7, None)}
"""CPU, memory."""


def figures(*, tiny: bool) -> Iterator[Figure]:
    """Yield the totals, then the rest without the cost of workers that report nothing."""
    if tiny:
        os.environ["BENCH_STEPS"] = "20"
    nothing = _cost("nothing")
    ours = {text: _cost(name) for name, text in OURS.items()}
    for name, (cpu, memory) in GOALS.items():
        theirs = _cost(name)
        for text, cost in ours.items():
            what = f"{text}, {name}"
            yield _figure(f"total CPU: {what}", "s", cost.cpu_s, theirs.cpu_s, name, cpu)
            yield _figure(f"memory: {what}", "MB", cost.peak_mb, theirs.peak_mb, name, memory)
            what += ", telemetry alone"
            ours_s, theirs_s = cost.cpu_s - nothing.cpu_s, theirs.cpu_s - nothing.cpu_s
            ours_mb, theirs_mb = cost.peak_mb - nothing.peak_mb, theirs.peak_mb - nothing.peak_mb
            yield _figure(f"total CPU: {what}", "s", ours_s, theirs_s, name)
            yield _figure(f"memory: {what}", "MB", ours_mb, theirs_mb, name)


def _cost(name: str) -> Cost:
    return measured("bench.contenders.today", name)


def _figure(
    what: str, unit: str, ours: float, theirs: float, name: str, goal: float | None = None
) -> Figure:
    return Figure(what, unit, ours, theirs, f"W&B offline, {name}", ours / theirs, goal)
