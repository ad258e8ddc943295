"""Sentences that a run is told about its own data, each once, in a row of its own."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from otel_rl.bridge.align.groups import UnitChange
from otel_rl.bridge.align.series import Group
from otel_rl.bridge.align.settings import AlignSettings
from otel_rl.records import Series

__all__ = [
    "DROPPED",
    "OVERFLOWED",
    "SHARED",
    "TOLD",
    "Dropped",
    "Remark",
    "of_dropped",
    "of_overflowed",
    "of_shared",
    "of_units",
]

UNIT_CHANGED = "otel_rl/bridge/unit_changed"
"""Label: a metric was reported in a second unit, and where those values are."""

DROPPED = "otel_rl/bridge/dropped"
"""Label: why points of new series are dropped, and the first of them."""

SHARED = "otel_rl/bridge/shared_instance"
"""Label: several processes report as one worker."""

OVERFLOWED = "otel_rl/bridge/overflowed"
"""Label: an SDK had no room for more attributes, and so for no more steps."""

TOLD = frozenset({DROPPED, OVERFLOWED, SHARED, UNIT_CHANGED})
"""Every label of a remark. What a run is told about its data, its operator is told as well."""


class Dropped(NamedTuple):
    """Points of one worker that were dropped because the run has all the series that it may.

    Attributes:
        points: How many.
        example: The name of the first one's metric.
    """

    points: int
    example: str


@dataclass(frozen=True, slots=True)
class Remark:
    """A sentence on its way into the run.

    Attributes:
        time_ns: Event time of its row.
        labels: By tracker key.
    """

    time_ns: int
    labels: Mapping[str, str]


def of_units(changes: Iterable[UnitChange], time_ns: int) -> Iterable[Remark]:
    """Tell of metrics that have a second unit."""
    for change in changes:
        yield Remark(time_ns, {UNIT_CHANGED: str(change)})


def of_dropped(series: Series, settings: AlignSettings, time_ns: int) -> Remark:
    """Tell that points are dropped, from the first one on."""
    words = (
        f"Points of new series are dropped, the first of {series.name!r} of {series.worker.role}: "
        f"the experiment has as many series as it may (align.max_series = {settings.max_series}, "
        f"align.max_keys = {settings.max_keys}). An attribute with a new value every time makes a "
        "series each time: send it as a value, or raise the bound."
    )
    return Remark(time_ns, {DROPPED: words})


def of_shared(series: Series, time_ns: int) -> Remark:
    """Tell that two processes have one name, so that only their starts tell them apart."""
    name = series.worker.instance.rpartition("/")[2]
    named = f"service.instance.id {name!r}" if name else "no service.instance.id"
    words = (
        f"Two processes of role {series.worker.role!r} report at a time with {named}, and are one "
        "worker of the run. Their counters add up, but their gauges are one series: give each "
        "process an id of its own, e.g. OTEL_RESOURCE_ATTRIBUTES=service.instance.id=..."
    )
    return Remark(time_ns, {SHARED: words})


def of_overflowed(groups: Iterable[Group], time_ns: int) -> Iterable[Remark]:
    """Tell that an SDK had no room for all sets of attributes, which steps are as well."""
    for group in groups:
        words = (
            f"The SDK of a process of role {group.role!r} keeps a bounded number of sets of "
            f"attributes of {group.name!r}, 2,000 by default. What it measures beyond has lost its "
            f"attributes and its step, and is {group.key}. A step is such a set: export gauges "
            "with delta temporality, and give counters no step (docs/other-sdks.md)."
        )
        yield Remark(time_ns, {OVERFLOWED: words})
