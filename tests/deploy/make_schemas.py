"""``python -m tests.deploy.make_schemas DEFINITIONS``: cut Kubernetes' schemas down to what we use.

DEFINITIONS is ``_definitions.json`` of a ``v1.NN.0-local-strict`` of the package
kubernetes-validate, which has 70 MB of them. What is kept are the kinds below with all that they
are made of; what it is called is left out.
"""

import json
import sys
from pathlib import Path
from typing import Final

SCHEMAS: Final = Path(__file__).with_name("kubernetes.json")

KINDS: Final = {
    "v1/ConfigMap": "io.k8s.api.core.v1.ConfigMap",
    "v1/Namespace": "io.k8s.api.core.v1.Namespace",
    "v1/Service": "io.k8s.api.core.v1.Service",
    "apps/v1/DaemonSet": "io.k8s.api.apps.v1.DaemonSet",
    "apps/v1/StatefulSet": "io.k8s.api.apps.v1.StatefulSet",
    "networking.k8s.io/v1/NetworkPolicy": "io.k8s.api.networking.v1.NetworkPolicy",
}
"""The definition of each ``apiVersion/kind``."""

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


def main(definitions: Path) -> None:
    """Write ``SCHEMAS``."""
    everything = json.loads(definitions.read_text(encoding="utf-8"))["$defs"]
    kept: dict[str, object] = {}
    wanted = set(KINDS.values())
    while wanted:
        name = wanted.pop()
        found: set[str] = set()
        kept[name] = _reduced(everything[name], found)
        wanted |= found - kept.keys()
    schemas = {"made_of": definitions.parent.name, "kinds": KINDS, "$defs": kept}
    text = json.dumps(schemas, separators=(",", ":"), sort_keys=True)
    SCHEMAS.write_text(text.replace('"io.k8s', '\n"io.k8s') + "\n", encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
