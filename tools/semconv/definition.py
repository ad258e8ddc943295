"""Reads ``otel_rl/semconv/registry`` strictly: what Weaver would refuse is refused here too.

The format is OpenTelemetry Weaver's ``file_format: definition/2``, as far as the registry uses it:
attributes, metrics, events, refinements of another registry's metrics, and imports. All problems
are reported together, each with its file and name.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import yaml

from otel_rl.semconv.spec import Instrument, Reduction, Summary, Tier

__all__ = ["Attribute", "Event", "Member", "Metric", "Registry", "RegistryError", "read"]

FILE_FORMAT = "definition/2"
TYPES = ("string", "int", "double", "boolean", "string[]", "any")
STABILITIES = ("development", "alpha", "beta", "release_candidate", "stable")
PLACEMENTS = ("resource", "scope", "measurement", "event", "span")
REQUIREMENT_LEVELS = ("required", "recommended", "opt_in")


class RegistryError(ValueError):
    """The registry cannot be used.

    Attributes:
        problems: Each as ``file: name: what is wrong``.
    """

    def __init__(self, problems: list[str]) -> None:
        super().__init__("\n".join(problems))
        self.problems = problems


@dataclass(frozen=True, slots=True)
class Member:
    """Value of an enumerated attribute.

    Attributes:
        id: Names the constant.
        value: On the wire.
        brief: One sentence.
        note: What it includes and excludes, possibly empty.
        phase_class: Of a phase: the kind of time. Empty for other members.
        side: Of a phase: ``learner``, ``collector`` or ``both``. Empty for other members.
        part_of: Of a phase: the phase whose time it repeats, or None.
        pipeline: Of a phase: whether it is a summand of ``rl.pipeline.duration``.
        span: Of a phase: the name of its spans, where that is not ``value``.
        answers: Items of the field's list that it answers.
    """

    id: str
    value: str
    brief: str
    note: str = ""
    phase_class: str = ""
    side: str = ""
    part_of: str | None = None
    pipeline: bool = False
    span: str = ""
    answers: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Attribute:
    """One attribute.

    Attributes:
        file: Where it is defined.
        key: Its name.
        type: Of ``TYPES``; ``string`` if it has members, ``any`` if it is a map.
        brief: One sentence.
        note: More, possibly empty.
        placement: ``resource``, ``scope``, ``measurement``, ``event`` or ``span``.
        proposal: Its name in OpenTelemetry's open proposal for RL, or empty.
        members: Its known values, empty if any value will do.
        examples: As text.
    """

    file: str
    key: str
    type: str
    brief: str
    note: str
    placement: str
    proposal: str
    members: tuple[Member, ...]
    examples: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Metric:
    """One metric, ours or a refinement of OpenTelemetry's. ``spec.MetricSpec`` plus its origin.

    Attributes:
        file: Where it is defined.
        name: Its name.
        instrument: What records it.
        unit: UCUM.
        brief: One sentence.
        note: More, possibly empty.
        attributes: (key, requirement level) of what may stand on a point.
        reduction: Over workers.
        statistics: Beside the reduced value.
        per_worker: Whether each worker's series is always written.
        group: Of the field's list.
        derived: Whether the bridge computes it.
        answers: Items of the field's list that it answers.
        proposal: Name of the same fact in OpenTelemetry's open proposal for RL, or empty.
        upstream: Whether it is OpenTelemetry's and only refined here.
        tier: Of its usual values.
        tiers: (value, tier) of others.
        summary: Of its value over a run, or None.
    """

    file: str
    name: str
    instrument: Instrument
    unit: str
    brief: str
    note: str
    attributes: tuple[tuple[str, str], ...]
    reduction: Reduction
    statistics: tuple[str, ...]
    per_worker: bool
    group: str
    derived: bool
    answers: tuple[str, ...]
    proposal: str
    upstream: bool
    tier: Tier
    tiers: tuple[tuple[str, Tier], ...]
    summary: Summary | None


@dataclass(frozen=True, slots=True)
class Event:
    """One event: a log record that has a name.

    Attributes:
        file: Where it is defined.
        name: Its name.
        brief: One sentence.
        note: More, possibly empty; the body, if it has one.
        attributes: (key, requirement level) of what may stand on it.
    """

    file: str
    name: str
    brief: str
    note: str
    attributes: tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class Registry:
    """Content of the directory, in the order of its files and their lines."""

    schema_url: str
    attributes: tuple[Attribute, ...]
    metrics: tuple[Metric, ...]
    events: tuple[Event, ...]
    imports: tuple[str, ...]


def read(directory: Path) -> Registry:
    """Read every YAML file of ``directory``.

    Args:
        directory: Holds ``manifest.yaml`` and at least one definition file.

    Raises:
        RegistryError: Anything is missing, unknown, of the wrong type, or there twice.
    """
    reader = _Reader()
    schema_url = reader.manifest(directory / "manifest.yaml")
    for path in sorted(directory.glob("*.yaml")):
        if path.name != "manifest.yaml":
            reader.file(path)
    reader.check_unique()
    if reader.problems:
        raise RegistryError(reader.problems)
    return Registry(
        schema_url,
        tuple(reader.attributes),
        tuple(reader.metrics),
        tuple(reader.events),
        tuple(reader.imports),
    )


class _UniqueKeyLoader(yaml.SafeLoader):
    """YAML loader that refuses duplicate keys: PyYAML would silently keep the last."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[object, object]:  # noqa: FBT001, FBT002  # PyYAML's signature
        seen: set[object] = set()
        for key_node, _ in node.value:
            key = self.construct_object(key_node, deep=True)
            if key in seen:
                line = key_node.start_mark.line + 1
                raise yaml.YAMLError(f"line {line}: key {key!r} stands twice")
            seen.add(key)
        return {str(key): value for key, value in super().construct_mapping(node, deep).items()}


@dataclass(slots=True)
class _Fields:
    """Mapping of the file, read key by key; unread keys are problems."""

    values: Mapping[str, object]
    where: str
    problems: list[str]
    asked: set[str] = field(default_factory=set)

    def problem(self, what: str) -> None:
        self.problems.append(f"{self.where}: {what}")

    def text(self, key: str, *, optional: bool = False, among: tuple[str, ...] = ()) -> str:
        value = self._get(key, optional=optional)
        if value is None:
            return ""
        if not isinstance(value, str) or not value.strip():
            self.problem(f"{key} must be text, not {value!r}")
            return ""
        if among and value not in among:
            self.problem(f"{key} must be one of {', '.join(among)}, not {value!r}")
            return ""
        return " ".join(value.split())

    def flag(self, key: str) -> bool:
        value = self._get(key, optional=True)
        if not isinstance(value, bool | None):
            self.problem(f"{key} must be true or false, not {value!r}")
        return value is True

    def texts(self, key: str) -> tuple[str, ...]:
        values = self._list(key)
        if not all(isinstance(value, str) and value for value in values):
            self.problem(f"{key} must be a list of text, not {values!r}")
        return tuple(str(value) for value in values)

    def scalars(self, key: str) -> tuple[str, ...]:
        return tuple(
            ", ".join(map(str, value)) if isinstance(value, list) else str(value)
            for value in self._list(key)
        )

    def children(self, key: str, name: str) -> Iterator["_Fields"]:
        """Yield the mappings of a list, each known by its own key ``name``."""
        for number, value in enumerate(self._list(key), start=1):
            if isinstance(value, dict):
                own = value.get(name, f"number {number}")
                yield _Fields(value, f"{self.where}: {own}", self.problems)
            else:
                self.problem(f"{key} number {number} must be a mapping, not {value!r}")

    def child(self, key: str) -> "_Fields | None":
        value = self._get(key, optional=True)
        if value is None:
            return None
        if not isinstance(value, dict):
            self.problem(f"{key} must be a mapping, not {value!r}")
            return None
        return _Fields(value, f"{self.where}: {key}", self.problems)

    def annotation(self) -> "_Fields":
        """Return ``annotations.otel_rl``, empty if absent. Those of other tools are ignored."""
        annotations = self.child("annotations")
        own = annotations.child("otel_rl") if annotations else None
        where = f"{self.where}: annotations.otel_rl"
        return _Fields(own.values if own else {}, where, self.problems)

    def raw(self, key: str) -> object:
        return self._get(key, optional=True)

    def close(self) -> None:
        """Report every key that was not read."""
        for key in self.values:
            if key not in self.asked:
                self.problem(f"unknown key {key!r}")

    def _get(self, key: str, *, optional: bool) -> object:
        self.asked.add(key)
        if key not in self.values and not optional:
            self.problem(f"{key} is missing")
        return self.values.get(key)

    def _list(self, key: str) -> list[object]:
        value = self._get(key, optional=True)
        if value is None:
            return []
        if not isinstance(value, list):
            self.problem(f"{key} must be a list, not {value!r}")
            return []
        return value


@dataclass(slots=True)
class _Reader:
    problems: list[str] = field(default_factory=list)
    attributes: list[Attribute] = field(default_factory=list)
    metrics: list[Metric] = field(default_factory=list)
    events: list[Event] = field(default_factory=list)
    imports: list[str] = field(default_factory=list)

    def manifest(self, path: Path) -> str:
        fields = self._load(path)
        if fields is None:
            return ""
        schema_url = fields.text("schema_url")
        fields.text("description", optional=True)
        fields.text("stability", optional=True, among=STABILITIES)
        for dependency in fields.children("dependencies", "schema_url"):
            dependency.text("schema_url")
            dependency.text("registry_path", optional=True)
            dependency.close()
        fields.close()
        return schema_url

    def file(self, path: Path) -> None:
        fields = self._load(path)
        if fields is None:
            return
        fields.text("file_format", among=(FILE_FORMAT,))
        for attribute in fields.children("attributes", "key"):
            self._attribute(attribute, path.name)
        for metric in fields.children("metrics", "name"):
            self._metric(metric, path.name)
        for refinement in fields.children("metric_refinements", "id"):
            self._refinement(refinement, path.name)
        for event in fields.children("events", "name"):
            self._event(event, path.name)
        imports = fields.child("imports")
        if imports is not None:
            self.imports += imports.texts("metrics")
            imports.close()
        fields.close()

    def check_unique(self) -> None:
        """Report every name that is defined twice, with both files."""
        for kind, found in (
            ("attribute", [(a.key, a.file) for a in self.attributes]),
            ("metric", [(m.name, m.file) for m in self.metrics]),
            ("event", [(e.name, e.file) for e in self.events]),
        ):
            first: dict[str, str] = {}
            for name, file in found:
                if name and name in first:
                    self.problems.append(
                        f"{file}: {name}: {kind} is defined twice, first in {first[name]}"
                    )
                first.setdefault(name, file)

    def _load(self, path: Path) -> _Fields | None:
        try:
            content = yaml.load(path.read_text(encoding="utf-8"), _UniqueKeyLoader)  # noqa: S506  # a SafeLoader
        except FileNotFoundError:
            self.problems.append(f"{path.name}: is missing")
            return None
        except yaml.YAMLError as error:
            self.problems.append(f"{path.name}: is not YAML: {error}")
            return None
        if not isinstance(content, dict):
            self.problems.append(f"{path.name}: must be a mapping")
            return None
        return _Fields(content, path.name, self.problems)

    def _attribute(self, fields: _Fields, file: str) -> None:
        key = fields.text("key")
        kind = fields.raw("type")
        members: tuple[Member, ...] = ()
        if isinstance(kind, dict):
            members = self._members(_Fields(kind, fields.where, self.problems))
            kind = "string"
        elif kind not in TYPES:
            fields.problem(f"type must be one of {', '.join(TYPES)}, or members")
        annotation = fields.annotation()
        attribute = Attribute(
            file=file,
            key=key,
            type=str(kind),
            brief=fields.text("brief"),
            note=fields.text("note", optional=True),
            placement=annotation.text("placement", among=PLACEMENTS),
            proposal=annotation.text("proposal", optional=True),
            members=members,
            examples=fields.scalars("examples"),
        )
        fields.text("stability", among=STABILITIES)
        if attribute.type == "string" and not members and not attribute.examples:
            fields.problem("a string attribute needs examples")
        annotation.close()
        fields.close()
        self.attributes.append(attribute)

    def _members(self, kind: _Fields) -> tuple[Member, ...]:
        members: list[Member] = []
        for fields in kind.children("members", "id"):
            annotation = fields.annotation()
            member = Member(
                id=fields.text("id"),
                value=fields.text("value"),
                brief=fields.text("brief"),
                note=fields.text("note", optional=True),
                phase_class=annotation.text("class", optional=True),
                side=annotation.text("side", optional=True, among=("learner", "collector", "both")),
                part_of=annotation.text("part_of", optional=True) or None,
                pipeline=annotation.flag("pipeline"),
                span=annotation.text("span", optional=True),
                answers=annotation.texts("answers"),
            )
            fields.text("stability", among=STABILITIES)
            if any(member.value == other.value for other in members):
                fields.problem(f"value {member.value!r} stands twice")
            annotation.close()
            fields.close()
            members.append(member)
        if not members:
            kind.problem("members must not be empty")
        kind.close()
        return tuple(members)

    def _metric(self, fields: _Fields, file: str) -> None:
        name = fields.text("name")
        instrument = fields.text("instrument", among=tuple(Instrument))
        unit = fields.text("unit")
        fields.text("stability", among=STABILITIES)
        self._finish_metric(fields, fields.annotation(), file, name, instrument, unit)

    def _refinement(self, fields: _Fields, file: str) -> None:
        fields.text("id")
        name = fields.text("ref")
        annotation = fields.annotation()
        instrument = annotation.text("instrument", among=tuple(Instrument))
        unit = annotation.text("unit")
        self._finish_metric(fields, annotation, file, name, instrument, unit, upstream=True)

    def _finish_metric(
        self,
        fields: _Fields,
        annotation: _Fields,
        file: str,
        name: str,
        instrument: str,
        unit: str,
        *,
        upstream: bool = False,
    ) -> None:
        reduction = annotation.text("reduce", among=tuple(Reduction))
        summary = annotation.text("summary", optional=True, among=tuple(Summary))
        metric = Metric(
            file=file,
            name=name,
            instrument=Instrument(instrument or Instrument.GAUGE),
            unit=unit,
            brief=fields.text("brief"),
            note=fields.text("note", optional=True),
            attributes=tuple(self._references(fields)),
            reduction=Reduction(reduction or Reduction.MEAN),
            statistics=annotation.texts("statistics"),
            per_worker=annotation.flag("per_worker"),
            group=annotation.text("group"),
            derived=annotation.flag("derived"),
            answers=annotation.texts("answers"),
            proposal=annotation.text("proposal", optional=True),
            upstream=upstream,
            tier=Tier(annotation.text("tier", optional=True, among=tuple(Tier)) or Tier.FULL),
            tiers=tuple(self._tiers(annotation)),
            summary=Summary(summary) if summary else None,
        )
        annotation.close()
        fields.close()
        self.metrics.append(metric)

    def _tiers(self, annotation: _Fields) -> Iterator[tuple[str, Tier]]:
        tiers = annotation.child("tiers")
        for statistic in tiers.values if tiers else ():
            tier = tiers.text(statistic, among=tuple(Tier)) if tiers else ""
            if tier:
                yield statistic, Tier(tier)

    def _event(self, fields: _Fields, file: str) -> None:
        event = Event(
            file=file,
            name=fields.text("name"),
            brief=fields.text("brief"),
            note=fields.text("note", optional=True),
            attributes=tuple(self._references(fields)),
        )
        fields.text("stability", among=STABILITIES)
        fields.close()
        self.events.append(event)

    def _references(self, fields: _Fields) -> Iterator[tuple[str, str]]:
        for reference in fields.children("attributes", "ref"):
            key = reference.text("ref")
            level = reference.text("requirement_level", optional=True, among=REQUIREMENT_LEVELS)
            reference.close()
            yield key, level or "recommended"
