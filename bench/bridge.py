"""Costs of the bridge: its stages, its W&B writer, and the whole path from loopback to the run.

CPU seconds are reliable on a shared machine, wall-clock times are indicative. W&B is offline, so no
network is measured.
"""

import contextlib
import http.client
import json
import resource
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from opentelemetry.context import Context
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.util.instrumentation import InstrumentationScope

from bench.family import descendants_cpu_s, measured
from bench.figures import Figure, Limits
from otel_rl.bridge.bridge import Bridge
from otel_rl.bridge.config import BridgeSettings, ListenSettings, TrackerSettings
from otel_rl.bridge.counters import Counter
from otel_rl.bridge.delivery.tracker import RunInfo
from otel_rl.bridge.delivery.wandb.tracker import WandbTracker
from otel_rl.bridge.journal.log import Log
from otel_rl.bridge.journal.runs import Commit, RunStore
from otel_rl.bridge.journal.sqlite import SqliteJournal
from otel_rl.bridge.journal.state import encode
from otel_rl.bridge.otlp.decode import decode_parts
from otel_rl.bridge.receive.limits import ReceiveLimits
from otel_rl.bridge.receive.validate import validate
from otel_rl.bridge.rows.run import Run
from otel_rl.bridge.rows.settings import AlignSettings
from otel_rl.records import Batch, ExperimentKey, Row, Signal
from otel_rl.semconv.spec import Tier
from otel_rl.setting_types import Address
from otel_rl.worker.drops import Drops
from otel_rl.worker.guard import Guard
from otel_rl.worker.metrics.gauges import GaugeEncoder, Measured, Stream
from otel_rl.worker.otlp.requests import Intervals, RequestPacker, encode_resource

WORKERS = 8
METRICS = 20
STEPS = 500
"""In an export."""
KEY = ExperimentKey("bench")
S = 1_000_000_000

GOAL_CPU_US = 6.0
"""Python's CPU time per point, W&B's own included."""
GOAL_WALL_US = 10.0
"""100,000 points a second."""


def figures(*, tiny: bool) -> Iterator[Figure]:
    """Measure stages, writer, end to end. Without a comparison: there is no other bridge."""
    for series, steps in (20, STEPS), (2000, 5):
        found = _stages(series, 2 if tiny else steps, rounds=3)
        for stage, us in found.items():
            yield _figure(f"bridge: {stage}, {series} series x {steps} steps", "us/point", us)
    for keys, rows in (20, 2000), (200, 1000):
        said = _in_a_process("writer", keys, 10 if tiny else rows)
        for part, us in said.items():
            yield _figure(f"W&B writer: {part}, rows of {keys}", "us/value", us)
    for tracker, goals in ("jsonl", (None, None)), ("wandb", (GOAL_CPU_US, GOAL_WALL_US)):
        said = _in_a_process("end_to_end", tracker, 1 if tiny else 6)
        name = f"end to end, {tracker}"
        python_us = said["bridge"] + said["writer"]
        yield _figure(f"{name}: CPU of Python", "us/point", python_us, goals[0])
        yield _figure(f"{name}: CPU of wandb-core", "us/point", said["core"])
        yield _figure(f"{name}: by the clock", "us/point", said["wall"], goals[1])
        yield _figure(f"{name}: memory of the bridge", "MB", said["rss_mb"])


def _figure(name: str, unit: str, ours: float, goal: float | None = None) -> Figure:
    return Figure(name, unit, ours, None, "", None, goal, Limits.OURS)


def request(worker: int, series: int, steps: range, now_ns: int, workers: int = WORKERS) -> bytes:
    """Build one export of one worker: every series at every step, as otel_rl's workers send it."""
    streams = [Stream(InstrumentationScope("bench"), f"metric.{n}") for n in range(series)]
    resource = Resource(
        {
            "rl.experiment.name": KEY.experiment,
            "rl.worker.role": "trainer",
            "rl.worker.index": worker,
            "rl.worker.count": workers,
            "service.instance.id": f"instance-{worker}",
            "telemetry.distro.name": "otel_rl",
        }
    )
    entries: list[Measured] = [
        (
            stream,
            step * 0.5 + worker,
            {"rl.loop.iteration": step},
            now_ns + (step - steps.start) * 1_000_000,
            Context(),
        )
        for step in steps
        for stream in streams
    ]
    packer = RequestPacker(encode_resource(resource), Signal.METRICS)
    GaugeEncoder(Guard(Drops()), Intervals(now_ns - 1)).pack(entries, packer)
    (only,) = packer.requests()
    return only.payload


class _Stopwatch:
    """CPU time of this process by stage."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}

    @contextlib.contextmanager
    def __call__(self, stage: str) -> Iterator[None]:
        start = time.process_time()
        yield
        self.seconds[stage] = self.seconds.get(stage, 0.0) + time.process_time() - start


def _stages(series: int, steps: int, rounds: int) -> Mapping[str, float]:
    """Measure CPU of each stage per point; a round is one export of every worker and one commit."""
    watch, limits = _Stopwatch(), ReceiveLimits()
    aligner = Run(AlignSettings(max_series=WORKERS * series))
    now_ns = time.time_ns()
    with tempfile.TemporaryDirectory() as directory:
        journal = SqliteJournal(Path(directory))
        run_store = RunStore(journal)
        for number in range(rounds):
            first = number * steps
            payloads = [
                request(worker, series, range(first, first + steps), now_ns)
                for worker in range(WORKERS)
            ]
            if number == 1:
                watch.seconds.clear()  # the first round makes the series
            for payload in payloads:
                with watch("validate"):
                    validate(Signal.METRICS, payload, limits, now_ns)
                with watch("decode"):
                    parts = [*decode_parts(Batch(KEY, Signal.METRICS, payload, now_ns))]
                with watch("align"):
                    for part in parts:
                        aligner.add(part, received_ns=now_ns)
            with watch("align"):
                rows = aligner.close(now_ns)
            with watch("commit"):
                log = aligner.take_dedup()
                state = _state(aligner)
                commit = Commit(
                    KEY, rows, aligner.row_maker.next_number, state, added={Log.DEDUP: log}
                )
                run_store.commit([commit])
            with watch("state, part of commit"):
                _state(aligner)
            now_ns += S
        journal.close()
    points = WORKERS * series * steps * (rounds - 1)
    return {stage: seconds / points * 1e6 for stage, seconds in watch.seconds.items()}


def _state(aligner: Run) -> bytes:
    return encode(aligner.stored())


def _writer(keys: int, rows: int) -> dict[str, float]:
    """Measure the CPU of writing rows of ``keys`` values to an offline run."""
    values = {f"trainer/metric_{n}": n / 7 for n in range(keys)}
    tracker = WandbTracker()
    with tempfile.TemporaryDirectory() as directory:
        tracker.open(RunInfo(KEY, "a" * 16, Path(directory), (("mode", "offline"),)))
        start = time.process_time()
        tracker.write([Row(n, n, n * S, values) for n in range(rows)])
        python_s = time.process_time() - start
        tracker.close(exit_code=0)
    core = resource.getrusage(resource.RUSAGE_CHILDREN)
    return {
        "Python": python_s / rows / keys * 1e6,
        "wandb-core": (core.ru_utime + core.ru_stime) / rows / keys * 1e6,
    }


def _end_to_end(tracker: str, exports: int) -> dict[str, float]:
    """Measure a bridge that gets ``exports`` requests of 20 x 500 points from each worker."""
    with tempfile.TemporaryDirectory() as directory:
        bridge = Bridge(_bridge_settings(Path(directory), tracker))
        bridge.start()
        send(bridge.http, 1, requests(0, 1, Path(directory)))
        _wait_for_rows(bridge, STEPS - 1)
        files = requests(1, exports, Path(directory))
        before, own_s, start = descendants_cpu_s(), time.process_time(), time.monotonic()
        send(bridge.http, exports, files)
        _wait_for_rows(bridge, STEPS * (1 + exports) - 1)
        wall_s, own_s = time.monotonic() - start, time.process_time() - own_s
        used = {
            name: used_s - before.get(name, 0.0) for name, used_s in descendants_cpu_s().items()
        }
        bridge.stop()
        # More, because the bridge adds its own metrics.
        assert bridge.counters.value(Counter.ROWS_CREATED) >= STEPS * (1 + exports)
    points = WORKERS * METRICS * STEPS * exports
    core_s = used.pop("wandb-core", 0.0)
    return {
        "wall": wall_s / points * 1e6,
        "bridge": own_s / points * 1e6,
        "writer": sum(used.values()) / points * 1e6,
        "core": core_s / points * 1e6,
        "rss_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
    }


def _bridge_settings(directory: Path, tracker: str) -> BridgeSettings:
    return BridgeSettings(
        data=directory,
        listen=ListenSettings(http=Address("127.0.0.1", 0), grpc=None),
        rows=AlignSettings(per_worker=True),
        tracker=TrackerSettings(
            name=tracker,
            detail=Tier.EVERYTHING,
            options={"mode": "offline"} if tracker == "wandb" else {},
        ),
    )


def _wait_for_rows(bridge: Bridge, rows: int) -> None:
    while not any(status.next_row >= rows for status in bridge.status()):
        time.sleep(0.1)  # a look costs the bridge a query


def requests(first: int, exports: int, directory: Path) -> list[str]:
    """Write files with the exports of all workers, one worker after the other."""
    files = []
    for worker in range(WORKERS):
        for export in range(first, first + exports):
            steps = range(export * STEPS, (export + 1) * STEPS)
            file = directory / f"{worker}-{export}"
            file.write_bytes(request(worker, METRICS, steps, time.time_ns()))
            files.append(str(file))
    return files


def send(address: str, exports: int, files: Sequence[str]) -> None:
    """Send ``exports`` files of each worker from a process of its own."""
    command = [sys.executable, "-m", "bench.bridge", "post", address, str(exports), *files]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)


def _post(address: str, exports: str, *files: str) -> dict[str, float]:
    """Send each worker's exports in order, the workers concurrently."""

    def send_all(paths: Sequence[str]) -> None:
        connection = http.client.HTTPConnection(address)
        for path in paths:
            headers = {"Content-Type": "application/x-protobuf"}
            connection.request("POST", "/v1/metrics", Path(path).read_bytes(), headers)
            answer = connection.getresponse()
            assert answer.status == 200, answer.status
            answer.read()

    count = int(exports)
    threads = [
        threading.Thread(target=send_all, args=(files[start : start + count],))
        for start in range(0, len(files), count)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return {}


def _in_a_process(part: str, *arguments: object) -> dict[str, float]:
    """Return the output of a part of this module that runs in a process of its own."""
    said = measured("bench.bridge", part, *map(str, arguments)).said
    found: dict[str, float] = json.loads(said)
    return found


def main(part: str, *arguments: str) -> dict[str, float]:
    match part:
        case "writer":
            return _writer(*map(int, arguments))
        case "end_to_end":
            return _end_to_end(arguments[0], int(arguments[1]))
        case "post":
            return _post(*arguments)
    raise SystemExit(f"There is no part {part!r}.")


if __name__ == "__main__":
    print(json.dumps(main(*sys.argv[1:])))
