"""What a run has no room for reaches its sender, the run and the log: over real HTTP and gRPC."""

import json
import logging
import time
from collections.abc import Iterator
from pathlib import Path

import grpc
import pytest
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import (
    ExportMetricsPartialSuccess,
    ExportMetricsServiceRequest,
    ExportMetricsServiceResponse,
)
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2_grpc import MetricsServiceStub

from otel_rl.bridge.bridge import Bridge
from otel_rl.bridge.config import load_settings
from otel_rl.bridge.counters import Counter, SampleDrop, ValueFold
from otel_rl.bridge.rows.messages import DROPPED, FOLDED
from otel_rl.bridge.rows.settings import AlignSettings
from otel_rl.run_id import run_id
from tests.support import plain_http
from tests.support.otlp_requests import gauge, key_values, metrics_request, point
from tests.support.waiting import wait_until

MAX_SERIES = 5
MAX_METRIC_KEYS = AlignSettings().max_metric_keys


@pytest.fixture(params=[MAX_SERIES])
def bridge(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Bridge]:
    free = {"http": "0", "grpc": "0"}
    given = {"data": tmp_path, "listen": free, "rows": {"max_series": request.param}}
    running = Bridge(load_settings(None, {**given, "tracker": {"name": "jsonl"}}))
    running.start()
    yield running
    running.stop()


def send(bridge: Bridge, protocol: str, series: int, instance: str) -> ExportMetricsPartialSuccess:
    resource = {"rl.experiment.name": "e", "service.instance.id": instance}
    metrics = []
    for place in range(series):
        metric = gauge(point(1.0, time_ns=time.time_ns()))
        metric.name = f"metric.{instance}.{place}"
        metrics.append(metric)
    request = metrics_request(*metrics, resource=resource)
    if protocol == "grpc":
        with grpc.insecure_channel(str(bridge.addresses.grpc)) as channel:
            stub = MetricsServiceStub(channel)  # type: ignore[no-untyped-call]  # generated
            answer: ExportMetricsServiceResponse = stub.Export(request)
            return answer.partial_success
    return post(bridge, request)


def post(bridge: Bridge, request: ExportMetricsServiceRequest) -> ExportMetricsPartialSuccess:
    posted = plain_http.post(
        f"http://{bridge.addresses.http}/v1/metrics",
        content=request.SerializeToString(),
        headers={"content-type": "application/x-protobuf"},
    )
    posted.raise_for_status()
    return ExportMetricsServiceResponse.FromString(posted.content).partial_success


@pytest.mark.process
@pytest.mark.parametrize("protocol", ["http", "grpc"])
def test_points_of_too_many_series_are_told_to_who_sent_them_once(
    bridge: Bridge, protocol: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    def dropped() -> int:
        return bridge.counters.value(Counter.SAMPLES_DROPPED, reason=SampleDrop.TOO_MANY_SERIES)

    with caplog.at_level(logging.WARNING):
        assert send(bridge, protocol, MAX_SERIES, "modest").rejected_data_points == 0
        assert send(bridge, protocol, 7, "greedy").rejected_data_points == 0
        wait_until(lambda: dropped() == 7, timeout_s=60)
        assert send(bridge, protocol, 1, "modest").rejected_data_points == 0
        told = send(bridge, protocol, 1, "greedy")
        assert told.rejected_data_points == 7
        assert "too_many_series" in told.error_message
        assert "rows.max_series" in told.error_message
        wait_until(lambda: dropped() == 8, timeout_s=60)
        assert send(bridge, protocol, 1, "greedy").rejected_data_points == 1
    bridge.stop()
    lines = (tmp_path / f"{run_id('e', 'default')}.jsonl").read_text().splitlines()
    (label,) = (row["labels"][DROPPED] for row in map(json.loads, lines) if "labels" in row)
    assert "metric.greedy.0" in label
    assert f"max_series = {MAX_SERIES}" in label
    assert sum("metric.greedy.0" in record.getMessage() for record in caplog.records) == 1


@pytest.mark.process
@pytest.mark.parametrize("bridge", [10_000], indirect=True)
def test_an_attribute_that_makes_too_many_keys_is_told_to_the_run_the_log_and_a_counter(
    bridge: Bridge, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    values = MAX_METRIC_KEYS + 2
    now_ns = time.time_ns()
    metric = gauge(*(point(1.0, time_ns=now_ns) for _ in range(values)), name="queue.depth")
    for place, one in enumerate(metric.gauge.data_points):
        one.attributes.extend(key_values({"request.id": f"r{place}", "route": "/a"}))
    with caplog.at_level(logging.WARNING):
        post(bridge, metrics_request(metric, resource={"rl.experiment.name": "e"}))
        wait_until(lambda: bridge.counters.value(Counter.SAMPLES_TAKEN) == values, timeout_s=60)
    bridge.stop()
    folded = bridge.counters.value(Counter.VALUES_FOLDED, reason=ValueFold.ATTRIBUTES)
    assert folded == 2
    lines = (tmp_path / f"{run_id('e', 'default')}.jsonl").read_text().splitlines()
    (label,) = (row["labels"][FOLDED] for row in map(json.loads, lines) if "labels" in row)
    assert "'queue.depth'" in label
    assert "'request.id'" in label
    assert sum("'request.id'" in record.getMessage() for record in caplog.records) == 1
