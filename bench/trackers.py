"""The same values into a tracker's own server: by its own client in each worker, and by otel_rl.

8 workers x 20 metrics, 300 steps of 20 ms: CPU and memory of all processes together, the server's
included. Every metric of every worker is in the run.
"""

import os
from collections.abc import Iterator
from statistics import median

from bench.family import Cost, measured
from bench.figures import Figure

STEPS = 300
ROUNDS = 3

TRACKERS = {"mlflow": "MLflow", "trackio": "Trackio"}


def figures(*, tiny: bool) -> Iterator[Figure]:
    """Yield CPU and memory of both ways; medians over rounds in which they take turns."""
    os.environ["BENCH_STEPS"] = str(10 if tiny else STEPS)
    os.environ["BENCH_PAUSE_S"] = "0.02"
    for tracker, name in TRACKERS.items():
        rounds = [
            (_cost(tracker, "otel_rl"), _cost(tracker, "client"))
            for _ in range(1 if tiny else ROUNDS)
        ]
        for what, unit, pairs in (
            ("total CPU", "s", [(ours.cpu_s, theirs.cpu_s) for ours, theirs in rounds]),
            ("memory", "MB", [(ours.peak_mb, theirs.peak_mb) for ours, theirs in rounds]),
        ):
            ratios = [ours / theirs for ours, theirs in pairs]
            yield Figure(
                f"{what}: {name}'s server, all metrics",
                unit,
                median(ours for ours, _ in pairs),
                median(theirs for _, theirs in pairs),
                f"{name}'s client in each worker",
                median(ratios),
                spread=(min(ratios), max(ratios)),
            )


def _cost(tracker: str, way: str) -> Cost:
    return measured("bench.contenders.trackers", tracker, way)
