"""More than a bridge can take, for minutes: nothing acknowledged is lost, memory stays flat.

    python -m tests.overload [SECONDS]

The bridge is a process with a small journal and the JSON-lines tracker, on a core of its own.
Workers on the other cores first find out what it can take, then offer twice that for SECONDS
(default 600): one that is told 503 waits as long as it is told to and sends the same request again.
Where that was found out at a bad moment of the machine and nobody is told 503, they offer twice as
much again.
Worker w sends the value 4 ** w for each metric and step, summed over workers: the digits of a sum,
to base 4, say how often each measurement is in a row. Beside them another experiment sends a step
a second over HTTP and gRPC, as in ``make tenants``.
"""

import contextlib
import http.client
import json
import multiprocessing
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from multiprocessing.connection import Connection
from pathlib import Path

import orjson
from opentelemetry.context import Context
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.util.instrumentation import InstrumentationScope

from otel_rl.run_id import run_id
from otel_rl.signals import Signal
from otel_rl.worker.drops import Drops
from otel_rl.worker.guard import Guard
from otel_rl.worker.metrics.gauges import GaugeEncoder, Measured, Stream
from otel_rl.worker.otlp.requests import Intervals, RequestPacker, encode_resource
from tests.process.commands import OTEL_RL, clean_environment
from tests.support.ports import free_ports
from tests.tenants.sending import Address
from tests.tenants.victim import Bystander

EXPERIMENT = "overload"
PROCESSES, WORKERS_OF_EACH = 3, 8
WORKERS = PROCESSES * WORKERS_OF_EACH
METRICS = 20
STEPS_PER_REQUEST = 100
POINTS_PER_REQUEST = METRICS * STEPS_PER_REQUEST
JOURNAL_BYTES = 32 << 20
DOUBLINGS = 5
DEADLINE_S = 300.0

BOUNDS = {"lost": 0, "doubled": 0, "victim_failed": 0, "victim_late_s": 2.0}
PEAK_MB = 384.0
GROWTH = 1.5
"""What docs/reliability.md promises. Memory is flat: the last tenth has at most so many times what
the second has."""


@dataclass(frozen=True)
class Figures:
    """What was seen.

    Attributes:
        cores: Of the machine; the bridge and its writer have one.
        seconds: For how long more was offered than could be taken.
        capacity: Points per second from the first request to the last row, without a limit.
        offered: Points per second that the senders had to send.
        acknowledged: Points.
        refused: Requests that were told 503.
        lost: Points that were acknowledged and are not in the run.
        doubled: Points that are in the run more than once.
        peak_mb: Resident memory of the bridge, highest of each tenth of the time.
        recovery_s: From the last request to the last row.
        victim_failed: Requests of another experiment that were not taken at the first try.
        victim_late_s: Most seconds from when a step of it was complete to its row.
    """

    cores: int
    seconds: float
    capacity: float
    offered: float
    acknowledged: int
    refused: int
    lost: int
    doubled: int
    peak_mb: list[float]
    recovery_s: float
    victim_failed: int
    victim_late_s: float


@dataclass(frozen=True)
class Sent:
    """What one sender has done.

    Attributes:
        steps: All of its steps below this one were acknowledged.
        refused: Requests that were told 503.
    """

    steps: int
    refused: int


def send_all(
    port: int,
    workers: dict[int, int],
    interval_s: float,
    seconds: float,
    to: "Connection[dict[int, Sent], None]",
) -> None:
    """Be some of the workers, each from its own step on."""
    leave_a_core_to_the_bridge()
    with ThreadPoolExecutor(len(workers)) as threads:
        futures = {
            worker: threads.submit(send, port, worker, first, interval_s, seconds)
            for worker, first in workers.items()
        }
    to.send({worker: future.result() for worker, future in futures.items()})


def send(port: int, worker: int, first: int, interval_s: float, seconds: float) -> Sent:
    """Send requests of ``STEPS_PER_REQUEST`` steps, one each ``interval_s``, until time is up."""
    resource = Resource(
        {
            "rl.experiment.name": EXPERIMENT,
            "rl.worker.role": "trainer",
            "rl.worker.index": worker,
            "rl.worker.count": WORKERS,
            "service.instance.id": f"worker-{worker}",
            "telemetry.distro.name": "otel_rl",
        }
    )
    scope = InstrumentationScope("overload", attributes={"rl.reduce": "sum"})
    streams = [Stream(scope, f"metric.{n}") for n in range(METRICS)]
    encoded = encode_resource(resource)
    encoder = GaugeEncoder(Guard(Drops()), Intervals(time.time_ns()))
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    refused, step, began = 0, first, time.monotonic()
    due = began
    while due < began + seconds:
        time.sleep(max(0.0, due - time.monotonic()))
        if time.monotonic() >= began + seconds:
            break
        now_ns = time.time_ns()
        entries: list[Measured] = [
            (stream, 4**worker, {"rl.loop.iteration": at}, now_ns + at - step, Context())
            for at in range(step, step + STEPS_PER_REQUEST)
            for stream in streams
        ]
        packer = RequestPacker(encoded, Signal.METRICS)
        encoder.pack(entries, packer)
        (request,) = packer.requests()
        while True:
            connection.request(
                "POST",
                "/v1/metrics",
                request.payload,
                {"content-type": "application/x-protobuf"},
            )
            answer = connection.getresponse()
            answer.read()
            if answer.status == 200:
                break
            assert answer.status == 503, answer.status
            refused += 1
            time.sleep(int(answer.headers["retry-after"]))
        step += STEPS_PER_REQUEST
        due += interval_s
    return Sent(step, refused)


def leave_a_core_to_the_bridge() -> None:
    """Run on any core but the first, if there are several."""
    cores = sorted(os.sched_getaffinity(0))
    os.sched_setaffinity(0, cores[1:] or cores)


def overload(
    directory: Path,
    seconds: float,
    *,
    calibration_s: float = 20.0,
    journal_bytes: int = JOURNAL_BYTES,
) -> Figures:
    """Do it, in ``directory``."""
    with bridge(directory, journal_bytes) as (process, port, grpc):
        began = time.monotonic()
        first = run_senders(port, [0] * WORKERS, 0.0, calibration_s)
        wait_until_written(directory, first)
        points = sum(sent.steps for sent in first) * METRICS
        capacity = points / (time.monotonic() - began)

        offered, sent = capacity, first
        for attempt in range(DOUBLINGS):
            offered *= 2
            interval_s = WORKERS * POINTS_PER_REQUEST / offered
            peaks = Peaks(process.pid, seconds)
            starts = [one.steps for one in sent]
            to, name = Address(port, grpc, token=""), f"beside-{attempt}"
            with Bystander(to, directory, seconds, name=name) as bystander:
                sent = run_senders(port, starts, interval_s, seconds, peaks)
                troubles, late_s = bystander.result()
            if any(one.refused for one in sent):
                break
        ended = time.monotonic()
        wait_until_written(directory, sent)
        recovery_s = time.monotonic() - ended
        process.send_signal(signal.SIGTERM)
        assert process.wait(DEADLINE_S) == 0
    lost, doubled = compare(directory, sent)
    return Figures(
        os.cpu_count() or 1,
        seconds,
        capacity,
        offered,
        sum(one.steps for one in sent) * METRICS,
        sum(one.refused for one in sent),
        lost,
        doubled,
        peaks.of_tenths(),
        recovery_s,
        len(troubles),
        late_s,
    )


@contextlib.contextmanager
def bridge(
    directory: Path, journal_bytes: int
) -> Iterator[tuple["subprocess.Popen[bytes]", int, int]]:
    """A bridge in a process, with the ports of its HTTP and gRPC servers."""
    port, grpc = free_ports(2)
    settings = {
        "OTEL_RL_BRIDGE__JOURNAL__MAX_BYTES": str(journal_bytes),
        # A worker that has sent its last step is not waited for.
        "OTEL_RL_BRIDGE__ROWS__WAIT": "2",
        # The quiet experiment has no worker that is still to come.
        "OTEL_RL_BRIDGE__ROWS__START_WAIT": "0",
        "OTEL_RL_BRIDGE__ROWS__WORKER_TIMEOUT": "2",
        "OTEL_RL_BRIDGE__TRACKER__KEEP_CONFIRMED": "1",
        "OTEL_RL_BRIDGE__TRACKER__CONFIRM_INTERVAL": "1",
    }
    log = directory / "bridge.log"
    with log.open("wb") as output:
        process = subprocess.Popen(
            [
                *OTEL_RL,
                "bridge",
                *("--tracker", "jsonl", "--data", str(directory)),
                *("--http", f"127.0.0.1:{port}", "--grpc", f"127.0.0.1:{grpc}"),
            ],
            cwd=directory,
            env=clean_environment(directory, **settings),
            stdout=output,
            stderr=output,
        )
        os.sched_setaffinity(process.pid, {min(os.sched_getaffinity(0))})
        try:
            deadline = time.monotonic() + DEADLINE_S
            while True:
                assert process.poll() is None, log.read_text()
                with contextlib.suppress(OSError):
                    socket.create_connection(("127.0.0.1", port), timeout=1).close()
                    break
                assert time.monotonic() < deadline, "the bridge does not listen"
                time.sleep(0.05)
            yield process, port, grpc
        finally:
            process.kill()
            process.wait()


class Peaks:
    """The resident memory of a process over time."""

    def __init__(self, pid: int, seconds: float) -> None:
        self._pid = pid
        self._seconds = seconds
        self._began = time.monotonic()
        self._seen: list[tuple[float, float]] = []

    def look(self) -> None:
        pages = int(Path(f"/proc/{self._pid}/statm").read_text().split()[1])
        megabytes = pages * os.sysconf("SC_PAGE_SIZE") / 1e6
        self._seen.append((time.monotonic() - self._began, megabytes))

    def of_tenths(self) -> list[float]:
        peaks = [0.0] * 10
        for at_s, megabytes in self._seen:
            tenth = min(9, int(10 * at_s / self._seconds))
            peaks[tenth] = max(peaks[tenth], round(megabytes, 1))
        return peaks


def run_senders(
    port: int, starts: list[int], interval_s: float, seconds: float, peaks: Peaks | None = None
) -> list[Sent]:
    """All senders at once, each from its own step on."""
    context = multiprocessing.get_context("spawn")
    receivers: list[Connection] = []
    processes = []
    for number in range(PROCESSES):
        receiver, sender = context.Pipe(duplex=False)
        workers = {worker: starts[worker] for worker in range(number, WORKERS, PROCESSES)}
        arguments = (port, workers, interval_s, seconds, sender)
        processes.append(context.Process(target=send_all, args=arguments, daemon=True))
        receivers.append(receiver)
        processes[-1].start()
        sender.close()
    while not all(receiver.poll(0.1) for receiver in receivers):
        assert all(p.is_alive() or p.exitcode == 0 for p in processes), "a sender failed"
        if peaks is not None:
            peaks.look()
    sent: dict[int, Sent] = {}
    for receiver in receivers:
        sent.update(receiver.recv())
    for process in processes:
        process.join()
    return [sent[worker] for worker in range(WORKERS)]


def wait_until_written(directory: Path, sent: list[Sent]) -> None:
    """Until the last step that every worker has sent is a row: then all before it are."""
    last = min(one.steps for one in sent) - 1
    path = directory / f"{run_id(EXPERIMENT, 'default')}.jsonl"
    deadline = time.monotonic() + DEADLINE_S
    while True:
        if path.exists():
            with path.open("rb") as file:
                file.seek(max(0, path.stat().st_size - (1 << 20)))
                lines = file.read().split(b"\n")[1:-1]
            if any(orjson.loads(line)["step"] >= last for line in lines):
                return
        assert time.monotonic() < deadline, f"step {last} is not written"
        time.sleep(0.1)


def compare(directory: Path, sent: list[Sent]) -> tuple[int, int]:
    """How many points were lost, and how many are there more than once.

    A row whose workers are all in a later one of its step, which has more, is replaced by it.
    """
    steps = max(one.steps for one in sent)
    digits: dict[str, list[list[int]]] = {
        f"trainer/metric/{n}": [[] for _ in range(steps)] for n in range(METRICS)
    }
    numbers = 0
    with (directory / f"{run_id(EXPERIMENT, 'default')}.jsonl").open("rb") as file:
        for line in file:
            row = orjson.loads(line)
            assert row["number"] == numbers
            numbers += 1
            for key, value in row["values"].items():
                if key in digits:
                    rows, total = digits[key][row["step"]], int(value)
                    rows[:] = [one for one in rows if one == total or one & ~total]
                    rows.append(total)
    lost = doubled = 0
    for rows_of_steps in digits.values():
        for step, rows in enumerate(rows_of_steps):
            for worker, one in enumerate(sent):
                found = sum(total // 4**worker % 4 for total in rows)
                expected = int(step < one.steps)
                lost += max(0, expected - found)
                doubled += max(0, found - expected)
    return lost, doubled


def over_bounds(figures: Figures) -> list[str]:
    """What is not as promised, in words."""
    found = asdict(figures)
    wrong = [
        f"{name} is {found[name]}, not at most {most}"
        for name, most in BOUNDS.items()
        if found[name] > most
    ]
    if max(figures.peak_mb) > PEAK_MB:
        wrong.append(f"the bridge had {max(figures.peak_mb)} MB, not at most {PEAK_MB}")
    if figures.peak_mb[-1] > GROWTH * figures.peak_mb[1]:
        wrong.append(f"memory has grown: {figures.peak_mb} MB")
    return wrong


def main() -> int:
    """Run the long form and write what was seen."""
    seconds = float(sys.argv[1]) if len(sys.argv) > 1 else 600.0
    sys.stderr.write(f"Twice what the bridge can take, for {seconds:.0f} s\n")
    with tempfile.TemporaryDirectory() as directory:
        figures = overload(Path(directory), seconds)
    report = json.dumps(asdict(figures), indent=1)
    Path("build").mkdir(exist_ok=True)
    Path("build/overload.json").write_text(report + "\n")
    sys.stdout.write(f"{report}\n")
    wrong = over_bounds(figures)
    sys.stderr.write("".join(f"{what}\n" for what in wrong))
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
