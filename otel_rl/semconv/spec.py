"""What the registry says about metrics and phases, as plain frozen data.

``names.py`` is generated from ``registry/*.yaml`` and fills ``METRICS`` and ``PHASES`` with these.
"""

from dataclasses import dataclass
from enum import StrEnum
from typing import Final

__all__ = ["AWAITING", "STEP_SPAN", "Instrument", "MetricSpec", "PhaseSpec", "Reduction"]

AWAITING: Final = frozenset({"wait", "sync", "transfer"})
"""Classes of phases in which nothing is done but wait for somebody or something."""

STEP_SPAN: Final = "rl.loop"
"""The open proposal's name for the span of one iteration."""


class Instrument(StrEnum):
    """The OpenTelemetry instrument that records a metric."""

    GAUGE = "gauge"
    COUNTER = "counter"
    UP_DOWN_COUNTER = "updowncounter"
    HISTOGRAM = "histogram"


class Reduction(StrEnum):
    """How the values of several workers become one.

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
        group: Where the metric stands in the field's list: ``trainer``, ``policy``,
            ``generator``, ``service``, ``replay_buffer``, ``wait``, ``environment``, ``reward``,
            ``machine``, or ``otel_rl`` for what otel_rl says of itself.
        derived: True if the bridge computes it and no worker reports it.
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
