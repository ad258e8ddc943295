"""An application on Ray Serve, recorded, has keys by application, deployment and route.

Ray 2.60.0, scraped by the Collector 0.160.0, of 2026-11-26, by ``emitters/ray_serve_app.py``.
"""

from collections.abc import Mapping

import pytest

from tests.dialects.decoded import decoded, keys, totals

REPLICAS, REQUESTS, FAILING = 2, 40, 5  # as in emitters/ray_serve_app.py

BASE = "generator/ray_serve_"


@pytest.fixture(scope="module")
def found() -> Mapping[str, float]:
    return keys("ray_serve")


def test_requests_of_all_replicas_are_one_key(found: Mapping[str, float]) -> None:
    of_deployment = "/app/Generator"
    succeeded = f"{BASE}deployment_request_counter_total{of_deployment}/generate"
    failed = f"{BASE}deployment_error_counter_total{of_deployment}/ValueError/generate"
    assert found[succeeded] == REQUESTS - FAILING
    assert found[failed] == FAILING
    assert found[f"{BASE}autoscaling_target_replicas{of_deployment}"] == REPLICAS
    assert f"{BASE}replica_processing_queries{of_deployment}" in found


def test_latencies_are_of_all_requests(found: Mapping[str, float]) -> None:
    base = f"{BASE}deployment_processing_latency_ms/app/Generator/generate"
    assert totals("ray_serve")[f"{base}/count"] == REQUESTS
    assert found[base] >= 50  # each sleeps as long


def test_the_queue_of_a_replica_has_the_name_of_the_registry(found: Mapping[str, float]) -> None:
    assert "service/generator/queue/depth/app/Generator" in found


def test_no_id_address_or_version_is_in_a_key(found: Mapping[str, float]) -> None:
    apart = {
        value
        for one in decoded("ray_serve")
        for point in one.points
        for name, value in point.series.typed
        if name.endswith(("Id", "_id", "Name", "Address", "address", "Version", "replica"))
    }
    assert len(apart) >= 10
    assert not [key for key in found if any(value in key for value in apart)]
    assert len(found) < 120
