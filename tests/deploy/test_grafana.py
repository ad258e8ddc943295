"""Dashboards are about metrics that are there; Grafana and Prometheus get their files."""

import re
from itertools import combinations
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

from otel_rl.semconv.names import METRICS
from tests.deploy.alerts import metrics_of_bridges, metrics_of_collectors, recorded
from tests.deploy.dashboards import GRAFANA, dashboards, metrics_of, panels, queries

ROOT = GRAFANA.parents[1]
DASHBOARDS = dashboards()

SUFFIXES = {"rl.iteration.duration": "_seconds", "rl.train.tokens": "_total"}

SCHEMA: dict[str, Any] = {
    "type": "object",
    "required": ["uid", "title", "schemaVersion", "panels", "templating", "time", "annotations"],
    "properties": {
        "uid": {"type": "string", "minLength": 1, "maxLength": 40},
        "schemaVersion": {"type": "integer", "minimum": 36},
        "panels": {
            "type": "array",
            "minItems": 1,
            "items": {
                "type": "object",
                "required": ["id", "type", "title", "gridPos"],
                "properties": {
                    "type": {"enum": ["row", "stat", "timeseries"]},
                    "gridPos": {
                        "type": "object",
                        "required": ["x", "y", "w", "h"],
                        "additionalProperties": {"type": "integer", "minimum": 0, "maximum": 200},
                    },
                    "targets": {
                        "type": "array",
                        "minItems": 1,
                        "items": {"required": ["refId", "expr", "legendFormat", "datasource"]},
                    },
                },
            },
        },
    },
}
"""Of what is used here of Grafana's dashboard JSON model."""


@pytest.mark.parametrize("name", DASHBOARDS)
def test_a_dashboard_has_the_form_that_grafana_reads(name: str) -> None:
    dashboard = DASHBOARDS[name]
    jsonschema.validate(dashboard, SCHEMA)
    ids = [panel["id"] for panel in dashboard["panels"]]
    assert len(ids) == len(set(ids))
    for panel in panels(dashboard):
        assert panel["title"]
        assert panel["description"].endswith(".")
        references = [target["refId"] for target in panel["targets"]]
        assert len(references) == len(set(references))


@pytest.mark.parametrize("name", DASHBOARDS)
def test_panels_lie_beside_each_other(name: str) -> None:
    places = [panel["gridPos"] for panel in DASHBOARDS[name]["panels"]]
    assert all(place["x"] + place["w"] <= 24 for place in places)
    for one, other in combinations(places, 2):
        assert (
            one["x"] + one["w"] <= other["x"]
            or other["x"] + other["w"] <= one["x"]
            or one["y"] + one["h"] <= other["y"]
            or other["y"] + other["h"] <= one["y"]
        )


@pytest.mark.parametrize("name", DASHBOARDS)
def test_every_metric_is_one_that_bridges_collectors_or_rules_have(name: str) -> None:
    known = metrics_of_bridges() | metrics_of_collectors() | recorded() | metrics_of_workers()
    assert metrics_of(DASHBOARDS[name]) <= known
    assert len([*queries(DASHBOARDS[name])]) > 10


def metrics_of_workers() -> frozenset[str]:
    """Those that collector_config/prometheus.yaml lets through, as tests/lab sees them."""
    text = (ROOT / "collector_config" / "prometheus.yaml").read_text()
    (filters,) = yaml.safe_load(text)["processors"]["filter/prometheus"]["metrics"].values()
    pattern = filters[0].partition('"')[2].rpartition('"')[0].replace("$$", "$")
    found = {name for name in METRICS if re.search(pattern, name)}
    assert len(found) == 7
    return frozenset(f"{name.replace('.', '_')}{SUFFIXES.get(name, '')}" for name in found) | {
        "target_info"
    }


def test_every_panel_asks_the_source_that_is_provisioned() -> None:
    (file,) = (GRAFANA / "provisioning" / "datasources").iterdir()
    (source,) = yaml.safe_load(file.read_text())["datasources"]
    for dashboard in DASHBOARDS.values():
        asked = [*dashboard["annotations"]["list"], *dashboard["templating"]["list"]]
        for panel in panels(dashboard):
            asked += [panel, *panel["targets"]]
        assert all(
            one["datasource"] == {"type": source["type"], "uid": source["uid"]} for one in asked
        )


def test_compose_gives_grafana_and_prometheus_the_files_that_they_look_for() -> None:
    services = yaml.safe_load((ROOT / "docker-compose.yml").read_text())["services"]
    inside: dict[str, Path] = {}
    for name in ("grafana", "prometheus"):
        assert services[name]["profiles"] == ["grafana"]
        for volume in services[name]["volumes"]:
            outside, _, rest = volume.partition(":")
            if outside.startswith("./"):
                inside[rest.removesuffix(":ro")] = ROOT / outside
    assert all(path.exists() for path in inside.values())
    assert inside["/etc/grafana/provisioning"] == GRAFANA / "provisioning"
    (provider,) = yaml.safe_load(
        (GRAFANA / "provisioning" / "dashboards" / "otel_rl.yaml").read_text()
    )["providers"]
    assert inside[provider["options"]["path"]] == GRAFANA / "dashboards"
    home = Path(services["grafana"]["environment"]["GF_DASHBOARDS_DEFAULT_HOME_DASHBOARD_PATH"])
    assert (inside[str(home.parent)] / home.name).exists()
    prometheus = yaml.safe_load(inside["/etc/otel_rl/prometheus.yaml"].read_text())
    assert all(inside[file].name == "alerts.yaml" for file in prometheus["rule_files"])
    targets = {
        target
        for job in prometheus["scrape_configs"]
        for static in job["static_configs"]
        for target in static["targets"]
    }
    assert targets == {"gateway:8889", "bridge:4339"}
    assert '"--health", "0.0.0.0:4339"' in (ROOT / "Dockerfile").read_text()
    assert "127.0.0.1:8889:8889" in services["gateway"]["ports"]
    assert "--web.enable-otlp-receiver" in services["prometheus"]["command"]
