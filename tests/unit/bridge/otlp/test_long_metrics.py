"""Metrics with more points than are read at a time, and what is kept of many senders."""

import time

import pytest
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import (
    ExportMetricsServiceRequest,
)
from opentelemetry.proto.metrics.v1.metrics_pb2 import ResourceMetrics

from otel_rl.bridge.otlp import identities
from otel_rl.bridge.otlp.columns import decoded_parts, read_resources
from otel_rl.bridge.receive.limits import ReceiveLimits
from otel_rl.bridge.receive.validate import validate
from otel_rl.bridge.rows.run import Run
from otel_rl.bridge.rows.settings import AlignSettings
from otel_rl.records import PART, Signal
from tests.support.doors import decode
from tests.support.otlp_requests import key_values

NOW_NS = time.time_ns()


def resource(request: ExportMetricsServiceRequest, instance: str) -> ResourceMetrics:
    added: ResourceMetrics = request.resource_metrics.add()
    names = {"rl.experiment.name": "e", "rl.worker.role": "r", "service.instance.id": instance}
    added.resource.attributes.extend(key_values(names))
    return added


def of_points(kind: str, n: int, instance: str = "w", scopes: int = 1) -> bytes:
    """A request with a metric of so many points in each scope, each point a series of its own."""
    request = ExportMetricsServiceRequest()
    sender = resource(request, instance)
    for number in range(scopes):
        of_scope = sender.scope_metrics.add()
        of_scope.scope.name = f"s{number}"
        data = getattr(of_scope.metrics.add(name="m"), kind)
        if kind != "gauge":
            data.aggregation_temporality = 1
        for place in range(n):
            point = data.data_points.add(time_unix_nano=NOW_NS)
            point.attributes.extend(key_values({"k": f"{instance}-{place}"}))
            if kind == "histogram":
                point.count, point.sum = 1, 5.0
            else:
                point.as_double = 1.0
    return request.SerializeToString()


@pytest.fixture
def cache(monkeypatch: pytest.MonkeyPatch) -> identities._Resources:
    found = identities._Resources()
    monkeypatch.setattr(identities, "_resources", found)
    return found


@pytest.mark.parametrize("kind", ["gauge", "sum", "histogram"])
@pytest.mark.parametrize("n", [PART, PART + 1, 2 * PART + PART // 2])
def test_each_point_of_a_long_metric_is_read_once(kind: str, n: int) -> None:
    sent = of_points(kind, n)
    assert validate(Signal.METRICS, sent, ReceiveLimits(), NOW_NS).accepted == n
    parts = [*decoded_parts(read_resources(sent, NOW_NS))]
    assert sum(len(part.points) for part in parts) == n


def test_what_is_kept_of_senders_that_come_once_has_a_bound(
    cache: identities._Resources, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(identities, "_MAX_BYTES", 1 << 20)
    for number in range(20):
        sent = of_points("gauge", 400, f"w{number}")
        assert validate(Signal.METRICS, sent, ReceiveLimits(), NOW_NS).accepted == 400
    kept = sum(one.measured() for one, _ in cache._known.values())
    assert 0 < kept == cache._bytes <= 1 << 20


def test_what_is_kept_of_the_scopes_of_one_sender_has_a_bound(
    cache: identities._Resources, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(identities, "_MAX_RESOURCE_BYTES", 1 << 18)
    sent = of_points("gauge", 100, scopes=20)
    assert validate(Signal.METRICS, sent, ReceiveLimits(), NOW_NS).accepted == 2_000
    assert 0 < cache._bytes <= 1 << 18


@pytest.mark.parametrize(("kind", "of_both"), [("gauge", 1.0), ("sum", 2.0)])
def test_a_start_beyond_all_time_costs_no_other_sender(kind: str, of_both: float) -> None:
    request = ExportMetricsServiceRequest()
    for instance, start_ns in (("sound", NOW_NS - 10**9), ("forged", (1 << 64) - 1)):
        metric = resource(request, instance).scope_metrics.add().metrics.add(name="loss")
        data = getattr(metric, kind)
        if kind == "sum":
            data.aggregation_temporality = 2
        point = data.data_points.add(
            time_unix_nano=NOW_NS, start_time_unix_nano=start_ns, as_double=1.0
        )
        point.attributes.extend(key_values({"rl.loop.iteration": 3}))
    found = validate(Signal.METRICS, request.SerializeToString(), ReceiveLimits(), NOW_NS)
    aligner = Run(AlignSettings())
    aligner.add(decode(found.batches[0]), received_ns=NOW_NS)
    rows = aligner.close(NOW_NS, everything=True)
    assert [row.values["r/loss"] for row in rows if "r/loss" in row.values] == [of_both]
