"""Walks a request from the outside in, and leaves out what breaks a rule."""

from collections.abc import Callable, Iterable, MutableSequence
from functools import partial
from typing import Literal, TypeVar, cast

from google.protobuf.message import Message
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import (
    ExportMetricsServiceRequest,
)
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.logs.v1.logs_pb2 import LogRecord, ResourceLogs, ScopeLogs
from opentelemetry.proto.metrics.v1.metrics_pb2 import (
    Exemplar,
    Metric,
    NumberDataPoint,
    ResourceMetrics,
    ScopeMetrics,
)
from opentelemetry.proto.resource.v1.resource_pb2 import Resource
from opentelemetry.proto.trace.v1.trace_pb2 import ResourceSpans, ScopeSpans, Span

from otel_rl.bridge.counters import Refusal
from otel_rl.bridge.otlp.attributes import event_name, experiment_of
from otel_rl.bridge.otlp.view import exemplars_of
from otel_rl.bridge.receive.limits import ReceiveLimits
from otel_rl.bridge.receive.refusals import Refusals
from otel_rl.bridge.receive.rules import DataPoint, Problem, Rules
from otel_rl.errors import RequestTooLarge
from otel_rl.records import ExperimentKey
from otel_rl.semconv import names

__all__ = ["Admission", "Screen"]

Admission = Callable[[ExperimentKey], Problem]
"""Says of an experiment why nothing of it is taken; None if it is welcome."""

_MIN_ITEM_BYTES = 2  # a tag and a length of 0

_NUMBERS = frozenset({"gauge", "sum"})  # the types whose points are NumberDataPoint

M = TypeVar("M", bound=Message | bytes)


class Screen:
    """Changes one request so that only what keeps the rules is left in it.

    Args:
        limits: The bounds.
        now_ns: The bridge's own clock.
        refusals: Collects what was left out.
        admission: Says of an experiment why nothing of it is taken; None if it is welcome.
        size_bytes: Of the request.

    Attributes:
        accepted: Data points, spans or events that stayed.
        ignored: Log records that are no events of the bridge and did not stay.
        has_changed: Whether the request differs from what was sent.
        experiments: Of each resource that stayed, in their order.
    """

    def __init__(
        self,
        limits: ReceiveLimits,
        now_ns: int,
        refusals: Refusals,
        admission: Admission | None = None,
        *,
        size_bytes: int,
    ) -> None:
        self.accepted = 0
        self.ignored = 0
        self.has_changed = False
        self.experiments: list[ExperimentKey] = []
        self._max_items = limits.max_points_per_request
        # Nearly no request is so long that it has to be counted.
        self._may_hold_too_many = size_bytes > self._max_items * _MIN_ITEM_BYTES
        self._admission = admission
        # Of the resource that is looked at.
        self._experiment: ExperimentKey | None = None
        self._rules = Rules(limits, now_ns)
        self._default_experiment = limits.default_experiment
        self._refusals = refusals

    def metrics(self, request: ExportMetricsServiceRequest) -> None:
        """Screen the points of a request, given as ``MetricsView``.

        Raises:
            DecodeError: What stands for an exemplar is none.
            RequestTooLarge: It has too many points.
        """
        if self._may_hold_too_many:
            self._check_number(
                sum(map(_count_points, part.scope_metrics)) for part in request.resource_metrics
            )
        self._filter(request.resource_metrics, self._keeps_resource_metrics)

    def traces(self, request: ExportTraceServiceRequest) -> None:
        """Screen the spans of a request.

        Raises:
            RequestTooLarge: It has too many.
        """
        if self._may_hold_too_many:
            self._check_number(
                sum(len(scope_spans.spans) for scope_spans in part.scope_spans)
                for part in request.resource_spans
            )
        self._filter(request.resource_spans, self._keeps_resource_spans)

    def logs(self, request: ExportLogsServiceRequest) -> None:
        """Leave out what is no event of the bridge, and screen the events.

        A collector may send every log of a site: nobody is asked, and nothing refused, for the sake
        of a record that is not kept.

        Raises:
            RequestTooLarge: It has too many records.
        """
        if self._may_hold_too_many:
            self._check_number(map(_count_records, request.resource_logs))
        before = sum(map(_count_records, request.resource_logs))
        for resource_logs in request.resource_logs:
            for scope_logs in resource_logs.scope_logs:
                self._filter(scope_logs.log_records, _is_event)
            self._filter(resource_logs.scope_logs, lambda part: bool(part.log_records))
        self._filter(request.resource_logs, lambda part: bool(part.scope_logs))
        self.ignored = before - sum(map(_count_records, request.resource_logs))
        self._filter(request.resource_logs, self._keeps_resource_logs)

    def _check_number(self, numbers: Iterable[int]) -> None:
        most = self._max_items
        if sum(numbers) > most:
            msg = f"The request holds more than {most} data points, spans or log records."
            raise RequestTooLarge(
                msg, hint="Send smaller batches, or raise receive.max_points_per_request."
            )

    def _keeps_resource_metrics(self, resource_metrics: ResourceMetrics) -> bool:
        problem = self._resource_problem(resource_metrics.resource)
        if problem is not None:
            points = sum(map(_count_points, resource_metrics.scope_metrics))
            return self._refuse(problem, points)
        self._filter(resource_metrics.scope_metrics, self._keeps_scope_metrics)
        return True

    def _keeps_scope_metrics(self, scope_metrics: ScopeMetrics) -> bool:
        problem = self._rules.scope(scope_metrics.scope.attributes)
        if problem is not None:
            return self._refuse(problem, _count_points(scope_metrics))
        self._filter(scope_metrics.metrics, self._keeps_metric)
        return True

    def _keeps_metric(self, metric: Metric) -> bool:
        kind = metric.WhichOneof("data")
        points = _points(metric, kind)
        problem = self._rules.metric_name(metric.name)
        if problem is not None:
            return self._refuse(problem, len(points))
        is_sound = kind in _NUMBERS and self._rules.are_sound_numbers(
            cast("MutableSequence[NumberDataPoint]", points)
        )
        if not is_sound:
            self._filter(points, partial(self._keeps_point, metric.name, kind or ""))
        self.accepted += len(points)
        return True

    def _keeps_point(self, metric: str, kind: str, point: DataPoint) -> bool:
        problem = self._rules.point(metric, kind, point)
        if problem is not None:
            return self._refuse(problem)
        if kind == "summary":
            return True
        exemplars = exemplars_of(cast("NumberDataPoint", point))
        self._filter(exemplars, partial(self._keeps_exemplar, metric))
        return True

    def _keeps_exemplar(self, metric: str, exemplar: bytes) -> bool:
        # Parsed, it would take a multiple of its bytes, which nobody has counted.
        problem = self._rules.exemplar_size(metric, len(exemplar))
        if problem is None:
            problem = self._rules.exemplar(metric, Exemplar.FromString(exemplar))
        if problem is not None:
            self._refusals.add_exemplars(*problem, 1)
        return problem is None

    def _keeps_resource_spans(self, resource_spans: ResourceSpans) -> bool:
        problem = self._resource_problem(resource_spans.resource)
        if problem is not None:
            spans = sum(len(scope_spans.spans) for scope_spans in resource_spans.scope_spans)
            return self._refuse(problem, spans)
        self._filter(resource_spans.scope_spans, self._keeps_scope_spans)
        return True

    def _keeps_scope_spans(self, scope_spans: ScopeSpans) -> bool:
        problem = self._rules.scope(scope_spans.scope.attributes)
        if problem is not None:
            return self._refuse(problem, len(scope_spans.spans))
        self._filter(scope_spans.spans, self._keeps_span)
        self.accepted += len(scope_spans.spans)
        return True

    def _keeps_span(self, span: Span) -> bool:
        problem = self._rules.span(span)
        return problem is None or self._refuse(problem)

    def _keeps_resource_logs(self, resource_logs: ResourceLogs) -> bool:
        problem = self._resource_problem(resource_logs.resource)
        if problem is not None:
            return self._refuse(problem, _count_records(resource_logs))
        self._filter(resource_logs.scope_logs, self._keeps_scope_logs)
        return True

    def _keeps_scope_logs(self, scope_logs: ScopeLogs) -> bool:
        problem = self._rules.scope(scope_logs.scope.attributes)
        if problem is not None:
            return self._refuse(problem, len(scope_logs.log_records))
        self._filter(scope_logs.log_records, self._keeps_event)
        self.accepted += len(scope_logs.log_records)
        return True

    def _keeps_event(self, record: LogRecord) -> bool:
        problem = self._rules.event(event_name(record), record)
        return problem is None or self._refuse(problem)

    def _resource_problem(self, resource: Resource) -> Problem:
        """Why nothing of a resource is taken; else its experiment is the one looked at."""
        self._experiment = None
        problem = self._rules.resource(resource)
        if problem is not None:
            return problem
        self._name_experiment(resource)
        experiment = experiment_of(resource.attributes)
        if experiment is None:
            return Refusal.NO_EXPERIMENT, "The resource names no experiment"
        problem = self._admission(experiment) if self._admission is not None else None
        if problem is None:
            self._experiment = experiment
            self.experiments.append(experiment)
        return problem

    def _name_experiment(self, resource: Resource) -> None:
        default = self._default_experiment
        if default is None or any(a.key == names.RL_EXPERIMENT_NAME for a in resource.attributes):
            return
        resource.attributes.add(key=names.RL_EXPERIMENT_NAME).value.string_value = default
        self.has_changed = True

    def _refuse(self, problem: tuple[Refusal, str], n: int = 1) -> Literal[False]:
        self._refusals.add(*problem, n, run=self._experiment)
        return False

    def _filter(self, messages: MutableSequence[M], keeps: Callable[[M], bool]) -> None:
        kept = [message for message in messages if keeps(message)]
        if len(kept) != len(messages):
            # Deleting one by one would move the rest each time.
            del messages[:]
            messages.extend(kept)
            self.has_changed = True


def _points(metric: Metric, kind: str | None) -> MutableSequence[DataPoint]:
    # A metric of a type that is newer than this code has no data here: nothing to take or refuse.
    return (
        []
        if kind is None
        else cast("MutableSequence[DataPoint]", getattr(metric, kind).data_points)
    )


def _count_points(scope_metrics: ScopeMetrics) -> int:
    return sum(len(_points(metric, metric.WhichOneof("data"))) for metric in scope_metrics.metrics)


def _count_records(resource_logs: ResourceLogs) -> int:
    return sum(len(scope_logs.log_records) for scope_logs in resource_logs.scope_logs)


def _is_event(record: LogRecord) -> bool:
    return event_name(record) in names.EVENTS
