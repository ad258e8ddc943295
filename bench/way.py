"""The same requests to the bridge alone, through a gateway, and through an agent and a gateway.

The collectors are the real ones, with the files of collector_config/; nothing is measured where
`make lab` has not built them. Eight workers send one request each at a time, as fast as they are
answered. Costs are those of each program with all its descendants, from the first request to the
last row in the run.
"""

import json
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path

from bench.bridge import KEY, METRICS, WORKERS, request, send
from bench.family import family_cpu_s, family_mb
from bench.figures import Figure
from otel_rl.run_id import run_id
from tests.lab.programs import COLLECTOR
from tests.lab.running import Bridge, Collector, Running

STEPS = 50
"""In an export, so a request holds 1,000 points."""
EXPORTS = 30
"""Of each worker."""
ROUNDS = 3

ALONE = "bridge alone"
WAYS: Mapping[str, Sequence[str]] = {
    ALONE: (),
    "gateway": ("gateway",),
    "agent and gateway": ("gateway", "agent"),
}

NOBODY = "http://127.0.0.1:1"
TAIL_BYTES = 1 << 16
TIMEOUT_S = 300.0


def figures(*, tiny: bool) -> Iterator[Figure]:
    """Yield throughput of each way, CPU and memory of each program on it; medians over rounds."""
    if not COLLECTOR.is_built():
        print("way: not measured, run `make lab` first", file=sys.stderr)
        return
    exports, rounds = (2, 1) if tiny else (EXPORTS, ROUNDS)
    found = [{way: _measured(way, exports) for way in WAYS} for _ in range(rounds)]
    for way in WAYS:
        for what in found[0][way]:
            each = [costs[way][what] for costs in found]
            beside = [costs[ALONE].get(what) for costs in found] if way != ALONE else []
            theirs = [value for value in beside if value is not None]
            ratios = [a / b for a, b in zip(each, theirs, strict=False)]
            yield Figure(
                f"way: {way}, {what[0]}",
                what[1],
                _median(each),
                _median(theirs) if theirs else None,
                ALONE if theirs else "",
                _median(ratios) if ratios else None,
                spread=(min(ratios), max(ratios)) if ratios else (min(each), max(each)),
            )


def _median(values: Sequence[float]) -> float:
    return sorted(values)[len(values) // 2]


def _measured(way: str, exports: int) -> Mapping[tuple[str, str], float]:
    """Return each cost by its name and unit."""
    with tempfile.TemporaryDirectory() as name, ExitStack() as stack:
        directory = Path(name)
        bridge: Bridge = stack.enter_context(Bridge(directory / "bridge"))
        programs: dict[str, Running] = {"bridge": bridge}
        door = bridge.url
        for part in WAYS[way]:
            collector = Collector(part, directory / part, _settings(part, door))
            programs[part] = stack.enter_context(collector)
            door = collector.url
        run = directory / "bridge" / "data" / f"{run_id(KEY.experiment, KEY.trial)}.jsonl"
        _send(door, 0, 1, directory)
        _wait(run, STEPS - 1)  # warm-up: the writer runs
        before = {name: family_cpu_s(one.pid) for name, one in programs.items()}
        begun = time.monotonic()
        _send(door, 1, exports, directory)
        answered_s = time.monotonic() - begun
        _wait(run, STEPS * (1 + exports) - 1)
        took_s = time.monotonic() - begun
        points = WORKERS * METRICS * STEPS * exports
        costs = {
            ("answered", "points/s"): points / answered_s,
            ("in the run", "points/s"): points / took_s,
        }
        for name, one in programs.items():
            used_s = family_cpu_s(one.pid) - before[name]
            costs[f"CPU of the {name}", "us/point"] = used_s / points * 1e6
            costs[f"memory of the {name}", "MB"] = family_mb(one.pid)
        return costs


def _settings(part: str, door: str) -> Mapping[str, str]:
    if part == "agent":
        return {"OTEL_RL_GATEWAY_URL": door}
    return {"OTEL_RL_BRIDGE_URL": door, "OTEL_RL_JAEGER_URL": NOBODY}


def _send(door: str, first: int, exports: int, directory: Path) -> None:
    """Send some exports of each worker, made before any is sent."""
    files = []
    for worker in range(WORKERS):
        for export in range(first, first + exports):
            steps = range(export * STEPS, (export + 1) * STEPS)
            file = directory / f"{worker}-{export}"
            file.write_bytes(request(worker, METRICS, steps, time.time_ns()))
            files.append(str(file))
    send(door.removeprefix("http://"), exports, files)


def _wait(run: Path, steps: int) -> None:
    """Wait until the run has this many steps; the last one waits for late workers."""
    deadline = time.monotonic() + TIMEOUT_S
    while _steps(run) < steps:
        if time.monotonic() > deadline:
            raise SystemExit(f"{run} has {_steps(run)} of {steps} steps.")
        time.sleep(0.05)


def _steps(run: Path) -> int:
    """Return the number of steps in the last lines."""
    if not run.exists():
        return 0
    with run.open("rb") as file:
        file.seek(max(0, run.stat().st_size - TAIL_BYTES))
        lines = file.read().split(b"\n")[1:-1]
    steps = [json.loads(line)["step"] for line in lines]
    return 1 + max((step for step in steps if step is not None), default=-1)
