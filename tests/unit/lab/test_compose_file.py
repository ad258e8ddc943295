"""docker-compose.yml and the Dockerfile keep what docs/deploy.md says of them."""

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

import otel_rl
from tests.lab.programs import COLLECTOR, JAEGER

ROOT = Path(__file__).parents[3]
FILE: dict[str, Any] = yaml.safe_load((ROOT / "docker-compose.yml").read_text())
SERVICES: dict[str, dict[str, Any]] = FILE["services"]
DOCKERFILE = (ROOT / "Dockerfile").read_text()


@pytest.mark.parametrize("name", SERVICES)
def test_no_service_is_root_or_writes_to_its_image(name: str) -> None:
    service = SERVICES[name]
    assert service["user"] == "10001:10001"
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


def test_the_images_are_of_the_versions_that_the_tests_use() -> None:
    assert {service["image"] for service in SERVICES.values()} == {
        f"otel/opentelemetry-collector-contrib:{COLLECTOR.version}",
        f"jaegertracing/jaeger:{JAEGER.version}",
        f"otel-rl:{otel_rl.__version__}",
    }


def test_every_volume_is_made_by_the_image_with_the_owner_of_all_services() -> None:
    (names,) = re.findall(r"for name in ([\w ]+); do install -d -o 10001", DOCKERFILE)
    assert set(names.split()) == FILE["volumes"].keys()
    mounts = SERVICES["volumes"]["volumes"]
    assert sorted(mounts) == sorted(f"{name}:/var/lib/otel_rl/{name}" for name in names.split())


def test_the_bridge_has_more_time_to_stop_than_it_takes() -> None:
    bridge = SERVICES["bridge"]
    own_s = float(bridge["environment"]["OTEL_RL_BRIDGE__STOP_TIMEOUT_S"])
    assert own_s < float(bridge["stop_grace_period"].removesuffix("s"))


def test_the_gateway_is_ended_before_what_it_sends_to() -> None:
    assert SERVICES["gateway"]["depends_on"].keys() == {"bridge", "jaeger"}
