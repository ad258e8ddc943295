"""What the bridge costs, stage by stage and end to end, and beside what users do today.

    .venv/bin/python bench/bridge.py

CPU seconds are reliable on a shared machine; rates by the clock are indicative. Ratios are taken in
one run. W&B is offline everywhere, so no network is measured.
"""

import contextlib
import ctypes
import http.client
import json
import os
import pickle
import resource
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from opentelemetry.context import Context
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.util.instrumentation import InstrumentationScope

from otel_rl.bridge.align import Aligner, AlignSettings
from otel_rl.bridge.config import BridgeSettings, GrpcSettings, HttpSettings, TrackerSettings
from otel_rl.bridge.counters import Counter
from otel_rl.bridge.decode import decode
from otel_rl.bridge.journal.sqlite import SqliteJournal
from otel_rl.bridge.ledger import Commit, Ledger
from otel_rl.bridge.pipeline import Bridge
from otel_rl.bridge.receive.admit import admit
from otel_rl.bridge.receive.limits import ReceiveLimits
from otel_rl.bridge.track import RunInfo
from otel_rl.bridge.track.wandb import WandbTracker
from otel_rl.records import Batch, ExperimentKey, Row, Signal
from otel_rl.worker.buffer import Measured
from otel_rl.worker.drops import Drops
from otel_rl.worker.encode import Stream, encode_resource
from otel_rl.worker.expand import Expander
from otel_rl.worker.guard import Guard
from otel_rl.worker.intervals import Intervals

WORKERS = 8
KEY = ExperimentKey("bench")
S = 1_000_000_000

METRICS = 20
TODAY = str(Path(__file__).parent / "contenders" / "today.py")
SAMPLE_S = 0.05  # how often memory is looked at


def request(worker: int, series: int, steps: range, now_ns: int) -> bytes:
    """One export of one worker: every series at every step, as otel_rl's workers send it."""
    streams = [Stream(InstrumentationScope("bench"), f"metric.{n}") for n in range(series)]
    resource = Resource(
        {
            "rl.experiment.name": KEY.experiment,
            "rl.worker.role": "trainer",
            "rl.worker.index": worker,
            "rl.worker.count": WORKERS,
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
    expander = Expander(Guard(Drops()), Intervals(now_ns - 1))
    (only,) = expander.requests(entries, encode_resource(resource))
    return only.payload


# 1. Stages, in this process.


class Stopwatch:
    """CPU time of this process by stage."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}

    @contextlib.contextmanager
    def __call__(self, stage: str) -> Iterator[None]:
        start = time.process_time()
        yield
        self.seconds[stage] = self.seconds.get(stage, 0.0) + time.process_time() - start


def stages(series: int, steps: int, rounds: int) -> None:
    """CPU of each stage per point; a round is one export of every worker and one commit."""
    watch, limits = Stopwatch(), ReceiveLimits()
    aligner = Aligner(AlignSettings(max_series=WORKERS * series))
    now_ns = time.time_ns()
    sizes = []
    with tempfile.TemporaryDirectory() as directory:
        journal = SqliteJournal(Path(directory))
        ledger = Ledger(journal)
        for number in range(rounds):
            first = number * steps
            payloads = [
                request(worker, series, range(first, first + steps), now_ns)
                for worker in range(WORKERS)
            ]
            if number == 1:
                watch.seconds.clear()  # the first round makes the series
            for payload in payloads:
                with watch("admit"):
                    admit(Signal.METRICS, payload, limits, now_ns)
                with watch("decode"):
                    found = decode(Batch(KEY, Signal.METRICS, payload, now_ns))
                with watch("align"):
                    aligner.add(found, received_ns=now_ns)
            with watch("align"):
                rows = aligner.close(now_ns)
            with watch("commit"):
                log = aligner.take_log()
                commit = Commit(KEY, rows, aligner.next_number, aligner, seen=log)
                ledger.commit([commit])
            with watch("state"):  # a part of the commit, shown for itself
                sizes.append(len(pickle.dumps(aligner, pickle.HIGHEST_PROTOCOL)))
            now_ns += S
        journal.close()
    points = WORKERS * series * steps * (rounds - 1)
    us = {stage: seconds / points * 1e6 for stage, seconds in watch.seconds.items()}
    total = sum(us[stage] for stage in ("admit", "decode", "align", "commit"))
    state_ms = watch.seconds["state"] / (rounds - 1) * 1e3
    print(
        f"{series:>6} x {steps:<5}{us['admit']:>9.2f}{us['decode']:>9.2f}{us['align']:>9.2f}"
        f"{us['commit']:>9.2f}{total:>9.2f}{state_ms:>14.1f} ms{sizes[-1] / 1e3:>9.0f} kB"
    )


# 2. The W&B writer, in a process of its own.


def writer(keys: int, rows: int) -> dict[str, float]:
    """CPU of writing rows of ``keys`` values to an offline run."""
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
        "python_us": python_s / rows / keys * 1e6,
        "core_us": (core.ru_utime + core.ru_stime) / rows / keys * 1e6,
    }


# 3. End to end: loopback, spool, rows, tracker.


def end_to_end(tracker: str, exports: int) -> dict[str, float]:
    """Rate and CPU of a bridge that gets ``exports`` requests of 20 x 500 from each worker."""
    with tempfile.TemporaryDirectory() as directory:
        bridge = Bridge(bridge_settings(Path(directory), tracker))
        bridge.start()
        send(bridge.http, 1, requests(0, 1, Path(directory)))
        wait_for_rows(bridge, 499)
        files = requests(1, exports, Path(directory))
        writer_s, own_s, start = live_children_cpu_s(), time.process_time(), time.monotonic()
        send(bridge.http, exports, files)
        wait_for_rows(bridge, 500 * (1 + exports) - 1)
        wall_s, own_s = time.monotonic() - start, time.process_time() - own_s
        writer_s = live_children_cpu_s() - writer_s
        bridge.stop()
        assert bridge.counters.value(Counter.ROWS_CREATED) == 500 * (1 + exports)
    points = WORKERS * METRICS * 500 * exports
    return {
        "rate": points / wall_s,
        "bridge_us": own_s / points * 1e6,
        "writer_us": writer_s / points * 1e6,
        "rss_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
    }


def bridge_settings(directory: Path, tracker: str) -> BridgeSettings:
    return BridgeSettings(
        data=directory,
        http=HttpSettings(port=0),
        grpc=GrpcSettings(enabled=False),
        align=AlignSettings(per_worker=True),
        tracker=TrackerSettings(
            name=tracker, options={"mode": "offline"} if tracker == "wandb" else {}
        ),
    )


def wait_for_rows(bridge: Bridge, rows: int) -> None:
    while not any(status.next_row >= rows for status in bridge.status()):
        time.sleep(0.02)


def requests(first: int, exports: int, directory: Path) -> list[str]:
    """Files with the exports of all workers, one worker after the other."""
    files = []
    for worker in range(WORKERS):
        for export in range(first, first + exports):
            steps = range(export * 500, export * 500 + 500)
            file = directory / f"{worker}-{export}"
            file.write_bytes(request(worker, METRICS, steps, time.time_ns()))
            files.append(str(file))
    return files


def send(address: str, exports: int, files: Sequence[str]) -> None:
    """Send ``exports`` files of each worker from a process of its own."""
    command = [sys.executable, __file__, "post", address, str(exports), *files]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)


def post(address: str, exports: str, *files: str) -> dict[str, float]:
    """Each worker's exports in order, the workers at the same time."""

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


# Measuring other processes.


@dataclass(frozen=True)
class Cost:
    cpu_s: float
    peak_mb: float
    said: str


def measured(*command: str) -> Cost:
    """Run a Python file and everything it starts."""
    before_s = children_cpu_s()
    environment = {**os.environ, "WANDB_ERROR_REPORTING": "false"}
    process = subprocess.Popen(
        [sys.executable, *command], stdout=subprocess.PIPE, env=environment, text=True
    )
    peak = 0
    while process.poll() is None:
        peak = max(peak, memory_kb(process.pid))
        time.sleep(SAMPLE_S)
    said, _ = process.communicate()
    if process.returncode:
        raise SystemExit(f"{command} failed with {process.returncode}.")
    reap_orphans()
    return Cost(children_cpu_s() - before_s, peak / 1024, said)


def figures(*part: str) -> dict[str, float]:
    """What a part of this file says that runs in a process of its own."""
    found: dict[str, float] = json.loads(measured(__file__, *part).said)
    return found


def children_cpu_s() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def adopt_orphans() -> None:
    """Make this process the parent of what its children leave behind, so that it is counted."""
    set_child_subreaper = 36
    ctypes.CDLL(None).prctl(set_child_subreaper, 1, 0, 0, 0)


def reap_orphans() -> None:
    with contextlib.suppress(ChildProcessError):
        while True:
            os.wait()


def live_children_cpu_s() -> float:
    """CPU of the descendants that run now."""
    ticks = 0
    for pid in family(os.getpid())[1:]:
        # After the name in brackets: state is field 3, utime and stime are 14 and 15.
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        ticks += int(fields[11]) + int(fields[12])
    return ticks / os.sysconf("SC_CLK_TCK")


def memory_kb(pid: int) -> int:
    """Memory of a process and its descendants; pages that they share count once."""
    total = 0
    for member in family(pid):
        with contextlib.suppress(OSError):  # it has ended
            for line in Path(f"/proc/{member}/smaps_rollup").read_text().splitlines():
                if line.startswith("Pss:"):
                    total += int(line.split()[1])
    return total


def family(pid: int) -> list[int]:
    """A process and all its descendants."""
    found = [pid]
    for member in found:
        with contextlib.suppress(OSError):  # it has ended
            for thread in Path(f"/proc/{member}/task").iterdir():
                found += map(int, (thread / "children").read_text().split())
    return found


def main() -> None:
    adopt_orphans()
    print(f"CPU us/point by stage, {WORKERS} workers; the state is pickled once a commit")
    print(
        f"{'series x steps':>14}{'admit':>9}{'decode':>9}{'align':>9}{'commit':>9}{'all':>9}"
        f"{'state':>17}{'':>12}"
    )
    stages(20, 500, rounds=3)
    stages(2000, 5, rounds=3)

    print(f"\nW&B writer, offline, CPU us/value\n{'keys':>14}{'Python':>9}{'core':>9}")
    for keys, rows in ((20, 2000), (200, 1000)):
        said = figures("writer", str(keys), str(rows))
        print(f"{keys:>14}{said['python_us']:>9.2f}{said['core_us']:>9.2f}")

    print(
        f"\nEnd to end, OTLP/HTTP to rows of {METRICS} x ({WORKERS} workers + 1) values\n"
        f"{'':>14}{'points/s':>10}{'bridge us/pt':>14}{'writer us/pt':>14}{'bridge MB':>11}"
    )
    for tracker, exports in (("jsonl", 4), ("wandb", 4)):
        said = figures("end_to_end", tracker, str(exports))
        print(
            f"{tracker:>14}{said['rate']:>10.0f}{said['bridge_us']:>14.2f}"
            f"{said['writer_us']:>14.2f}{said['rss_mb']:>11.0f}"
        )

    print(
        f"\n{measured(TODAY, 'shape').said.strip()}, W&B offline: what all processes\n"
        "take beyond the same workers without telemetry\n"
        f"{'':30}{'CPU s':>8}{'ratio':>8}{'MB':>8}{'ratio':>8}"
    )
    nothing = measured(TODAY, "nothing")
    base: tuple[float, float] | None = None
    for name in (
        "run per worker",
        "queue to a controller",
        "otel_rl, every worker",
        "otel_rl, mean over workers",
    ):
        cost = measured(TODAY, name)
        cpu_s, mb = cost.cpu_s - nothing.cpu_s, cost.peak_mb - nothing.peak_mb
        base = base or (cpu_s, mb)
        print(f"{name:30}{cpu_s:>8.1f}{cpu_s / base[0]:>8.2f}{mb:>8.0f}{mb / base[1]:>8.2f}")


def part(name: str, *arguments: str) -> dict[str, float]:
    """A part that runs in a process of its own; see ``measured``."""
    match name:
        case "writer":
            return writer(*map(int, arguments))
        case "end_to_end":
            return end_to_end(arguments[0], int(arguments[1]))
        case "post":
            return post(*arguments)
    raise SystemExit(f"There is no part {name!r}.")


if __name__ == "__main__":
    if len(sys.argv) > 1:
        print(json.dumps(part(*sys.argv[1:])))
    else:
        main()
