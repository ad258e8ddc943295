"""Reads what a counter or histogram counted in each step, from the exemplars of a point (ADR 15).

    tokens = 36000    { step 7, share 2 s, duration 2 s } 12000    { step 8, ... } 12000
      the total                     exemplars: what was counted in each of the steps

The steps' counts are part of other points too, so they enter no total.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from opentelemetry.proto.metrics.v1.metrics_pb2 import Exemplar

from otel_rl.bridge.otlp.attributes import step_of
from otel_rl.bridge.otlp.exemplars import read_exemplars
from otel_rl.records import Buckets, Covered
from otel_rl.semconv import names

_SHARE: Final = names.OTEL_RL_STEP_SHARE.encode()
_COUNT: Final = names.OTEL_RL_STEP_COUNT.encode()

_BUCKETS_PER_DOUBLING: Final = 64
"""A bucket is 1 % wide: quantiles are as near, and a distribution has some hundred buckets."""


class StepSum(NamedTuple):
    """What a counter counted in one step.

    Attributes:
        step: The step; None only announces that sums of steps will follow.
        begun_ns: Time at which the step began; 0 if unknown.
        time_ns: Time at which the step, or a piece of it, ended; 0 if the sender gives none.
        covers: Key that recognises a repeat: the intervals of a series tile time.
    """

    step: int | None
    value: float
    begun_ns: int
    time_ns: int
    covers: Covered | None


@dataclass(frozen=True, slots=True)
class StepDistribution:
    """What a histogram measured in one step, or in a piece of it.

    Attributes:
        time_ns: Time of the last measurement.
        count: Number of measurements.
        buckets: See ``HistogramPoint``.
        covers: Key that recognises a repeat.
    """

    step: int
    time_ns: int
    count: int
    total: float
    minimum: float
    maximum: float
    buckets: Buckets
    covers: Covered | None


def step_sums(exemplars: Sequence[bytes]) -> Iterator[StepSum]:
    """Yield the sums of steps among the exemplars of a sum's point, from any sender."""
    for serialized in exemplars:
        if _SHARE not in serialized:
            continue
        exemplar = Exemplar.FromString(serialized)
        marks = {one.key: one.value.int_value for one in exemplar.filtered_attributes}
        end_ns = exemplar.time_unix_nano
        is_int = exemplar.WhichOneof("value") == "as_int"
        yield StepSum(
            step_of(exemplar.filtered_attributes),
            exemplar.as_int if is_int else exemplar.as_double,
            _before(end_ns, marks.get(names.OTEL_RL_STEP_DURATION, 0)),
            end_ns,
            Covered(_before(end_ns, marks.get(names.OTEL_RL_STEP_SHARE, 0)), end_ns)
            if end_ns
            else None,
        )


def _before(end_ns: int, duration_ns: int) -> int:
    return end_ns - duration_ns if 0 < duration_ns < end_ns else 0


def step_distributions(
    exemplars: Sequence[bytes], start_ns: int, end_ns: int
) -> Iterator[StepDistribution]:
    """Yield the distribution of each step among the exemplars of a histogram's point.

    Exemplars are all measurements in steps if one of them has a step; else they are samples.

    Args:
        start_ns: Time of the series' previous point, as the points of such a sender tile time.
        end_ns: Time of the point.

    Raises:
        DecodeError: An exemplar cannot be parsed.
    """
    if not any(_COUNT in one for one in exemplars):
        return
    times_ns, values, steps = read_exemplars(exemplars)
    counts = [_count(one) if _COUNT in one else 1 for one in exemplars]
    of_steps: dict[int, list[tuple[int, float, int]]] = {}
    for step, time_ns, value, count in zip(steps, times_ns, values, counts, strict=True):
        if step is not None and math.isfinite(value) and count > 0:
            of_steps.setdefault(step, []).append((time_ns, value, count))
    for place, (step, found) in enumerate(of_steps.items(), start=1):
        buckets: dict[tuple[float, float], int] = {}
        for _, value, count in found:
            bucket = _bucket(value)
            buckets[bucket] = buckets.get(bucket, 0) + count
        yield StepDistribution(
            step=step,
            time_ns=max(time_ns for time_ns, _, _ in found),
            count=sum(count for _, _, count in found),
            total=sum(value * count for _, value, count in found),
            minimum=min(value for _, value, _ in found),
            maximum=max(value for _, value, _ in found),
            buckets=Buckets.of((*bounds, buckets[bounds]) for bounds in sorted(buckets)),
            covers=_part(start_ns, end_ns, place, len(of_steps)),
        )


def _part(start_ns: int, end_ns: int, place: int, parts: int) -> Covered | None:
    """Return the piece of a point's interval that stands for one of its steps; pieces tile it."""
    if not end_ns:
        return None
    if not 0 < start_ns <= end_ns - parts:
        return Covered(0, end_ns)
    return Covered(start_ns + place - 1, end_ns if place == parts else start_ns + place)


def _count(exemplar: bytes) -> int:
    for one in Exemplar.FromString(exemplar).filtered_attributes:
        if one.key == names.OTEL_RL_STEP_COUNT:
            return one.value.int_value
    return 1


def _bucket(value: float) -> tuple[float, float]:
    """Return the bounds of a measurement's bucket; equal measurements have equal bounds."""
    if value <= 0:
        return value, value
    index = math.ceil(math.log2(value) * _BUCKETS_PER_DOUBLING) - 1
    return _bound(index), _bound(index + 1)


def _bound(index: int) -> float:
    try:
        return math.pow(2.0, index / _BUCKETS_PER_DOUBLING)
    except OverflowError:
        return math.inf
