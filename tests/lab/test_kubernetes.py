"""What `kubectl apply --kustomize` would apply, by the real kustomize."""

import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.deploy.manifests import CONFIGURATIONS, DIRECTORY, environment, manifests
from tests.lab.programs import COLLECTOR, JAEGER, KUSTOMIZE
from tests.process.commands import clean_environment

Objects = Sequence[Mapping[str, Any]]


@pytest.fixture(scope="module")
def applied() -> Objects:
    done = subprocess.run(
        [KUSTOMIZE.path, "build", DIRECTORY], capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr
    return list(yaml.safe_load_all(done.stdout))


def named(applied: Objects, kind: str, beginning: str) -> Mapping[str, Any]:
    (found,) = (
        document
        for document in applied
        if document["kind"] == kind and document["metadata"]["name"].startswith(beginning)
    )
    return found


@pytest.mark.parametrize(
    ("kind", "name"),
    [("DaemonSet", "agent"), ("StatefulSet", "gateway"), ("StatefulSet", "jaeger")],
)
def test_a_pod_reads_the_very_file_of_collector_config(
    applied: Objects, kind: str, name: str
) -> None:
    volumes = named(applied, kind, name)["spec"]["template"]["spec"]["volumes"]
    (config,) = (volume["configMap"]["name"] for volume in volumes if "configMap" in volume)
    # Its name ends in a digest of what it holds, so a change starts the pods again.
    assert config.startswith(f"{name}-")
    data = named(applied, "ConfigMap", config)["data"]
    assert data == {f"{name}.yaml": (CONFIGURATIONS / f"{name}.yaml").read_text()}


def test_everything_is_in_one_namespace(applied: Objects) -> None:
    namespaces = {document["metadata"].get("namespace") for document in applied}
    assert namespaces == {None, "otel-rl"}
    alone = [document["kind"] for document in applied if "namespace" not in document["metadata"]]
    assert alone == ["Namespace"]


def test_every_image_has_a_version(applied: Objects) -> None:
    images = [
        container["image"]
        for document in applied
        for pod in [document.get("spec", {}).get("template", {}).get("spec", {})]
        for container in [*pod.get("initContainers", []), *pod.get("containers", [])]
    ]
    assert len(images) == 5
    assert all(image.rpartition(":")[2][0].isdigit() for image in images)


@pytest.mark.parametrize("name", ["agent", "gateway", "jaeger"])
def test_the_real_program_takes_its_file_with_the_variables_of_its_pod(
    name: str, tmp_path: Path
) -> None:
    (container,) = (
        container
        for manifest in manifests()
        for container in manifest.containers
        if container["name"] == name
    )
    variables = {
        key: value.replace("$(NODE_IP)", "10.0.0.7")
        for key, value in environment(container).items()
        if value
    }
    # What Kubernetes mounts, or lets it make.
    variables |= {key: str(tmp_path) for key, value in variables.items() if value[:5] == "/var/"}
    program = JAEGER if name == "jaeger" else COLLECTOR
    done = subprocess.run(
        [program.path, "validate", f"--config={CONFIGURATIONS / f'{name}.yaml'}"],
        env=clean_environment(tmp_path, **variables),
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
