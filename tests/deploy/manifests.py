"""Reads deploy/kubernetes."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import yaml

__all__ = ["CONFIGURATIONS", "DIRECTORY", "Manifest", "environment", "manifests"]

_ROOT: Final = Path(__file__).parents[2]
DIRECTORY: Final = _ROOT / "deploy" / "kubernetes"
CONFIGURATIONS: Final = _ROOT / "collector_config"


@dataclass(frozen=True, slots=True)
class Manifest:
    """One object.

    Attributes:
        document: As it is written.
    """

    document: Mapping[str, Any]

    def __str__(self) -> str:
        return f"{self.kind}-{self.name}"

    @property
    def kind(self) -> str:
        """``Service``, ``StatefulSet`` and so on."""
        return str(self.document["kind"])

    @property
    def name(self) -> str:
        """Of the object."""
        return str(self.document["metadata"]["name"])

    @property
    def pod(self) -> Mapping[str, Any]:
        """What its pods are made of; empty if it has none."""
        found: Mapping[str, Any] = self.document.get("spec", {}).get("template", {}).get("spec", {})
        return found

    @property
    def containers(self) -> Sequence[Mapping[str, Any]]:
        """Of a pod, those that prepare it first."""
        return [*self.pod.get("initContainers", []), *self.pod.get("containers", [])]

    @property
    def claims(self) -> Sequence[Mapping[str, Any]]:
        """The volumes that each of its pods has of its own."""
        found: Sequence[Mapping[str, Any]] = self.document["spec"].get("volumeClaimTemplates", [])
        return found


def manifests() -> Sequence[Manifest]:
    """Every object that stands in a file; what is generated does not."""
    return [
        Manifest(document)
        for path in sorted(DIRECTORY.glob("*.yaml"))
        if path.name != "kustomization.yaml"
        for document in yaml.safe_load_all(path.read_text(encoding="utf-8"))
    ]


def environment(container: Mapping[str, Any]) -> Mapping[str, str]:
    """The variables of a container; those that Kubernetes fills in are empty."""
    return {variable["name"]: variable.get("value", "") for variable in container.get("env", [])}
