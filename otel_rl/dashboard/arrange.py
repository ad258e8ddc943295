"""Makes a dashboard for the keys that a run has. Pure."""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from otel_rl.dashboard.sections import DIAGNOSIS, SECTIONS, Join, Rule, rule_of
from otel_rl.records import KeySpec
from otel_rl.semconv import names
from otel_rl.semconv.spec import Tier

_NO_CHARTS: Final = frozenset({"table", "text"})

# Values of a counter or histogram that have another scale than the others.
_APART: Final = frozenset({"count", "per_step", "rate", "total"})

_LIVENESS: Final = "rl.service."

_DIGITS: Final = re.compile("([0-9]{1,18})")

_ABBREVIATIONS: Final = frozenset({"cpu", "gc", "gpu", "io", "kl", "kv", "mfu", "rpc"})

_UNITS: Final = {"1": "", "By": "bytes", "Cel": "°C"}


@dataclass(frozen=True, slots=True)
class Panel:
    """One chart.

    Attributes:
        title: With the unit.
        keys: Of its lines.
        axis: ``step`` or ``time``.
        unit: In words; empty for a pure number.
        is_stacked: Whether the lines are areas that add up to something.
        healthy: What the metric looks like when all is well; empty if nothing is said.
    """

    title: str
    keys: tuple[str, ...]
    axis: str
    unit: str
    is_stacked: bool
    healthy: str = ""


@dataclass(frozen=True, slots=True)
class Section:
    """Charts under one title."""

    title: str
    panels: tuple[Panel, ...]


def arrange(keys: Iterable[KeySpec]) -> Sequence[Section]:
    """Return the sections with at least one panel, in order.

    Series of single workers and texts have no panel, of otel_rl's own counters only those of basic
    detail. Without any key of steps all are drawn over time.

    Args:
        keys: That the tracker has. Of a value with two names the first is taken.
    """
    groups: dict[tuple[object, ...], list[KeySpec]] = {}
    once: dict[tuple[object, ...], KeySpec] = {}
    has_steps = False
    for spec in keys:
        once.setdefault(_identity(spec), spec)
        has_steps |= spec.axis == "step"
    for spec in sorted(filter(_is_shown, once.values()), key=_order):
        groups.setdefault(_panel_of(spec), []).append(spec)
    panels: dict[str, list[Panel]] = {title: [] for title in SECTIONS}
    for specs in groups.values():
        panels[_section(specs[0])].append(_panel(specs, has_steps=has_steps))
    return [Section(title, tuple(found)) for title, found in panels.items() if found]


def is_over_time(spec: KeySpec) -> bool:
    """Return whether a key is drawn over time: whether workers are alive is no matter of steps."""
    return spec.name.startswith(_LIVENESS)


def as_json(sections: Sequence[Section]) -> list[Mapping[str, object]]:
    """Return the sections as JSON values."""
    return [
        {
            "title": section.title,
            "panels": [
                {
                    "title": panel.title,
                    "keys": list(panel.keys),
                    "axis": panel.axis,
                    "unit": panel.unit,
                    "stacked": panel.is_stacked,
                    **({"healthy": panel.healthy} if panel.healthy else {}),
                }
                for panel in section.panels
            ],
        }
        for section in sections
    ]


def in_words(sections: Sequence[Section]) -> Iterable[str]:
    """Yield lines for people."""
    for section in sections:
        yield section.title
        for panel in section.panels:
            yield f"  {panel.title}: {', '.join(panel.keys)}"


def _identity(spec: KeySpec) -> tuple[object, ...]:
    if not spec.own_name:
        return (spec.key,)
    return spec.name, spec.role, spec.attributes, spec.statistic, spec.worker


def _is_shown(spec: KeySpec) -> bool:
    if spec.worker or spec.statistic in _NO_CHARTS:
        return False
    metric = names.METRICS.get(spec.name)
    if metric is not None and metric.group == "otel_rl":
        return spec.tier is Tier.BASIC
    phase = names.PHASES.get(dict(spec.attributes).get(names.RL_PHASE, ""))
    is_part = phase is not None and phase.part_of is not None
    # What is stacked must not repeat time: neither a phase within another, nor another statistic.
    return not _rule(spec).is_stacked or (spec.statistic == "value" and not is_part)


def _rule(spec: KeySpec) -> Rule:
    return rule_of(spec.name)[1]


def _order(spec: KeySpec) -> tuple[object, ...]:
    is_beside = spec.statistic in {"count", "total"}
    attributes = [(name, _natural(value)) for name, value in spec.attributes]
    is_own = spec.name not in names.METRICS
    return rule_of(spec.name)[0], is_own, _natural(spec.name), spec.role, is_beside, attributes


def _natural(text: str) -> list[str | int]:
    """Return what sorts layer2 before layer10."""
    parts = _DIGITS.split(text)
    return [int(part) if place % 2 else part for place, part in enumerate(parts)]


def _section(spec: KeySpec) -> str:
    return DIAGNOSIS if spec.section == "diagnosis" else _rule(spec).section


def _panel_of(spec: KeySpec) -> tuple[object, ...]:
    """Return the common parts of the keys of one panel."""
    kind = spec.statistic if spec.statistic in _APART else ""
    common = (spec.name or spec.key, spec.unit, is_over_time(spec), kind)
    match _rule(spec).join:
        case Join.METRIC:
            return common
        case Join.ROLE:
            return (*common, spec.role)
    return (*common, spec.role, spec.attributes)


def _panel(specs: Sequence[KeySpec], *, has_steps: bool) -> Panel:
    first, rule, unit = specs[0], _rule(specs[0]), unit_words(specs[0].unit)
    words = [rule.title or _words(first)]
    if rule.join is not Join.METRIC:
        if first.role and first.role not in words[0]:
            words.append(first.role)
        if rule.join is Join.SERIES:
            words += (value for _, value in first.attributes)
    if first.statistic in {"count", "total"}:
        words.append(first.statistic)
    title = ", ".join(words)
    metric = names.METRICS.get(first.name)
    return Panel(
        f"{title} ({unit})" if unit else title,
        tuple(spec.key for spec in specs),
        "step" if has_steps and not is_over_time(first) else "time",
        unit,
        rule.is_stacked,
        "" if metric is None else metric.healthy,
    )


def _words(spec: KeySpec) -> str:
    if spec.name not in names.METRICS:
        return spec.name or spec.key
    words = re.split("[_.]", spec.name.removeprefix("otel_rl.").removeprefix("rl."))
    text = " ".join(word.upper() if word in _ABBREVIATIONS else word for word in words)
    return text[0].upper() + text[1:]


def unit_words(unit: str) -> str:
    """Return a UCUM unit in words: ``{token}/s`` is token/s."""
    parts = (_UNITS.get(part, part.strip("{}")) for part in unit.split("/"))
    return "/".join(parts).removeprefix("/")
