"""Start of a worker: from the first import to the first export, beside ``wandb.init`` offline.

Each start is a process of its own; the contenders take turns.
"""

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from statistics import median

from bench.figures import Figure, Limits
from bench.sink import sink

KINDS = ("otel_rl", "wandb")
NAMES = {0: ("CPU", "s"), 1: ("wall clock", "s"), 2: ("private memory over bare Python", "MB")}
"""By the position of the number that a contender prints."""

CONTENDER = Path(__file__).parent / "contenders" / "start.py"
"""A file: ``python -m`` imports more than bare Python."""

GOAL_MB = 12.0
ROUNDS = 7


def figures(*, tiny: bool) -> Iterator[Figure]:
    """Yield time and memory of a start."""
    found: dict[str, list[list[float]]] = {kind: [] for kind in KINDS}
    with sink() as endpoint:
        for _ in range(1 if tiny else ROUNDS):
            for kind in KINDS:
                found[kind].append(_started(kind, endpoint))
    for place, (what, unit) in NAMES.items():
        ours, theirs = ([one[place] for one in found[kind]] for kind in KINDS)
        yield Figure(
            f"start, to the first export: {what}",
            unit,
            median(ours),
            median(theirs),
            "wandb.init offline",
            median(mine / other for mine, other in zip(ours, theirs, strict=True)),
            GOAL_MB if unit == "MB" else None,
            Limits.OURS if unit == "MB" else Limits.RATIO,
            (min(ours), max(ours)),
        )


def _started(kind: str, endpoint: str) -> list[float]:
    command = [sys.executable, str(CONTENDER), kind, endpoint]
    output = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    return [float(word) for word in output.split()[-3:]]
