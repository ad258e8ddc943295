"""Two workers that send a step a second, over HTTP and gRPC, and when their rows are there."""

import multiprocessing
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Self

import grpc
import httpx
import orjson
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import (
    ExportMetricsServiceRequest,
    ExportMetricsServiceResponse,
)
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2_grpc import MetricsServiceStub

from otel_rl.records import Value
from otel_rl.run_id import run_id
from tests.faults.keeper import wait_for
from tests.support.otlp_requests import gauge, key_values, metrics_request, point
from tests.tenants.sending import Address

VICTIM = "victim"
"""Where the names of its experiments begin, and the name of its token."""

TRANSPORTS = ("http", "grpc")
INTERVAL_S = 1.0
TIMEOUT_S = 10.0
"""After which an exporter of an SDK gives a request up."""

_LOOK_S = 0.02
_ROWS_S = 60.0


@dataclass(frozen=True)
class _Victim:
    """What one of the two has sent.

    Attributes:
        transport: ``http`` or ``grpc``.
        experiment: Its name.
        due_s: When each step was to be sent, by the monotonic clock.
        failed: What came of each request that was not taken at once.
        refused: Their steps, which may have no row.
    """

    transport: str
    experiment: str
    due_s: list[float] = field(default_factory=list)
    failed: list[str] = field(default_factory=list)
    refused: set[int] = field(default_factory=set)


class Bystander:
    """Both victims, in a process of their own, and the rows that the bridge writes of them.

    Args:
        to: The bridge, as its tenant sees it.
        directory: Where the bridge's JSON-lines tracker keeps its runs.
        seconds: How long the victims send.
        timeout_s: After which they give a request up.
        name: Of their experiments, for one bridge that has several bystanders one after the other.
    """

    def __init__(
        self,
        to: Address,
        directory: Path,
        seconds: float,
        *,
        timeout_s: float = TIMEOUT_S,
        name: str = "one",
    ) -> None:
        experiments = {transport: f"{VICTIM}/{name}-{transport}" for transport in TRANSPORTS}
        context = multiprocessing.get_context("spawn")
        self._results, results = context.Pipe(duplex=False)
        self._process = context.Process(
            target=_send_all, args=(experiments, to, seconds, timeout_s, results), daemon=True
        )
        self._rows = _Rows(directory, experiments)

    def __enter__(self) -> Self:
        self._process.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._rows.close()
        self._process.kill()
        self._process.join()

    def result(self) -> tuple[Sequence[str], float]:
        """Wait for the end of the victims and for the last rows of what was taken.

        Returns:
            What came of each request that was not taken at once, and the most seconds from when a
            step was complete to its row.
        """
        victims: Sequence[_Victim] = self._results.recv()
        wait_for(lambda: self._rows.are_there(victims), _ROWS_S)
        troubles = [f"{one.transport} {said}" for one in victims for said in one.failed]
        return troubles, self._rows.late_s(victims, time.monotonic())


def _send_all(
    experiments: Mapping[str, str],
    to: Address,
    seconds: float,
    timeout_s: float,
    results: "Connection[Sequence[_Victim], None]",
) -> None:
    victims = [_Victim(transport, experiment) for transport, experiment in experiments.items()]
    threads = [
        threading.Thread(target=_send_steps, args=(victim, to, seconds, timeout_s), daemon=True)
        for victim in victims
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    results.send(victims)


def _send_steps(victim: _Victim, to: Address, seconds: float, timeout_s: float) -> None:
    resource: dict[str, Value] = {
        "rl.experiment.name": victim.experiment,
        "rl.worker.role": "trainer",
        "rl.worker.index": 0,
        "service.instance.id": "one",
    }
    post = _Http(to, timeout_s) if victim.transport == "http" else _Grpc(to, timeout_s)
    began = time.monotonic()
    for step in range(round(seconds / INTERVAL_S)):
        due_s = began + step * INTERVAL_S
        if time.monotonic() > began + max(2 * seconds, timeout_s):
            victim.failed.append(f"step {step}: not sent, those before it took too long")
            continue
        time.sleep(max(0.0, due_s - time.monotonic()))
        one = point(float(step))
        one.attributes.extend(key_values({"rl.loop.iteration": step}))
        trouble = post(metrics_request(gauge(one), resource=resource))
        victim.due_s.append(due_s)
        if trouble:
            victim.failed.append(f"step {step}: {trouble}")
            victim.refused.add(step)


class _Http:
    def __init__(self, to: Address, timeout_s: float) -> None:
        self._url = f"http://127.0.0.1:{to.http}/v1/metrics"
        self._client = httpx.Client(
            timeout=timeout_s,
            headers={
                "content-type": "application/x-protobuf",
                **({"authorization": f"Bearer {to.token}"} if to.token else {}),
            },
        )

    def __call__(self, request: ExportMetricsServiceRequest) -> str:
        try:
            answer = self._client.post(self._url, content=request.SerializeToString())
        except httpx.HTTPError as exc:
            return repr(exc)
        if answer.status_code != 200:
            return f"{answer.status_code} {answer.text[:200]}"
        return _told(ExportMetricsServiceResponse.FromString(answer.content))


class _Grpc:
    def __init__(self, to: Address, timeout_s: float) -> None:
        channel = grpc.insecure_channel(f"127.0.0.1:{to.grpc}")
        self._stub = MetricsServiceStub(channel)  # type: ignore[no-untyped-call]
        self._timeout_s = timeout_s
        self._metadata = (("authorization", f"Bearer {to.token}"),) if to.token else ()

    def __call__(self, request: ExportMetricsServiceRequest) -> str:
        try:
            answer = self._stub.Export(request, timeout=self._timeout_s, metadata=self._metadata)
        except grpc.RpcError as exc:
            return str(exc)[:300]
        return _told(answer)


def _told(answer: ExportMetricsServiceResponse) -> str:
    return answer.partial_success.error_message


class _Rows:
    """When each step of a victim became a row, by the monotonic clock; watches while it is open."""

    def __init__(self, directory: Path, experiments: Mapping[str, str]) -> None:
        self._paths = {
            transport: directory / f"{run_id(experiment, 'default')}.jsonl"
            for transport, experiment in experiments.items()
        }
        self._read = dict.fromkeys(TRANSPORTS, 0)
        self._seen: dict[str, dict[int, float]] = {transport: {} for transport in TRANSPORTS}
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._stop.set()
        self._thread.join()

    def late_s(self, victims: Sequence[_Victim], now_s: float) -> float:
        """The longest time from when the next step was due to the row of a step.

        A step is complete when the next one comes. One that has no row by now is late by now.
        """
        return max(
            self._seen[victim.transport].get(step, now_s) - due_s
            for victim in victims
            for step, due_s in enumerate(victim.due_s[1:])
        )

    def are_there(self, victims: Sequence[_Victim]) -> bool:
        return all(
            step in self._seen[victim.transport]
            for victim in victims
            for step in range(len(victim.due_s) - 1)
            if step not in victim.refused
        )

    def _watch(self) -> None:
        while not self._stop.wait(_LOOK_S):
            for transport, path in self._paths.items():
                if path.exists():
                    self._look(transport, path)

    def _look(self, transport: str, path: Path) -> None:
        with path.open("rb") as file:
            file.seek(self._read[transport])
            lines = file.read().splitlines(keepends=True)
        now_s = time.monotonic()
        for line in lines:
            if not line.endswith(b"\n"):
                return
            self._read[transport] += len(line)
            row = orjson.loads(line)
            if "trainer/loss" in row["values"]:
                self._seen[transport].setdefault(row["step"], now_s)
