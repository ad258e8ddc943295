"""The same work with what users do today: CPU and memory of all processes together.

8 workers x 20 metrics x 5,000 steps, to W&B offline: one run for each worker, a queue to one
process that owns the run, and otel_rl. Each from its first import to its finished run.
"""

import os
from collections.abc import Iterator

from bench.family import Cost, measured
from bench.figures import Figure

OURS = "otel_rl, every worker"
"""Everything that the others write: each metric of each worker at each step."""

GOALS = {"run per worker": (1 / 3, 1 / 2), "queue to a controller": (0.7, None)}
"""CPU, memory."""


def figures(*, tiny: bool) -> Iterator[Figure]:
    """Totals, and what remains without what the same workers take that report nothing."""
    if tiny:
        os.environ["BENCH_STEPS"] = "20"
    nothing, ours = _cost("nothing"), _cost(OURS)
    for name, (cpu, memory) in GOALS.items():
        theirs = _cost(name)
        yield _figure("total CPU", "s", ours.cpu_s, theirs.cpu_s, name, cpu)
        yield _figure("total memory", "MB", ours.peak_mb, theirs.peak_mb, name, memory)
        yield _figure(
            "CPU of telemetry", "s", ours.cpu_s - nothing.cpu_s, theirs.cpu_s - nothing.cpu_s, name
        )
        yield _figure(
            "memory of telemetry",
            "MB",
            ours.peak_mb - nothing.peak_mb,
            theirs.peak_mb - nothing.peak_mb,
            name,
        )


def _cost(name: str) -> Cost:
    return measured("bench.contenders.today", name)


def _figure(
    what: str, unit: str, ours: float, theirs: float, name: str, goal: float | None = None
) -> Figure:
    against = f"W&B offline, {name}"
    return Figure(
        f"8 x 20 x 5,000: {what}, {name}", unit, ours, theirs, against, ours / theirs, goal
    )
