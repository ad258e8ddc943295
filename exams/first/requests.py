"""OTLP requests of a recording, in the order of their arrival."""

import struct
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import NamedTuple

from google.protobuf.message import Message
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import (
    ExportMetricsServiceRequest,
)
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.common.v1.common_pb2 import AnyValue, KeyValue
from opentelemetry.proto.metrics.v1.metrics_pb2 import (
    AGGREGATION_TEMPORALITY_CUMULATIVE,
    Metric,
    NumberDataPoint,
)
from opentelemetry.proto.trace.v1.trace_pb2 import Span

from exams.first.effects import Effects
from exams.first.events import Call, Count, End, Open, Recording, Timed, Value, Who
from exams.first.programs import Program
from exams.first.styles import Instrumentation, Style
from otel_rl.records import Signal

EXPERIMENT = "exam"

_NS = 1_000_000_000
EPOCH_NS = 1_750_000_000 * _NS
_BOUNDS = [0.005, 0.02, 0.1, 0.5, 2.0, 10.0, 60.0]
_NO_VALUE = 1
_Plain = str | int | float | bool


class Arrived(NamedTuple):
    """Request at the bridge; with several resources if a Collector has joined them."""

    at_ns: int
    signal: Signal
    body: bytes


@dataclass
class _Interval:
    """Events of one worker in one export."""

    timed: list[Timed] = field(default_factory=list)
    values: list[Value] = field(default_factory=list)
    calls: list[Call] = field(default_factory=list)
    ends: list[End] = field(default_factory=list)


@dataclass
class _Life:
    """Process of a worker, from its begin to its end.

    Attributes:
        totals: Of its counters.
        durations: Count, sum and buckets of its calls, for callers and servers.
    """

    who: Who
    number: int
    begin_s: float
    end_s: float
    is_reported: bool
    totals: dict[str, float] = field(default_factory=dict)
    durations: dict[str, tuple[int, float, list[int]]] = field(default_factory=dict)


def arrivals(
    program: Program, how: Instrumentation, effects: Effects, made: Recording
) -> Iterator[tuple[int, list[Arrived]]]:
    """Yield (time in ns, what arrives then), export by export."""
    return _Sender(program, how, effects, made).arrivals()


class _Sender:
    def __init__(
        self, program: Program, how: Instrumentation, effects: Effects, made: Recording
    ) -> None:
        self.program = program
        self.how = how
        self.effects = effects
        self.made = made
        self.by_number = {one.number: one for one in made.timed}
        self.intervals: dict[tuple[int, Who], _Interval] = defaultdict(_Interval)
        self.counts: dict[tuple[int, Who], list[Count]] = defaultdict(list)
        self.open = {one.who: one for one in made.open}
        self.in_progress: dict[tuple[int, Who], Open] = {}
        self.lives = [*self._lives()]

    def arrivals(self) -> Iterator[tuple[int, list[Arrived]]]:
        self._sort()
        last = int(self.made.ends_s / self.how.every_s) + 1
        for tick in range(last + 1):
            sent_s = (tick + 1) * self.how.every_s
            joined: dict[Signal, list[bytes]] = defaultdict(list)
            for life in self.lives:
                if life.begin_s > sent_s or life.end_s <= tick * self.how.every_s:
                    continue
                is_last = life.end_s <= sent_s
                if is_last and not life.is_reported and self.how.is_ours:
                    continue  # a killed process sends no last export
                for signal, message in self._export(life, tick, min(sent_s, life.end_s)):
                    joined[signal].append(message.SerializeToString())
            at_ns = EPOCH_NS + int((sent_s + self.how.lag_s) * _NS)
            if self.how.collector:
                found = [Arrived(at_ns, signal, b"".join(some)) for signal, some in joined.items()]
            else:
                found = [Arrived(at_ns, s, body) for s, some in joined.items() for body in some]
            yield at_ns, found

    def _lives(self) -> Iterator[_Life]:
        ends: dict[Who, list[End]] = defaultdict(list)
        for end in self.made.ends:
            ends[end.who].append(end)
        for who, begins in self.made.begins.items():
            for number, begin_s in enumerate(begins):
                last = ends[who][number] if number < len(ends[who]) else None
                ends_s = self.made.ends_s + 1 if last is None else last.at_s
                is_reported = last is not None and last.has_report
                yield _Life(who, number, begin_s, ends_s, is_reported)

    def _sort(self) -> None:
        every_s = self.how.every_s
        for one in self.made.timed:
            if one.end_s <= self.made.ends_s:
                self.intervals[int(one.end_s / every_s), one.who].timed.append(one)
            if self.how.style is Style.PHASES and not one.is_step:
                self._note_progress(one)
        for value in self.made.values:
            self.intervals[int(value.at_s / every_s), value.who].values.append(value)
        for call in self.made.calls:
            self.intervals[int(call.at_s / every_s), call.who].calls.append(call)
        for end in self.made.ends:
            if end.has_report and self.how.is_ours:
                self.intervals[int(end.at_s / every_s), end.who].ends.append(end)
        for count in self.made.counts:
            self.counts[int(count.at_s / every_s), count.who].append(count)

    def _note_progress(self, one: Timed) -> None:
        """Note a phase for the exports that find it open; of two, the one that began later."""
        every_s = self.how.every_s
        for tick in range(int(one.begin_s / every_s), int(one.end_s / every_s)):
            known = self.in_progress.get((tick, one.who))
            if known is None or known.since_s < one.begin_s:
                self.in_progress[tick, one.who] = Open(one.who, one.phase, one.begin_s)

    def _export(self, life: _Life, tick: int, sent_s: float) -> Iterator[tuple[Signal, Message]]:
        who, some = life.who, self.intervals.get((tick, life.who), _Interval())
        resource = self._resource(life)
        metrics = ExportMetricsServiceRequest()
        of_resource = metrics.resource_metrics.add()
        of_resource.resource.attributes.extend(_attributes(resource))
        of_scope = of_resource.scope_metrics.add()
        of_scope.scope.name = "program"
        of_scope.metrics.extend(self._gauges(who, some, tick, sent_s))
        of_scope.metrics.extend(self._sums(life, tick, sent_s))
        of_scope.metrics.extend(self._durations(life, some, sent_s))
        if of_scope.metrics:
            yield Signal.METRICS, metrics
        if some.timed and self.how.style is not Style.METRICS:
            traces = ExportTraceServiceRequest()
            of = traces.resource_spans.add()
            of.resource.attributes.extend(_attributes(resource))
            of.scope_spans.add().spans.extend(self._span(one) for one in some.timed)
            yield Signal.TRACES, traces
        if some.ends:
            logs = ExportLogsServiceRequest()
            of_logs = logs.resource_logs.add()
            of_logs.resource.attributes.extend(_attributes(resource))
            records = of_logs.scope_logs.add().log_records
            for end in some.ends:
                attributes: dict[str, _Plain] = {
                    "rl.worker.status": "failed" if end.error else "complete"
                }
                if end.error:
                    attributes["error.type"] = end.error
                if end.step is not None:
                    attributes["rl.loop.iteration"] = end.step
                records.add(
                    time_unix_nano=self._ns(who, end.at_s),
                    event_name="rl.worker.end",
                    attributes=_attributes(attributes),
                )
            yield Signal.LOGS, logs

    def _resource(self, life: _Life) -> dict[str, _Plain]:
        who = life.who
        resource: dict[str, _Plain] = {
            "rl.experiment.name": EXPERIMENT,
            "service.name": who.role,
            "service.instance.id": f"{who.role}-{who.index}-{life.number}",
            "host.name": f"host-{self._host(who)}",
            "telemetry.sdk.name": "opentelemetry",
            "telemetry.sdk.language": "python",
            "rl.worker.index": who.index,
        }
        if self.how.has_roles:
            resource["rl.worker.role"] = who.role
        if self.how.is_ours:
            resource["telemetry.distro.name"] = "otel_rl"
            resource["rl.worker.count"] = self.program.sizes[who.role]
        return resource

    def _host(self, who: Who) -> int:
        """Return the number of a host: a skewed clock is that of one host."""
        workers = self.program.workers()
        place = workers.index(who)
        return place if self.effects.ahead_s(who) else place // 4 * 4 + 1000

    def _ns(self, who: Who, at_s: float) -> int:
        return EPOCH_NS + int((at_s + self.effects.ahead_s(who)) * _NS)

    def _gauges(self, who: Who, some: _Interval, tick: int, sent_s: float) -> Iterator[Metric]:
        series: dict[tuple[str, str], list[tuple[float, float, int | None]]] = defaultdict(list)
        for value in some.values:
            if value.name == "throttled" and not self.how.is_ours:
                continue
            series[self.how.names[value.name], ""].append((value.at_s, value.value, value.step))
        for one in some.timed:
            if self.how.style is Style.PHASES and not one.is_step:
                series["rl.phase.duration", one.phase].append(
                    (one.end_s, one.end_s - one.begin_s, one.step)
                )
            elif self.how.style is Style.METRICS and not one.is_step and not one.is_wait:
                name = self.how.timing.format(one.phase)
                series[name, ""].append((one.end_s, one.end_s - one.begin_s, one.step))
        for (name, phase), measured in series.items():
            yield self._gauge(who, name, phase, measured, tick, sent_s)
        if self.how.is_ours:
            beat = Metric(name="otel_rl.worker.heartbeat")
            beat.gauge.data_points.add(time_unix_nano=self._ns(who, sent_s), flags=_NO_VALUE)
            yield beat
        else:
            yield self._level(who, "process.memory.usage", 1e9, sent_s)
        stuck = self.open.get(who)
        is_stuck = stuck is not None and sent_s > stuck.since_s
        shown = stuck if is_stuck else self.in_progress.get((tick, who))
        if shown is not None and self.how.style is Style.PHASES:
            yield self._age(who, shown, sent_s)

    def _level(self, who: Who, name: str, value: float, sent_s: float) -> Metric:
        metric = Metric(name=name)
        metric.gauge.data_points.add(time_unix_nano=self._ns(who, sent_s), as_double=value)
        return metric

    def _age(self, who: Who, stuck: Open, sent_s: float) -> Metric:
        metric = Metric(name="rl.worker.phase.age", unit="s")
        metric.gauge.data_points.add(
            time_unix_nano=self._ns(who, sent_s),
            as_double=sent_s - stuck.since_s,
            attributes=_attributes({"rl.phase": stuck.phase}),
        )
        return metric

    def _gauge(
        self,
        who: Who,
        name: str,
        phase: str,
        measured: list[tuple[float, float, int | None]],
        tick: int,
        sent_s: float,
    ) -> Metric:
        is_time = bool(phase) or name.endswith(("duration", "_s", "seconds"))
        metric = Metric(name=name, unit="s" if is_time else "1")
        attributes: dict[str, _Plain] = {"rl.phase": phase} if phase else {}
        if name == "rl.gpu.throttled":
            attributes = {
                "rl.gpu.throttle.reason": "hw_thermal",
                "hw.id": f"GPU-{who.role}-{who.index}",
            }
        if not self.how.is_ours:
            for at_s, value, step in measured:
                of_step = {} if step is None else {"rl.loop.iteration": step}
                metric.gauge.data_points.add(
                    time_unix_nano=self._ns(who, at_s),
                    as_double=value,
                    attributes=_attributes({**attributes, **of_step}),
                )
            return metric
        point = metric.gauge.data_points.add(
            start_time_unix_nano=self._ns(who, tick * self.how.every_s),
            time_unix_nano=self._ns(who, sent_s),
            as_double=measured[-1][1],
            attributes=_attributes(attributes),
        )
        for at_s, value, step in measured:
            exemplar = point.exemplars.add(time_unix_nano=self._ns(who, at_s), as_double=value)
            if step is not None:
                exemplar.filtered_attributes.extend(_attributes({"rl.loop.iteration": step}))
        return metric

    def _sums(self, life: _Life, tick: int, sent_s: float) -> Iterator[Metric]:
        for count in self.counts.get((tick, life.who), ()):
            if count.name == "gc" and not self.how.is_ours:
                continue
            name = self.how.names[count.name]
            life.totals[name] = life.totals.get(name, 0.0) + count.increase
        for name, total in life.totals.items():
            metric = Metric(name=name)
            metric.sum.is_monotonic = True
            metric.sum.aggregation_temporality = AGGREGATION_TEMPORALITY_CUMULATIVE
            metric.sum.data_points.append(
                NumberDataPoint(
                    start_time_unix_nano=self._ns(life.who, life.begin_s),
                    time_unix_nano=self._ns(life.who, sent_s),
                    as_double=total,
                )
            )
            yield metric

    def _durations(self, life: _Life, some: _Interval, sent_s: float) -> Iterator[Metric]:
        """Yield histograms of calls, as the conventions have them."""
        for call in some.calls:
            name = "rpc.server.call.duration" if call.is_server else "rpc.client.call.duration"
            count, total, buckets = life.durations.get(name, (0, 0.0, [0] * (len(_BOUNDS) + 1)))
            buckets[sum(call.took_s > bound for bound in _BOUNDS)] += 1
            life.durations[name] = count + 1, total + call.took_s, buckets
        for name, (count, total, buckets) in life.durations.items():
            metric = Metric(name=name, unit="s")
            metric.histogram.aggregation_temporality = AGGREGATION_TEMPORALITY_CUMULATIVE
            metric.histogram.data_points.add(
                start_time_unix_nano=self._ns(life.who, life.begin_s),
                time_unix_nano=self._ns(life.who, sent_s),
                count=count,
                sum=total,
                bucket_counts=buckets,
                explicit_bounds=_BOUNDS,
                attributes=_attributes({"rpc.method": "score"}),
            )
            yield metric

    def _span(self, one: Timed) -> Span:
        parent, top = self._parent(one), one
        while (above := self._parent(top)) is not None:
            top = above
        name = self.how.step_span if one.is_step else one.phase
        span = Span(
            trace_id=_trace_id(top),
            span_id=_span_id(one),
            parent_span_id=b"" if parent is None else _span_id(parent),
            name=name,
            start_time_unix_nano=self._ns(one.who, one.begin_s),
            end_time_unix_nano=self._ns(one.who, one.end_s),
        )
        attributes: dict[str, _Plain] = {}
        if one.step is not None and (one.is_step or self.how.tells_step):
            attributes["rl.loop.iteration"] = one.step
        if self.how.style is Style.PHASES and not one.is_step:
            attributes["rl.phase"] = one.phase
            attributes["rl.phase_class"] = "wait" if one.is_wait else "compute"
        span.attributes.extend(_attributes(attributes))
        for number in one.links if self.how.propagates else ():
            linked = self.by_number[number]
            while (above := self._parent(linked)) is not None:
                linked = above
            made = self.by_number[number]
            span.links.add(trace_id=_trace_id(linked), span_id=_span_id(made))
        return span

    def _parent(self, one: Timed) -> Timed | None:
        parent = None if one.parent is None else self.by_number[one.parent]
        if parent is None or (parent.who != one.who and not self.how.propagates):
            return None
        return parent


def _trace_id(top: Timed) -> bytes:
    return struct.pack(">QQ", 7, top.number)


def _span_id(one: Timed) -> bytes:
    return struct.pack(">Q", one.number)


def _attributes(pairs: Mapping[str, _Plain]) -> tuple[KeyValue, ...]:
    return _pairs(tuple(pairs.items()))


@lru_cache(maxsize=1 << 14)
def _pairs(pairs: tuple[tuple[str, _Plain], ...]) -> tuple[KeyValue, ...]:
    return tuple(KeyValue(key=key, value=_any(value)) for key, value in pairs)


def _any(value: _Plain) -> AnyValue:
    if isinstance(value, bool):
        return AnyValue(bool_value=value)
    if isinstance(value, int):
        return AnyValue(int_value=value)
    if isinstance(value, float):
        return AnyValue(double_value=value)
    return AnyValue(string_value=value)
