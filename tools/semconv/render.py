"""Renders the registry as Python constants, as data for the run time, and as a page of docs. Pure.

The output has the formatter's style, so that it passes the lint unchanged.
"""

import json
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from string import Template

from otel_rl.semconv.spec import Reduction, Tier
from tools.semconv.definition import Attribute, Event, Member, Metric, Registry

_HEADER = '''"""Names of the registry that code uses; METRICS and PHASES describe every one.

Generated from ``registry/*.yaml`` by ``python -m tools.semconv.generate``. Do not edit.
"""

from enum import StrEnum
from typing import Final

from otel_rl.semconv.spec import METRICS as METRICS
from otel_rl.semconv.spec import PHASES as PHASES

'''
# The linter takes a singular "token" in the name of a constant for a password.
_LOOKS_LIKE_A_SECRET = re.compile(r"(^|_)TOKEN(_|$)")
# The counters of the bridge stand in docs/operations.md, with their reasons; what it derives, on
# the pages of its keys.
_BRIDGE = "otel_rl.bridge."
# Every metric of a device has these; the page says so once.
_DEVICE = ("hw.id", "hw.name", "hw.model", "hw.vendor", "hw.parent")
_HOST = "host.name"  # of every metric of a host
_EVENT_ID = "log.record.uid"  # of every event
# The values of these are listed with their meaning elsewhere on the page.
_LISTED = ("rl.phase", "rl.phase_class", "rl.worker.role")
_METRICS = (
    "| metric | instrument | unit | over workers | detail | meaning |\n|---|---|---|---|---|---|"
)
_QUANTILES = ("p50", "p90", "p99", "min", "max")


def constant(name: str) -> str:
    """Return the Python constant of a name: ``rl.train.loss`` is ``RL_TRAIN_LOSS``."""
    return name.replace(".", "_").upper()


def names(registry: Registry, used: Collection[str]) -> str:
    """Return the source of ``names.py``: constants, and the known values of attributes.

    Args:
        registry: Source of the names.
        used: Words of the code; what is not among them is left out.
    """
    known = {
        *(attribute.key for attribute in registry.attributes),
        *(metric.name for metric in registry.metrics if not metric.name.startswith(_BRIDGE)),
        *(key for event in registry.events for key, _ in event.attributes),
    }
    events = {event.name for event in registry.events}
    known = {name for name in known if constant(name) in used} | events
    classes = "".join(
        f"\n\n{_values_class(attribute)}"
        for attribute in sorted(registry.attributes, key=lambda attribute: attribute.key)
        if attribute.members and _values_name(attribute) in used
    )
    return (
        _HEADER
        + "".join(_named(constant(name), name) for name in sorted(known, key=constant))
        + classes
        + f"\n\n{_event_names(registry.events)}"
    )


def data(registry: Registry) -> str:
    """Return ``registry.json``: what the program needs of metrics and phases, a line for each."""
    metrics = (_metric(one) for one in sorted(registry.metrics, key=lambda metric: metric.name))
    return (
        f'{{"metrics": [\n{_lines(metrics)}\n],\n'
        f'"phases": [\n{_lines(map(_phase, _phases(registry)))}\n]}}\n'
    )


def page(registry: Registry, template: str) -> str:
    """Return the documentation page: the prose of ``template`` around tables of the registry.

    Args:
        registry: Source of the tables.
        template: Markdown with ``${metrics_<group>}`` and other placeholders.

    Raises:
        KeyError: The template names a placeholder that does not exist.
    """
    tables = {
        f"metrics_{group}": _metric_table(
            [
                metric
                for metric in registry.metrics
                if metric.group == group
                and not metric.derived
                and not metric.upstream
                and not metric.name.startswith(_BRIDGE)
            ]
        )
        for group in dict.fromkeys(metric.group for metric in registry.metrics)
    }
    tables["metrics_upstream"] = _metric_table([m for m in registry.metrics if m.upstream])
    tables["events"] = _event_list(registry.events)
    for placement in ("resource", "measurement", "scope", "event", "span"):
        tables[f"attributes_{placement}"] = _attribute_list(
            [attribute for attribute in registry.attributes if attribute.placement == placement]
        )
    for attribute in registry.attributes:
        if attribute.members and attribute.key != "rl.phase":
            tables["values_" + attribute.key.replace(".", "_")] = _list(
                (f"`{member.value}`", member.brief) for member in attribute.members
            )
    (kinds,) = (a for a in registry.attributes if a.key == "rl.phase_class")
    tables["kinds"] = _kind_list(kinds, _phases(registry))
    tables["proposal"] = _proposal_list(registry)
    return Template(template).substitute(tables)


def _phases(registry: Registry) -> Sequence[Member]:
    return next((a.members for a in registry.attributes if a.key == "rl.phase"), ())


def _named(name: str, value: str) -> str:
    reason = "  # noqa: S105  # a token of text" if _LOOKS_LIKE_A_SECRET.search(name) else ""
    return f'{name}: Final = "{value}"{reason}\n'


def _values_name(attribute: Attribute) -> str:
    return "".join(word.title() for word in attribute.key.replace("_", ".").split(".")) + "Values"


def _values_class(attribute: Attribute) -> str:
    brief = f"Known values of ``{attribute.key}``; others are allowed."
    members = "".join(
        f'    {member.id.upper()} = "{member.value}"\n' for member in attribute.members
    )
    return f'class {_values_name(attribute)}(StrEnum):\n    """{brief}"""\n\n{members}'


def _metric(metric: Metric) -> Mapping[str, object]:
    options: Mapping[str, object] = {
        "reduction": metric.reduction if metric.reduction is not Reduction.MEAN else None,
        "statistics": metric.statistics,
        "per_worker": metric.per_worker,
        "attributes": [key for key, _ in metric.attributes],
        "group": metric.group,
        "derived": metric.derived,
        "tier": metric.tier if metric.tier is not Tier.FULL else None,
        "tiers": metric.tiers,
        "summary": metric.summary,
        "healthy": metric.healthy,
    }
    return {
        "name": metric.name,
        "instrument": metric.instrument,
        "unit": metric.unit,
        "brief": metric.brief,
    } | _set(options)


def _phase(member: Member) -> Mapping[str, object]:
    options: Mapping[str, object] = {
        "part_of": member.part_of,
        "pipeline": member.pipeline,
        "span": member.span,
    }
    return {
        "name": member.value,
        "phase_class": member.phase_class,
        "brief": member.brief,
    } | _set(options)


def _set(options: Mapping[str, object]) -> dict[str, object]:
    return {name: value for name, value in options.items() if value}


def _lines(ones: Iterable[Mapping[str, object]]) -> str:
    return ",\n".join(json.dumps(one, ensure_ascii=False) for one in ones)


def _event_names(events: Sequence[Event]) -> str:
    body = "\n".join(f"        {name}," for name in sorted(constant(e.name) for e in events))
    return f"EVENTS: Final = frozenset(\n    {{\n{body}\n    }}\n)\n"


def _codes(values: Iterable[str]) -> str:
    return ", ".join(f"`{value}`" for value in values) or "-"


def _sentences(brief: str, note: str) -> str:
    return f"{brief} {note}".strip()


def _metric_table(metrics: Sequence[Metric]) -> str:
    def reduced(metric: Metric) -> str:
        statistics = () if metric.statistics == _QUANTILES else metric.statistics
        each = ("each worker",) if metric.per_worker else ()
        return ", ".join((metric.reduction, *statistics, *each))

    def detail(metric: Metric) -> str:
        return ", ".join([metric.tier, *(f"{name} {tier}" for name, tier in metric.tiers.items())])

    def meaning(metric: Metric) -> str:
        own = [key for key, _ in metric.attributes if key not in (*_DEVICE, _HOST)]
        by = f"By {_codes(own)}." if own else ""
        told = "" if metric.upstream else _sentences(metric.brief, metric.note)
        return _sentences(told, by).replace("|", "\\|")

    rows = (
        f"| `{one.name}` | {one.instrument} | `{one.unit}` | {reduced(one)} | {detail(one)} "
        f"| {meaning(one)} |"
        for one in metrics
    )
    return "\n".join((_METRICS, *rows))


def _attribute_list(attributes: Sequence[Attribute]) -> str:
    def values(attribute: Attribute) -> str:
        if attribute.members and attribute.key not in _LISTED:
            return _codes(member.value for member in attribute.members)
        examples = f" {_codes(attribute.shown[:1])}" if attribute.shown else ""
        return f"{attribute.type}{examples}"

    return _list(
        (f"`{attribute.key}` ({values(attribute)})", _sentences(attribute.brief, attribute.note))
        for attribute in attributes
    )


def _event_list(events: Sequence[Event]) -> str:
    def attributes(event: Event) -> str:
        return f"With {_codes(key for key, _ in event.attributes if key != _EVENT_ID)}."

    return _list(
        (f"`{event.name}`", f"{_sentences(event.brief, event.note)} {attributes(event)}")
        for event in events
    )


def _list(items: Iterable[tuple[str, str]]) -> str:
    return "\n".join(f"- {name}{': ' if meaning else ''}{meaning}" for name, meaning in items)


def _kind_list(attribute: Attribute, phases: Sequence[Member]) -> str:
    """Phases by their kind of time."""

    def own(kind: Member) -> str:
        return _codes(phase.value for phase in phases if phase.phase_class == kind.value)

    return _list((f"`{kind.value}`", f"{kind.brief} {own(kind)}") for kind in attribute.members)


def _proposal_list(registry: Registry) -> str:
    return _list(
        (f"`{theirs}`", f"`{ours}`")
        for theirs, ours in sorted(_proposed(registry))
        if theirs != ours
    )


def _proposed(registry: Registry) -> Sequence[tuple[str, str]]:
    """(name of the proposal, our name) of everything that has both."""
    pairs = [(a.proposal, a.key) for a in registry.attributes if a.proposal]
    return pairs + [(m.proposal, m.name) for m in registry.metrics if m.proposal]
