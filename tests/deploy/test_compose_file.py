"""docker-compose.yml and the Dockerfile keep what docs/deploy.md says of them."""

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

import otel_rl
from tests.lab.programs import COLLECTOR, JAEGER, PROMETHEUS

ROOT = Path(__file__).parents[2]
FILE: dict[str, Any] = yaml.safe_load((ROOT / "docker-compose.yml").read_text())
SERVICES: dict[str, dict[str, Any]] = FILE["services"]
DOCKERFILE = (ROOT / "Dockerfile").read_text()
SCALE = {name for name, service in SERVICES.items() if service.get("profiles") == ["scale"]}
OWN_USERS = {
    "postgres": "999:999",
    "balancer": "99:99",
    "prometheus": "65534:65534",
    "grafana": "472:0",
}
"""Of images that keep files, or drop rights, under a name that they know."""


@pytest.mark.parametrize("name", SERVICES)
def test_no_service_is_root_or_writes_to_its_image(name: str) -> None:
    service = SERVICES[name]
    assert service["user"] == OWN_USERS.get(name, "10001:10001")
    assert service["read_only"] is True
    assert service["cap_drop"] == ["ALL"]
    assert service["security_opt"] == ["no-new-privileges:true"]


@pytest.mark.parametrize("name", sorted(SERVICES.keys() - {"volumes"}))
def test_every_service_has_a_bound_on_memory(name: str) -> None:
    assert re.fullmatch(r"\d+[mg]", SERVICES[name]["mem_limit"])


@pytest.mark.parametrize("name", SERVICES)
def test_ports_are_on_loopback_unless_told_otherwise(name: str) -> None:
    for port in SERVICES[name].get("ports", []):
        assert port.startswith(("127.0.0.1:", "${OTEL_RL_LISTEN:-127.0.0.1}:"))


def test_no_two_services_take_one_port_of_the_machine() -> None:
    ports = [
        port.split(":")[-2] for service in SERVICES.values() for port in service.get("ports", [])
    ]
    assert len(ports) == len(set(ports))


def test_the_images_are_of_the_versions_that_the_tests_use() -> None:
    assert {service["image"] for service in SERVICES.values()} == {
        f"otel/opentelemetry-collector-contrib:{COLLECTOR.version}",
        f"jaegertracing/jaeger:{JAEGER.version}",
        f"otel-rl:{otel_rl.__version__}",
        *(SERVICES[name]["image"] for name in OWN_USERS),  # tests/lab/images.sh makes some
    }
    assert SERVICES["prometheus"]["image"].endswith(f":v{PROMETHEUS.version}")
    assert all(re.search(r":v?\d+\.\d+", service["image"]) for service in SERVICES.values())


def test_every_volume_is_made_by_the_image_with_the_owner_of_all_services() -> None:
    (names,) = re.findall(r"for name in ([\w ]+); do install -d -o 10001", DOCKERFILE)
    assert set(names.split()) == FILE["volumes"].keys() - {"postgres", "prometheus"}
    mounts = SERVICES["volumes"]["volumes"]
    assert sorted(mounts) == sorted(f"{name}:/var/lib/otel_rl/{name}" for name in names.split())


def test_bridges_with_a_command_of_their_own_answer_the_probe_of_the_image() -> None:
    assert "http://127.0.0.1:4339/healthz" in DOCKERFILE
    commands = [one["command"] for one in SERVICES.values() if "bridge" in one.get("command", ())]
    assert commands
    assert all("0.0.0.0:4339" in command for command in commands)


@pytest.mark.parametrize("name", ["bridge", "bridges"])
def test_a_bridge_has_more_time_to_stop_than_it_takes(name: str) -> None:
    bridge = SERVICES[name]
    own_s = float(bridge["environment"]["OTEL_RL_BRIDGE__STOP_TIMEOUT"])
    assert own_s < float(bridge["stop_grace_period"].removesuffix("s"))


def test_the_gateway_is_ended_before_what_it_sends_to() -> None:
    assert SERVICES["gateway"]["depends_on"].keys() == {"bridge", "jaeger"}


def test_the_profile_scale_ends_before_what_it_sends_to() -> None:
    assert {"scale-gateway", "balancer", "bridges", "postgres"} == SCALE
    needs = {name: {*SERVICES[name]["depends_on"]} & SCALE for name in SCALE - {"postgres"}}
    assert needs == {
        "scale-gateway": {"balancer"},
        "balancer": {"bridges"},
        "bridges": {"postgres"},
    }


def test_nothing_without_a_profile_needs_one() -> None:
    for name in SERVICES.keys() - SCALE:
        assert not SCALE & {*SERVICES[name].get("depends_on", [])}


def test_the_gateway_of_the_profile_scale_sends_to_the_balancer_and_that_to_every_bridge() -> None:
    own = SERVICES["scale-gateway"]["environment"]
    balancer = (ROOT / "deploy" / "haproxy.cfg").read_text()
    assert own["OTEL_RL_BRIDGE_URL"] == "http://balancer:4338"
    assert re.search(r"^  bind :4338$", balancer, re.MULTILINE)
    assert re.search(r"^  server-template \w+ 16 bridges:4338 ", balancer, re.MULTILINE)
    assert SERVICES["bridges"]["deploy"]["replicas"] >= 2
    waits_s = int(re.findall(r"timeout server (\d+)s", balancer)[0])
    gateway = yaml.safe_load((ROOT / "collector_config" / "gateway.yaml").read_text())
    assert waits_s > int(gateway["exporters"]["otlp_http/bridge"]["timeout"].removesuffix("s"))


def test_only_bridges_reach_the_database_and_keep_nothing_beside_it() -> None:
    assert FILE["networks"]["journal"] == {"internal": True}
    assert SERVICES["postgres"]["networks"] == ["journal"]
    near = {name for name, service in SERVICES.items() if "journal" in service.get("networks", [])}
    assert near == {"bridges", "postgres"}
    bridges = SERVICES["bridges"]
    data = bridges["command"][bridges["command"].index("--data") + 1]
    assert data.startswith(bridges["tmpfs"][0].partition(":")[0])
    assert bridges["environment"]["OTEL_RL_BRIDGE__JOURNAL__URL"].endswith("@postgres/otel_rl")


def test_the_file_of_teams_changes_services_and_mounts_files_that_exist() -> None:
    further = yaml.safe_load((ROOT / "deploy/teams.compose.yaml").read_text())["services"]
    assert further.keys() <= SERVICES.keys()
    taken = {port.split(":")[-2] for one in SERVICES.values() for port in one.get("ports", [])}
    for service in further.values():
        for port in service.get("ports", []):
            assert port.startswith("${OTEL_RL_LISTEN:-127.0.0.1}:")
            assert port.split(":")[-2] not in taken
        for volume in service["volumes"]:
            source = volume.split(":")[0]
            assert source.startswith("${OTEL_RL_SITE") or (ROOT / source).is_file()
