"""Every query of every panel has an answer in a real Prometheus that real programs fill.

Grafana itself is not here: it comes from no package registry.
"""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.deploy.alerts import ALERTS
from tests.deploy.dashboards import GRAFANA, dashboards, metrics_of, queries
from tests.faults.keeper import wait_for
from tests.lab.programs import PROMTOOL
from tests.lab.running import CONFIGURATIONS, Bridge, Prometheus
from tests.lab.site import gateway_of
from tests.process.commands import clean_environment

pytestmark = [pytest.mark.lab, pytest.mark.process]

ARRIVES_S = 180.0

BRIDGE = """
[telemetry]
endpoint = "{prometheus}/api/v1/otlp"
interval = 1
"""

# It reports until it is ended.
WORKER = """
import itertools
import time
import otel_rl
from opentelemetry import metrics
import otel_rl

otel_rl.init(role="trainer", index=0)
tokens = metrics.get_meter("train").create_counter("rl.train.tokens", unit="{token}")
for step in itertools.count():
    with otel_rl.step(step):
        time.sleep(0.1)
        tokens.add(100)
        otel_rl.log(
            {
                "rl.train.loss": 0.5,
                "rl.reward.mean": 0.25,
                "rl.policy.version": step,
                "rl.replay_buffer.size": 7,
                "rl.generator.queue.depth": 3,
                "of.no.dashboard": 1,
            }
        )
"""


def test_prometheus_takes_its_file() -> None:
    file = GRAFANA.parent / "prometheus.yaml"
    done = subprocess.run(
        [PROMTOOL.path, "check", "config", "--syntax-only", file],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_every_panel_asks_for_what_prometheus_has(tmp_path: Path) -> None:
    prometheus = Prometheus(tmp_path / "prometheus", ALERTS)
    own = (CONFIGURATIONS / "prometheus.yaml").read_text()
    overlay = own.replace("{", "{{").replace("}", "}}")
    to_prometheus = {"OTEL_RL_PROMETHEUS_URL": f"{prometheus.url}/api/v1/otlp"}
    with (
        Bridge(tmp_path / "bridge", BRIDGE.format(prometheus=prometheus.url)) as bridge,
        gateway_of(bridge, tmp_path / "gateway", to_prometheus, overlay) as gateway,
    ):
        prometheus.scrape(gateway=gateway.metrics_address)
        with prometheus:
            environment = clean_environment(
                tmp_path, OTEL_EXPORTER_OTLP_ENDPOINT=gateway.url, OTEL_RL_EXPERIMENT="grpo"
            )
            with subprocess.Popen([sys.executable, "-c", WORKER], env=environment) as worker:
                try:
                    check_dashboards(prometheus)
                finally:
                    worker.kill()


def check_dashboards(prometheus: Prometheus) -> None:
    wanted = frozenset[str]().union(*map(metrics_of, dashboards().values()))
    # They count once something was lost, which tests/lab/test_alerts.py sees to.
    wanted -= {"otel_rl:collector_lost:sum", "otel_rl:collector_full:sum"}
    wanted -= {"otel_rl_bridge_spool_size_bytes"}  # while batches wait only
    wait_for(lambda: wanted <= prometheus.metric_names(), ARRIVES_S)
    assert wanted - prometheus.metric_names() == set()
    assert "of_no_dashboard" not in prometheus.metric_names()
    for dashboard in dashboards().values():
        for query in queries(dashboard):
            prometheus.query(query)  # raises if it is refused
    assert wait_for(lambda: bool(prometheus.query("rl_reward_mean")), ARRIVES_S)
    (reward,) = prometheus.query("rl_reward_mean")  # one series, whatever the steps
    assert reward["metric"]["rl_experiment_name"] == "grpo"
    assert reward["metric"]["rl_trial_name"] == "default"
    assert float(reward["value"][1]) == 0.25
