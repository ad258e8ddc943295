"""Renders the registry as Python constants, instrument constructors and a page of docs. Pure.

The output has the formatter's style, so that it passes the lint unchanged.
"""

import re
import textwrap
from collections.abc import Iterable, Sequence
from string import Template

from otel_rl.semconv.spec import Instrument, Reduction, Tier
from tools.semconv.definition import Attribute, Event, Member, Metric, Registry

__all__ = ["constant", "instruments", "names", "page"]

_WIDTH = 100
_HEADER = '''"""{first}

Generated from ``registry/*.yaml`` by ``python -m tools.semconv.generate``. Do not edit.
"""
'''
_NAMES_IMPORTS = """\
from collections.abc import Mapping
from enum import StrEnum
from typing import Final

from otel_rl.semconv.spec import (
    Instrument,
    MetricSpec,
    PhaseSpec,
    Reduction,
    Summary,
    Tier,
    by_name,
)

_QUANTILES: Final = ("p50", "p90", "p99", "min", "max")
"""
_INSTRUMENTS_IMPORTS = """\
from opentelemetry.metrics import Counter, Histogram, Meter, UpDownCounter
from opentelemetry.metrics import _Gauge as Gauge  # the API's own __all__ has it under this name

from otel_rl.semconv import names


def _described(name: str) -> tuple[str, str, str]:
    \"\"\"Return name, unit and description of a metric.\"\"\"
    spec = names.METRICS[name]
    return name, spec.unit, spec.brief
"""
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
_DEFAULT_REDUCTION = {
    Instrument.GAUGE: Reduction.MEAN,
    Instrument.COUNTER: Reduction.SUM,
    Instrument.UP_DOWN_COUNTER: Reduction.SUM,
    Instrument.HISTOGRAM: Reduction.MEAN,
}
_QUANTILES = ("p50", "p90", "p99", "min", "max")
_CONSTRUCTORS = {
    Instrument.GAUGE: ("create_gauge", "Gauge"),
    Instrument.COUNTER: ("create_counter", "Counter"),
    Instrument.UP_DOWN_COUNTER: ("create_up_down_counter", "UpDownCounter"),
    Instrument.HISTOGRAM: ("create_histogram", "Histogram"),
}


def constant(name: str) -> str:
    """Return the Python constant of a name: ``rl.train.loss`` is ``RL_TRAIN_LOSS``."""
    return name.replace(".", "_").upper()


def names(registry: Registry) -> str:
    """Return the source of ``names.py``: constants, values, ``METRICS`` and ``PHASES``."""
    described: dict[str, list[str]] = {}
    for attribute in registry.attributes:
        described.setdefault(attribute.key, []).append(f"Attribute. {attribute.brief}")
    for metric in registry.metrics:
        kind = f"Metric ({metric.instrument}, {metric.unit})"
        described.setdefault(metric.name, []).append(f"{kind}. {metric.brief}")
    for event in registry.events:
        described.setdefault(event.name, []).append(f"Event. {event.brief}")
        for key in (key for key, _ in event.attributes if key not in described):
            described[key] = ["Attribute, OpenTelemetry's own."]
    parts = [
        _HEADER.format(first="Every name of the registry, and what it says about each."),
        _NAMES_IMPORTS,
        _named(
            "SCHEMA_URL", registry.schema_url, "Schema URL of the registry that these are from."
        ),
    ]
    parts += [
        _named(constant(name), name, " ".join(briefs))
        for name, briefs in sorted(described.items(), key=lambda item: constant(item[0]))
    ]
    parts.append(
        "\n".join(
            f"\n{_values_class(attribute)}"
            for attribute in sorted(registry.attributes, key=lambda attribute: attribute.key)
            if attribute.members
        )
    )
    parts.append(
        "\n"
        + _mapping(
            "METRICS: Final[Mapping[str, MetricSpec]]",
            "Every metric by name.",
            (
                _metric_entry(metric)
                for metric in sorted(registry.metrics, key=lambda metric: metric.name)
            ),
        )
    )
    parts.append(
        _mapping(
            "PHASES: Final[Mapping[str, PhaseSpec]]",
            "Every phase of the registry by its value, in the order of the registry.",
            (_phase_entry(member) for member in _phases(registry)),
        )
    )
    parts.append(_event_names(registry.events))
    return "\n".join(parts)


def instruments(registry: Registry) -> str:
    """Return the source of ``instruments.py``: ``create_<name>(meter)`` for each worker metric."""
    header = _HEADER.format(first="Makes the instruments that workers record with.")
    recorded = sorted(
        (metric for metric in registry.metrics if not metric.derived),
        key=lambda metric: metric.name,
    )
    return "\n".join(
        [header, _INSTRUMENTS_IMPORTS, *(f"\n{_constructor(metric)}" for metric in recorded)]
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
        f"metrics_{group}": _metric_list(
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
    tables["metrics_upstream"] = _metric_list([m for m in registry.metrics if m.upstream])
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


def _docstring(text: str, indent: str = "") -> str:
    """Quote ``text``: on one line if it fits, else its first sentence and then the rest."""
    one_line = f'{indent}"""{text}"""\n'
    if len(one_line) <= _WIDTH:
        return one_line
    first, _, rest = text.partition(". ")
    body = textwrap.fill(rest, _WIDTH - len(indent))
    return textwrap.indent(f'"""{first}.\n\n{body}\n"""\n', indent)


def _named(name: str, value: str, text: str) -> str:
    reason = "  # noqa: S105  # a token of text" if _LOOKS_LIKE_A_SECRET.search(name) else ""
    return f'{name}: Final = "{value}"{reason}\n{_docstring(text)}'


def _call(kind: str, arguments: Iterable[str]) -> str:
    """Render ``kind(...),`` in as few lines as it needs."""
    lines, line = [], f"    {kind}("
    for argument in arguments:
        # A tuple may be continued on the next line, a text may not.
        for part in [argument] if argument.startswith('"') else argument.split(", "):
            if len(line) + len(part) + 2 > _WIDTH:
                lines.append(line.rstrip())
                line = " " * 8
            line += f"{part}, "
    return "\n".join([*lines, line.removesuffix(", ") + "),"])


def _quoted(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'


def _tuple(values: Sequence[str]) -> str:
    return "(" + ", ".join(values) + ("," if len(values) == 1 else "") + ")"


def _values_class(attribute: Attribute) -> str:
    name = "".join(word.title() for word in attribute.key.replace("_", ".").split(".")) + "Values"
    brief = f"Known values of ``{attribute.key}``; others are allowed."
    members = "\n".join(
        f'    {member.id.upper()} = "{member.value}"\n{_docstring(member.brief, "    ")}'
        for member in attribute.members
    )
    return f'class {name}(StrEnum):\n    """{brief}"""\n\n{members}'


def _mapping(declaration: str, brief: str, entries: Iterable[str]) -> str:
    body = "\n".join(entries)
    return f'{declaration} = by_name(\n{body}\n)  # fmt: skip\n"""{brief}"""\n'


def _metric_entry(metric: Metric) -> str:
    keys = [
        constant(key) if key.startswith(("rl.", "otel_rl.")) else _quoted(key)
        for key, _ in metric.attributes
    ]
    statistics = "_QUANTILES"
    if metric.statistics != _QUANTILES:
        statistics = _tuple([_quoted(s) for s in metric.statistics])
    tiers = [f"({_quoted(name)}, Tier.{tier.name})" for name, tier in metric.tiers]
    options = {
        f"reduction=Reduction.{metric.reduction.name}": metric.reduction is not Reduction.MEAN,
        f"statistics={statistics}": metric.statistics,
        "per_worker=True": metric.per_worker,
        f"attributes={_tuple(keys)}": keys,
        f'group="{metric.group}"': True,
        "derived=True": metric.derived,
        f"tier=Tier.{metric.tier.name}": metric.tier is not Tier.FULL,
        f"tiers={_tuple(tiers)}": tiers,
        f"summary=Summary.{metric.summary and metric.summary.name}": metric.summary,
    }
    return _call(
        "MetricSpec",
        [
            constant(metric.name),
            f"Instrument.{metric.instrument.name}",
            _quoted(metric.unit),
            _quoted(metric.brief),
            *(option for option, is_set in options.items() if is_set),
        ],
    )


def _phase_entry(member: Member) -> str:
    options = {
        f"part_of=RlPhaseValues.{(member.part_of or '').upper()}": member.part_of,
        "pipeline=True": member.pipeline,
        f'span="{member.span}"': member.span,
    }
    return _call(
        "PhaseSpec",
        [
            f"RlPhaseValues.{member.id.upper()}",
            f"RlPhaseClassValues.{member.phase_class.upper()}",
            _quoted(member.brief),
            *(option for option, is_set in options.items() if is_set),
        ],
    )


def _event_names(events: Sequence[Event]) -> str:
    body = "\n".join(f"        {name}," for name in sorted(constant(e.name) for e in events))
    brief = "The name of every event of the registry."
    return f'EVENTS: Final[frozenset[str]] = frozenset(\n    {{\n{body}\n    }}\n)\n"""{brief}"""\n'


def _constructor(metric: Metric) -> str:
    method, kind = _CONSTRUCTORS[metric.instrument]
    return (
        f"def create_{constant(metric.name).lower()}(meter: Meter) -> {kind}:\n"
        f"{_docstring(metric.brief, '    ')}"
        f"    return meter.{method}(*_described(names.{constant(metric.name)}))\n"
    )


def _codes(values: Iterable[str]) -> str:
    return ", ".join(f"`{value}`" for value in values) or "-"


def _sentences(brief: str, note: str) -> str:
    return f"{brief} {note}".strip()


def _metric_list(metrics: Sequence[Metric]) -> str:
    def reduced(metric: Metric) -> str:
        statistics = () if metric.statistics == _QUANTILES else metric.statistics
        if not statistics and metric.reduction is _DEFAULT_REDUCTION[metric.instrument]:
            return ""
        return f": {', '.join((metric.reduction, *statistics))}"

    def values(metric: Metric) -> str:
        unit = "" if metric.unit == "1" else f", `{metric.unit}`"
        parts = [f"{metric.instrument}{unit}{reduced(metric)}"]
        parts += ["each worker"] if metric.per_worker else []
        parts += [metric.tier] if metric.tier is not Tier.FULL else []
        return "; ".join([*parts, *(f"{name}: {tier}" for name, tier in metric.tiers)])

    def description(metric: Metric) -> str:
        own = [key for key, _ in metric.attributes if key not in (*_DEVICE, _HOST)]
        by = f"By {_codes(own)}." if own else ""
        told = "" if metric.upstream else _sentences(metric.brief, metric.note)
        return _sentences(told, by)

    return _list((f"`{metric.name}` ({values(metric)})", description(metric)) for metric in metrics)


def _attribute_list(attributes: Sequence[Attribute]) -> str:
    def values(attribute: Attribute) -> str:
        if attribute.members and attribute.key not in _LISTED:
            return _codes(member.value for member in attribute.members)
        examples = f" {_codes(attribute.examples[:1])}" if attribute.examples else ""
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
