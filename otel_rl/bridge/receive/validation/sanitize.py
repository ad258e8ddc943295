"""Walks a request from the outside in, and removes items that break a rule.

Metrics are read on the way (``otlp/columns.py``): known identities with numbers within the bounds
are sound. Only where something is new or in doubt is each item of the resource checked by its rule.
"""

from collections.abc import Callable, Iterable, MutableSequence, Sequence, Sized
from functools import partial
from typing import Literal, TypeVar, cast

from google.protobuf.message import DecodeError, Message
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
from otel_rl.bridge.otlp.attributes import event_name, experiment_of, run_of_program, team_of
from otel_rl.bridge.otlp.columns import InDoubt, ResourceReading
from otel_rl.bridge.otlp.identities import Identified, identified
from otel_rl.bridge.otlp.views import NumberView, exemplars_of
from otel_rl.bridge.receive.limits import ReceiveLimits
from otel_rl.bridge.receive.parsing.preparse import SMALLER_BATCHES
from otel_rl.bridge.receive.refused_items import Refusals
from otel_rl.bridge.receive.validation.rules import DataPoint, Problem, Rules
from otel_rl.errors import RequestTooLarge
from otel_rl.records import ExperimentKey
from otel_rl.semconv import names

Admission = Callable[[ExperimentKey, str], Problem]
"""Returns why nothing of an experiment, and of the team that its resource names, is accepted; None
if it is."""

_MIN_ITEM_BYTES = 2  # a tag and a length of 0

_NUMBERS = frozenset({"gauge", "sum"})  # the types whose points are NumberDataPoint

M = TypeVar("M", bound=Message | bytes)
R = TypeVar("R", bound=ResourceSpans | ResourceLogs)
S = TypeVar("S", bound=ScopeSpans | ScopeLogs)


class Sanitizer:
    """Removes the items of one request that break a rule.

    Args:
        refusals: Collects the removed items.
        admission: See ``Admission``; None accepts every experiment.
        only_known: Whether new or doubtful metrics are an error.

    Attributes:
        accepted: Number of data points, spans or events that stayed.
        ignored: Number of log records removed because they are not events of the bridge.
        has_changed: Whether the request differs from its original.
        experiments: Experiment of each resource that stayed, in order.
    """

    def __init__(
        self,
        limits: ReceiveLimits,
        now_ns: int,
        refusals: Refusals,
        admission: Admission | None = None,
        *,
        size_bytes: int,
        only_known: bool = False,
    ) -> None:
        self.accepted = 0
        self.ignored = 0
        self.has_changed = False
        self.experiments: list[ExperimentKey] = []
        self._max_items = limits.max_points_per_request
        self._may_hold_too_many = size_bytes > self._max_items * _MIN_ITEM_BYTES
        self._admission = admission
        self._only_known = only_known
        # Experiment of the current resource.
        self._experiment: ExperimentKey | None = None
        self._now_ns = now_ns
        self._rules = Rules(limits, now_ns)
        self._default_experiment = limits.default_experiment
        self._refusals = refusals

    def metrics(self, request: ExportMetricsServiceRequest) -> Sequence[ResourceReading]:
        """Sanitize the points of a request, given as ``RawMetrics``, and read those that stay.

        Returns:
            The resources that stay, in order, as they were read.

        Raises:
            DecodeError: A point, an exemplar or an attribute cannot be parsed.
            RequestTooLarge: The request has too many points.
            InDoubt: Something is new or in doubt, and only known metrics are wanted.
        """
        resources = request.resource_metrics
        self._check_numbers(
            (
                len(part.scope_metrics) + sum(map(_count_metrics, part.scope_metrics))
                for part in resources
            ),
            (sum(map(_count_points, part.scope_metrics)) for part in resources),
        )
        readings: list[ResourceReading] = []

        def keeps_resource(part: ResourceMetrics) -> bool:
            scopes = part.scope_metrics
            if not (scopes or part.resource.attributes):
                return False
            resource, problem = self._identified(part.resource)
            if problem is not None:
                return self._refuse(problem, sum(map(_count_points, scopes)))
            reading = ResourceReading(part, resource, self._now_ns, self._rules)
            try:
                reading.keep()
            except (InDoubt, DecodeError):  # perhaps in an item that is refused
                if self._only_known:
                    raise
                self._filter(scopes, self._keeps_scope_of_metrics)
                reading = ResourceReading(
                    part, resource, self._now_ns, self._rules, is_checked=True
                )
                reading.keep()
            self.accepted += reading.points
            readings.append(reading)
            return True

        self._filter(resources, keeps_resource)
        return readings

    def _identified(self, resource: Resource) -> tuple[Identified, Problem]:
        """Return a resource with its experiment, and why the resource is refused, if it is."""
        found = identified(resource.SerializeToString())
        if found.sound_for is self._rules.mark and found.experiment is not None:
            return found, self._admit(found.experiment, found.team)
        if self._only_known:
            raise InDoubt
        problem = self._resource_problem(resource)
        if problem is None:
            found = identified(resource.SerializeToString())  # now with the name of its experiment
            found.sound_for = self._rules.mark
        return found, problem

    def _keeps_scope_of_metrics(self, scope_metrics: ScopeMetrics) -> bool:
        if not scope_metrics.metrics:
            return False
        problem = self._rules.scope(scope_metrics.scope)
        if problem is not None:
            return self._refuse(problem, _count_points(scope_metrics))
        self._filter(scope_metrics.metrics, self._keeps_metric)
        return True

    def traces(self, request: ExportTraceServiceRequest) -> None:
        """Sanitize the spans of a request.

        Raises:
            RequestTooLarge: The request has too many spans.
        """
        resources = request.resource_spans
        self._check_numbers(
            (len(part.scope_spans) for part in resources),
            (sum(map(_count_spans, part.scope_spans)) for part in resources),
        )
        self._walk(
            resources,
            lambda part: part.scope_spans,
            lambda part: part.spans,
            _count_spans,
            self._spans,
        )

    def logs(self, request: ExportLogsServiceRequest) -> None:
        """Remove other log records, and sanitize the events.

        A collector may send all logs of a site: a record that is not kept needs no permission, and
        does not count as refused.

        Raises:
            RequestTooLarge: The request has too many records.
        """
        resources = request.resource_logs
        self._check_numbers(
            (len(part.scope_logs) for part in resources), map(_count_all_records, resources)
        )
        n_records = sum(map(_count_all_records, resources))
        for resource_logs in resources:
            for scope_logs in resource_logs.scope_logs:
                self._filter(scope_logs.log_records, _is_event)
            self._filter(resource_logs.scope_logs, _count_records)
        self._filter(resources, _count_all_records)
        self.ignored = n_records - sum(map(_count_all_records, resources))
        self._walk(
            resources,
            lambda part: part.scope_logs,
            lambda part: part.log_records,
            _count_records,
            self._events,
        )

    def _walk(
        self,
        resources: MutableSequence[R],
        scopes_of: Callable[[R], MutableSequence[S]],
        items_of: Callable[[S], Sized],
        count: Callable[[S], int],
        screen: Callable[[S], None],
    ) -> None:
        """Sanitize a request of spans or events.

        Args:
            resources: The parts of the request, one for each resource.
            scopes_of: Returns the parts of a resource's part, one for each scope.
            items_of: Returns the items of a scope. A scope without items is removed without a
                report.
            count: Returns the number of items of a scope.
            screen: Removes refused items of a scope, and adds the number of others to ``accepted``.
        """

        def keeps_resource(part: R) -> bool:
            if not (scopes_of(part) or part.resource.attributes):
                return False
            problem = self._resource_problem(part.resource)
            if problem is not None:
                return self._refuse(problem, sum(map(count, scopes_of(part))))
            self._filter(scopes_of(part), keeps_scope)
            return True

        def keeps_scope(part: S) -> bool:
            if not items_of(part):
                return False
            problem = self._rules.scope(part.scope)
            if problem is not None:
                return self._refuse(problem, count(part))
            screen(part)
            return True

        self._filter(resources, keeps_resource)

    def _check_numbers(self, holders: Iterable[int], items: Iterable[int]) -> None:
        """Check a request's numbers of parts, since even empty parts take time.

        Args:
            holders: Number of scopes and metrics of each resource.
            items: Number of data points, spans or log records of each resource.
        """
        if not self._may_hold_too_many:  # nearly every request is too short
            return
        most = self._max_items
        for n, parts in (
            (sum(1 + one for one in holders), "resources, scopes and metrics"),
            (sum(items), "data points, spans or log records"),
        ):
            if n > most:
                raise RequestTooLarge(
                    f"The request holds more than {most} {parts}.", hint=SMALLER_BATCHES
                )

    def _keeps_metric(self, metric: Metric) -> bool:
        kind = metric.WhichOneof("data")
        points = _points(metric, kind)
        problem = self._rules.metric(metric)
        if problem is not None:
            return self._refuse(problem, len(points))
        if kind is not None and kind in _NUMBERS:
            numbers = cast("MutableSequence[bytes]", points)
            stays = partial(self._kept_number, metric.name, kind)
            kept = [one for one in map(stays, numbers) if one]
            if kept != [*numbers]:
                del numbers[:]
                numbers.extend(kept)
                self.has_changed = True
        else:
            self._filter(points, partial(self._keeps_point, metric.name, kind or ""))
        return True

    def _kept_number(self, metric: str, kind: str, serialized: bytes) -> bytes:
        """Return the rest of a serialized point; empty if the point is refused."""
        point = NumberView.FromString(serialized)
        n_exemplars = len(exemplars_of(point))
        if not self._keeps_point(metric, kind, point):
            return b""
        is_same = len(exemplars_of(point)) == n_exemplars
        return serialized if is_same else point.SerializeToString()

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
        # Parsed, it would take a multiple of its bytes, which are not counted yet.
        problem = self._rules.exemplar_size(metric, len(exemplar))
        if problem is None:
            problem = self._rules.exemplar(metric, Exemplar.FromString(exemplar))
        if problem is not None:
            self._refusals.add_exemplars(*problem, 1)
        return problem is None

    def _spans(self, scope_spans: ScopeSpans) -> None:
        self._filter(scope_spans.spans, self._keeps_span)
        self.accepted += len(scope_spans.spans)

    def _keeps_span(self, span: Span) -> bool:
        problem = self._rules.span(span)
        return problem is None or self._refuse(problem)

    def _events(self, scope_logs: ScopeLogs) -> None:
        self._filter(scope_logs.log_records, self._keeps_event)
        self.accepted += len(scope_logs.log_records)

    def _keeps_event(self, record: LogRecord) -> bool:
        problem = self._rules.event(event_name(record), record)
        return problem is None or self._refuse(problem)

    def _resource_problem(self, resource: Resource) -> Problem:
        """Return why nothing of a resource is accepted; else set the current experiment."""
        self._experiment = None
        problem = self._rules.resource(resource)
        if problem is not None:
            return problem
        self._name_experiment(resource)
        experiment = experiment_of(resource.attributes)
        if experiment is None:
            return Refusal.NO_EXPERIMENT, "The resource names no experiment"
        return self._admit(experiment, team_of(resource.attributes))

    def _admit(self, experiment: ExperimentKey, team: str) -> Problem:
        """Return why nothing of an experiment is accepted; else make it the current one."""
        self._experiment = None
        problem = self._admission(experiment, team) if self._admission is not None else None
        if problem is None:
            self._experiment = experiment
            self.experiments.append(experiment)
        return problem

    def _name_experiment(self, resource: Resource) -> None:
        """Give a resource without an experiment its program's experiment, or the default one."""
        if any(a.key == names.RL_EXPERIMENT_NAME for a in resource.attributes):
            return
        own = run_of_program(resource.attributes)
        if self._default_experiment is not None:
            own[names.RL_EXPERIMENT_NAME] = self._default_experiment
        for name, value in own.items():
            resource.attributes.add(key=name).value.string_value = value
            self.has_changed = True

    def _refuse(self, problem: tuple[Refusal, str], n: int = 1) -> Literal[False]:
        self._refusals.add(*problem, n, run=self._experiment)
        return False

    def _filter(self, messages: MutableSequence[M], keeps: Callable[[M], object]) -> None:
        kept = [message for message in messages if keeps(message)]
        if len(kept) != len(messages):
            # Deleting one by one would move the rest each time.
            del messages[:]
            messages.extend(kept)
            self.has_changed = True


def _points(metric: Metric, kind: str | None) -> MutableSequence[DataPoint]:
    # A metric of a type newer than this code has no data here: nothing to accept or refuse.
    return (
        []
        if kind is None
        else cast("MutableSequence[DataPoint]", getattr(metric, kind).data_points)
    )


def _count_metrics(scope_metrics: ScopeMetrics) -> int:
    return len(scope_metrics.metrics)


def _count_points(scope_metrics: ScopeMetrics) -> int:
    return sum(len(_points(metric, metric.WhichOneof("data"))) for metric in scope_metrics.metrics)


def _count_spans(scope_spans: ScopeSpans) -> int:
    return len(scope_spans.spans)


def _count_records(scope_logs: ScopeLogs) -> int:
    return len(scope_logs.log_records)


def _count_all_records(resource_logs: ResourceLogs) -> int:
    return sum(map(_count_records, resource_logs.scope_logs))


def _is_event(record: LogRecord) -> bool:
    return event_name(record) in names.EVENTS
