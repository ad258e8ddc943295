"""The alert rules are what the real promtool takes, and name what the real gateway counts."""

import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path

import httpx
import pytest

from tests.deploy.alerts import ALERTS, CASES, metrics_of_collectors
from tests.faults.keeper import wait_for
from tests.lab.programs import PROMTOOL
from tests.lab.running import Bridge, Collector
from tests.lab.site import gateway_of
from tests.otlp_requests import event, gauge, logs_request, metrics_request, point, trace_request

PROTOBUF = {"content-type": "application/x-protobuf"}

WANTS_A_TOKEN = f"""
[[auth.tokens]]
name = "team"
experiments = ["*"]
sha256 = ["{"0" * 64}"]
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


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Collector]:
    """One in trouble: the bridge does not know its token, and its queue is small."""
    directory = tmp_path_factory.mktemp("trouble")
    with (
        Bridge(directory / "bridge", WANTS_A_TOKEN) as bridge,
        gateway_of(bridge, directory / "gateway", SMALL) as gateway,
    ):
        yield gateway


def test_every_metric_of_a_collector_is_one_that_it_has(gateway: Collector) -> None:
    for n in (1, TOO_LARGE):
        for signal, body in requests(n).items():
            url = f"{gateway.url}/v1/{signal}"
            httpx.post(url, content=body, headers=PROTOBUF, timeout=30)
    wait_for(lambda: metrics_of_collectors() <= gateway.metric_names(), 30)
    assert metrics_of_collectors() - gateway.metric_names() == set()
