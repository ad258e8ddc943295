"""The Helm chart is documented, and has the parts of docker-compose.yml. tests/lab renders it."""

import json
import re
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml
from jsonschema import Draft7Validator

import otel_rl
from bench.capacity import cores, of_workers
from bench.sparse_worker import Instruments

ROOT = Path(__file__).parents[2]
CHART = ROOT / "deploy" / "helm" / "otel-rl"
VALUES: Mapping[str, Any] = yaml.safe_load((CHART / "values.yaml").read_text())
PAGE = (ROOT / "docs" / "how-to" / "kubernetes.md").read_text()

SCHEMA: Mapping[str, Any] = json.loads((CHART / "values.schema.json").read_text())
WRONG: Sequence[tuple[str, object]] = [
    ("bridge.replicas", "two"),
    ("bridge.replicas", -1),
    ("bridge.stopTimeout", 0.5),
    ("bridge.replica", 2),
    ("bridge.stopTimeout", "5m"),
    ("bridge.env", {"WANDB_PROJECT": "grpo"}),
    ("bridge.secrets", "tokens"),
    ("bridge.storage", {"size": "40 GiB"}),
    ("gateway.also", "sampling"),
    ("image.pullPolicy", "Sometimes"),
    ("image.tag", 20260101),  # helm would write 2.0260101e+07
    ("jaeger.url", "jaeger:4318"),
    ("networkPolicy.metricsFrom", [{"namespace": "monitoring"}]),
]
"""Values by path, each of which somebody may write."""

GOOD: Sequence[tuple[str, object]] = [
    ("enabled", True),  # of a chart around this one, as its condition
    ("bridge.replicas", 0),
    ("gateway.replicas", 0),
    ("bridge.stopTimeout", 600),
    ("bridge.storage", {"size": 10737418240}),
    ("bridge.resources", {"claims": [{"name": "fast"}], "limits": {"cpu": 2}}),
    ("image.repository", "registry.example:5000/ml/otel-rl@sha256"),
    ("image.tag", "20260101"),
    ("jaeger.image", {"repository": "jaeger@sha256", "tag": "0123abc"}),
    ("global", {"region": "eu"}),
]
"""Values that Kubernetes takes, too, and that the values above do not have."""

_WHOLE = {"resources", "storage", "image", "hosts"}
"""Values whose parts are known by what they are in Kubernetes: described as one."""


def names(values: Mapping[str, Any], before: str = "") -> Iterator[str]:
    for key, value in values.items():
        path = f"{before}{key}"
        if isinstance(value, dict) and value and not (before and key in _WHOLE):
            yield from names(value, f"{path}.")
        else:
            yield path


def test_every_value_is_described_and_no_other() -> None:
    rows = re.findall(r"^\| (`.*?) \|", PAGE, re.MULTILINE)
    assert {name for row in rows for name in re.findall(r"`([\w.]+)`", row)} == {*names(VALUES)}


def test_its_images_are_those_of_docker_compose() -> None:
    compose = yaml.safe_load((ROOT / "docker-compose.yml").read_text())["services"]
    for name in ("gateway", "jaeger"):
        image = VALUES[name]["image"]
        assert f"{image['repository']}:{image['tag']}" == compose[name]["image"]
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text())
    assert chart["appVersion"] == chart["version"] == otel_rl.__version__
    assert f"{VALUES['image']['repository']}:{chart['appVersion']}" == compose["bridge"]["image"]


def test_its_files_are_those_of_collector_config() -> None:
    for path in (CHART / "files").iterdir():
        assert path.is_symlink()
        assert path.resolve().is_relative_to(ROOT)
        assert path.resolve().name == path.name
        assert path.is_file()


def test_a_bridge_may_use_what_the_capacity_formula_says() -> None:
    text = (CHART / "values.yaml").read_text()
    (found,) = re.findall(
        r"a core for ([\d,]+) workers of (\d+) gauges that export every (\d) s", text
    )
    workers, gauges, pace_s = (int(number.replace(",", "")) for number in found)
    needed = cores(of_workers(workers, Instruments(gauges), pace_s))
    assert 0.5 < needed <= 0.8 * float(VALUES["bridge"]["resources"]["requests"]["cpu"])


def test_the_schema_has_the_values_and_no_other() -> None:
    Draft7Validator.check_schema(SCHEMA)
    assert [*Draft7Validator(SCHEMA).iter_errors(VALUES)] == []

    def of(schema: Mapping[str, Any], before: str = "") -> Iterator[str]:
        if "$ref" in schema:
            schema = SCHEMA["definitions"][schema["$ref"].rpartition("/")[2]]
        for key, below in schema.get("properties", {}).items():
            assert schema["additionalProperties"] is False, before
            is_of_helm = f"{before}{key}" in {"global", "enabled"}  # of a chart around this one
            if not is_of_helm and key != "claims":
                yield from [*of(below, f"{before}{key}.")] or [f"{before}{key}"]

    def leaves(values: Mapping[str, Any], before: str = "") -> Iterator[str]:
        for key, value in values.items():
            is_open = key in {"nodeSelector", "annotations", "labels", "requests", "limits"}
            if isinstance(value, dict) and not is_open:
                yield from leaves(value, f"{before}{key}.")
            else:
                yield f"{before}{key}"

    assert {*of(SCHEMA)} == {*leaves(VALUES)}


@pytest.mark.parametrize(("path", "value"), GOOD, ids=[path for path, _ in GOOD])
def test_the_schema_takes_what_kubernetes_takes(path: str, value: object) -> None:
    part, _, name = path.partition(".")
    values = {part: {name: value}} if name else {part: value}
    assert [*Draft7Validator(SCHEMA).iter_errors(values)] == []


@pytest.mark.parametrize(("path", "value"), WRONG, ids=[path for path, _ in WRONG])
def test_the_schema_refuses_a_wrong_value(path: str, value: object) -> None:
    part, _, name = path.partition(".")
    errors = [*Draft7Validator(SCHEMA).iter_errors({part: {name: value}})]
    assert [error.absolute_path[0] for error in errors] == [part]


def test_its_command_line_is_the_image_s_but_for_grpc() -> None:
    """The gateway speaks HTTP; all else that the image says holds on Kubernetes, too."""
    dockerfile = (ROOT / "Dockerfile").read_text()
    (command,) = re.findall(r"^CMD (\[.*?\])$", dockerfile, re.MULTILINE | re.DOTALL)
    words = tomllib.loads(f"words = {command.replace(chr(92), '')}")["words"]
    template = (CHART / "templates" / "bridge.yaml").read_text()
    for option, value in zip(words[1::2], words[2::2], strict=True):
        said = f"{option}=off" if option == "--grpc" else f"{option}={value}"
        assert said.removeprefix("--data=") in template
