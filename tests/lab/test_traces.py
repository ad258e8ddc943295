"""Every span that an agent has answered for is in Jaeger exactly once, whatever dies."""

import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path

import httpx
import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from tests.faults.keeper import wait_for
from tests.lab.running import Running
from tests.lab.site import Site
from tests.support import plain_http
from tests.support.otlp_requests import key_values

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

TRACES = 12
SPANS = 25
ARRIVES_S = 180.0
RETRY_S = 0.05


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    with Site(tmp_path / "site") as site:
        yield site


def test_kill_9_of_collectors_and_jaeger_loses_and_doubles_no_span(site: Site) -> None:
    victims: Mapping[int, Sequence[Running]] = {
        3: [site.agent],
        5: [site.gateway],
        7: [site.jaeger],
        9: site.parts,
    }
    ids = [f"{number + 1:032x}" for number in range(TRACES)]
    for number, trace in enumerate(ids):
        for part in victims.get(number, []):
            part.kill()
        for part in victims.get(number, []):
            part.start()
        for request in requests(trace):
            deliver(request, site)
    for trace in ids:
        wait_for(partial(has_all, site, trace), ARRIVES_S)
        found = Counter(span.id for span in site.jaeger.trace(trace))
        assert len(found) == SPANS, trace
        assert set(found.values()) == {1}


def has_all(site: Site, trace: str) -> bool:
    return len(site.jaeger.trace(trace)) >= SPANS


def requests(trace: str) -> Iterator[bytes]:
    """One for each span, as they would come from as many processes."""
    for number in range(SPANS):
        request = ExportTraceServiceRequest()
        resource_spans = request.resource_spans.add()
        resource_spans.resource.attributes.extend(
            key_values({"rl.experiment.name": "traces", "service.name": f"worker-{number % 3}"})
        )
        now_ns = time.time_ns()
        resource_spans.scope_spans.add().spans.add(
            name="rl.sample",
            trace_id=bytes.fromhex(trace),
            span_id=(number + 1).to_bytes(8),
            start_time_unix_nano=now_ns - 1000,
            end_time_unix_nano=now_ns,
        )
        yield request.SerializeToString()


def deliver(request: bytes, site: Site) -> None:
    """Send until the agent has answered for it."""
    headers = {"content-type": "application/x-protobuf"}

    def is_taken() -> bool:
        try:
            url = f"{site.agent.url}/v1/traces"
            return (
                plain_http.post(url, content=request, headers=headers, timeout=60).status_code
                == 200
            )
        except httpx.HTTPError:
            return False

    assert wait_for(is_taken, ARRIVES_S, look_s=RETRY_S)
