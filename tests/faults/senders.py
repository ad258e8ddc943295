"""Senders of OTLP/HTTP: every measurement has a value of its own, every request is sent until 200.

A sender is a thread that stands for one process of one role. It emits, in each request:

* ``id.exact``   a gauge as otel_rl's workers send it: all measurements as exemplars, with steps
* ``id.timed``   the same without steps
* ``id.plain``   a gauge as any SDK sends it, the step an attribute of the point
* ``id.level``   the same without a step
* ``count.delta``, ``count.cumulative``   counters

Its clock may be wrong, and may be set while it runs. It may be restarted, with a new instance id
and counters from 0, as a process is.
"""

import gzip
import http.client
import itertools
import json
import random
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlsplit

from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import (
    ExportMetricsServiceRequest,
)
from opentelemetry.proto.metrics.v1.metrics_pb2 import (
    AggregationTemporality,
    Metric,
    NumberDataPoint,
)

from tests.support.otlp_requests import key_values, metrics_request

_IDS_PER_SENDER = 1_000_000_000  # a double holds a million times as much exactly
_TIMEOUT_S = 20.0
_RETRY_S = 0.1


@dataclass(frozen=True, slots=True)
class SenderPlan:
    """One sender.

    Attributes:
        number: Its place among all senders, real workers included: the first of its values.
        role: Its role.
        index: Its place in the role.
        path: Of the gateway: through a collector or not.
        is_exact: Whether it sends as otel_rl's workers do.
        is_gzip: Whether it compresses.
        clock_offset_s: How wrong its clock is.
        pause_s: Between two requests.
        seed: Of what it sends.
    """

    number: int
    role: str
    index: int
    path: str
    is_exact: bool
    is_gzip: bool
    clock_offset_s: float
    pause_s: float
    seed: int


@dataclass
class _Life:
    """What ends with a process."""

    instance: str
    start_ns: int
    counted: int = 0
    tiles: dict[str, int] = field(default_factory=dict)
    """By series: up to when its points have told."""


class Sender(threading.Thread):
    """Sends until ``finish``, then delivers what is left and ends.

    Args:
        plan: Who it is.
        url: Of the gateway.
        experiment: Experiment and trial that it works for.
        log: Where it writes down what was acknowledged.
        give_up: Asked between two attempts.
    """

    def __init__(
        self,
        plan: SenderPlan,
        url: str,
        experiment: tuple[str, str],
        log: Path,
        give_up: Callable[[], bool],
    ) -> None:
        super().__init__(name=f"faults-sender-{plan.number}", daemon=True)
        self._plan = plan
        self._netloc = urlsplit(url).netloc
        self._experiment = experiment
        self._log = log
        self._give_up = give_up
        self._random = random.Random(plan.seed)
        self._ids: Iterator[int] = itertools.count(plan.number * _IDS_PER_SENDER)
        self._finishing = threading.Event()
        self._lives = itertools.count()
        self._step = 0
        self._used_ns: set[int] = set()
        # Set by others, read here.
        self._offset_s = plan.clock_offset_s
        self._restart_wanted = False
        self._life = self._born()
        self._connection: http.client.HTTPConnection | None = None

    def set_clock(self, by_s: float) -> None:
        """The sender's clock is set forward or back."""
        self._offset_s += by_s

    def restart(self) -> None:
        """The next request is that of a new process."""
        self._restart_wanted = True

    def acknowledged(self) -> list[float]:
        """The values that it wrote down as delivered. Ask when it has ended."""
        return [value for line in self._log.read_text().splitlines() for value in json.loads(line)]

    def finish(self) -> None:
        """Begin no further request."""
        self._finishing.set()

    def run(self) -> None:
        """Send."""
        with self._log.open("a") as log:
            while not self._finishing.is_set():
                if self._restart_wanted:
                    self._restart_wanted = False
                    self._life = self._born()
                request, values = self._request()
                if not self._delivered(request.SerializeToString()):
                    return
                log.write(json.dumps(values) + "\n")
                log.flush()
                self._finishing.wait(self._plan.pause_s * self._random.uniform(0.5, 1.5))

    def _born(self) -> _Life:
        plan = self._plan
        life = next(self._lives)
        return _Life(f"{plan.role}-{plan.index}-{plan.number}-{life}", self._now_ns())

    def _now_ns(self) -> int:
        """By the sender's clock. Never the same twice."""
        now_ns = time.time_ns() + int(self._offset_s * 1e9)
        while now_ns in self._used_ns:
            now_ns += 1
        self._used_ns.add(now_ns)
        return now_ns

    def _delivered(self, payload: bytes) -> bool:
        """Send until it is acknowledged, the same bytes each time."""
        body = gzip.compress(payload, compresslevel=1) if self._plan.is_gzip else payload
        headers = {"content-type": "application/x-protobuf"}
        if self._plan.is_gzip:
            headers["content-encoding"] = "gzip"
        while not self._give_up():
            try:
                if self._connection is None:
                    self._connection = http.client.HTTPConnection(self._netloc, timeout=_TIMEOUT_S)
                self._connection.request("POST", f"{self._plan.path}/v1/metrics", body, headers)
                response = self._connection.getresponse()
                response.read()
                if response.status == 200:
                    return True
            except (OSError, http.client.HTTPException):
                if self._connection is not None:
                    self._connection.close()
                self._connection = None
            time.sleep(_RETRY_S * self._random.uniform(0.5, 1.5))
        return False

    def _request(self) -> tuple[ExportMetricsServiceRequest, list[int]]:
        self._step += self._random.random() < 0.7
        values: list[int] = []
        metrics = [
            self._plain("id.plain", values, has_step=True),
            self._plain("id.level", values, has_step=False),
            self._counter("count.delta", is_delta=True),
            self._counter("count.cumulative", is_delta=False),
        ]
        if self._plan.is_exact:
            metrics += [
                self._exact("id.exact", values, has_step=True),
                self._exact("id.timed", values, has_step=False),
            ]
        self._random.shuffle(metrics)
        if self._plan.is_exact:
            metrics.append(Metric(name="otel_rl.worker.heartbeat"))
            metrics[-1].gauge.data_points.add(time_unix_nano=self._now_ns(), flags=1)
        return metrics_request(*metrics, resource=self._resource()), values

    def _resource(self) -> dict[str, str | int]:
        resource: dict[str, str | int] = {
            "rl.experiment.name": self._experiment[0],
            "rl.trial.name": self._experiment[1],
            "rl.worker.role": self._plan.role,
            "rl.worker.index": self._plan.index,
            "service.instance.id": self._life.instance,
        }
        if self._plan.is_exact:
            resource["telemetry.distro.name"] = "otel_rl"
        return resource

    def _some_step(self) -> int:
        """Mostly the present one, now and then one of long ago."""
        if self._random.random() < 0.05:
            return self._random.randint(0, self._step)
        return self._step

    def _exact(self, name: str, values: list[int], *, has_step: bool) -> Metric:
        """One point that tells of all the time since the one before, exemplars within."""
        metric = Metric(name=name)
        point = metric.gauge.data_points.add()
        for _ in range(self._random.randint(1, 4)):
            value = next(self._ids)
            values.append(value)
            exemplar = point.exemplars.add(as_double=value, time_unix_nano=self._now_ns())
            if has_step:
                exemplar.filtered_attributes.extend(
                    key_values({"rl.loop.iteration": self._some_step()})
                )
        start_ns = self._life.tiles.get(name, self._life.start_ns)
        point.start_time_unix_nano = start_ns
        point.time_unix_nano = max(exemplar.time_unix_nano, start_ns + 1)
        point.as_double = value
        self._life.tiles[name] = point.time_unix_nano
        return metric

    def _plain(self, name: str, values: list[int], *, has_step: bool) -> Metric:
        metric = Metric(name=name)
        value = next(self._ids)
        values.append(value)
        point = metric.gauge.data_points.add(as_double=value)
        if self._plan.is_exact:
            # As every gauge of otel_rl's own provider, if only one measurement was made.
            start_ns = self._life.tiles.get(name, self._life.start_ns)
            point.start_time_unix_nano = start_ns
            point.time_unix_nano = max(self._now_ns(), start_ns + 1)
            self._life.tiles[name] = point.time_unix_nano
        else:
            point.time_unix_nano = self._now_ns()
        if has_step:
            point.attributes.extend(key_values({"rl.loop.iteration": self._some_step()}))
        return metric

    def _counter(self, name: str, *, is_delta: bool) -> Metric:
        metric = Metric(name=name)
        metric.sum.is_monotonic = True
        counted = self._random.randint(0, 9)
        point = NumberDataPoint()
        if is_delta:
            metric.sum.aggregation_temporality = (
                AggregationTemporality.AGGREGATION_TEMPORALITY_DELTA
            )
            start_ns = self._life.tiles.get(name, self._life.start_ns)
            now_ns = self._now_ns()
            point.start_time_unix_nano = start_ns
            # Deltas of otel_rl tile time; those of an SDK whose clock is set back end before they
            # begin.
            point.time_unix_nano = max(now_ns, start_ns + 1) if self._plan.is_exact else now_ns
            self._life.tiles[name] = point.time_unix_nano
            point.as_int = counted
        else:
            metric.sum.aggregation_temporality = (
                AggregationTemporality.AGGREGATION_TEMPORALITY_CUMULATIVE
            )
            self._life.counted += counted
            point.start_time_unix_nano = self._life.start_ns
            point.time_unix_nano = self._now_ns()
            point.as_int = self._life.counted
        metric.sum.data_points.append(point)
        return metric
