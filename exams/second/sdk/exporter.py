"""One process's SDK: OTLP requests of what the process recorded."""

from collections.abc import Iterator, Sequence

from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import (
    ExportMetricsServiceRequest,
)
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.metrics.v1.metrics_pb2 import DataPointFlags, ScopeMetrics

from exams.second.program import Program
from exams.second.sdk.encode import STEP, nanoseconds, pairs, resource_of
from exams.second.sdk.metrics import Instruments
from exams.second.sdk.spans import span_of
from exams.second.systems.world import Event, Point, Record, Span


class Exporter:
    """One process's SDK.

    Args:
        program: Its way to report.
        who: Role, index and life of the process.
        skew_s: Error of its clock.
        begin_s: Its start.
    """

    def __init__(
        self, program: Program, who: tuple[str, int, int], skew_s: float, begin_s: float
    ) -> None:
        self._how = program.telemetry
        self._who = who
        self._resource = resource_of(program, who)
        self._skew_s = skew_s
        self._instruments = Instruments(self._how, self._ns(begin_s))
        self._open: dict[str, tuple[float, int | None]] = {}
        self._step: tuple[int, float] = (-1, begin_s)
        self._events = 0
        self._is_frozen = False
        self._kept: list[Record] = []
        self.is_gone = False

    def export(
        self,
        records: Sequence[Record],
        at_s: float,
        metrics: ExportMetricsServiceRequest,
        spans: ExportTraceServiceRequest,
        logs: ExportLogsServiceRequest,
    ) -> None:
        """Add what was recorded since the last export, at ``at_s``.

        A process that ends exports at its end; one that is killed loses what it had.
        """
        gone = [one.at_s for one in records if one.what == Event("gone")]
        if gone and not any(isinstance(o.what, Event) and o.what.name == "end" for o in records):
            self.is_gone = True
            return
        at_s = min([at_s, *gone])
        for record in records:
            if isinstance(record.what, Event):
                self._event(record.at_s, record.what, logs)
        if self._is_frozen:
            self._kept += records
            return
        records = [*self._kept, *records]
        self._kept.clear()
        if self._how.metrics:
            self._metrics(records, at_s, metrics)
        finished = [one.what for one in records if isinstance(one.what, Span)]
        if finished:
            scope = spans.resource_spans.add(resource=self._resource).scope_spans.add()
            scope.scope.name = "train"
            scope.spans.extend(span_of(one, self._skew_s) for one in finished)

    def _ns(self, at_s: float) -> int:
        return nanoseconds(at_s + self._skew_s)

    def _event(self, at_s: float, event: Event, logs: ExportLogsServiceRequest) -> None:
        if event.name == "open":
            self._open[event.phase] = (at_s, event.step)
        elif event.name == "close":
            self._open.pop(event.phase, None)
        elif event.name == "gone":
            self.is_gone = True
        elif event.name in ("freeze", "thaw"):
            self._is_frozen = event.name == "freeze"
        elif self._how.is_ours:
            self._log(at_s, event, logs)

    def _log(self, at_s: float, event: Event, logs: ExportLogsServiceRequest) -> None:
        resource = logs.resource_logs.add(resource=self._resource)
        record = resource.scope_logs.add().log_records.add()
        record.time_unix_nano = record.observed_time_unix_nano = self._ns(at_s)
        record.event_name = f"rl.worker.{event.name}"
        self._events += 1
        attributes: dict[str, str | int | float] = {"log.record.uid": f"{self._who} {self._events}"}
        if event.name == "end":
            attributes["rl.worker.status"] = "failed" if event.error else "complete"
        if event.error:
            attributes["error.type"] = event.error
            attributes["exception.message"] = "CUDA error: an illegal memory access"
        if event.step is not None:
            attributes[STEP] = event.step
        record.attributes.extend(pairs(attributes))

    def _metrics(
        self, records: Sequence[Record], at_s: float, request: ExportMetricsServiceRequest
    ) -> None:
        points = [(self._ns(one.at_s), one.what) for one in records if isinstance(one.what, Point)]
        scope = ScopeMetrics()
        scope.scope.name = "train"
        if self._how.is_ours:
            points += [(self._ns(at_s), point) for point in self._ages(at_s)]
            beat = scope.metrics.add(name="otel_rl.worker.heartbeat").gauge.data_points.add()
            beat.time_unix_nano = self._ns(at_s)
            beat.flags = DataPointFlags.DATA_POINT_FLAGS_NO_RECORDED_VALUE_MASK
        self._instruments.export(points, self._ns(at_s), scope)
        if scope.metrics:
            request.resource_metrics.add(resource=self._resource).scope_metrics.append(scope)

    def _ages(self, at_s: float) -> Iterator[Point]:
        """Yield the ages of open phases, and the open step."""
        newest = -1
        for phase, (since_s, step) in self._open.items():
            age_s = at_s - since_s
            yield Point("gauge", "rl.worker.phase.age", age_s, None, {"rl.phase": phase})
            newest = max(newest, -1 if step is None else step)
        if newest >= 0:
            if newest != self._step[0]:
                self._step = (newest, min(since for since, _ in self._open.values()))
            yield Point("gauge", "rl.worker.step.number", newest)
            yield Point("gauge", "rl.worker.step.age", at_s - self._step[1])
