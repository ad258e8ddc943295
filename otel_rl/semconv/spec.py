"""Definitions of metrics and phases, read from ``registry.json``.

That file is generated from ``registry/*.yaml``, for which a training process would need a parser.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

AWAITING: Final = frozenset({"wait", "sync", "transfer"})
"""Classes of phases that only wait for another process or a transfer."""

STEP_SPAN: Final = "rl.loop"
"""The open proposal's name for the span of one iteration."""

BLOCK_STEPS: Final = 8
"""Steps that workers keep, or drop, together. Staler samples are rare."""

TOOL_SPAN: Final = "execute_tool "
"""Beginning of the name of a tool's span, by OpenTelemetry's conventions."""


class Instrument(StrEnum):
    """The OpenTelemetry instrument that records a metric."""

    GAUGE = "gauge"
    COUNTER = "counter"
    UP_DOWN_COUNTER = "updowncounter"
    HISTOGRAM = "histogram"


class Reduction(StrEnum):
    """Reduction of the values of several workers to one.

    Attributes:
        MEAN: Mean of all values, not a mean of per-worker means.
        SUM: Sum over workers.
        MIN: Smallest value.
        MAX: Largest value.
        STD: Population standard deviation of all values.
        LAST: The value with the latest event time.
    """

    MEAN = "mean"
    SUM = "sum"
    MIN = "min"
    MAX = "max"
    STD = "std"
    LAST = "last"


class Tier(StrEnum):
    """Detail from which on a value is sent to a tracker.

    Attributes:
        BASIC: Always: a chart that someone keeps.
        FULL: Internals, and statistics beside the usual ones.
        EVERYTHING: The series of single workers, too.
    """

    BASIC = "basic"
    FULL = "full"
    EVERYTHING = "everything"

    def includes(self, other: "Tier") -> bool:
        """Return whether a tracker with this detail gets values of tier ``other``."""
        order = list(Tier)
        return order.index(other) <= order.index(self)


class Summary(StrEnum):
    """The one value of a metric that stands for a whole run.

    Attributes:
        LAST: The last one.
        PEAK: The largest, without the last, which is 0 when a run has ended.
        MAX: The largest, where more is better.
        MIN: The smallest, where less is better.
        MEAN: The mean over the run.
    """

    LAST = "last"
    PEAK = "peak"
    MAX = "max"
    MIN = "min"
    MEAN = "mean"


# The values of an instrument that have its own tier; the others are at least ``FULL``.
_USUAL: Final = {
    Instrument.GAUGE: frozenset({"value", "mean", "p50", "p99"}),
    Instrument.UP_DOWN_COUNTER: frozenset({"value"}),
    Instrument.COUNTER: frozenset({"rate"}),
    Instrument.HISTOGRAM: frozenset({"value", "p50", "p99"}),
}


@dataclass(frozen=True, slots=True)
class MetricSpec:
    """One metric of the registry.

    Attributes:
        name: The OpenTelemetry metric name, e.g. ``rl.train.loss``.
        instrument: The instrument that records it.
        unit: UCUM unit: ``s``, ``By``, ``1`` for ratios, ``{token}`` for counts.
        brief: One sentence for people.
        reduction: How it reduces over workers. Counters reduce their rates, histograms are merged.
        statistics: Further statistics written beside the reduced value, each under its own
            suffix: ``min``, ``max``, ``mean``, ``std``, ``count``, ``p50``, ``p90``, ``p99``.
            Never names the reduction itself.
        per_worker: Whether each worker's own series is written too, even when per-worker series
            are off. For metrics whose point is the comparison of replicas.
        attributes: Attributes that may stand on a point besides ``rl.loop.iteration``.
        group: Section of the metric in the field's list: ``trainer``, ``policy``,
            ``generator``, ``service``, ``replay_buffer``, ``wait``, ``environment``, ``reward``,
            ``machine``, or ``otel_rl`` for metrics of otel_rl itself.
        derived: True if the bridge computes it and no worker reports it.
        tier: Of its usual values: those of a gauge, the rate of a counter, mean, p50 and p99 of a
            histogram.
        tiers: (value, tier) of values that differ from that.
        summary: Of its value over a run; None for the instrument's usual one.
        healthy: What it looks like when all is well; empty if nothing is said.
    """

    name: str
    instrument: Instrument
    unit: str
    brief: str
    reduction: Reduction = Reduction.MEAN
    statistics: tuple[str, ...] = ()
    per_worker: bool = False
    attributes: tuple[str, ...] = ()
    group: str = ""
    derived: bool = False
    tier: Tier = Tier.FULL
    tiers: tuple[tuple[str, Tier], ...] = ()
    summary: Summary | None = None
    healthy: str = ""

    def summary_of(self, statistic: str) -> Summary:
        """Return the summary over a run of one of its values.

        Args:
            statistic: As for ``tier_of``.
        """
        if statistic in {"rate", "per_step"} and self.instrument is Instrument.COUNTER:
            return Summary.MEAN
        is_value = statistic == "value"
        if self.instrument is Instrument.HISTOGRAM:
            is_value = statistic == "mean"
        return (is_value and self.summary) or Summary.LAST

    def tier_of(self, statistic: str) -> Tier:
        """Return the tier of one of its values.

        Args:
            statistic: ``value``, ``total`` or ``rate`` of a counter, or one beside the value.
        """
        for name, tier in self.tiers:
            if name == statistic:
                return tier
        if statistic in _USUAL[self.instrument] or self.tier is Tier.EVERYTHING:
            return self.tier
        return Tier.FULL


@dataclass(frozen=True, slots=True)
class PhaseSpec:
    """One value of ``rl.phase``. Phases of one worker never overlap, except for parts.

    Attributes:
        name: The value, e.g. ``collector_wait``.
        phase_class: The kind of time: ``compute``, ``wait``, ``transfer``, ``sync``, ``io`` or
            ``other``.
        brief: One sentence for people.
        part_of: The phase whose time this one repeats, or None.
        pipeline: Whether it is a summand of ``rl.pipeline.duration``.
        span: The name of its spans where that is not ``name``, else empty.
    """

    name: str
    phase_class: str
    brief: str
    part_of: str | None = None
    pipeline: bool = False
    span: str = ""


def _metric(told: Mapping[str, Any]) -> MetricSpec:
    return MetricSpec(
        name=told["name"],
        instrument=Instrument(told["instrument"]),
        unit=told["unit"],
        brief=told["brief"],
        reduction=Reduction(told.get("reduction", Reduction.MEAN)),
        statistics=tuple(told.get("statistics", ())),
        per_worker=told.get("per_worker", False),
        attributes=tuple(told.get("attributes", ())),
        group=told["group"],
        derived=told.get("derived", False),
        tier=Tier(told.get("tier", Tier.FULL)),
        tiers=tuple((name, Tier(tier)) for name, tier in told.get("tiers", {}).items()),
        summary=Summary(told["summary"]) if "summary" in told else None,
        healthy=told.get("healthy", ""),
    )


_REGISTRY: Final = json.loads(Path(__file__).with_name("registry.json").read_bytes())

METRICS: Final[Mapping[str, MetricSpec]] = MappingProxyType(
    {told["name"]: _metric(told) for told in _REGISTRY["metrics"]}
)
"""Every metric by name."""

PHASES: Final[Mapping[str, PhaseSpec]] = MappingProxyType(
    {told["name"]: PhaseSpec(**told) for told in _REGISTRY["phases"]}
)
"""Every phase by its value, in the order of the registry."""


def described(name: str) -> tuple[str, str, str]:
    """Return name, unit and description of a metric: what ``meter.create_counter`` etc. take."""
    spec = METRICS[name]
    return name, spec.unit, spec.brief
