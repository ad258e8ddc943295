"""Whether costs stay what they are as a run grows: 10^7 points, 10^5 steps, 10^4 series, 500 runs.

CPU microseconds of a point or sample, of all processes of a bridge that writes JSON lines: those of
the large beside those of the small. One worker each makes the long run and the many runs, so that
nothing else grows with them.
"""

import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from bench.bridge import request
from bench.family import family_cpu_s, family_mb, part_mb
from bench.figures import Figure, Limits
from bench.sparse import SETTINGS, last_step, sent_anew, settle, wait_for
from bench.sparse_worker import GAUGES, S, Worker
from otel_rl.run_id import run_id
from tests.lab.running import Bridge

GOAL = 1.25
"""Cost of the large by that of the small; more than machines vary from minute to minute."""

DIAGNOSIS = "otel_rl.cli.diagnosis_process"
DIAGNOSIS_MB = 600.0
"""The process keeps histories of 512 MiB, and its code."""

SERIES = 100
STEPS = 500
"""In an export of the long run: 50,000 points."""
EXPORTS = 200
PART = 20
"""Exports at its beginning and at its end that are compared."""

WORKERS = (10, 250)
"""Of 40 series each, in one run."""
RUNS = (20, 500)
"""Of one worker each."""
SECONDS = 20
ROUNDS = 3

_STEP_NS = 1_000_000  # as ``request`` has it


def figures(*, tiny: bool) -> Iterator[Figure]:
    """Yield costs of a long run's end by its beginning, then of many series and many runs."""
    exports, part = (4, 1) if tiny else (EXPORTS, PART)
    begin, end = _long_run(exports, part)
    points, steps = SERIES * STEPS * exports, STEPS * exports
    name = f"flat: {points:,} points of {steps:,} steps, the end beside the beginning"
    for what, unit, place in (("CPU", "us", 0), ("memory without diagnosis", "MB", 1)):
        ours, theirs = end[place], begin[place]
        yield Figure(f"{name}: {what}", unit, ours, theirs, "beginning", ours / theirs, GOAL)
    ours, theirs = end[2], begin[2]
    yield Figure(
        f"{name}: memory of the diagnosis",
        *("MB", ours, theirs, "beginning", ours / theirs if theirs else None),
        *(DIAGNOSIS_MB, Limits.OURS),
    )
    sizes, seconds, rounds = ((2, 4), 3, 1) if tiny else (WORKERS, SECONDS, ROUNDS)
    yield _figure("series", 40, sizes, rounds, lambda n: _sparse(n, 1, seconds))
    sizes = (2, 4) if tiny else RUNS
    yield _figure("experiments", 1, sizes, rounds, lambda n: _sparse(1, n, seconds))


def _figure(
    what: str, each: int, sizes: tuple[int, int], rounds: int, cost: Callable[[int], float]
) -> Figure:
    small, large = sizes
    found = [(cost(small), cost(large)) for _ in range(rounds)]
    ratios = [of_large / of_small for of_small, of_large in found]
    return Figure(
        f"flat: {large * each:,} {what} beside {small * each:,}",
        "us",
        statistics.median(of_large for _, of_large in found),
        statistics.median(of_small for of_small, _ in found),
        f"{small * each:,} {what}",
        statistics.median(ratios),
        GOAL,
        spread=(min(ratios), max(ratios)),
    )


def _long_run(exports: int, part: int) -> Sequence[tuple[float, float, float]]:
    """Return microseconds of a point, and memory in MB without the diagnosis and of it.

    At the beginning and at the end of a run.
    """
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        with Bridge(directory / "bridge", SETTINGS) as bridge:
            run = directory / "bridge" / "data" / f"{run_id('bench', 'default')}.jsonl"
            found, sent = [], 0
            begun_ns = time.time_ns() - exports * STEPS * _STEP_NS

            def send(n: int) -> None:
                nonlocal sent
                bodies = []
                for at in range(sent * STEPS, (sent + n) * STEPS, STEPS):
                    time_ns = begun_ns + at * _STEP_NS
                    bodies.append([request(0, SERIES, range(at, at + STEPS), time_ns, 1)])
                sent_anew(bridge.url, bodies, directory)
                sent += n
                while last_step(run, "trainer/metric/0") < sent * STEPS - 2:
                    time.sleep(0.1)

            send(part)  # the series and the processes are there
            settle(bridge.pid)
            for before in (0, exports - 3 * part):
                while before > 0:
                    send(part)
                    before -= part
                used_s = family_cpu_s(bridge.pid)
                send(part)
                used_s = family_cpu_s(bridge.pid) - used_s
                cost_us = used_s / (SERIES * STEPS * part) * 1e6
                diagnosis_mb = part_mb(bridge.pid, DIAGNOSIS)
                found.append((cost_us, family_mb(bridge.pid) - diagnosis_mb, diagnosis_mb))
    return found


def _sparse(workers: int, runs: int, seconds: int) -> float:
    """Return microseconds of a sample of runs of some workers each."""
    begun_ns = time.time_ns() - (2 * seconds) * S
    names = [f"flat-{n}" for n in range(runs)]
    senders = [
        Worker(number, workers, GAUGES, begun_ns, name)
        for name in names
        for number in range(workers)
    ]
    requests = [[one.request(second) for one in senders] for second in range(2 * seconds)]
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        with Bridge(directory / "bridge", SETTINGS) as bridge:
            data = directory / "bridge" / "data"
            files = [data / f"{run_id(one, 'default')}.jsonl" for one in names]
            sent_anew(bridge.url, requests[:seconds], directory, 1.0)
            for file in files:
                wait_for(file, seconds - 1)
            used_s = family_cpu_s(bridge.pid)
            sent_anew(bridge.url, requests[seconds:], directory, 1.0)
            for file in files:
                wait_for(file, 2 * seconds - 1)
            used_s = family_cpu_s(bridge.pid) - used_s
    return used_s / (len(senders) * sum(GAUGES) * seconds) * 1e6
