"""Behind a gateway, requests of a known shape are recognised as they are from a worker."""

import gzip
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import pytest
from opentelemetry.proto.metrics.v1.metrics_pb2 import AggregationTemporality, Metric

from otel_rl.bridge.ingest.limits import ReceiveLimits
from otel_rl.bridge.ingest.validation.known_shapes import KnownShapes
from otel_rl.bridge.otlp import known_bodies
from otel_rl.bridge.otlp.decode import decode
from otel_rl.bridge.otlp.known_bodies import read_known
from otel_rl.bridge.otlp.resource import sender_of
from otel_rl.bridge.otlp.shapes import ShapeCache, resource_parts
from otel_rl.records import Batch, ExperimentKey, Signal
from tests import plain_http
from tests.faults.keeper import wait_for
from tests.lab.running import Collector
from tests.otlp_requests import gauge, key_values, metrics_request, point
from tests.otlp_sink import Answer, Sink, serve

pytestmark = [pytest.mark.process, pytest.mark.timeout(600)]

ARRIVES_S = 180.0


@dataclass
class Bodies(Sink):
    """Keeps requests as they came."""

    bodies: list[bytes] = field(default_factory=list)

    def receive(self, path: str, headers: dict[str, str], body: bytes, port: int) -> Answer:
        if path == "/v1/metrics":
            is_packed = headers.get("content-encoding") == "gzip"
            self.bodies.append(gzip.decompress(body) if is_packed else body)
        return super().receive(path, headers, body, port)


@pytest.fixture
def bridge() -> Iterator[Bodies]:
    sink = Bodies()
    with serve(sink):
        yield sink


def export(step: int) -> bytes:
    """Four gauges, a counter and a histogram of a worker, as it sends them each second."""
    now_ns = time.time_ns()
    points = [point(step / 7, now_ns) for _ in range(4)]
    for one in points:
        one.start_time_unix_nano = now_ns - 10**9
        exemplar = one.exemplars.add(time_unix_nano=now_ns - 5, as_double=step / 7)
        exemplar.filtered_attributes.add(key="rl.loop.iteration").value.int_value = step
    resource = {
        "rl.experiment.name": "x",
        "rl.worker.role": "trainer",
        "service.instance.id": "one",
        "telemetry.distro.name": "otel_rl",
    }
    metrics = [gauge(one, name=f"m{n}") for n, one in enumerate(points)]
    counts = [Metric(name="counter"), Metric(name="histogram")]
    totals = counts[0].sum.data_points, counts[1].exponential_histogram.data_points
    cumulative = AggregationTemporality.AGGREGATION_TEMPORALITY_CUMULATIVE
    counts[0].sum.aggregation_temporality = cumulative
    delta = AggregationTemporality.AGGREGATION_TEMPORALITY_DELTA
    counts[1].exponential_histogram.aggregation_temporality = delta
    counts[0].sum.is_monotonic = True
    total = totals[0].add(as_int=step)
    spread = totals[1].add(count=step, sum=step / 7, scale=3, min=0.5, max=2.5)
    spread.positive.bucket_counts.extend(range(step))
    marks = {"rl.loop.iteration": step, "otel_rl.step.share": 9, "otel_rl.step.duration": 7}
    for of in (total, spread):
        of.start_time_unix_nano, of.time_unix_nano = now_ns - 9, now_ns
        exemplar = of.exemplars.add(time_unix_nano=now_ns - 5, as_double=step / 7)
        exemplar.filtered_attributes.extend(key_values(marks))
    return metrics_request(*metrics, *counts, resource=resource).SerializeToString()


def has(bridge: Bodies, n: int) -> bool:
    return len(bridge.bodies) == n


def through_a_gateway(bridge: Bodies, directory: Path, sent: list[bytes]) -> list[bytes]:
    with Collector("gateway", directory, {"OTEL_RL_BRIDGE_URL": bridge.url}) as gateway:
        for n, request in enumerate(sent, 1):
            plain_http.post(
                f"{gateway.url}/v1/metrics",
                content=request,
                headers={"content-type": "application/x-protobuf"},
                timeout=60,
            ).raise_for_status()
            # Each by itself, or the gateway would make one of them.
            assert wait_for(partial(has, bridge, n), ARRIVES_S)
    return bridge.bodies


def test_known_shapes_are_recognised_behind_a_gateway(
    bridge: Bodies, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Requests of other tests, none of which came twice, have used up what may be learned in vain.
    monkeypatch.setattr(known_bodies, "_shapes", ShapeCache())
    first, second = through_a_gateway(bridge, tmp_path, [export(3), export(4)])
    known = KnownShapes(ReceiveLimits())
    known.learn(first, time.time_ns())
    found = known.validate(second, time.time_ns(), lambda _: None)
    assert found is not None
    assert found.accepted == 6

    decode(Batch(ExperimentKey("x"), Signal.METRICS, first, 0))
    (part,) = resource_parts(second) or ()
    sender = sender_of(second[part.resource : part.resource_end])
    read = read_known(sender, second[part.body : part.body_end], 0)
    assert read is not None
    assert (len(read.gauges), len(read.shares), len(read.sums)) == (4, 1, 1)
    assert [Metric.FromString(metric).name for _, metric in read.histograms] == ["histogram"]
