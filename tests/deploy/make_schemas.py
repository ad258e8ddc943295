"""``python -m tests.deploy.make_schemas DEFINITIONS RESOURCES``: cut schemas down to our kinds.

DEFINITIONS is ``_definitions.json`` of a ``v1.NN.0-local-strict`` of the package
kubernetes-validate, which has 70 MB of them. RESOURCES is ``example/prometheus-operator-crd`` of
the Go module github.com/prometheus-operator/prometheus-operator. What is kept are the kinds below
with all that they are made of; what it is called is left out.
"""

import json
import sys
from pathlib import Path
from typing import Final

import yaml

SCHEMAS: Final = Path(__file__).with_name("kubernetes.json")

KINDS: Final = {
    "v1/ConfigMap": "io.k8s.api.core.v1.ConfigMap",
    "v1/Service": "io.k8s.api.core.v1.Service",
    "apps/v1/DaemonSet": "io.k8s.api.apps.v1.DaemonSet",
    "apps/v1/Deployment": "io.k8s.api.apps.v1.Deployment",
    "apps/v1/StatefulSet": "io.k8s.api.apps.v1.StatefulSet",
    "networking.k8s.io/v1/Ingress": "io.k8s.api.networking.v1.Ingress",
    "networking.k8s.io/v1/NetworkPolicy": "io.k8s.api.networking.v1.NetworkPolicy",
    "policy/v1/PodDisruptionBudget": "io.k8s.api.policy.v1.PodDisruptionBudget",
}
"""The definition of each ``apiVersion/kind``."""

OF_THE_OPERATOR: Final = ("podmonitors", "prometheusrules")

_REFERENCE: Final = "#/$defs/"


def _reduced(value: object, found: set[str]) -> object:
    """Without words, with local references, which are added to ``found``. Strict."""
    if isinstance(value, list):
        return [_reduced(item, found) for item in value]
    if not isinstance(value, dict):
        return value
    reduced: dict[str, object] = {}
    for key, item in value.items():
        if key == "$ref":
            name = str(item).partition(_REFERENCE)[2]
            found.add(name)
            reduced[key] = _REFERENCE + name
        elif key == "properties":
            reduced[key] = {name: _reduced(schema, found) for name, schema in item.items()}
            reduced.setdefault("additionalProperties", False)
        elif key != "description" and not key.startswith("x-"):
            reduced[key] = _reduced(item, found)
    return reduced


def _of_the_operator(resources: Path, kinds: dict[str, str]) -> dict[str, object]:
    """The schemas of its kinds, which are added to ``kinds``."""
    kept: dict[str, object] = {}
    for plural in OF_THE_OPERATOR:
        path = resources / f"monitoring.coreos.com_{plural}.yaml"
        spec = yaml.safe_load(path.read_text(encoding="utf-8"))["spec"]
        (version,) = spec["versions"]
        schema = version["schema"]["openAPIV3Schema"]
        schema["properties"]["metadata"] = {
            "$ref": f"{_REFERENCE}io.k8s.apimachinery.pkg.apis.meta.v1.ObjectMeta"
        }
        name = kinds[f"{spec['group']}/{version['name']}/{spec['names']['kind']}"] = plural
        kept[name] = _reduced(schema, set())
    return kept


def main(definitions: Path, resources: Path) -> None:
    """Write ``SCHEMAS``."""
    everything = json.loads(definitions.read_text(encoding="utf-8"))["$defs"]
    kinds = dict(KINDS)
    kept: dict[str, object] = {}
    wanted = set(KINDS.values())
    while wanted:
        name = wanted.pop()
        found: set[str] = set()
        kept[name] = _reduced(everything[name], found)
        wanted |= found - kept.keys()
    kept |= _of_the_operator(resources, kinds)
    schemas = {"made_of": definitions.parent.name, "kinds": kinds, "$defs": kept}
    text = json.dumps(schemas, separators=(",", ":"), sort_keys=True)
    for name in kept:
        text = text.replace(f'"{name}":{{', f'\n"{name}":{{')
    SCHEMAS.write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
