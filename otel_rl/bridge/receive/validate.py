"""Validates a request. Pure: time is an argument, no state is kept between calls.

Malformed bytes are refused as a whole, or for one resource if the others are readable. A readable
request is walked from the outside in; items over a limit are removed, counted and reported to the
sender. Other items pass unchanged, so a request of one experiment with nothing to refuse keeps its
bytes.

Metrics are read on the way (``otlp/columns.py``): known identities with numbers within the bounds
are sound. Only where something is new or in doubt is each item of the resource checked by its rule.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, MutableSequence, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Literal, TypeVar, cast

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
from otel_rl.bridge.otlp.views import MetricsView, NumberView, RawMetrics, exemplars_of
from otel_rl.bridge.receive.limits import ReceiveLimits
from otel_rl.bridge.receive.refused_items import Refusals, by_reason
from otel_rl.bridge.receive.rules import DataPoint, Problem, Rules
from otel_rl.bridge.receive.signal_specs import SIGNALS, ExportRequest, SignalSpec
from otel_rl.bridge.receive.wire import (
    SMALLER_BATCHES,
    UnreadablePart,
    check_message_count,
    parse_partially,
)
from otel_rl.errors import MalformedRequest, RequestTooLarge
from otel_rl.records import Batch, ExperimentKey, Signal
from otel_rl.semconv import names

Admission = Callable[[ExperimentKey, str], Problem]
"""Returns why nothing of an experiment, and of the team that its resource names, is accepted; None
if it is."""

_MIN_ITEM_BYTES = 2  # a tag and a length of 0

_NUMBERS = frozenset({"gauge", "sum"})  # the types whose points are NumberDataPoint

M = TypeVar("M", bound=Message | bytes)
R = TypeVar("R", bound=ResourceSpans | ResourceLogs)


@dataclass(frozen=True, slots=True)
class Validated:
    """The accepted part of one request.

    Attributes:
        batches: The request without refused items, as one batch for each of its experiments.
        accepted: Number of data points, spans or events in ``batches``.
        refused_of_runs: Number of refused data points, spans or events, by reason and by
            experiment, where the experiment is known and admitted.
        exemplars_refused: Number of exemplars removed from accepted points, by reason.
        ignored: Number of log records removed because the bridge does not use them.
        dropped_earlier: Number of data points of earlier requests that were dropped after their
            answer, and are reported now.
        message: Text for the sender: refused items, the reason, and the remedy. Empty if none was
            refused.
    """

    batches: Sequence[Batch]
    accepted: int
    refused_of_runs: Mapping[tuple[ExperimentKey | None, Refusal], int] = field(
        default_factory=dict
    )
    exemplars_refused: Mapping[Refusal, int] = field(default_factory=dict)
    ignored: int = 0
    dropped_earlier: int = 0
    message: str = ""

    @property
    def refused(self) -> Mapping[Refusal, int]:
        """Return the number of refused data points, spans or events, by reason."""
        return by_reason(self.refused_of_runs)


def validate(
    signal: Signal,
    request: ExportRequest | bytes,
    limits: ReceiveLimits,
    now_ns: int,
    admission: Admission | None = None,
) -> Validated:
    """Apply the limits to a request.

    Time and memory are in proportion to the content, see ``check_message_count``.

    Args:
        request: The request, as protobuf bytes or as a message.
        now_ns: Time by the bridge's own clock; it bounds the times of points.
        admission: See ``Sanitizer``.

    Raises:
        MalformedRequest: Neither the request nor any part of it is of this signal.
        RequestTooLarge: The request holds too many messages, points, spans or log records.
    """
    payload = request if isinstance(request, bytes) else request.SerializeToString()
    spec = SIGNALS[signal]
    try:
        _check_number(signal, payload, limits)
        return _admit(signal, payload, limits, now_ns, Refusals(spec.items), admission)
    except MalformedRequest:
        salvaged = parse_partially(
            spec, payload, limits.max_messages_per_request, limits.max_points_per_request
        )
        if salvaged is None:
            raise
    refusals = _refused(spec, salvaged.unreadable, admission)
    admitted = _admit(signal, salvaged.payload, limits, now_ns, refusals, admission)
    left_out = sum(part.items for part in salvaged.unreadable if not part.is_wanted)
    return replace(admitted, ignored=admitted.ignored + left_out)


def validate_known(
    payload: bytes, limits: ReceiveLimits, now_ns: int, admission: Admission
) -> Validated:
    """Do the same as ``validate`` for a metrics request with only known identities.

    Raises:
        InDoubt: An identity is not known, or a value is not within the bounds.
        RequestTooLarge: See ``validate``.
    """
    refusals = Refusals(SIGNALS[Signal.METRICS].items)
    try:
        _check_number(Signal.METRICS, payload, limits)
        return _admit(Signal.METRICS, payload, limits, now_ns, refusals, admission, only_known=True)
    except MalformedRequest as exc:
        raise InDoubt from exc


def _refused(
    spec: SignalSpec, unreadable: Sequence[UnreadablePart], admission: Admission | None
) -> Refusals:
    refusals = Refusals(spec.items)
    for part in unreadable:
        if not part.is_wanted:
            continue
        key = part.experiment
        owner = "a resource" if key is None else f"experiment {str(key)[:64]!r}"
        # A run shows its refused items, but not those of senders that may not write it.
        is_welcome = key is not None and (admission is None or admission(key, part.team) is None)
        detail = f"What {owner} sends cannot be read"
        refusals.add(Refusal.MALFORMED, detail, part.items, run=key if is_welcome else None)
    return refusals


def _admit(
    signal: Signal,
    payload: bytes,
    limits: ReceiveLimits,
    now_ns: int,
    refusals: Refusals,
    admission: Admission | None,
    *,
    only_known: bool = False,
) -> Validated:
    """Validate a readable request. ``refusals`` holds earlier refusals, and gets the new ones."""
    spec = SIGNALS[signal]
    screen = Sanitizer(
        limits, now_ns, refusals, admission, size_bytes=len(payload), only_known=only_known
    )
    message: ExportRequest
    readings: Sequence[ResourceReading] = ()
    try:
        if signal is Signal.METRICS:
            message = metrics = RawMetrics.FromString(payload)
            readings = screen.metrics(metrics)
        elif signal is Signal.TRACES:
            message = traces = ExportTraceServiceRequest.FromString(payload)
            screen.traces(traces)
        else:
            message = logs = ExportLogsServiceRequest.FromString(payload)
            screen.logs(logs)
    except DecodeError as exc:
        msg = f"The body is not a protobuf {spec.request.DESCRIPTOR.name}."
        raise MalformedRequest(msg) from exc
    batches: list[Batch] = []
    if screen.accepted:
        unchanged = None if screen.has_changed else payload
        keys = screen.experiments
        columns = dict[ExperimentKey, list[ResourceReading]]()
        for key, reading in zip(keys, readings, strict=signal is Signal.METRICS):
            columns.setdefault(key, []).append(reading)
        parts = _by_experiment(message, spec.resources, keys, unchanged)
        batches = [Batch(key, signal, part, now_ns, columns.get(key, ())) for key, part in parts]
    return Validated(
        batches,
        screen.accepted,
        refusals.of_runs,
        refusals.exemplars,
        screen.ignored,
        message=refusals.message(),
    )


def _check_number(signal: Signal, payload: bytes, limits: ReceiveLimits) -> None:
    parsed_as = MetricsView if signal is Signal.METRICS else SIGNALS[signal].request
    check_message_count(payload, parsed_as.DESCRIPTOR, limits.max_messages_per_request)


def _by_experiment(
    request: ExportRequest,
    resources: str,
    experiments: Sequence[ExperimentKey],
    unchanged: bytes | None,
) -> Iterator[tuple[ExperimentKey, bytes]]:
    """Split a request by experiment; a collector may join requests of several."""
    of_keys: dict[ExperimentKey, list[Message]] = {}
    for key, resource in zip(experiments, getattr(request, resources), strict=True):
        of_keys.setdefault(key, []).append(resource)
    if len(of_keys) == 1:
        yield experiments[0], request.SerializeToString() if unchanged is None else unchanged
        return
    for key, selected in of_keys.items():
        part = type(request)()
        getattr(part, resources).extend(selected)
        yield key, part.SerializeToString()


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
                len(part.scope_metrics) + sum(len(one.metrics) for one in part.scope_metrics)
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
            (sum(len(one.spans) for one in part.scope_spans) for part in resources),
        )
        self._walk(resources, "scope_spans", "spans", self._keeps_span)

    def logs(self, request: ExportLogsServiceRequest) -> None:
        """Remove other log records, and sanitize the events.

        A collector may send all logs of a site: a record that is not kept needs no permission, and
        does not count as refused.

        Raises:
            RequestTooLarge: The request has too many records.
        """
        resources = request.resource_logs
        self._check_numbers(
            (len(part.scope_logs) for part in resources), map(_count_records, resources)
        )
        n_records = sum(map(_count_records, resources))
        for resource_logs in resources:
            for scope_logs in resource_logs.scope_logs:
                self._filter(scope_logs.log_records, _is_event)
            self._filter(resource_logs.scope_logs, lambda scope: scope.log_records)
        self._filter(resources, _count_records)
        self.ignored = n_records - sum(map(_count_records, resources))
        self._walk(resources, "scope_logs", "log_records", self._keeps_event)

    def _walk(
        self,
        resources: MutableSequence[R],
        scopes: str,
        items: str,
        keeps: Callable[[Any], bool],
    ) -> None:
        """Sanitize a request of spans or events.

        Args:
            resources: The parts of the request, one for each resource.
            scopes: Field of a resource's part that holds its scopes.
            items: Field of a scope that holds its items. A scope without items is removed without a
                report.
            keeps: Returns whether an item stays; reports one that does not.
        """

        def keeps_resource(part: R) -> bool:
            of_scopes = getattr(part, scopes)
            if not (of_scopes or part.resource.attributes):
                return False
            problem = self._resource_problem(part.resource)
            if problem is not None:
                return self._refuse(problem, sum(len(getattr(one, items)) for one in of_scopes))
            self._filter(of_scopes, keeps_scope)
            return True

        def keeps_scope(part: ScopeSpans | ScopeLogs) -> bool:
            of_scope = getattr(part, items)
            if not of_scope:
                return False
            problem = self._rules.scope(part.scope)
            if problem is not None:
                return self._refuse(problem, len(of_scope))
            self._filter(of_scope, keeps)
            self.accepted += len(of_scope)
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

    def _keeps_span(self, span: Span) -> bool:
        problem = self._rules.span(span)
        return problem is None or self._refuse(problem)

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


def _count_points(scope_metrics: ScopeMetrics) -> int:
    return sum(len(_points(metric, metric.WhichOneof("data"))) for metric in scope_metrics.metrics)


def _count_records(resource_logs: ResourceLogs) -> int:
    return sum(len(one.log_records) for one in resource_logs.scope_logs)


def _is_event(record: LogRecord) -> bool:
    return event_name(record) in names.EVENTS
