"""The sparse shape: many workers, each with 40 series of one measurement a request, every second.

Costs are CPU microseconds for a sample of a series. Stages are measured within this process, beside
``ParseFromString`` of the same bytes. The whole way, from loopback to a stored row of JSON lines,
is that of the bridge's processes. Beside it, at the same time, the real Collector's gateway with
its queue on disk, if ``make lab`` has built it; and a controller that gets the same values by a
queue of ``multiprocessing`` and writes them as they come: nothing of it survives a crash. All
requests are made before any is sent.
"""

import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import NamedTuple

from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import (
    ExportMetricsServiceRequest,
)

from bench.family import family_cpu_s, family_states
from bench.figures import Figure
from bench.sparse_worker import EXPERIMENT, GAUGES, MIXED, SERIES, Instruments, traffic
from otel_rl.bridge.counters import Counters
from otel_rl.bridge.durable_batches import DurableBatches
from otel_rl.bridge.journal.runs import RunStore
from otel_rl.bridge.journal.spool import Spool
from otel_rl.bridge.journal.sqlite import SqliteJournal
from otel_rl.bridge.receive.journal_shares import JournalShares
from otel_rl.bridge.receive.limits import ReceiveLimits
from otel_rl.bridge.receive.pipeline import IngestPipeline, Storage
from otel_rl.bridge.receive.tokens import TokenShares
from otel_rl.bridge.rows.scheduler import Scheduler
from otel_rl.bridge.rows.settings import AlignSettings
from otel_rl.run_id import run_id
from otel_rl.signals import Signal
from tests.lab.programs import COLLECTOR
from tests.lab.running import Bridge, Collector, Running

WORKERS = 16
SECONDS = 30
"""Requests of each worker."""
PACE_S = 1.0
WARM = 12
"""Seconds sent before, enough for the first diagnosis of the run."""
ROUNDS = 3

SETTINGS = "rows.max_series = 100000"
"""Of the bridge: by default a run has 10,000, fewer than 512 workers of 40."""

GATEWAY_GOAL = 0.7
"""CPU of the bridge by that of the gateway."""
EMPTY_GOAL = 3.0
"""The same for a request with one series."""
PARSE_GOAL = 45.0
"""CPU of each of two stages by that of ``ParseFromString``, of which a gateway takes 125 times: so
that both together are no more than ``GATEWAY_GOAL``."""
QUEUE_GOALS = {SERIES: 11.0, 1: 55.0}
"""CPU of the bridge by that of such a controller, by series of a request: a gateway takes 16 and 19
times as much as the controller, and the goals beside it are those above."""
_MEASURED = "trainer/metric_0"
"""Key of every row with the values of a step."""
_TIMEOUT_S = 600.0
_PROCESSES = 2  # bridge, diagnosis: JSON lines are written in the bridge
_ASLEEP = 30  # looks in a row, a tenth of a second apart


class Answered(NamedTuple):
    """A request that was accepted.

    Attributes:
        second: Index of the request among those of its worker.
        sent_s: Unix time.
        took_s: Seconds to the answer.
    """

    second: int
    sent_s: float
    took_s: float


def figures(*, tiny: bool) -> Iterator[Figure]:
    """Measure stages, then the whole way; medians over rounds."""
    workers, seconds, rounds = (4, 4, 1) if tiny else (WORKERS, SECONDS, ROUNDS)
    for what, instruments in (("", GAUGES), (" with counters and histograms", MIXED)):
        costs = {**stages(workers, seconds, instruments)}
        parse_us = costs.pop("parse")
        for name, us in costs.items():
            parse = parse_us, "ParseFromString", us / parse_us
            yield Figure(f"sparse: {name}{what}", "us", us, *parse, PARSE_GOAL)
    if not COLLECTOR.is_built():
        print("sparse: gateway not measured, run `make lab` first", file=sys.stderr)
    for instruments, what, goal in (
        (GAUGES, f"{SERIES} series", GATEWAY_GOAL),
        (MIXED, f"{SERIES} series with counters and histograms", GATEWAY_GOAL),
        (Instruments(1), "one series", EMPTY_GOAL),
    ):
        found = [
            {
                **whole_way(workers, seconds, instruments, at_once=True),
                "queue": queued(workers, seconds, sum(instruments)),
            }
            for _ in range(rounds)
        ]
        goal_beside_queue = QUEUE_GOALS[sum(instruments)]
        yield _beside_queue(f"sparse: request of {what}", found, goal_beside_queue)
        for name in found[0]:
            ours = [costs[name] for costs in found]
            theirs = [costs["gateway"] for costs in found if "gateway" in costs]
            if name in ("gateway", "queue"):
                continue
            median = statistics.median
            ratios = [one / other for one, other in zip(ours, theirs, strict=False)]
            yield Figure(
                f"sparse: request of {what}, {name}",
                "us",
                median(ours),
                median(theirs) if theirs else None,
                "gateway of the Collector" if theirs else "",
                median(ratios) if ratios else None,
                goal if ratios else None,
                spread=(min(ratios), max(ratios)) if ratios else (min(ours), max(ours)),
            )


def _beside_queue(name: str, found: Sequence[Mapping[str, float]], goal: float) -> Figure:
    ours, theirs = ([costs[way] for costs in found] for way in ("bridge alone", "queue"))
    ratios = [one / other for one, other in zip(ours, theirs, strict=True)]
    return Figure(
        f"{name}, bridge alone, beside a queue",
        "us",
        statistics.median(ours),
        statistics.median(theirs),
        "queue to one controller",
        statistics.median(ratios),
        goal,
        spread=(min(ratios), max(ratios)),
    )


def stages(workers: int, seconds: int, instruments: Instruments = GAUGES) -> Mapping[str, float]:
    """Measure CPU microseconds of a sample in this process: receipt, rows, and a bare parse."""
    requests = traffic(workers, seconds, instruments)
    spent = dict.fromkeys(("parse", "receive", "make rows"), 0.0)
    with tempfile.TemporaryDirectory() as directory:
        journal = SqliteJournal(Path(directory))
        spool, counters = Spool(journal), Counters()
        durable = DurableBatches(
            spool,
            JournalShares(TokenShares(()), 1 << 30, spool.in_use, lambda _: ""),
            counters,
            kept=lambda: None,
        )
        intake = IngestPipeline(Storage(durable.keep), ReceiveLimits(), counters)
        rows = Scheduler(
            spool,
            RunStore(journal),
            AlignSettings(),
            counters,
        )
        for second, bodies in enumerate(requests):
            if second == 2:  # warm: the series are known
                spent = dict.fromkeys(spent, 0.0)
            begun = time.process_time()
            for body in bodies:
                intake.take(Signal.METRICS, body)
            received = time.process_time()
            while rows.round(time.time_ns()):
                pass
            made = time.process_time()
            for body in bodies:
                ExportMetricsServiceRequest.FromString(body)
            parsed = time.process_time()
            spent["receive"] += received - begun
            spent["make rows"] += made - received
            spent["parse"] += parsed - made
        journal.close()
    samples = workers * sum(instruments) * max(1, seconds - 2)
    return {name: used_s / samples * 1e6 for name, used_s in spent.items()}


def whole_way(
    workers: int,
    seconds: int,
    instruments: Instruments = GAUGES,
    pace_s: float = PACE_S,
    *,
    at_once: bool = False,
) -> Mapping[str, float]:
    """Measure CPU microseconds of a sample: bridge alone, gateway, bridge behind it.

    Args:
        workers: Number of them.
        seconds: Requests of each.
        instruments: Of each.
        pace_s: Seconds between two requests of a worker.
        at_once: Both ways at the same time, so that they see the same machine: its speed differs by
            half from one minute to the next. For a load of a few per cent of a core.
    """
    ways = [(), ("gateway",)] if COLLECTOR.is_built() else [()]
    with ThreadPoolExecutor(len(ways) if at_once else 1) as pool:
        measure = partial(_way, workers, seconds, instruments, pace_s=pace_s)
        alone, *behind = pool.map(measure, ways)
    found = {"bridge alone": alone["bridge"]}
    for both in behind:
        found |= {"gateway": both["gateway"], "bridge behind a gateway": both["bridge"]}
    return found


def _way(
    workers: int,
    seconds: int,
    instruments: Instruments,
    collectors: Sequence[str],
    pace_s: float = PACE_S,
) -> Mapping[str, float]:
    with tempfile.TemporaryDirectory() as name, ExitStack() as stack:
        directory = Path(name)
        bridge: Bridge = stack.enter_context(Bridge(directory / "bridge", SETTINGS))
        programs: dict[str, Running] = {"bridge": bridge}
        door = bridge.url
        for part in collectors:
            settings = {"OTEL_RL_BRIDGE_URL": door, "OTEL_RL_JAEGER_URL": "http://127.0.0.1:1"}
            collector = Collector(part, directory / part, settings)
            programs[part] = stack.enter_context(collector)
            door = collector.url
        run = directory / "bridge" / "data" / f"{run_id(EXPERIMENT, 'default')}.jsonl"
        requests = traffic(workers, WARM + seconds, instruments)
        sent_anew(door, requests[:WARM], directory)
        wait_for(run, WARM - 1)  # the newest step waits for its workers
        settle(bridge.pid)
        before = {name: family_cpu_s(one.pid) for name, one in programs.items()}
        sent_anew(door, requests[WARM:], directory, pace_s)
        wait_for(run, WARM + seconds - 1)
        samples = workers * sum(instruments) * seconds
        return {
            name: (family_cpu_s(one.pid) - before[name]) / samples * 1e6
            for name, one in programs.items()
        }


def queued(workers: int, seconds: int, series: int, pace_s: float = PACE_S) -> float:
    """Measure CPU microseconds of a sample in a controller that writes a row for each step."""
    with tempfile.TemporaryDirectory() as directory:
        run = Path(directory) / "run.jsonl"
        command = [sys.executable, "-m", "bench.contenders.controller", str(run)]
        numbers = map(str, (workers, seconds, series, pace_s))
        done = subprocess.run([*command, *numbers], check=True, stdout=subprocess.PIPE)
    return float(done.stdout) / (workers * series * seconds) * 1e6


def settle(pid: int) -> None:
    """Wait until the first diagnosis is over: a process starts for it, once in a bridge's life."""
    asleep = 0
    while asleep < _ASLEEP:
        time.sleep(0.1)
        states = family_states(pid)
        asleep = asleep + 1 if len(states) >= _PROCESSES and set(states) == {"S"} else 0


def sent_anew(
    door: str, requests: Sequence[Sequence[bytes]], directory: Path, pace_s: float = 0.0
) -> Sequence[Answered]:
    """Send each worker's requests in order, the workers concurrently."""
    for second, bodies in enumerate(requests):
        for worker, body in enumerate(bodies):
            (directory / f"{worker}-{second}").write_bytes(body)
    numbers = map(str, (len(requests[0]), len(requests), pace_s))
    address = door.removeprefix("http://")
    command = [sys.executable, "-m", "bench.sparse_sender", address, str(directory), *numbers]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE)
    lines = [line.split() for line in done.stdout.splitlines()]
    return [Answered(int(second), float(sent), float(took)) for second, sent, took in lines]


def wait_for(run: Path, steps: int) -> None:
    """Wait until this many steps are in the run."""
    deadline = time.monotonic() + _TIMEOUT_S
    while last_step(run) < steps - 1:
        if time.monotonic() > deadline:
            raise SystemExit(f"{run} has no step {steps - 1}.")
        time.sleep(0.1)


def last_step(run: Path, key: str = _MEASURED) -> int:
    """Return the newest step with a value of ``key`` among a run's last lines; -1 without one."""
    if not run.exists():
        return -1
    with run.open("rb") as file:
        file.seek(max(0, run.stat().st_size - (1 << 16)))
        lines = file.read().split(b"\n")[1:-1]
    rows = map(json.loads, lines)
    # Other rows, such as the bridge's reports, have the step in progress.
    return max((row["step"] for row in rows if key in row["values"]), default=-1)


if __name__ == "__main__":
    print(json.dumps(stages(WORKERS, int(sys.argv[1]) if sys.argv[1:] else SECONDS)))
