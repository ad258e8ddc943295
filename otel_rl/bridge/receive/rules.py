"""Rules for resources, points with their buckets, exemplars, spans and events.

Each rule returns the first fault as (reason, detail), or None. Rules run for every measurement, so
they check sizes first: a message shorter than the shortest limit cannot exceed one.
"""

import math
import operator
from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import Any, cast

from opentelemetry.proto.common.v1.common_pb2 import InstrumentationScope, KeyValue
from opentelemetry.proto.logs.v1.logs_pb2 import LogRecord
from opentelemetry.proto.metrics.v1.metrics_pb2 import (
    DataPointFlags,
    Exemplar,
    ExponentialHistogramDataPoint,
    HistogramDataPoint,
    Metric,
    NumberDataPoint,
    SummaryDataPoint,
)
from opentelemetry.proto.resource.v1.resource_pb2 import Resource
from opentelemetry.proto.trace.v1.trace_pb2 import Span

from otel_rl.bridge.counters import Refusal
from otel_rl.bridge.otlp.attributes import run_of_program
from otel_rl.bridge.otlp.exemplars import read_exemplars
from otel_rl.bridge.otlp.views import exemplars_of
from otel_rl.bridge.receive.event_rules import (
    LARGE_ATTRIBUTES,
    Problem,
    event_problem,
)
from otel_rl.bridge.receive.limits import ReceiveLimits, is_over
from otel_rl.semconv import names

__all__ = ["DataPoint", "Problem", "Rules"]

DataPoint = NumberDataPoint | HistogramDataPoint | ExponentialHistogramDataPoint | SummaryDataPoint
"""Point of any of the five metric types."""

_NUMBERS = frozenset({"gauge", "sum"})
_NO_VALUE = DataPointFlags.DATA_POINT_FLAGS_NO_RECORDED_VALUE_MASK

_NAME_ATTRIBUTES = frozenset(
    {names.RL_EXPERIMENT_NAME, names.RL_TRIAL_NAME, names.RL_WORKER_ROLE, names.OTEL_RL_TEAM}
)

_MIN_KEY_VALUE_BYTES = 2  # a tag and a length of 0

_HEAD_BYTES = 4  # tag and length of an attribute
_EXEMPLAR_BYTES = 256  # an exemplar without attributes has 46; leaves room for later fields

_NS_PER_S = 1_000_000_000

# Scales outside this range put every double into one bucket, or are beyond any SDK's maximum.
_SCALES = range(-11, 21)
# Every positive double is between these powers of two.
_MIN_EXPONENT, _MAX_EXPONENT = -1075.0, 1024.0

# Attributes of a span that are kept.
_PHASE_ATTRIBUTES = frozenset({names.RL_PHASE, names.RL_PHASE_CLASS})

_SHOWN_ID_BYTES = 20  # anything longer is no id, and may be as long as a request


class Rules:
    """Limits, applied to one request received at ``now_ns``. Stateless.

    ``Rules`` implements ``PointRules``.

    Attributes:
        mark: Bounds of the rules, see ``PointRules``.
        earliest_ns: Earliest time that is accepted.
        latest_ns: Latest time that is accepted.
        short_bytes: Size of attributes up to which they have no fault.
        max_exemplars: Largest number of exemplars of a point.
        max_buckets: Largest number of buckets of a point.
    """

    def __init__(self, limits: ReceiveLimits, now_ns: int) -> None:
        self._limits = limits
        self.mark: object = limits
        self.earliest_ns = now_ns - int(limits.max_age_s * _NS_PER_S)
        self.latest_ns = now_ns + int(limits.max_future_s * _NS_PER_S)
        self.max_exemplars = limits.max_exemplars
        self.max_buckets = limits.max_buckets
        self._max_exemplar_bytes = (
            _EXEMPLAR_BYTES + limits.max_attributes_bytes + limits.max_attributes * _HEAD_BYTES
        )
        self.short_bytes = min(
            limits.max_attribute_key_bytes,
            limits.max_attribute_value_bytes,
            limits.max_attributes * _MIN_KEY_VALUE_BYTES,
        )

    def resource(self, resource: Resource) -> Problem:
        """Check a resource: a valid experiment name, few and short attributes."""
        limits = self._limits
        problem = self._attributes(
            "The resource",
            resource.attributes,
            limits.max_resource_attributes,
            limits.max_resource_bytes,
        )
        if problem is not None:
            return problem
        named = [pair for pair in resource.attributes if pair.key in _NAME_ATTRIBUTES]
        keys = {pair.key for pair in named}
        if names.RL_EXPERIMENT_NAME not in keys:
            own = run_of_program(resource.attributes)
            if not own and limits.default_experiment is None:
                detail = f"Resource attribute {names.RL_EXPERIMENT_NAME} is missing"
                return Refusal.NO_EXPERIMENT, detail
            for name, value in own.items():
                fault = self._text_fault(value)
                if fault:
                    detail = f"Resource attribute {name}, by the program's own, {fault}"
                    return Refusal.INVALID_NAME, detail
        if len(keys) < len(named):
            # Choosing one of the two would be a guess, and a way around a token's grant.
            twice = "/".join(sorted(keys))
            return Refusal.INVALID_NAME, f"One of the resource attributes {twice} is given twice"
        for attribute in named:
            fault = self._name_fault(attribute)
            if fault:
                return Refusal.INVALID_NAME, f"Resource attribute {attribute.key} {fault}"
        return None

    def scope(self, scope: InstrumentationScope) -> Problem:
        """Check a scope: a short name and version, few and short attributes."""
        max_bytes = self._limits.max_attribute_value_bytes
        for part, written in (("name", scope.name), ("version", scope.version)):
            if is_over(written, max_bytes):
                return Refusal.ATTRIBUTE_TOO_LONG, f"The scope has a {part} over {max_bytes} bytes"
        return self._pairs("The scope", scope.attributes)

    def metric(self, metric: Metric) -> Problem:
        """Check a metric: a printable name within its limit, a short unit."""
        max_bytes, name = self._limits.max_metric_name_bytes, metric.name
        # Checked before it is cached: a sender's text may be as long as a request.
        if is_over(name, max_bytes):
            return Refusal.INVALID_METRIC_NAME, f"A metric's name is over {max_bytes} bytes"
        if is_over(metric.unit, max_bytes):
            detail = f"The unit of metric {name} is over {max_bytes} bytes"
            return Refusal.INVALID_METRIC_NAME, detail
        return _metric_name_problem(name)

    def point(self, metric: str, kind: str, point: DataPoint) -> Problem:
        """Check a point: a value, a time near now, few and short attributes, valid buckets.

        ``kind`` is the name of the metric's data field.
        """
        limits = self._limits
        if not self._is_near(point.time_unix_nano):
            return self._time_problem(f"Metric {metric}", point.time_unix_nano)
        if _size_bytes(point.attributes) > self.short_bytes:
            owner = f"A point of metric {metric}"
            problem = self._pairs(owner, point.attributes)
            if problem is not None:
                return problem
        if kind in _NUMBERS and _is_empty(cast("NumberDataPoint", point)):
            return Refusal.NO_VALUE, f"A point of metric {metric} has no value"
        if kind == "summary":
            return _quantile_problem(metric, cast("SummaryDataPoint", point), limits.max_buckets)
        buckets: Problem = None
        if kind == "histogram":
            histogram = cast("HistogramDataPoint", point)
            buckets = _explicit_problem(metric, histogram, limits.max_buckets)
        elif kind == "exponential_histogram":
            scaled = cast("ExponentialHistogramDataPoint", point)
            buckets = _exponential_problem(metric, scaled, limits.max_buckets)
        exemplars = len(exemplars_of(cast("NumberDataPoint", point)))
        if buckets is None and exemplars > limits.max_exemplars:
            return (
                Refusal.TOO_MANY_EXEMPLARS,
                (
                    f"A point of metric {metric} has {exemplars} exemplars, "
                    f"over {limits.max_exemplars}"
                ),
            )
        return buckets

    def are_sound(self, metric: str, kind: str, points: Sequence[Any]) -> bool:
        """Return whether a quick test shows that no point of a histogram or summary has a fault.

        Raises:
            DecodeError: An exemplar cannot be parsed.
        """
        for point in points:
            if not self.earliest_ns <= point.time_unix_nano <= self.latest_ns:
                return False
            if self.point(metric, kind, point) is not None:
                return False
            exemplars = () if kind == "summary" else exemplars_of(point)
            if exemplars and not self._are_sound_exemplars(exemplars):
                return False
        return True

    def _are_sound_exemplars(self, exemplars: Sequence[bytes]) -> bool:
        if max(map(len, exemplars)) > self.short_bytes:
            return False
        times_ns = read_exemplars(exemplars).times_ns
        return self.earliest_ns <= min(times_ns) and max(times_ns) <= self.latest_ns

    def exemplar_size(self, metric: str, size_bytes: int) -> Problem:
        """Check an exemplar's size: at most that of one with all attribute bytes allowed."""
        if size_bytes <= self._max_exemplar_bytes:
            return None
        detail = f"An exemplar of metric {metric} has {size_bytes} bytes"
        return Refusal.ATTRIBUTE_TOO_LONG, f"{detail}, over {self._max_exemplar_bytes}"

    def exemplar(self, metric: str, exemplar: Exemplar) -> Problem:
        """Check an exemplar: a time near now, few and short attributes."""
        if not self._is_near(exemplar.time_unix_nano):
            return self._time_problem(f"An exemplar of metric {metric}", exemplar.time_unix_nano)
        return self._pairs(f"An exemplar of metric {metric}", exemplar.filtered_attributes)

    def span(self, span: Span) -> Problem:
        """Check a span: valid ids, times near now, few attributes and links, short texts."""
        problem = _id_problem(span)
        if problem is not None:
            return problem
        for time_ns in (span.start_time_unix_nano, span.end_time_unix_nano):
            if not self._is_near(time_ns):
                return self._time_problem(f"Span {span.name[:64]!r}", time_ns)
        return _size_problem(span, self._limits)

    def event(self, name: str, record: LogRecord) -> Problem:
        """Check an event: a time near now, a size within bounds, the shape of the registry."""
        limits, owner = self._limits, f"Event {name}"
        time_ns = record.time_unix_nano or record.observed_time_unix_nano
        if not self._is_near(time_ns):
            return self._time_problem(owner, time_ns)
        size_bytes = record.ByteSize()
        if size_bytes > limits.max_event_bytes:
            detail = f"{owner} has {size_bytes} bytes, over {limits.max_event_bytes}"
            return Refusal.EVENT_TOO_LARGE, detail
        small = [pair for pair in record.attributes if pair.key not in LARGE_ATTRIBUTES]
        return self._pairs(owner, small) or event_problem(name, record, limits)

    def _pairs(self, owner: str, attributes: Sequence[KeyValue]) -> Problem:
        limits = self._limits
        return self._attributes(
            owner, attributes, limits.max_attributes, limits.max_attributes_bytes
        )

    def _attributes(
        self, owner: str, attributes: Sequence[KeyValue], limit: int, max_total_bytes: int
    ) -> Problem:
        if len(attributes) > limit:
            detail = f"{owner} has {len(attributes)} attributes, over {limit}"
            return Refusal.TOO_MANY_ATTRIBUTES, detail
        limits = self._limits
        for attribute in attributes:
            if len(attribute.key.encode()) > limits.max_attribute_key_bytes:
                part, max_bytes = "Key", limits.max_attribute_key_bytes
            elif attribute.value.ByteSize() > limits.max_attribute_value_bytes:
                part, max_bytes = "Value", limits.max_attribute_value_bytes
            else:
                continue
            return (
                Refusal.ATTRIBUTE_TOO_LONG,
                f"{owner} has an attribute {attribute.key[:64]!r}. {part} over {max_bytes} bytes",
            )
        total_bytes = sum(attribute.ByteSize() for attribute in attributes)
        if total_bytes > max_total_bytes:
            detail = f"{owner} has {total_bytes} bytes of attributes, over {max_total_bytes}"
            return Refusal.ATTRIBUTE_TOO_LONG, detail
        return None

    def _name_fault(self, attribute: KeyValue) -> str:
        if attribute.value.WhichOneof("value") != "string_value":
            return "is not a string"
        return self._text_fault(attribute.value.string_value)

    def _text_fault(self, name: str) -> str:
        if not name.strip():
            return "is empty"
        if len(name) > self._limits.max_name_chars:
            return f"is over {self._limits.max_name_chars} characters"
        if not name.isprintable():  # the same check as in the worker
            return "has control characters"
        return ""

    def _is_near(self, time_ns: int) -> bool:
        # 0 means unknown in OTLP.
        return time_ns == 0 or self.earliest_ns <= time_ns <= self.latest_ns

    def _time_problem(self, owner: str, time_ns: int) -> Problem:
        limits = self._limits
        side = (
            f"over {limits.max_future_s:g} s ahead of"
            if time_ns > self.latest_ns
            else f"over {limits.max_age_s / 86_400:g} days before"
        )
        detail = f"{owner} has time {time_ns} ns, {side} the bridge's clock"
        return Refusal.TIME_OUT_OF_RANGE, detail


def _size_bytes(attributes: Iterable[KeyValue]) -> int:
    return sum([pair.ByteSize() for pair in attributes])


def _is_empty(point: NumberDataPoint) -> bool:
    """Return whether a point lacks a value and the flag for that; it would be read as 0."""
    return point.WhichOneof("value") is None and not point.flags & _NO_VALUE


# The same names arrive every second. None is longer than a name may be.
@lru_cache(maxsize=1 << 14)
def _metric_name_problem(name: str) -> Problem:
    if not name.strip():
        return Refusal.INVALID_METRIC_NAME, "A metric has no name"
    if not name.isprintable():
        return Refusal.INVALID_METRIC_NAME, f"Metric {name!r} has control characters"
    return None


def _explicit_problem(metric: str, point: HistogramDataPoint, max_buckets: int) -> Problem:
    """Check a histogram's point: as many counts as its ascending bounds make buckets."""
    counts, bounds = len(point.bucket_counts), len(point.explicit_bounds)
    problem = _count_problem(metric, max(counts, bounds), max_buckets)
    if problem is not None:
        return problem
    # Without any counts the point is only a count and a sum, which OTLP allows.
    has_right_shape = counts == bounds + 1 or counts == bounds == 0
    limits = point.explicit_bounds[:]
    if has_right_shape and all(map(operator.lt, limits, limits[1:])):
        return None
    return (
        Refusal.INVALID_BUCKETS,
        (
            f"A point of metric {metric} has {counts} bucket counts and {bounds} bounds, "
            "or bounds that do not ascend"
        ),
    )


def _exponential_problem(
    metric: str, point: ExponentialHistogramDataPoint, max_buckets: int
) -> Problem:
    """Check an exponential histogram's point: buckets that hold numbers of 64 bits."""
    sides = (point.positive, point.negative)
    problem = _count_problem(metric, sum(len(side.bucket_counts) for side in sides), max_buckets)
    if problem is not None:
        return problem
    if point.scale not in _SCALES:
        return (
            Refusal.INVALID_BUCKETS,
            (
                f"A point of metric {metric} has scale {point.scale}, "
                f"outside {_SCALES.start}..{_SCALES.stop - 1}"
            ),
        )
    for side in sides:
        n_buckets = len(side.bucket_counts)
        first_upper = math.ldexp(side.offset + 1, -point.scale)
        last_lower = math.ldexp(side.offset + n_buckets - 1, -point.scale)
        if n_buckets and not (first_upper > _MIN_EXPONENT and last_lower < _MAX_EXPONENT):
            return (
                Refusal.INVALID_BUCKETS,
                (
                    f"A point of metric {metric} has buckets from offset {side.offset} "
                    f"at scale {point.scale}, beyond what a double can hold"
                ),
            )
    return None


def _quantile_problem(metric: str, point: SummaryDataPoint, max_buckets: int) -> Problem:
    """Check a summary's point: as many quantiles as a histogram may have buckets."""
    return _count_problem(metric, len(point.quantile_values), max_buckets)


def _count_problem(metric: str, count: int, max_buckets: int) -> Problem:
    if count <= max_buckets:
        return None
    detail = f"A point of metric {metric} has {count} buckets, over {max_buckets}"
    return Refusal.TOO_MANY_BUCKETS, detail


def _id_problem(span: Span) -> Problem:
    """Check the ids of a span: of the right length, and not zero."""
    if len(span.trace_id) != 16 or not any(span.trace_id):
        return Refusal.INVALID_ID, f"Trace id {_id(span.trace_id)} is invalid"
    if len(span.span_id) != 8 or not any(span.span_id):
        return Refusal.INVALID_ID, f"Span id {_id(span.span_id)} is invalid"
    if len(span.parent_span_id) > 8:
        return Refusal.INVALID_ID, f"Parent span id {_id(span.parent_span_id)} is invalid"
    return None


def _size_problem(span: Span, limits: ReceiveLimits) -> Problem:
    """Check the sizes of a span: few attributes and links, short texts."""
    owner = f"Span {span.name[:64]!r}"
    count, limit = len(span.attributes), limits.max_span_attributes
    if count > limit:
        return Refusal.TOO_MANY_ATTRIBUTES, f"{owner} has {count} attributes, over {limit}"
    max_bytes = limits.max_attribute_key_bytes
    for attribute in span.attributes:
        key = attribute.key
        if len(key.encode()) > max_bytes:
            detail = f"Attribute key {key[:40]!r}... of span {span.name[:64]!r}"
            return Refusal.ATTRIBUTE_TOO_LONG, f"{detail} is over {max_bytes} bytes"
        is_name = key in _PHASE_ATTRIBUTES
        if is_name and len(attribute.value.string_value) > limits.max_name_chars:
            detail = f"{owner} has {key} over {limits.max_name_chars} characters"
            return Refusal.SPAN_TOO_LARGE, detail
    if is_over(span.name, limits.max_span_name_bytes):
        detail = f"{owner}... has a name over {limits.max_span_name_bytes} bytes"
        return Refusal.SPAN_TOO_LARGE, detail
    if len(span.links) > limits.max_span_links:
        detail = f"{owner} has {len(span.links)} links, over {limits.max_span_links}"
        return Refusal.SPAN_TOO_LARGE, detail
    if span.ByteSize() > limits.max_span_bytes:
        detail = f"{owner} has {span.ByteSize()} bytes, over {limits.max_span_bytes}"
        return Refusal.SPAN_TOO_LARGE, detail
    return None


def _id(sent: bytes) -> str:
    return sent[:_SHOWN_ID_BYTES].hex() or "of no bytes"
