"""The same values into a tracker's own server: by its own client in each worker, and by otel_rl.

8 workers x 20 metrics, 300 steps of 20 ms, and the sparse shape, 16 x 40, 10 steps of a second: CPU
and memory of all processes together, the server's included. Every metric of every worker is in the
run.
"""

import os
from collections.abc import Iterator
from statistics import median

from bench.family import Cost, measured
from bench.figures import Figure

SHAPES = {"": (8, 20, 300, 0.02, 3), "sparse: ": (16, 40, 10, 1.0, 1)}
"""Workers, metrics, steps, seconds of a step, and rounds, by the beginning of the names."""

SPARSE_GOAL = 1.0
"""CPU and memory by those of the clients."""

TRACKERS = {"mlflow": "MLflow", "trackio": "Trackio"}


def figures(*, tiny: bool) -> Iterator[Figure]:
    """Yield CPU and memory of both ways; medians over rounds."""
    for shape, (workers, metrics, steps, pause_s, times) in SHAPES.items():
        os.environ["BENCH_WORKERS"] = str(2 if tiny else workers)
        os.environ["BENCH_METRICS"] = str(metrics)
        os.environ["BENCH_STEPS"] = str(10 if tiny else steps)
        os.environ["BENCH_PAUSE_S"] = str(0.02 if tiny else pause_s)
        for tracker, name in TRACKERS.items():
            rounds = [
                (_cost(tracker, "otel_rl"), _cost(tracker, "client"))
                for _ in range(1 if tiny else times)
            ]
            for what, unit, pairs in (
                ("total CPU", "s", [(ours.cpu_s, theirs.cpu_s) for ours, theirs in rounds]),
                ("memory", "MB", [(ours.peak_mb, theirs.peak_mb) for ours, theirs in rounds]),
            ):
                ratios = [ours / theirs for ours, theirs in pairs]
                yield Figure(
                    f"{shape}{what}: {name}'s server, all metrics",
                    unit,
                    median(ours for ours, _ in pairs),
                    median(theirs for _, theirs in pairs),
                    f"{name}'s client in each worker",
                    median(ratios),
                    SPARSE_GOAL if shape else None,
                    spread=(min(ratios), max(ratios)),
                )


def _cost(tracker: str, way: str) -> Cost:
    return measured("bench.contenders.trackers", tracker, way)
