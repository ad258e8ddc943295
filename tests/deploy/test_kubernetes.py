"""The manifests of deploy/kubernetes are what Kubernetes takes, and fit the files that they run."""

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any

import pytest
import yaml
from jsonschema import Draft202012Validator

from tests.deploy.make_schemas import SCHEMAS
from tests.deploy.manifests import CONFIGURATIONS, DIRECTORY, Manifest, environment, manifests

CONTAINERS = {
    f"{manifest.name}-{container['name']}": (manifest, container)
    for manifest in manifests()
    for container in manifest.containers
}
SERVERS = {
    manifest.name: (manifest, container)
    for manifest, container in CONTAINERS.values()
    if manifest.name == container["name"]
}
EACH_CONTAINER = pytest.mark.parametrize(
    ("manifest", "container"), CONTAINERS.values(), ids=CONTAINERS
)
EACH_SERVER = pytest.mark.parametrize(("manifest", "container"), SERVERS.values(), ids=SERVERS)
COLLECTED = ["agent", "gateway", "jaeger"]


def faults(document: Mapping[str, Any]) -> Iterator[str]:
    """What Kubernetes' own schemas, made strict, have against a document."""
    schemas = json.loads(SCHEMAS.read_text())
    name = schemas["kinds"][f"{document['apiVersion']}/{document['kind']}"]
    schema = {"$ref": f"#/$defs/{name}", "$defs": schemas["$defs"]}
    for error in Draft202012Validator(schema).iter_errors(document):
        yield f"{error.json_path}: {error.message}"


@pytest.mark.parametrize("manifest", manifests(), ids=str)
def test_kubernetes_takes_it(manifest: Manifest) -> None:
    assert list(faults(manifest.document)) == []


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("replicas: 1", "replicas: one"),
        ("terminationGracePeriodSeconds", "terminationGraceSeconds"),
        ("serviceName: bridge", "serviceNames: bridge"),
        ("mountPath: /tmp", "path: /tmp"),
    ],
)
def test_kubernetes_would_refuse_a_mistake(old: str, new: str) -> None:
    text = (DIRECTORY / "bridge.yaml").read_text()
    assert old in text
    documents = list(yaml.safe_load_all(text.replace(old, new)))
    assert [fault for document in documents for fault in faults(document)]


def test_every_file_is_applied() -> None:
    kustomization = yaml.safe_load((DIRECTORY / "kustomization.yaml").read_text())
    there = {path.name for path in DIRECTORY.glob("*.yaml")} - {"kustomization.yaml"}
    assert {*kustomization["resources"]} == there | {"../../collector_config"}


def test_its_images_are_those_of_docker_compose() -> None:
    compose = yaml.safe_load((DIRECTORY.parents[1] / "docker-compose.yml").read_text())
    kustomization = yaml.safe_load((DIRECTORY / "kustomization.yaml").read_text())
    images = {f"{image['name']}:{image['newTag']}" for image in kustomization["images"]}
    services = compose["services"].values()
    needed = [one for one in services if one.get("profiles") not in (["scale"], ["grafana"])]
    assert images == {one["image"] for one in needed}
    named = {container["image"] for _, container in CONTAINERS.values()}
    assert named == {image["name"] for image in kustomization["images"]}


@pytest.mark.parametrize("name", COLLECTED)
def test_a_collector_has_the_very_file_of_collector_config(name: str) -> None:
    generated = yaml.safe_load((CONFIGURATIONS / "Kustomization").read_text())["configMapGenerator"]
    assert {"name": name, "files": [f"{name}.yaml"]} in generated
    manifest, container = SERVERS[name]
    assert container["args"] == [f"--config=/etc/otel_rl/{name}.yaml"]
    (config,) = (volume for volume in manifest.pod["volumes"] if volume["name"] == "config")
    assert config["configMap"] == {"name": name}


@pytest.mark.parametrize("name", COLLECTED)
def test_every_variable_is_one_that_the_file_reads(name: str) -> None:
    read = set(re.findall(r"\$\{env:(\w+)", (CONFIGURATIONS / f"{name}.yaml").read_text()))
    assert {*environment(SERVERS[name][1])} - read <= {"GOMEMLIMIT", "NODE_IP"}


@EACH_SERVER
def test_what_listens_is_what_is_announced(
    manifest: Manifest, container: Mapping[str, Any]
) -> None:
    announced = {port["containerPort"] for port in container["ports"]}
    if manifest.name == "bridge":
        listening = {4338, 4339}  # of the image's command
        dockerfile = (DIRECTORY.parents[1] / "Dockerfile").read_text()
        assert '"--http", "0.0.0.0:4338"' in dockerfile
        assert '"--health", "0.0.0.0:4339"' in dockerfile
    else:
        values = environment(container).values()
        addresses = [re.fullmatch(r"(?:0\.0\.0\.0|\$\(NODE_IP\)):(\d+)", v) for v in values]
        listening = {int(found[1]) for found in addresses if found}
        if environment(container).get("OTEL_RL_GATEWAY_METRICS_HOST"):
            listening.add(8889)
    assert announced == listening


@EACH_SERVER
def test_it_is_asked_whether_it_lives_where_it_answers(
    manifest: Manifest, container: Mapping[str, Any]
) -> None:
    ports = {port["name"]: port["containerPort"] for port in container["ports"]}
    asked = {
        (probe["httpGet"]["path"], ports.get(probe["httpGet"]["port"], probe["httpGet"]["port"]))
        for probe in (container[f"{kind}Probe"] for kind in ("startup", "readiness", "liveness"))
    }
    assert asked == {
        {
            "bridge": ("/healthz", 4339),
            "gateway": ("/", 13134),
            "agent": ("/", 13133),
            "jaeger": ("/status", 13136),
        }[manifest.name]
    }


def test_services_lead_to_ports_of_their_pods() -> None:
    pods = {manifest.name: manifest for manifest in manifests() if manifest.containers}
    for service in (manifest for manifest in manifests() if manifest.kind == "Service"):
        spec = service.document["spec"]
        pod = pods[spec["selector"]["app"]]
        assert pod.document["spec"]["template"]["metadata"]["labels"] == spec["selector"]
        named = {port["name"]: port["containerPort"] for port in pod.containers[-1]["ports"]}
        for port in spec["ports"]:
            target = port.get("targetPort", port["port"])
            assert target in {*named, *named.values()}, (service.name, port)


@pytest.mark.parametrize(
    ("name", "variable"),
    [
        ("gateway", "OTEL_RL_BRIDGE_URL"),
        ("gateway", "OTEL_RL_JAEGER_URL"),
        ("agent", "OTEL_RL_GATEWAY_URL"),
    ],
)
def test_every_address_is_that_of_a_service(name: str, variable: str) -> None:
    services = {
        f"http://{manifest.name}:{port['port']}"
        for manifest in manifests()
        if manifest.kind == "Service"
        for port in manifest.document["spec"]["ports"]
        if port["name"] == "http"
    }
    assert environment(SERVERS[name][1])[variable] in services


@EACH_CONTAINER
def test_it_may_do_nothing_that_it_need_not(
    manifest: Manifest, container: Mapping[str, Any]
) -> None:
    security = container["securityContext"]
    assert security["readOnlyRootFilesystem"] is True
    assert security["allowPrivilegeEscalation"] is False
    assert security["capabilities"]["drop"] == ["ALL"]
    assert {"requests", "limits"} <= container["resources"].keys()
    assert manifest.pod["automountServiceAccountToken"] is False
    if container["name"] != "queue":  # gives the node's directory to the agent
        assert (manifest.pod["securityContext"] | security)["runAsNonRoot"] is True
        assert manifest.pod["securityContext"]["runAsUser"] == 10001


@EACH_SERVER
def test_what_must_survive_is_no_part_of_the_pod(
    manifest: Manifest, container: Mapping[str, Any]
) -> None:
    mounts = {mount["mountPath"]: mount["name"] for mount in container["volumeMounts"]}
    durable = {claim["metadata"]["name"] for claim in manifest.claims} | {
        volume["name"] for volume in manifest.pod["volumes"] if "hostPath" in volume
    }
    assert mounts["/var/lib/otel_rl"] in durable
    for variable in ("OTEL_RL_QUEUE", "OTEL_RL_JAEGER_DATA"):
        if value := environment(container).get(variable):
            assert value.startswith("/var/lib/otel_rl/")


def test_a_bridge_has_longer_to_stop_than_it_takes() -> None:
    manifest, container = SERVERS["bridge"]
    stops_s = float(environment(container)["OTEL_RL_BRIDGE__STOP_TIMEOUT"])
    assert manifest.pod["terminationGracePeriodSeconds"] > stops_s


def test_there_is_never_a_second_bridge() -> None:
    bridge, _ = SERVERS["bridge"]
    assert (bridge.kind, bridge.document["spec"]["replicas"]) == ("StatefulSet", 1)
