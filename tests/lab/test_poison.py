"""What the bridge will never take is dropped by the gateway, counted, and stops nothing."""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial

import pytest
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import (
    ExportMetricsServiceRequest,
)

from otel_rl.run_id import run_id
from tests.faults.keeper import wait_for
from tests.lab.running import Bridge, Collector
from tests.lab.site import BRIDGE, gateway_of, history_of
from tests.support import plain_http
from tests.support.otlp_requests import gauge, metrics_request, point

pytestmark = [pytest.mark.process, pytest.mark.timeout(600)]

ARRIVES_S = 180.0

# Requests that come within this time become one, also where each takes its time.
GATHERING = """
exporters:
  {exporter}:
    retry_on_failure: {{initial_interval: 200ms, max_interval: 500ms}}
    sending_queue: {{batch: {{flush_timeout: 3s}}}}
"""
KEY = "workers/trainer/0/loss"
FAILED = "otelcol_exporter_send_failed_metric_points"


@dataclass(frozen=True)
class Way:
    """A gateway that only the test sends to, so that the test knows what stands in a request."""

    gateway: Collector
    bridge: Bridge


@pytest.fixture(scope="module")
def way(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Way]:
    directory = tmp_path_factory.mktemp("way")
    bridge = Bridge(directory / "bridge", BRIDGE)
    gateway = gateway_of(bridge, directory / "gateway", overlay=GATHERING)
    with bridge, gateway:
        yield Way(gateway, bridge)


def metrics_of(trial: str, value: float) -> ExportMetricsServiceRequest:
    resource = {"rl.experiment.name": "lab", "rl.trial.name": trial, "rl.worker.role": "trainer"}
    resource |= {"rl.worker.index": "0", "service.instance.id": "one"}
    return metrics_request(gauge(point(value)), resource=resource)


def poisoned(trial: str) -> bytes:
    """A text that is no UTF-8: the Collector takes it, and protobuf's own parsers do not."""
    request = metrics_of(trial, 0.0)
    request.resource_metrics[0].resource.attributes.add(key="k").value.string_value = "0123456789"
    return request.SerializeToString().replace(b"0123456789", b"01234\xff6789")


def post(way: Way, body: bytes) -> int:
    headers = {"content-type": "application/x-protobuf"}
    return plain_http.post(
        f"{way.gateway.url}/v1/metrics", content=body, headers=headers, timeout=60
    ).status_code


def values(way: Way, trial: str) -> list[float]:
    rows = history_of(way.bridge.directory / "data" / f"{run_id('lab', trial)}.jsonl")
    return [row[KEY] for row in rows if KEY in row]


def has(way: Way, trial: str, value: float) -> bool:
    return value in values(way, trial)


def failed(way: Way) -> float:
    return way.gateway.metric(FAILED, exporter="otlp_http/bridge")


def test_a_poisoned_batch_is_dropped_and_counted_and_the_queue_goes_on(way: Way) -> None:
    before = failed(way)
    assert post(way, poisoned("queue")) == 200
    assert wait_for(lambda: failed(way) == before + 1, ARRIVES_S)
    assert post(way, metrics_of("queue", 5.0).SerializeToString()) == 200
    assert wait_for(partial(has, way, "queue", 5.0), ARRIVES_S)
    assert values(way, "queue") == [5.0]
    assert wait_for(
        lambda: way.gateway.metric("otelcol_exporter_queue_size", data_type="metrics") == 0,
        ARRIVES_S,
    )


def test_a_poisoned_part_of_a_batch_takes_nothing_else_with_it(way: Way) -> None:
    # While the bridge is away its requests wait, and become one.
    way.bridge.kill()
    for body in (
        metrics_of("part", 5.0).SerializeToString(),
        poisoned("part"),
        metrics_of("part", 6.0).SerializeToString(),
        metrics_request(gauge(point(9.0)), resource={"service.name": "a"}).SerializeToString(),
    ):
        assert post(way, body) == 200
    before = failed(way)
    way.bridge.start()
    for value in (5.0, 6.0):
        assert wait_for(partial(has, way, "part", value), ARRIVES_S)
    assert failed(way) == before
    # The bridge's reasons, in the gateway's log.
    assert wait_for(lambda: "rl.experiment.name" in way.gateway.said(), ARRIVES_S)


def test_a_poisoned_batch_does_not_outlive_a_restart(way: Way) -> None:
    way.bridge.kill()
    assert post(way, poisoned("restart")) == 200
    way.gateway.kill()
    way.gateway.start()
    way.bridge.start()
    assert wait_for(lambda: failed(way) == 1, ARRIVES_S)
    assert post(way, metrics_of("restart", 8.0).SerializeToString()) == 200
    assert wait_for(partial(has, way, "restart", 8.0), ARRIVES_S)
