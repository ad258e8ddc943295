"""Warnings about a run's data, each once, in a row of its own."""

from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from otel_rl.bridge.journal.state import Int64, Stored
from otel_rl.bridge.rows.series.key_groups import GroupTable, UnitChange, device_of
from otel_rl.bridge.rows.series.streams import Group
from otel_rl.bridge.rows.settings import AlignSettings
from otel_rl.records import Series

__all__ = [
    "CONTINUED",
    "DROPPED",
    "FOLDED",
    "OVERFLOWED",
    "SAMPLED",
    "SHARED",
    "TOLD",
    "DataWarning",
    "DroppedPoints",
    "of_continued",
    "of_dropped",
    "of_overflowed",
    "of_sampled",
    "of_shared",
    "of_spans",
    "of_torn",
    "of_units",
]

UNIT_CHANGED = "otel_rl/bridge/unit_changed"
"""Label: a metric was reported in a second unit, and the key of those values."""

DROPPED = "otel_rl/bridge/dropped"
"""Label: the reason for dropped points of new series, and the first of them."""

SHARED = "otel_rl/bridge/shared_instance"
"""Label: several processes report as one worker."""

OVERFLOWED = "otel_rl/bridge/overflowed"
"""Label: an SDK had no room for more attribute sets, and so for no more steps."""

FOLDED = "otel_rl/bridge/folded"
"""Label: a metric has too many attribute sets, or spans have too many names, and why."""

SAMPLED = "otel_rl/bridge/sampled"
"""Label: spans of steps are dropped before the bridge, so critical paths may be wrong."""

CONTINUED = "otel_rl/bridge/continued"
"""Label: workers came after the end of the run."""

TOLD = frozenset({CONTINUED, DROPPED, FOLDED, OVERFLOWED, SAMPLED, SHARED, UNIT_CHANGED})
"""Every label of a warning, which is also logged for the operator."""


class DroppedPoints(NamedTuple):
    """Dropped points of one worker, because the run has reached its series limit.

    Attributes:
        points: Number of points.
        example: The name of the first one's metric.
    """

    points: int
    example: str


class DataWarning(Stored):
    """Warning to be written to the run.

    Attributes:
        time_ns: Event time of its row.
        labels: By tracker key.
    """

    time_ns: Int64
    labels: Mapping[str, str]


def of_units(changes: Iterable[UnitChange], time_ns: int) -> Iterable[DataWarning]:
    """Make warnings about metrics with a second unit."""
    for change in changes:
        yield DataWarning(time_ns, {UNIT_CHANGED: str(change)})


def of_continued(time_ns: int, *, went_well: bool) -> DataWarning:
    """Make the warning about a run that goes on after its end."""
    words = (
        f"The run had {'ended' if went_well else 'crashed'} and goes on: further processes report "
        "under its names. If they are of another job, give that a trial of its own."
    )
    return DataWarning(time_ns, {CONTINUED: words})


def of_dropped(series: Series, settings: AlignSettings, time_ns: int) -> DataWarning:
    """Make the warning about dropped points, at the first one."""
    words = (
        f"Points of new series are dropped, the first of {series.name!r} of {series.worker.role}: "
        f"the experiment has as many series as it may (align.max_series = {settings.max_series}, "
        f"align.max_keys = {settings.max_keys}). An attribute with a new value every time makes a "
        "series each time: send it as a value, or raise the bound."
    )
    return DataWarning(time_ns, {DROPPED: words})


def of_shared(series: Series, time_ns: int) -> DataWarning:
    """Make the warning about two processes with one name, which only their starts distinguish."""
    name = series.worker.instance.rpartition("/")[2]
    named = f"service.instance.id {name!r}" if name else "no service.instance.id"
    words = (
        f"Two processes of role {series.worker.role!r} report at a time with {named}, and are one "
        "worker of the run. Their counters add up, but their gauges are one series: give each "
        "process an id of its own, e.g. OTEL_RESOURCE_ATTRIBUTES=service.instance.id=..."
    )
    return DataWarning(time_ns, {SHARED: words})


def of_torn(series: Series, time_ns: int) -> DataWarning:
    """Make the warning about several totals of one series at a time."""
    words = (
        f"{series.name!r} of role {series.worker.role!r} has several totals at a time with the "
        "same attributes and service.instance.id. Of cumulative ones the run has the largest; "
        "deltas add up, but equal ones count once. Give each process an id of its own, and keep "
        "attributes on the points: the Collector's groupbyattrs moves them to the resource."
    )
    return DataWarning(time_ns, {SHARED: words})


def of_overflowed(keys: GroupTable, settings: AlignSettings, time_ns: int) -> Iterable[DataWarning]:
    """Make warnings about attribute sets for which there was no room, in the run or in an SDK."""
    for group in keys.take_overflowed():
        of_metric = [one for one in keys.groups if _metric(one) == _metric(group)]
        if len(of_metric) > settings.max_metric_keys:
            yield DataWarning(time_ns, {FOLDED: _in_one_key(group, of_metric)})
        else:
            yield DataWarning(time_ns, {OVERFLOWED: _without_steps(group)})


def _metric(group: Group) -> tuple[object, ...]:
    return group.role, group.name, group.own, device_of(group)


def _in_one_key(group: Group, of_metric: Iterable[Group]) -> str:
    values: dict[str, set[str]] = defaultdict(set)
    for one in of_metric:
        for attribute, value in one.attributes:
            values[attribute].add(value)
    attribute = max(values, key=lambda one: len(values[one]))
    return (
        f"{group.name!r}{f' of {group.role!r}' if group.role else ''} has as many keys as a metric "
        "may: its attribute "
        f"{attribute!r} has {len(values[attribute])} values. Further ones are {group.key} "
        "together. Leave it out of metrics, or put it into spans; if each value needs a chart, "
        "raise align.max_metric_keys."
    )


def of_spans(role: str, most: int, time_ns: int) -> DataWarning:
    """Make the warning about more names of spans than a run may have keys for."""
    words = (
        f"The run has {most} names of spans on critical paths, most of them of {role!r}: "
        "further ones are critical_path/other/other together. Give spans names without ids, or an "
        "attribute rl.phase, and put ids into other attributes."
    )
    return DataWarning(time_ns, {FOLDED: words})


def of_sampled(shown_by: str, time_ns: int) -> DataWarning:
    """Make the warning about spans that are dropped on the way."""
    words = (
        f"{shown_by}. Critical paths, and what limited a step, may lack the work of other "
        "processes. Send all spans to the bridge and sample behind it, or keep whole steps: "
        "OTEL_RL_TRACE_STEPS."
    )
    return DataWarning(time_ns, {SAMPLED: words})


def _without_steps(group: Group) -> str:
    return (
        f"The SDK of a process of role {group.role!r} keeps a bounded number of sets of "
        f"attributes of {group.name!r}, 2,000 by default. What it measures beyond has lost its "
        f"attributes and its step, and is {group.key}. A step is such a set: export gauges "
        "with delta temporality, and give counters no step (`otel-rl help other-sdks`)."
    )
