"""The alert rules are what the real Prometheus takes, over what the real programs tell it."""

import hashlib
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from tests.deploy.alerts import ALERTS, CASES, metrics_of_bridges, metrics_of_collectors, named
from tests.faults.keeper import wait_for
from tests.lab.programs import PROMTOOL
from tests.lab.running import Bridge, Collector, Prometheus
from tests.lab.site import gateway_of
from tests.support import plain_http
from tests.support.otlp_requests import (
    event,
    gauge,
    logs_request,
    metrics_request,
    point,
    trace_request,
)
from tests.support.ports import free_ports

ARRIVES_S = 180.0
PROTOBUF = {"content-type": "application/x-protobuf"}
TOKEN = "a-token-of-this-test"

BRIDGE = f"""
[telemetry]
endpoint = "{{prometheus}}/api/v1/otlp"
interval = 1

[[team]]
name = "team"
experiments = ["*"]
sha256 = ["{hashlib.sha256(TOKEN.encode()).hexdigest()}"]
"""

# No less is taken for the queue of a file that makes batches of a megabyte.
SMALL = {"OTEL_RL_QUEUE_BYTES": str(1 << 20)}
TOO_LARGE = 80_000


def requests(n: int) -> Mapping[str, bytes]:
    """One of each signal, with ``n`` things in it."""
    return {
        "metrics": metrics_request(gauge(*[point()] * n)).SerializeToString(),
        "traces": trace_request(n).SerializeToString(),
        "logs": logs_request(*[event()] * n).SerializeToString(),
    }


def promtool(*arguments: str | Path) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [PROMTOOL.path, *arguments], capture_output=True, text=True, timeout=60, check=False
    )


def test_prometheus_takes_the_rules() -> None:
    done = promtool("check", "rules", "--lint=all", "--lint-fatal", ALERTS)
    assert done.returncode == 0, done.stdout + done.stderr


def test_each_alert_comes_when_it_should_and_not_before() -> None:
    done = promtool("test", "rules", CASES)
    assert done.returncode == 0, done.stdout + done.stderr


def test_promtool_would_say_that_an_alert_does_not_come(tmp_path: Path) -> None:
    (tmp_path / ALERTS.name).write_text(ALERTS.read_text().replace("> 0.5", "> 0.9"))
    cases = tmp_path / CASES.name
    cases.write_text(CASES.read_text().replace("../../deploy/", ""))
    done = promtool("test", "rules", cases)
    assert done.returncode != 0
    assert "OtelRLQueueFills" in done.stdout + done.stderr


def send(url: str, n: int, **headers: str) -> None:
    for signal, body in requests(n).items():
        plain_http.post(f"{url}/v1/{signal}", content=body, headers=PROTOBUF | headers, timeout=30)


@pytest.fixture
def site(tmp_path: Path) -> Iterator[tuple[Bridge, Collector, Prometheus]]:
    """A gateway without the bridge's token, with a small queue, and who sees both."""
    prometheus = Prometheus(tmp_path / "prometheus", ALERTS)
    with (
        Bridge(tmp_path / "bridge", BRIDGE.format(prometheus=prometheus.url)) as bridge,
        gateway_of(bridge, tmp_path / "gateway", SMALL) as gateway,
    ):
        prometheus.scrape(gateway=gateway.metrics_address)
        with prometheus:
            yield bridge, gateway, prometheus


def test_trouble_is_alerted_under_the_names_that_the_programs_use(
    site: tuple[Bridge, Collector, Prometheus],
) -> None:
    bridge, gateway, prometheus = site
    wanted = named() & metrics_of_bridges() | metrics_of_collectors()

    # What counts at all has been seen at 0 before it counts.
    assert wait_for(lambda: "otel_rl_bridge_requests_total" in prometheus.metric_names(), ARRIVES_S)
    send(bridge.url, 1, authorization=f"Bearer {TOKEN}")
    send(gateway.url, 1)
    send(gateway.url, TOO_LARGE)

    expected = {"OtelRLSenderWithoutToken", "OtelRLCollectorLoses", "OtelRLQueueFull"}
    wait_for(lambda: expected <= prometheus.firing(), ARRIVES_S)
    assert prometheus.firing() == expected
    wait_for(lambda: wanted <= prometheus.metric_names(), ARRIVES_S)
    assert wanted - prometheus.metric_names() == set()


def test_prometheus_scrapes_a_bridge_at_its_port_of_health_probes(tmp_path: Path) -> None:
    (port,) = free_ports(1)
    settings = f'[listen]\nhealth = "127.0.0.1:{port}"\n'
    prometheus = Prometheus(tmp_path / "prometheus", ALERTS)
    prometheus.scrape(bridge=f"127.0.0.1:{port}")
    with Bridge(tmp_path / "bridge", settings) as bridge, prometheus:
        send(bridge.url, 1)
        count = "otel_rl_bridge_tracker_delay_seconds_count"
        assert wait_for(lambda: bool(prometheus.query(count)), ARRIVES_S)
        told = plain_http.get(f"http://127.0.0.1:{port}/metrics", timeout=60).text
        done = subprocess.run(
            [PROMTOOL.path, "check", "metrics"],
            input=told, capture_output=True, text=True, timeout=60, check=False,
        )  # fmt: skip
        assert (done.returncode, done.stderr) == (0, "")
        wanted = named() & metrics_of_bridges() | {"otel_rl_bridge_info"}
        # A gauge of runs is there while a run has something waiting.
        wanted -= {"otel_rl_bridge_spool_size_bytes"}
        wanted |= {
            f"otel_rl_bridge_row_delay_seconds_{part}" for part in ("bucket", "sum", "count")
        }
        wait_for(lambda: wanted <= prometheus.metric_names(), ARRIVES_S)
        assert wanted - prometheus.metric_names() == set()
        assert prometheus.query('up{job="otel_rl-bridge"} == 1')
        bridge.kill()
        wait_for(lambda: bool(prometheus.query('up{job="otel_rl-bridge"} == 0')), ARRIVES_S)
        assert prometheus.query('up{job="otel_rl-bridge"} == 0')
