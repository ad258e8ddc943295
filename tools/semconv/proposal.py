"""Renders the registry as a proposal, in the form of OpenTelemetry's semantic conventions. Pure.

What a tracker's run needs and no other program does (``health``, ``goodput``, the bridge's own
metrics, names that begin with ``otel_rl``) is left out.
"""

import re
from collections.abc import Iterable, Sequence
from string import Template

from otel_rl.semconv.spec import Instrument
from tools.semconv.definition import Attribute, Event, Metric, Registry

_OURS = "otel_rl."
_LINK = re.compile(r"\[[^\]]*\]\([^)]*\)\.?")
_LEVELS = {"required": "`Required`", "recommended": "`Recommended`", "opt_in": "`Opt-In`"}
_INSTRUMENTS = {
    Instrument.GAUGE: "Gauge",
    Instrument.COUNTER: "Counter",
    Instrument.UP_DOWN_COUNTER: "UpDownCounter",
    Instrument.HISTOGRAM: "Histogram",
}
_STABILITY = "Development"
_GROUPS = {
    "trainer": "Training",
    "policy": "Policy",
    "generator": "Generation",
    "reward": "Rewards",
    "environment": "Environments",
    "replay_buffer": "Replay buffers",
    "wait": "Phases of a step",
    "service": "Workers",
}
_BEYOND = ("resource", "measurement", "span")


def document(registry: Registry, template: str) -> str:
    """Return the proposal: the template with the tables that its placeholders name."""
    metrics = [one for one in registry.metrics if _is_proposed(one)]
    used = {key for metric in metrics for key, _ in metric.attributes}
    attributes = [
        one
        for one in registry.attributes
        if one.key.startswith("rl.") and (one.placement in _BEYOND or one.key in used)
    ]
    events = [one for one in registry.events if one.name.startswith("rl.")]
    return Template(template).substitute(
        agreed=_agreed(attributes, metrics),
        different=_different(attributes, metrics),
        missing=_missing(attributes, metrics, events),
        resource=_attributes([one for one in attributes if one.placement == "resource"]),
        measurement=_attributes([one for one in attributes if one.placement != "resource"]),
        values="\n\n".join(_values(one) for one in attributes if one.members),
        metrics="\n\n".join(_group(group, metrics) for group in _GROUPS),
        events="\n\n".join(map(_event, events)),
    )


def _is_proposed(metric: Metric) -> bool:
    return metric.name.startswith("rl.") and not metric.derived and metric.group in _GROUPS


def _row(*cells: str) -> str:
    return f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |"


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [_row(*head), _row(*("---" for _ in head)), *(_row(*row) for row in rows)]
    return "\n".join(lines)


def _text(brief: str, note: str) -> str:
    """Join sentences, without those that are a link to a page of otel_rl."""
    return " ".join(_LINK.sub("", f"{brief} {note}").split())


def _attributes(attributes: Iterable[Attribute]) -> str:
    head = ("Attribute", "Type", "Description", "Examples", "Stability")
    return _table(
        head,
        (
            (
                f"`{one.key}`",
                one.type,
                _text(one.brief, one.note),
                "; ".join(f"`{example}`" for example in one.shown)
                or "; ".join(f"`{member.value}`" for member in one.members[:2]),
                _STABILITY,
            )
            for one in attributes
        ),
    )


def _values(attribute: Attribute) -> str:
    """Return the known values of an attribute, which others may join."""
    told = _table(
        ("Value", "Description", "Stability"),
        (
            (f"`{member.value}`", _text(member.brief, member.note), _STABILITY)
            for member in attribute.members
        ),
    )
    return f"Known values of `{attribute.key}`; others are allowed.\n\n{told}"


def _group(group: str, metrics: Iterable[Metric]) -> str:
    own = [_metric(one) for one in metrics if one.group == group]
    return "\n\n".join([f"### {_GROUPS[group]}", *own])


def _metric(metric: Metric) -> str:
    parts = [
        f"#### Metric: `{metric.name}`",
        _table(
            ("Name", "Instrument type", "Unit (UCUM)", "Description", "Stability"),
            [
                (
                    f"`{metric.name}`",
                    _INSTRUMENTS[metric.instrument],
                    f"`{metric.unit}`",
                    _text(metric.brief, metric.note),
                    _STABILITY,
                )
            ],
        ),
    ]
    own = [(key, level) for key, level in metric.attributes if key.startswith("rl.")]
    if own:
        rows = ((f"`{key}`", _LEVELS[level]) for key, level in own)
        parts.append(_table(("Attribute", "Requirement level"), rows))
    return "\n\n".join(parts)


def _event(event: Event) -> str:
    own = [(key, level) for key, level in event.attributes if not key.startswith(_OURS)]
    rows = ((f"`{key}`", _LEVELS[level]) for key, level in own)
    told = f"### Event: `{event.name}`\n\n{_text(event.brief, event.note)}"
    return f"{told}\n\n{_table(('Attribute', 'Requirement level'), rows)}"


def _pairs(attributes: Iterable[Attribute], metrics: Iterable[Metric]) -> list[tuple[str, str]]:
    """Names in the open proposal, with ours."""
    return sorted(
        [(one.proposal, one.key) for one in attributes if one.proposal]
        + [(one.proposal, one.name) for one in metrics if one.proposal]
    )


def _agreed(attributes: Iterable[Attribute], metrics: Iterable[Metric]) -> str:
    same = [ours for theirs, ours in _pairs(attributes, metrics) if theirs == ours]
    return ", ".join(f"`{name}`" for name in same)


def _different(attributes: Iterable[Attribute], metrics: Iterable[Metric]) -> str:
    return _table(
        ("Issue 88", "Here"),
        (
            (f"`{theirs}`", f"`{ours}`")
            for theirs, ours in _pairs(attributes, metrics)
            if theirs != ours
        ),
    )


def _missing(
    attributes: Sequence[Attribute], metrics: Sequence[Metric], events: Sequence[Event]
) -> str:
    counts = (
        (_GROUPS[group], sum(one.group == group and not one.proposal for one in metrics))
        for group in _GROUPS
    )
    rows = [(name, str(count)) for name, count in counts if count]
    own = sum(not one.proposal for one in attributes)
    rows += [("Attributes", str(own)), ("Events", str(len(events)))]
    return _table(("What", "Names without a counterpart in issue 88"), rows)
