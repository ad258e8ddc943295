"""Reads ``otel_rl/semconv/registry`` strictly: what Weaver would refuse is refused here too.

The format is OpenTelemetry Weaver's ``file_format: definition/2``, as far as the registry uses it:
attributes, metrics, events, refinements of another registry's metrics, and imports. What a
definition has in ``annotations.otel_rl`` stands here beside its other fields.
"""

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

import msgspec
import yaml

from otel_rl.semconv.spec import Instrument, Reduction, Summary, Tier

_Stability = Literal["development", "alpha", "beta", "release_candidate", "stable"]


class RegistryError(ValueError):
    """The registry cannot be used.

    Attributes:
        problems: Each as ``file: what is wrong``, or ``file: name: what is wrong``.
    """

    def __init__(self, problems: Sequence[str]) -> None:
        super().__init__("\n".join(problems))
        self.problems = problems


class _Described(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """What has a meaning in words.

    Attributes:
        brief: One sentence.
        note: More, possibly empty.
    """

    brief: str
    note: str = ""

    def __post_init__(self) -> None:
        self.brief, self.note = " ".join(self.brief.split()), " ".join(self.note.split())


class Member(_Described, kw_only=True, rename={"phase_class": "class"}):
    """Value of an enumerated attribute.

    Attributes:
        id: Names the constant.
        value: On the wire.
        phase_class: Of a phase: the kind of time.
        side: Of a phase: who goes through it.
        part_of: Of a phase: the phase whose time it repeats, or None.
        pipeline: Of a phase: whether it is a summand of ``rl.pipeline.duration``.
        span: Of a phase: the name of its spans, where that is not ``value``.
        answers: Items of the field's list that it answers.
    """

    id: str
    value: str
    stability: _Stability
    phase_class: str = ""
    side: Literal["learner", "collector", "both", ""] = ""
    part_of: str | None = None
    pipeline: bool = False
    span: str = ""
    answers: tuple[str, ...] = ()


class _Enumeration(msgspec.Struct, forbid_unknown_fields=True):
    members: tuple[Member, ...]


class Attribute(_Described, kw_only=True):
    """One attribute.

    Attributes:
        key: Its name.
        kind: The type of its values, which are strings where they are listed.
        placement: What it stands on.
        proposal: Its name in OpenTelemetry's open proposal for RL, or empty.
        examples: Some values.
        file: Where it is defined.
    """

    key: str
    kind: Literal["string", "int", "double", "boolean", "string[]", "any"] | _Enumeration = (
        msgspec.field(name="type")
    )
    stability: _Stability
    placement: Literal["resource", "scope", "measurement", "event", "span"]
    proposal: str = ""
    examples: tuple[str | int | float | list[str], ...] = ()
    file: str = ""

    @property
    def type(self) -> str:
        """Its type as Weaver names it, without the values."""
        return self.kind if isinstance(self.kind, str) else "string"

    @property
    def shown(self) -> list[str]:
        """The examples as text."""
        return [", ".join(one) if isinstance(one, list) else str(one) for one in self.examples]

    @property
    def members(self) -> tuple[Member, ...]:
        """Its known values; empty if any value will do."""
        return () if isinstance(self.kind, str) else self.kind.members


class Reference(msgspec.Struct, forbid_unknown_fields=True):
    """An attribute that may stand on a point or an event."""

    ref: str
    requirement_level: Literal["required", "recommended", "opt_in"] = "recommended"


class _WithAttributes(_Described, kw_only=True):
    """What attributes may stand on.

    Attributes:
        references: The attributes, as they are listed.
    """

    references: tuple[Reference, ...] = msgspec.field(name="attributes", default=())

    @property
    def attributes(self) -> list[tuple[str, str]]:
        """Key and requirement level of each."""
        return [(one.ref, one.requirement_level) for one in self.references]


class Metric(_WithAttributes, kw_only=True):
    """One metric. See ``spec.MetricSpec`` for what the bridge needs of it.

    Attributes:
        reduction: Over workers.
        answers: Items of the field's list that it answers.
        proposal: Name of the same fact in OpenTelemetry's open proposal for RL, or empty.
        file: Where it is defined.
        healthy: What it looks like when all is well, a sentence or two; or empty.
        upstream: Whether it is OpenTelemetry's and only refined here.
    """

    name: str
    instrument: Instrument
    unit: str
    stability: _Stability
    reduction: Reduction = msgspec.field(name="reduce")
    statistics: tuple[str, ...] = ()
    per_worker: bool = False
    group: str
    derived: bool = False
    answers: tuple[str, ...] = ()
    proposal: str = ""
    tier: Tier = Tier.FULL
    tiers: dict[str, Tier] = {}
    summary: Summary | None = None
    healthy: str = ""
    file: str = ""
    upstream: bool = False


class Event(_WithAttributes, kw_only=True):
    """One event: a log record that has a name. Its note describes the body, if it has one."""

    name: str
    stability: _Stability
    file: str = ""


class _Imports(msgspec.Struct, forbid_unknown_fields=True):
    metrics: tuple[str, ...] = ()


class _File(msgspec.Struct, forbid_unknown_fields=True):
    file_format: Literal["definition/2"]
    attributes: tuple[Attribute, ...] = ()
    metrics: tuple[Metric, ...] = ()
    events: tuple[Event, ...] = ()
    imports: _Imports = msgspec.field(default_factory=_Imports)


class _Manifest(msgspec.Struct):
    schema_url: str


class Registry(msgspec.Struct):
    """Content of the directory, in the order of its files and their lines."""

    schema_url: str
    attributes: list[Attribute] = []
    metrics: list[Metric] = []
    events: list[Event] = []
    imports: list[str] = []


def read(directory: Path) -> Registry:
    """Read every YAML file of ``directory``.

    Args:
        directory: Holds ``manifest.yaml`` and at least one definition file.

    Raises:
        RegistryError: Anything is missing, unknown, of the wrong type, or there twice.
    """
    problems: list[str] = []
    registry = Registry("")
    for path in sorted({directory / "manifest.yaml", *directory.glob("*.yaml")}):
        try:
            content = yaml.load(path.read_text(encoding="utf-8"), _UniqueKeyLoader)  # noqa: S506  # a SafeLoader
            if path.name == "manifest.yaml":
                registry.schema_url = msgspec.convert(content, _Manifest).schema_url
                continue
            found = msgspec.convert(_flat(content, path.name), _File)
        except (OSError, yaml.YAMLError, msgspec.ValidationError) as error:
            problems.append(f"{path.name}: {error}")
            continue
        registry.attributes += found.attributes
        registry.metrics += found.metrics
        registry.events += found.events
        registry.imports += found.imports.metrics
    problems += _repeated(registry)
    if problems:
        raise RegistryError(problems)
    return registry


class _UniqueKeyLoader(yaml.SafeLoader):
    """YAML loader that refuses duplicate keys: PyYAML would silently keep the last."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:  # noqa: FBT001, FBT002  # PyYAML's signature
        keys = Counter(self.construct_object(key, deep=True) for key, _ in node.value)
        for key, times in keys.items():
            if times > 1:
                line = node.start_mark.line + 1
                raise yaml.YAMLError(f"key {key!r} stands twice in the mapping of line {line}")
        return super().construct_mapping(node, deep)


def _flat(content: Any, file: str) -> Any:
    """Bring our annotations, and refinements of metrics, into the form of ``_File``."""
    if isinstance(content, list):
        return [_flat(one, file) for one in content]
    if not isinstance(content, dict):
        return content
    flat = {key: _flat(one, file) for key, one in content.items() if key != "annotations"}
    flat |= (content.get("annotations") or {}).get("otel_rl") or {}
    for kind in ("attributes", "metrics", "events"):
        if "file_format" in flat and kind in flat:
            flat[kind] = [{**one, "file": file} for one in flat[kind]]
    for one in flat.pop("metric_refinements", ()):
        refined = {key: value for key, value in one.items() if key not in ("id", "ref")}
        refined |= {"stability": "development", "file": file, "upstream": True}
        flat.setdefault("metrics", []).append(refined | {"name": one.get("ref")})
    return flat


def _repeated(registry: Registry) -> list[str]:
    """Return every name that is defined twice, with its files."""
    named = [(f"attribute {one.key}", one.file) for one in registry.attributes]
    named += [(f"metric {one.name}", one.file) for one in registry.metrics]
    named += [(f"event {one.name}", one.file) for one in registry.events]
    named += [
        (f"value {member.value} of {one.key}", one.file)
        for one in registry.attributes
        for member in one.members
    ]
    times = Counter(name for name, _ in named)
    return [f"{file}: {name} is defined twice" for name, file in named if times[name] > 1]
