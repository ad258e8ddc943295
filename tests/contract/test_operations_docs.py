"""docs/operations.md names every port, volume, check and state there is, and no other."""

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from otel_rl.bridge.config import GrpcSettings, HttpSettings
from otel_rl.bridge.delivery.delivery_interfaces import RunState
from tests.deploy.alerts import alerts
from tests.deploy.manifests import manifests
from tests.docs_examples import anchors

ROOT = Path(__file__).parents[2]
CONFIGURATIONS = ("agent", "gateway", "scale", "jaeger")


def page(name: str) -> str:
    return (ROOT / "docs" / f"{name}.md").read_text(encoding="utf-8")


def section(page: str, heading: str) -> str:
    """From a heading to the next one of its level or above."""
    found = re.search(rf"^(#+) {heading}\n(.*?)(?=^#{{1,2}} |\Z)", page, re.DOTALL | re.MULTILINE)
    assert found, heading
    return found[2]


def heads(text: str) -> list[str]:
    """What stands before the colon of every item of a list, with its marks."""
    return re.findall(r"^- (`.+?): ", text, re.MULTILINE)


def compose() -> dict[str, Any]:
    loaded: dict[str, Any] = yaml.safe_load((ROOT / "docker-compose.yml").read_text())
    return loaded


@pytest.mark.parametrize("name", sorted(alerts()))
def test_every_alert_says_what_to_do_and_leads_to_a_section_that_is_there(name: str) -> None:
    action = alerts()[name]["annotations"]["action"]
    assert action
    for document, anchor in re.findall(r"docs/(\w+)\.md#([\w-]+)", action):
        assert anchor in anchors(ROOT / "docs" / f"{document}.md")


def test_every_port_of_a_collector_or_jaeger_is_documented_and_no_other() -> None:
    text = "".join((ROOT / "collector_config" / f"{n}.yaml").read_text() for n in CONFIGURATIONS)
    listening = set(re.findall(r"_(?:GRPC|HTTP|HEALTH|QUERY):-127\.0\.0\.1:(\d+)\}", text))
    listening |= set(re.findall(r"_METRICS_PORT:-(\d+)\}|_QUERY_GRPC:-127\.0\.0\.1:\d+\}", text))
    listening |= set(re.findall(r"_QUERY_GRPC:-127\.0\.0\.1:(\d+)\}", text))
    told = re.findall(r"\| (\d+) `OTEL_RL_", section(page("deploy"), "Ports"))
    assert sorted(told) == sorted(listening - {""})


@pytest.mark.parametrize("settings", [HttpSettings(), GrpcSettings()], ids=["http", "grpc"])
def test_the_ports_of_a_bridge_are_documented(settings: HttpSettings | GrpcSettings) -> None:
    told = section(page("operations"), "Ports and volumes")
    assert f"{settings.host}:{settings.port}" in told
    deployed = settings.port + 20
    assert f" {deployed} |" in told
    assert f":{deployed}" in (ROOT / "Dockerfile").read_text()


def test_every_volume_is_documented_with_its_path_and_no_other() -> None:
    told = re.findall(r"^\| (\w+), `(/var/lib/\S+)`", page("operations"), re.MULTILINE)
    volumes = compose()["services"]["volumes"]["volumes"]
    scaled = re.findall(r"^\| (\w+), `(/var/lib/\S+)`", page("scale"), re.MULTILINE)
    of_compose = [(name, path) for name, path in told if name != "agent"] + scaled
    assert "the volume `prometheus`" in page("deploy")
    assert compose()["volumes"].keys() - {"prometheus"} == {name for name, _ in of_compose}
    assert {f"{name}:{path}" for name, path in of_compose if name != "postgres"} == set(volumes)
    assert {manifest.name for manifest in manifests() if manifest.containers} == {
        name for name, _ in told
    }


def test_every_volume_of_kubernetes_is_as_large_as_documented() -> None:
    told = re.findall(r"^\| (\w+), .*\b(\d+) GiB \|", page("operations"), re.MULTILINE)
    sizes = {
        manifest.name: claim["spec"]["resources"]["requests"]["storage"]
        for manifest in manifests()
        if manifest.containers
        for claim in manifest.claims
    }
    assert {name: f"{size}Gi" for name, size in told if name in sizes} == sizes


def test_every_check_of_doctor_is_documented_and_no_other() -> None:
    delivery = ROOT / "otel_rl" / "bridge" / "delivery"
    sources = [
        ROOT / "otel_rl" / "cli" / "commands" / "doctor.py",
        delivery / "kinds" / "checks.py",
        *delivery.glob("*/kind.py"),
    ]
    text = "".join(path.read_text() for path in sources)
    names = {*re.findall(r'(?:CheckResult|check_[a-z]+)\(\s*"([a-z. ]+)"', text)}
    names |= {"listen http", "listen grpc", "run EXPERIMENT/TRIAL", "workers EXPERIMENT/TRIAL"}
    names |= set(re.findall(r'"(opentelemetry_[a-z_]+)"', text))
    told = page("operations").partition("### Checks of doctor")[2]
    listed = told.partition("States of a run")[0]
    in_list = {word for head in heads(listed) for word in re.findall(r"`([^`]+)`", head)}
    assert in_list == names


def test_every_state_with_which_a_run_fails_is_documented() -> None:
    for state in (RunState.RETRYING, RunState.REJECTED):
        assert f"- `{state} since`: " in page("operations")
