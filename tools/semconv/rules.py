"""Rules for names, units and reductions of the registry.

Those for names and units are OpenTelemetry's, those for reductions are ours: a meaningless
reduction, such as the sum of ratios, is refused.
"""

import re
from collections.abc import Callable, Iterator
from fnmatch import fnmatchcase

from otel_rl.semconv.spec import Instrument, Reduction
from tools.semconv.definition import Attribute, Event, Metric, Registry, RegistryError

MAX_FIRST_SENTENCE = 89  # with its indent and quotes it is the first line of a docstring

_NAME = re.compile(r"[a-z][a-z0-9]*(_[a-z0-9]+)*(\.[a-z][a-z0-9]*(_[a-z0-9]+)*)+")
_ANNOTATED_UNIT = re.compile(r"\{[a-z][a-z_]*\}")
_UNITS = frozenset({"1", "By", "Cel", "Hz", "J", "W", "s"})
# The unit has its own field, and a counter is a total by definition.
_UNIT_WORDS = frozenset(
    {"bytes", "gb", "mb", "ms", "ns", "pct", "perc", "percent", "s", "sec", "us"}
)
_NOT_IN_A_NAME = _UNIT_WORDS | {"seconds", "total"}
_RATIOS = ("ratio", "utilization", "fraction", "clip_fraction", "mfu")
_OWN_NAMESPACES = ("rl.", "otel_rl.")
# OpenTelemetry's own, defined here because its registry does not export them.
_BORROWED_NAMESPACES = ("gen_ai.",)
# OpenTelemetry's own attributes on our events.
BORROWED_ATTRIBUTES = (
    "error.type",
    "log.iostream",
    "exception.message",
    "log.record.uid",
    "os.description",
    "process.command_args",
    "process.executable.path",
    "process.runtime.version",
    "vcs.ref.head.revision",
    "vcs.repository.url.full",
)
_QUANTILE = re.compile(r"p\d{1,2}")
_STATISTICS = frozenset({"min", "max", "mean", "std", "count"})
GROUPS = (
    "trainer",
    "policy",
    "generator",
    "service",
    "replay_buffer",
    "environment",
    "reward",
    "wait",
    "machine",
    "otel_rl",
)


def check(registry: Registry) -> None:
    """Check the registry against every rule.

    Raises:
        RegistryError: With each broken rule as ``file: name: what is wrong``.
    """
    problems = [
        f"{attribute.file}: {attribute.key}: {problem}"
        for attribute in registry.attributes
        for problem in _attribute_problems(attribute, registry)
    ]
    problems += [
        f"{metric.file}: {metric.name}: {problem}"
        for metric in registry.metrics
        for rule in _METRIC_RULES
        for problem in rule(metric, registry)
    ]
    problems += [
        f"{event.file}: {event.name}: {problem}"
        for event in registry.events
        for problem in _event_problems(event, registry)
    ]
    if problems:
        raise RegistryError(problems)


def _name_problems(name: str) -> Iterator[str]:
    if not _NAME.fullmatch(name):
        yield "name must be lowercase words, joined by _ and by dots, in a namespace"
    for word in re.split(r"[._]", name):
        if word in _NOT_IN_A_NAME:
            yield f"name must not hold a unit or a total ({word!r})"


def _brief_problems(brief: str) -> Iterator[str]:
    if not brief.endswith("."):
        yield "brief must be a sentence"
    first = brief.split(". ")[0]
    if len(first) > MAX_FIRST_SENTENCE:
        yield f"brief's first sentence is {len(first)} characters long, over {MAX_FIRST_SENTENCE}"


def _attribute_problems(attribute: Attribute, registry: Registry) -> Iterator[str]:
    yield from _name_problems(attribute.key)
    yield from _brief_problems(attribute.brief)
    for member in attribute.members:
        for problem in _brief_problems(member.brief):
            yield f"{member.id}: {problem}"
    if not attribute.key.startswith(_OWN_NAMESPACES):
        yield f"attribute must begin with {' or '.join(_OWN_NAMESPACES)}"
    for other in registry.attributes:
        if other.key.startswith(f"{attribute.key}."):
            yield f"attribute is also the namespace of {other.key}"
    if attribute.key == "rl.phase":
        yield from _phase_problems(attribute, registry)


def _phase_problems(attribute: Attribute, registry: Registry) -> Iterator[str]:
    classes = {
        member.value
        for other in registry.attributes
        if other.key == "rl.phase_class"
        for member in other.members
    }
    phases = {member.value for member in attribute.members}
    for member in attribute.members:
        if member.phase_class not in classes:
            yield f"{member.id}: class must be one of {', '.join(sorted(classes))}"
        if not member.side:
            yield f"{member.id}: side is missing"
        if member.part_of is not None and member.part_of not in phases:
            yield f"{member.id}: is part of {member.part_of!r}, which is no phase"
        if member.pipeline and member.part_of is not None:
            yield f"{member.id}: a part would count twice in the pipeline"


def _named_rightly(metric: Metric, _: Registry) -> Iterator[str]:
    yield from _name_problems(metric.name)
    yield from _brief_problems(metric.brief)
    if not metric.upstream and not metric.name.startswith(_OWN_NAMESPACES + _BORROWED_NAMESPACES):
        yield f"metric must begin with {' or '.join(_OWN_NAMESPACES)}"


def _measured_rightly(metric: Metric, _: Registry) -> Iterator[str]:
    if metric.unit not in _UNITS and not _ANNOTATED_UNIT.fullmatch(metric.unit):
        yield f"unit must be one of {', '.join(sorted(_UNITS))} or {{word}}, not {metric.unit!r}"
    last = metric.name.rsplit(".", 1)[-1]
    if last in ("duration", "time") and metric.unit != "s":
        yield f"a {last} is in seconds (s), not {metric.unit!r}"
    if last == "duration" and metric.instrument is Instrument.COUNTER:
        yield "a counter of seconds is called time, a duration is one measurement"
    if last in _RATIOS and (metric.unit != "1" or metric.instrument is not Instrument.GAUGE):
        yield f"a {last} is a gauge in 1"
    if metric.instrument is Instrument.COUNTER and metric.unit == "1":
        yield "a counter says what it counts: a unit like {request}"


def _reduced_rightly(metric: Metric, _: Registry) -> Iterator[str]:
    last = metric.name.rsplit(".", 1)[-1]
    if last in _RATIOS and metric.reduction is Reduction.SUM:
        yield "ratios have no sum"
    if metric.instrument is Instrument.HISTOGRAM and metric.reduction is not Reduction.MEAN:
        yield "histograms are merged; the value beside the statistics is the mean"
    if metric.instrument in (Instrument.COUNTER, Instrument.UP_DOWN_COUNTER):
        allowed = (Reduction.SUM, Reduction.MEAN)
        if metric.reduction not in allowed:
            yield "a counter reduces by sum or mean"
    for statistic in metric.statistics:
        quantile = _QUANTILE.fullmatch(statistic) is not None
        if not quantile and statistic not in _STATISTICS:
            yield f"unknown statistic {statistic!r}"
        if quantile and metric.instrument is not Instrument.HISTOGRAM:
            yield f"only a histogram has quantiles ({statistic})"
        if statistic == metric.reduction:
            yield f"statistic {statistic!r} repeats the reduction"
    if len(set(metric.statistics)) != len(metric.statistics):
        yield "a statistic stands twice"
    if metric.group not in GROUPS:
        yield f"group must be one of {', '.join(GROUPS)}, not {metric.group!r}"


def _refers_rightly(metric: Metric, registry: Registry) -> Iterator[str]:
    placements = {attribute.key: attribute.placement for attribute in registry.attributes}
    for key, _ in metric.attributes:
        if key.startswith(_OWN_NAMESPACES):
            if key not in placements:
                yield f"attribute {key} is not defined"
            elif placements[key] != "measurement":
                yield f"attribute {key} stands on the {placements[key]}, not on a point"
        elif not metric.upstream:
            yield f"attribute {key} is not defined"
    if metric.upstream and not any(fnmatchcase(metric.name, name) for name in registry.imports):
        yield "is refined here but not imported"


def _event_problems(event: Event, registry: Registry) -> Iterator[str]:
    yield from _name_problems(event.name)
    yield from _brief_problems(event.brief)
    if not event.name.startswith(_OWN_NAMESPACES):
        yield f"event must begin with {' or '.join(_OWN_NAMESPACES)}"
    placements = {attribute.key: attribute.placement for attribute in registry.attributes}
    for key, _ in event.attributes:
        if key not in placements and key not in BORROWED_ATTRIBUTES:
            yield f"attribute {key} is not defined"
        elif placements.get(key) in ("resource", "scope"):
            yield f"attribute {key} stands on the {placements[key]}, not on an event"


def _sent_rightly(metric: Metric, _: Registry) -> Iterator[str]:
    known = {"value", *_VALUES_BESIDE.get(metric.instrument, ()), *metric.statistics}
    for value in metric.tiers:
        if value not in known:
            yield f"tiers: there is no value {value!r}"


_VALUES_BESIDE = {
    Instrument.COUNTER: ("total", "rate", "per_step"),
    Instrument.HISTOGRAM: ("count",),
}
"""What has a key besides the value and the statistics."""

_METRIC_RULES: tuple[Callable[[Metric, Registry], Iterator[str]], ...] = (
    _named_rightly,
    _measured_rightly,
    _reduced_rightly,
    _refers_rightly,
    _sent_rightly,
)
