"""Start of a worker: from the first import to the first export, beside ``wandb.init`` offline.

Then ``otel-rl run`` of a script of one second, to W&B offline, beside the script with
``wandb.init`` and ``finish``. Each start is a process of its own; the contenders take turns.
"""

import os
import subprocess
import sys
import tempfile
import time
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

SCRIPT = Path(__file__).parent / "contenders" / "script.py"

SCRIPT_TIMES = {
    "its start to the first accepted request": 1.0,
    "its start to the end of a script of 1 s": None,
}
"""Goals for the ratio to a script that calls ``wandb.init`` by itself."""

GOAL_MB = 32.0
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

    yield from _script_figures(1 if tiny else ROUNDS)


def _script_figures(rounds: int) -> Iterator[Figure]:
    found = [(_script("otel_rl"), _script("wandb")) for _ in range(rounds)]
    for place, (what, goal) in enumerate(SCRIPT_TIMES.items()):
        ours, theirs = ([one[kind][place] for one in found] for kind in (0, 1))
        ratios = [mine / other for mine, other in zip(ours, theirs, strict=True)]
        yield Figure(
            f"otel-rl run: from {what}",
            *("s", median(ours), median(theirs), "wandb.init, offline", median(ratios), goal),
            spread=(min(ratios), max(ratios)),
        )


def _script(kind: str) -> tuple[float, float]:
    """Return the seconds to the first acceptance, and to the end."""
    command = [sys.executable, str(SCRIPT), kind]
    if kind == "otel_rl":
        command = [sys.executable, "-m", "otel_rl", "run", "--", *command]
    with tempfile.TemporaryDirectory() as directory:
        environment = {
            **os.environ,
            "PYTHONPATH": str(Path(__file__).parents[1]),
            "WANDB_MODE": "offline",
            "WANDB_ERROR_REPORTING": "false",
        }
        begun_s = time.time()
        output = subprocess.run(
            command, check=True, capture_output=True, text=True, cwd=directory, env=environment
        ).stdout
        ended_s = time.time()
    accepted_s = next(float(line) for line in output.splitlines() if line[:1].isdigit())
    return accepted_s - begun_s, ended_s - begun_s


def _started(kind: str, endpoint: str) -> list[float]:
    command = [sys.executable, str(CONTENDER), kind, endpoint]
    output = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    return [float(word) for word in output.split()[-3:]]
