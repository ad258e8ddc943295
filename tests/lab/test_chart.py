"""The Helm chart, by the real helm: Kubernetes takes it, and it fits the files of the programs."""

import json
import re
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml
from jsonschema import Draft202012Validator

from tests.deploy.make_schemas import SCHEMAS
from tests.deploy.test_chart import WRONG
from tests.lab.programs import COLLECTOR, HELM, JAEGER
from tests.lab.running import CONFIGURATIONS
from tests.process.commands import clean_environment
from tests.support.docs_examples import blocks

ROOT = Path(__file__).parents[2]
CHART = ROOT / "deploy" / "helm" / "otel-rl"

_PAGE = ROOT / "docs" / "how-to" / "teams.md"
_TEAMS = next(yaml.safe_load(text) for text in blocks(_PAGE, "yaml") if "teams-values.yaml" in text)

SITES: Mapping[str, Mapping[str, Any]] = {
    "no values": {},
    "several bridges": {
        "wandb": {"secret": "key"},
        "postgres": {"secret": "database"},
        "bridge": {"replicas": 3, "claim": "files"},
        "gateway": {"replicas": 2},
    },
    "everything": {
        "image": {"pullSecrets": [{"name": "registry"}]},
        "bridge": {
            "config": '[[team]]\nname = "a"\nfile = "/run/secrets/tokens/a"\n',
            "secrets": ["tokens"],
            "env": [{"name": "WANDB_PROJECT", "value": "grpo"}],
            "storage": {"className": "fast"},
        },
        "gateway": {
            "also": ["sampling", "gen_ai", "prometheus"],
            "config": "exporters:\n  otlp_http/bridge:\n    timeout: 20s\n",
            "tokenSecret": "gateway",
            "secrets": ["certificates"],
            "env": [{"name": "OTEL_RL_MLFLOW_EXPERIMENT", "value": "1"}],
        },
        "agent": {"experiment": "grpo-7b", "nodeSelector": {"gpu": "yes"}},
        "ingress": {
            "hosts": {"bridge": "runs.example", "gateway": "otlp.example", "jaeger": "t.example"},
            "className": "nginx",
            "annotations": {"example.com/a": "b"},
            "tlsSecret": "tls",
            "from": [{"namespaceSelector": {"matchLabels": {"name": "ingress"}}}],
        },
        "podMonitor": {"enabled": True, "labels": {"release": "prometheus"}},
        "prometheusRule": {"enabled": True, "labels": {"release": "prometheus"}},
    },
    "teams": {
        **_TEAMS,
        "gateway": {**_TEAMS["gateway"], "config": (CONFIGURATIONS / "teams.yaml").read_text()},
    },
    "a bridge alone": {
        "agent": {"enabled": False},
        "jaeger": {"enabled": False, "url": "http://jaeger.example:4318"},
        "networkPolicy": {"enabled": False},
        "wandb": {"secret": ""},
    },
}
EACH_SITE = pytest.mark.parametrize("site", SITES)
COLLECTED = ["agent", "gateway", "jaeger"]


@dataclass(frozen=True, slots=True)
class Manifest:
    """One object that the chart renders."""

    document: Mapping[str, Any]

    @property
    def kind(self) -> str:
        return str(self.document["kind"])

    @property
    def name(self) -> str:
        """Without the name of the release."""
        return str(self.document["metadata"]["name"]).removeprefix("otel-rl-")

    @property
    def pod(self) -> Mapping[str, Any]:
        found: Mapping[str, Any] = self.document.get("spec", {}).get("template", {}).get("spec", {})
        return found

    @property
    def containers(self) -> Sequence[Mapping[str, Any]]:
        return [*self.pod.get("initContainers", []), *self.pod.get("containers", [])]


def helm(command: str, values: Mapping[str, Any], *more: str | Path) -> Any:
    return subprocess.run(
        [HELM.path, command, *more, "--values", "-"],
        input=json.dumps(values),
        capture_output=True,
        text=True,
        timeout=60,
    )


@cache
def rendered(site: str, release: str = "otel-rl") -> Sequence[Manifest]:
    done = helm("template", SITES[site], release, CHART, "--namespace", "otel-rl")
    assert done.returncode == 0, done.stderr
    return [Manifest(document) for document in yaml.safe_load_all(done.stdout) if document]


def of(site: str, kind: str, name: str) -> Manifest:
    (found,) = (one for one in rendered(site) if (one.kind, one.name) == (kind, name))
    return found


def servers(site: str) -> Mapping[str, tuple[Manifest, Mapping[str, Any]]]:
    """Each program that runs, with its object and its container, by its name."""
    return {
        one.name: (one, container)
        for one in rendered(site)
        for container in one.containers
        if container["name"] == one.name
    }


def environment(container: Mapping[str, Any]) -> Mapping[str, str]:
    """The variables of a container; those that Kubernetes fills in are empty."""
    return {variable["name"]: variable.get("value", "") for variable in container["env"]}


def faults(document: Mapping[str, Any]) -> Iterator[str]:
    """What the schemas of Kubernetes and of Prometheus' operator, made strict, have against it."""
    schemas = json.loads(SCHEMAS.read_text())
    name = schemas["kinds"][f"{document['apiVersion']}/{document['kind']}"]
    schema = {"$ref": f"#/$defs/{name}", "$defs": schemas["$defs"]}
    for error in Draft202012Validator(schema).iter_errors(document):
        yield f"{document['kind']} {error.json_path}: {error.message}"


@EACH_SITE
def test_helm_has_nothing_against_it(site: str) -> None:
    done = helm("lint", SITES[site], CHART, "--strict")
    assert done.returncode == 0, done.stdout


@EACH_SITE
def test_kubernetes_takes_it(site: str) -> None:
    assert rendered(site)
    assert [fault for one in rendered(site) for fault in faults(one.document)] == []


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("replicas: 1", "replicas: one"),
        ("terminationGracePeriodSeconds", "terminationGraceSeconds"),
        ("serviceName: ", "serviceNames: "),
        ("podMetricsEndpoints", "metricsEndpoints"),
        ("minAvailable: ", "available: "),
        ("expr: ", "expression: "),
    ],
)
def test_a_mistake_would_be_refused(old: str, new: str) -> None:
    mistaken = []
    for site in SITES:
        for one in rendered(site):
            text = yaml.safe_dump(one.document).replace("maxUnavailable: 1", "minAvailable: 1")
            if old in text and one.kind != "ConfigMap":
                mistaken.append(yaml.safe_load(text.replace(old, new)))
    assert mistaken
    assert all(list(faults(document)) for document in mistaken)


def test_two_releases_share_no_name() -> None:
    one, other = (
        {(manifest.kind, manifest.document["metadata"]["name"]) for manifest in rendered(*which)}
        for which in (("everything",), ("everything", "second"))
    )
    assert not one & other


@pytest.mark.parametrize(
    ("values", "says"),
    [
        ({"bridge": {"replicas": 2}}, "bridge.replicas: several bridges need one database"),
        ({"jaeger": {"enabled": False}}, "jaeger.url: without jaeger.enabled"),
        ({"gateway": {"also": ["nothing"]}}, "gateway.also: there is no nothing.yaml"),
        ({"ingress": {"hosts": {"bridge": "a.example"}}}, "ingress.from: name the controller's"),
    ],
)
def test_values_that_contradict_each_other_are_refused(
    values: Mapping[str, Any], says: str
) -> None:
    done = helm("template", values, "otel-rl", CHART)
    assert done.returncode != 0
    assert says in done.stderr


@pytest.mark.parametrize(("path", "value"), WRONG, ids=[path for path, _ in WRONG])
def test_a_wrong_value_is_refused_with_its_place(path: str, value: object) -> None:
    part, _, name = path.partition(".")
    done = helm("lint", {part: {name: value}}, CHART)
    assert done.returncode != 0
    told = done.stdout + done.stderr
    assert "values don't meet the specifications of the schema" in told
    assert part in told.partition("specifications of the schema")[2]


@pytest.mark.parametrize("name", ["bridge", "gateway"])
@pytest.mark.parametrize(
    "peers",
    [None, [], [{"podSelector": {"matchLabels": {"app": "prometheus"}}}]],
    ids=["default", "nobody", "a label"],
)
def test_metrics_are_reached_by_prometheus_only(name: str, peers: Sequence[Any] | None) -> None:
    values = {} if peers is None else {"networkPolicy": {"metricsFrom": peers}}
    done = helm("template", values, "otel-rl", CHART)
    (policy,) = (
        one["spec"]
        for one in yaml.safe_load_all(done.stdout)
        if one and (one["kind"], one["metadata"]["name"]) == ("NetworkPolicy", f"otel-rl-{name}")
    )
    port = {"bridge": "health", "gateway": "metrics"}[name]
    rules = [rule for rule in policy["ingress"] if {"port": port} in rule["ports"]]
    if peers is None:
        namespace = {"matchLabels": {"kubernetes.io/metadata.name": "monitoring"}}
        peers = [{"namespaceSelector": namespace}]
    assert rules == ([{"from": peers, "ports": [{"port": port}]}] if peers else [])
    assert policy["policyTypes"] == ["Ingress"]
    assert all("ports" in rule for rule in policy["ingress"])  # without, a rule is of every port


def test_the_packed_chart_renders_the_same(tmp_path: Path) -> None:
    done = subprocess.run(
        [HELM.path, "package", CHART, "--destination", tmp_path], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    (packed,) = tmp_path.glob("*.tgz")
    text = helm("template", SITES["everything"], "otel-rl", packed, "--namespace", "otel-rl").stdout
    assert [one for one in yaml.safe_load_all(text) if one] == [
        one.document for one in rendered("everything")
    ]


@pytest.mark.parametrize("name", COLLECTED)
def test_a_pod_reads_the_very_file_of_collector_config(name: str) -> None:
    manifest, container = servers("everything")[name]
    (config,) = (volume for volume in manifest.pod["volumes"] if volume["name"] == "config")
    data = of("everything", "ConfigMap", name).document["data"]
    assert config["configMap"] == {"name": f"otel-rl-{name}"}
    assert container["args"] == [f"--config=/etc/otel_rl/{file}" for file in data]
    assert next(iter(data)) == f"{name}.yaml"
    for file, text in data.items():
        if file != "own.yaml":
            assert text == (CONFIGURATIONS / file).read_text()


def test_nodes_that_belong_to_no_experiment_are_not_measured() -> None:
    """The bridge would refuse what belongs to nobody, and an alert would say so for ever."""
    (text,) = of("no values", "ConfigMap", "agent").document["data"].values()
    whole = yaml.safe_load((CONFIGURATIONS / "agent.yaml").read_text())
    assert whole["service"]["pipelines"].pop("metrics/node")
    assert yaml.safe_load(text) == whole


@EACH_SITE
def test_a_changed_file_starts_what_reads_it_again(site: str) -> None:
    for name, (manifest, _) in servers(site).items():
        if "config" in {volume["name"] for volume in manifest.pod["volumes"]}:
            annotations = manifest.document["spec"]["template"]["metadata"]["annotations"]
            assert re.fullmatch("[0-9a-f]{64}", annotations["checksum/config"]), name


@pytest.mark.parametrize("site", ["no values", "everything", "teams"])
@pytest.mark.parametrize("name", COLLECTED)
def test_the_real_program_takes_its_files_with_the_variables_of_its_pod(
    name: str, site: str, tmp_path: Path
) -> None:
    _, container = servers(site)[name]
    for file, text in of(site, "ConfigMap", name).document["data"].items():
        (tmp_path / file).write_text(text)
    variables = {
        key: value.replace("$(NODE_IP)", "10.0.0.7")
        for key, value in environment(container).items()
        if value
    }
    # What Kubernetes mounts, or lets it make.
    variables |= {key: str(tmp_path) for key, value in variables.items() if value[:5] == "/var/"}
    options = [arg.replace("/etc/otel_rl", str(tmp_path)) for arg in container["args"]]
    done = subprocess.run(
        [(JAEGER if name == "jaeger" else COLLECTOR).path, "validate", *options],
        env=clean_environment(tmp_path, **variables),
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr


@EACH_SITE
def test_every_variable_is_one_that_the_files_read(site: str) -> None:
    for name in COLLECTED:
        if name not in servers(site):
            continue
        texts = of(site, "ConfigMap", name).document["data"].values()
        read = set(re.findall(r"\$\{env:(\w+)", "".join(texts)))
        given = {*environment(servers(site)[name][1])}
        assert given - read <= {"GOMEMLIMIT", "NODE_IP"}, name


@EACH_SITE
def test_what_listens_is_announced_and_asked_whether_it_lives(site: str) -> None:
    for name, (_, container) in servers(site).items():
        announced = {port["name"]: port["containerPort"] for port in container["ports"]}
        words = [*container["args"], *environment(container).values()]
        listening = [re.search(r"(?:0\.0\.0\.0|\$\(NODE_IP\)):(\d+)$", word) for word in words]
        ports = {int(found[1]) for found in listening if found}
        if name == "gateway":
            ports.add(8889)  # its own metrics
        assert {*announced.values()} == ports, name
        asked = {
            (probe["httpGet"]["path"], announced.get(probe["httpGet"]["port"], 13133))
            for probe in (
                container[f"{kind}Probe"] for kind in ("startup", "readiness", "liveness")
            )
        }
        assert asked == {
            {
                "bridge": ("/healthz", 4339),
                "gateway": ("/", 13134),
                "agent": ("/", 13133),
                "jaeger": ("/status", 13136),
            }[name]
        }


@EACH_SITE
def test_whatever_selects_pods_finds_those_of_one_program(site: str) -> None:
    pods = {
        name: manifest.document["spec"]["template"]["metadata"]["labels"]
        for name, (manifest, _) in servers(site).items()
    }
    for one in rendered(site):
        spec = one.document.get("spec", {})
        selector = spec.get("podSelector") or spec.get("selector") or {}
        wanted = selector.get("matchLabels", selector)
        if wanted:
            found = [name for name, labels in pods.items() if wanted.items() <= labels.items()]
            assert found == [one.name], one


@EACH_SITE
def test_every_name_of_a_port_is_one_of_the_pod(site: str) -> None:
    for one in rendered(site):
        if one.kind in {"Service", "NetworkPolicy", "PodMonitor"}:
            _, container = servers(site)[one.name]
            names = {port["name"] for port in container["ports"]}
            spec = one.document["spec"]
            ports = spec.get("ports", []) + spec.get("podMetricsEndpoints", [])
            ports += [port for rule in spec.get("ingress", []) for port in rule["ports"]]
            assert {port.get("targetPort", port.get("port")) for port in ports} <= names


def test_each_team_reaches_its_port_of_the_gateway() -> None:
    service = of("teams", "Service", "gateway").document["spec"]["ports"]
    assert {port["name"]: port["port"] for port in service if port["name"] != "grpc"} == {
        "http": 4318,
        "team-b": 4402,
    }
    policy = of("teams", "NetworkPolicy", "gateway").document["spec"]
    to_all = [rule["ports"] for rule in policy["ingress"] if "from" not in rule]
    assert to_all == [[{"port": "http"}, {"port": "grpc"}, {"port": "team-b"}]]


@EACH_SITE
def test_every_address_is_that_of_a_service(site: str) -> None:
    addresses = {
        f"http://otel-rl-{one.name}:{port['port']}"
        for one in rendered(site)
        if one.kind == "Service"
        for port in one.document["spec"]["ports"]
    }
    addresses.add(SITES[site].get("jaeger", {}).get("url", ""))
    for _, container in servers(site).values():
        for variable, value in environment(container).items():
            if variable.endswith("_URL") and variable != "OTEL_RL_BRIDGE__JOURNAL__URL":
                assert value in addresses, variable
    for one in rendered(site):
        if one.kind == "Ingress":
            for rule in one.document["spec"]["rules"]:
                service = rule["http"]["paths"][0]["backend"]["service"]
                address = f"http://{service['name']}:{service['port']['number']}"
                assert address in addresses


@EACH_SITE
def test_a_container_may_do_nothing_that_it_need_not(site: str) -> None:
    for one in rendered(site):
        for container in one.containers:
            security = container["securityContext"]
            assert security["readOnlyRootFilesystem"] is True
            assert security["allowPrivilegeEscalation"] is False
            assert security["capabilities"]["drop"] == ["ALL"]
            assert {"requests", "limits"} <= container["resources"].keys()
            assert one.pod["automountServiceAccountToken"] is False
            assert one.pod["enableServiceLinks"] is False
            if container["name"] != "queue":  # gives the node's directory to the agent
                assert (one.pod["securityContext"] | security)["runAsNonRoot"] is True
                assert one.pod["securityContext"]["runAsUser"] == 10001


@EACH_SITE
def test_every_mount_has_a_volume_and_what_must_survive_is_no_part_of_the_pod(site: str) -> None:
    for name, (manifest, container) in servers(site).items():
        mounts = {mount["mountPath"]: mount["name"] for mount in container["volumeMounts"]}
        claims = manifest.document["spec"].get("volumeClaimTemplates", [])
        durable = {claim["metadata"]["name"] for claim in claims}
        volumes = {volume["name"]: volume for volume in manifest.pod["volumes"]}
        assert {*mounts.values()} == durable | volumes.keys()
        durable |= {
            volume
            for volume, of_what in volumes.items()
            if {"hostPath", "persistentVolumeClaim"} & of_what.keys()
        }
        for path, volume in mounts.items():
            if path.startswith("/var/lib"):
                assert volume in durable, name


def test_secrets_are_named_and_never_written() -> None:
    assert "Secret" not in {one.kind for site in SITES for one in rendered(site)}
    _, gateway = servers("everything")["gateway"]
    (token,) = (one for one in gateway["env"] if one["name"] == "OTEL_RL_BRIDGE_TOKEN")
    assert token["valueFrom"] == {"secretKeyRef": {"name": "gateway", "key": "token"}}
    manifest, bridge = servers("everything")["bridge"]
    assert "/run/secrets/tokens" in {mount["mountPath"] for mount in bridge["volumeMounts"]}
    modes = {one["secret"]["defaultMode"] for one in manifest.pod["volumes"] if "secret" in one}
    assert modes == {0o440}  # not everybody's, or the bridge refuses it; the group is fsGroup


def test_one_bridge_is_replaced_after_it_has_ended_and_several_before() -> None:
    alone, several = (servers(site)["bridge"][0] for site in ("no values", "several bridges"))
    assert (alone.kind, alone.document["spec"]["replicas"]) == ("StatefulSet", 1)
    assert several.kind == "Deployment"
    assert several.document["spec"]["strategy"] == {
        "type": "RollingUpdate",
        "rollingUpdate": {"maxSurge": 1, "maxUnavailable": 0},
    }
    for site in ("no values", "several bridges"):
        manifest, container = servers(site)["bridge"]
        stops_s = float(environment(container)["OTEL_RL_BRIDGE__STOP_TIMEOUT"])
        assert manifest.pod["terminationGracePeriodSeconds"] > stops_s


def test_the_rules_are_those_of_deploy_for_the_namespace_of_the_release() -> None:
    done = helm("template", SITES["everything"], "otel-rl", CHART, "--namespace", "training")
    (rules,) = (
        one["spec"]
        for one in yaml.safe_load_all(done.stdout)
        if one and one["kind"] == "PrometheusRule"
    )
    text = (ROOT / "deploy" / "alerts.yaml").read_text()
    assert 'namespace="otel-rl"' in text
    assert rules == yaml.safe_load(text.replace('namespace="otel-rl"', 'namespace="training"'))
    jobs = {
        endpoint["relabelings"][0]["replacement"]: one.name
        for one in rendered("everything")
        if one.kind == "PodMonitor"
        for endpoint in one.document["spec"]["podMetricsEndpoints"]
    }
    # Rules for collectors look at all jobs that begin so.
    assert {job: name for job, name in jobs.items() if job.startswith("otel_rl-")} == {
        "otel_rl-gateway": "gateway"
    }


def test_the_prometheus_operator_s_labels_are_beside_the_chart_s() -> None:
    for one in rendered("everything"):
        if one.document["apiVersion"].startswith("monitoring.coreos.com"):
            labels = one.document["metadata"]["labels"]
            assert labels["release"] == "prometheus"
            assert labels["app.kubernetes.io/instance"] == "otel-rl"
