"""Valid requests of every shape that senders make: what the mutations begin with."""

import base64
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import cast

import orjson
from google.protobuf.json_format import MessageToDict
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import (
    ExportMetricsServiceRequest,
)
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.metrics.v1.metrics_pb2 import (
    AGGREGATION_TEMPORALITY_CUMULATIVE,
    AGGREGATION_TEMPORALITY_DELTA,
    Metric,
    NumberDataPoint,
)
from opentelemetry.proto.trace.v1.trace_pb2 import Status

from otel_rl.signals import Signal
from tests.support.otlp_requests import Attributes, any_value, every_event, key_values

Request = ExportMetricsServiceRequest | ExportTraceServiceRequest | ExportLogsServiceRequest
Json = dict[str, "Json"] | list["Json"] | str | int | float | bool | None

S = 1_000_000_000

_IDS = {"traceId", "spanId", "parentSpanId"}


@dataclass(frozen=True, slots=True)
class Seed:
    """A valid request in both encodings.

    Attributes:
        signal: Where it is posted.
        request: As a message.
        protobuf: As bytes.
        json: As OTLP/JSON.
    """

    signal: Signal
    request: Request
    protobuf: bytes
    json: bytes


def corpus(now_ns: int) -> Sequence[Seed]:
    """Requests whose points were made shortly before ``now_ns``."""
    t = now_ns - S
    return [
        _seed(Signal.METRICS, _exact_worker(t)),
        _seed(Signal.METRICS, _stock_sdk(t)),
        _seed(Signal.METRICS, _collector(t)),
        _seed(Signal.METRICS, ExportMetricsServiceRequest()),
        _seed(Signal.TRACES, _spans(t)),
        _seed(Signal.TRACES, _step_of_two_processes(t)),
        _seed(Signal.TRACES, ExportTraceServiceRequest()),
        _seed(Signal.LOGS, _events(t)),
        _seed(Signal.LOGS, _logs_of_a_site(t)),
        _seed(Signal.LOGS, ExportLogsServiceRequest()),
    ]


def good_request(value: float, step: int, now_ns: int) -> ExportMetricsServiceRequest:
    """What must be served after anything else: one measurement of the run ``good``."""
    point = NumberDataPoint(as_double=value, start_time_unix_nano=now_ns - S, time_unix_nano=now_ns)
    _exemplar(point, value, step, now_ns)
    return _metrics(_worker("good", "trainer", 0), Metric(name="loss"), point)


def otlp_json(request: Request) -> bytes:
    """The request as OTLP/JSON: enums as numbers, ids as hexadecimal digits."""
    fields = MessageToDict(request, use_integers_for_enums=True)
    return orjson.dumps(_with_hex_ids(cast("Json", fields)))


def _with_hex_ids(value: Json) -> Json:
    if isinstance(value, list):
        return [_with_hex_ids(element) for element in value]
    if not isinstance(value, dict):
        return value
    return {
        key: _hex(member) if key in _IDS else _with_hex_ids(member) for key, member in value.items()
    }


def _hex(member: Json) -> Json:
    return base64.b64decode(member).hex() if isinstance(member, str) else member


def _seed(signal: Signal, request: Request) -> Seed:
    return Seed(signal, request, request.SerializeToString(), otlp_json(request))


def _worker(experiment: str, role: str, index: int) -> Attributes:
    return {
        "rl.experiment.name": experiment,
        "rl.trial.name": "default",
        "rl.worker.role": role,
        "rl.worker.index": index,
        "rl.worker.count": 2,
        "service.name": f"otel_rl.{role}",
        "service.instance.id": f"{role}-{index}",
        "telemetry.distro.name": "otel_rl",
        "host.name": "node-1",
        "process.pid": 4711,
    }


def _metrics(
    resource: Attributes, metric: Metric, *points: NumberDataPoint
) -> ExportMetricsServiceRequest:
    metric.gauge.data_points.extend(points)
    request = ExportMetricsServiceRequest()
    resource_metrics = request.resource_metrics.add()
    resource_metrics.resource.attributes.extend(key_values(resource))
    resource_metrics.scope_metrics.add().metrics.append(metric)
    return request


def _exemplar(point: NumberDataPoint, value: float, step: int, time_ns: int) -> None:
    exemplar = point.exemplars.add(
        as_double=value, time_unix_nano=time_ns, trace_id=b"\7" * 16, span_id=b"\7" * 8
    )
    exemplar.filtered_attributes.extend(key_values({"rl.loop.iteration": step}))


def _exact_worker(t: int) -> ExportMetricsServiceRequest:
    """A worker of otel_rl: gauges with every measurement, and a reduction in the scope."""
    points = []
    for kind in ("policy", "value"):
        point = NumberDataPoint(as_double=0.5, start_time_unix_nano=t - S, time_unix_nano=t)
        point.attributes.extend(key_values({"rl.loss.type": kind}))
        for step in range(5):
            _exemplar(point, 1 / (step + 1), step, t - 5 + step)
        points.append(point)
    request = _metrics(_worker("fuzz", "trainer", 0), Metric(name="rl.train.loss"), *points)
    scope_metrics = request.resource_metrics[0].scope_metrics[0]
    scope_metrics.scope.name = "otel_rl"
    scope_metrics.scope.attributes.extend(key_values({"rl.reduce": "max"}))
    nan = NumberDataPoint(as_double=math.nan, start_time_unix_nano=t - S, time_unix_nano=t)
    _exemplar(nan, math.inf, 3, t)
    diverged = scope_metrics.metrics.add(name="diverged", unit="1")
    diverged.gauge.data_points.append(nan)
    return request


def _stock_sdk(t: int) -> ExportMetricsServiceRequest:
    """A program with a plain SDK: every type of metric, both temporalities."""
    request = ExportMetricsServiceRequest()
    resource_metrics = request.resource_metrics.add()
    resource_metrics.resource.attributes.extend(
        key_values({"rl.experiment.name": "fuzz", "service.name": "vllm", "process.pid": 7})
    )
    metrics = resource_metrics.scope_metrics.add().metrics
    for temporality in (AGGREGATION_TEMPORALITY_CUMULATIVE, AGGREGATION_TEMPORALITY_DELTA):
        total = metrics.add(name=f"tokens.{temporality}", unit="{token}")
        total.sum.aggregation_temporality = temporality
        total.sum.is_monotonic = True
        total.sum.data_points.add(as_int=12, start_time_unix_nano=t - S, time_unix_nano=t)
        depth = metrics.add(name=f"depth.{temporality}")
        depth.sum.aggregation_temporality = temporality
        depth.sum.data_points.add(as_double=-2.5, start_time_unix_nano=t - S, time_unix_nano=t)
        latency = metrics.add(name=f"latency.{temporality}", unit="s")
        latency.histogram.aggregation_temporality = temporality
        latency.histogram.data_points.add(
            start_time_unix_nano=t - S,
            time_unix_nano=t,
            count=6,
            sum=9.0,
            min=0.1,
            max=5.0,
            bucket_counts=[1, 2, 3],
            explicit_bounds=[0.5, 2.0],
        )
        length = metrics.add(name=f"length.{temporality}")
        length.exponential_histogram.aggregation_temporality = temporality
        scaled = length.exponential_histogram.data_points.add(
            start_time_unix_nano=t - S,
            time_unix_nano=t,
            count=5,
            sum=7.0,
            scale=3,
            zero_count=1,
            zero_threshold=1e-9,
        )
        scaled.positive.offset = -2
        scaled.positive.bucket_counts.extend([1, 0, 2])
        scaled.negative.bucket_counts.extend([1])
    summary = metrics.add(name="gc")
    point = summary.summary.data_points.add(count=3, sum=2.0, time_unix_nano=t)
    point.quantile_values.add(quantile=0.5, value=0.4)
    point.quantile_values.add(quantile=0.99, value=1.4)
    stale = metrics.add(name="stale")
    stale.gauge.data_points.add(time_unix_nano=t, flags=1)
    timeless = metrics.add(name="timeless")
    timeless.gauge.data_points.add(as_int=-(2**63))
    metrics.add(name="nothing")
    return request


def _collector(t: int) -> ExportMetricsServiceRequest:
    """What a collector joins: several experiments, workers and scopes in one request."""
    request = ExportMetricsServiceRequest()
    for experiment in ("fuzz", "other"):
        for index in range(2):
            one = good_request(index, index, t)
            part = request.resource_metrics.add()
            part.CopyFrom(one.resource_metrics[0])
            del part.resource.attributes[:]
            part.resource.attributes.extend(key_values(_worker(experiment, "generator", index)))
            part.scope_metrics.append(part.scope_metrics[0])
    return request


def _spans(t: int) -> ExportTraceServiceRequest:
    request = ExportTraceServiceRequest()
    resource_spans = request.resource_spans.add()
    resource_spans.resource.attributes.extend(key_values(_worker("fuzz", "trainer", 0)))
    spans = resource_spans.scope_spans.add().spans
    for i in range(3):
        span = spans.add(
            name="rl.train",
            trace_id=b"\1" * 16,
            span_id=(i + 1).to_bytes(8),
            parent_span_id=i.to_bytes(8) if i else b"",
            start_time_unix_nano=t - S,
            end_time_unix_nano=t,
        )
        span.attributes.extend(key_values({"rl.loop.iteration": i}))
        span.events.add(name="exception", time_unix_nano=t)
        span.links.add(trace_id=b"\2" * 16, span_id=b"\2" * 8)
        span.status.message = "fine"
    return request


def _step_of_two_processes(t: int) -> ExportTraceServiceRequest:
    """A step with its phases, and the sample that it waited for, linked to it."""
    request = ExportTraceServiceRequest()
    step = t // S % 1_000_000
    ids = [(t + n).to_bytes(8) for n in range(5)]
    for role, index in (("trainer", 0), ("generator", 1)):
        part = request.resource_spans.add()
        part.resource.attributes.extend(key_values(_worker("fuzz", role, index)))
        part.scope_spans.add()
    trainer, generator = (part.scope_spans[0].spans for part in request.resource_spans)
    loop = trainer.add(name="rl.loop", trace_id=b"\4" * 16, span_id=ids[0])
    loop.start_time_unix_nano, loop.end_time_unix_nano = t - S, t
    loop.attributes.extend(key_values({"rl.loop.iteration": step}))
    for n, (phase, kind) in enumerate((("collector_wait", "wait"), ("train", "compute")), 1):
        span = trainer.add(name=phase, trace_id=b"\4" * 16, span_id=ids[n], parent_span_id=ids[0])
        span.start_time_unix_nano, span.end_time_unix_nano = t - S // n, t - S // (n + 1)
        span.attributes.extend(key_values({"rl.phase": phase, "rl.phase.class": kind}))
    trainer[1].links.add(trace_id=b"\5" * 16, span_id=ids[3])
    sample = generator.add(name="rl.sample", trace_id=b"\5" * 16, span_id=ids[3])
    sample.start_time_unix_nano, sample.end_time_unix_nano = t - 2 * S, t - S // 2
    sample.status.code = Status.STATUS_CODE_ERROR
    return request


def _events(t: int) -> ExportLogsServiceRequest:
    """A worker of otel_rl: what is said of the run, samples, the end of both."""
    request = ExportLogsServiceRequest()
    part = request.resource_logs.add()
    part.resource.attributes.extend(key_values(_worker("fuzz", "generator", 0)))
    scope_logs = part.scope_logs.add()
    scope_logs.scope.name = "otel_rl"
    for n, record in enumerate([*every_event(), *every_event()]):
        record.time_unix_nano = t + n
        kept = [attribute for attribute in record.attributes if attribute.key != "log.record.uid"]
        del record.attributes[:]
        record.attributes.extend([*kept, *key_values({"log.record.uid": f"generator-0/{n}"})])
        scope_logs.log_records.append(record)
    return request


def _logs_of_a_site(t: int) -> ExportLogsServiceRequest:
    """What a collector joins: records of any program, and an event by an SDK's attribute."""
    request = ExportLogsServiceRequest()
    for resource in (_worker("other", "trainer", 1), {"service.name": "nginx"}):
        part = request.resource_logs.add()
        part.resource.attributes.extend(key_values(resource))
        records = part.scope_logs.add().log_records
        plain = records.add(time_unix_nano=t, severity_number=9, severity_text="INFO")
        plain.body.string_value = "GET / 200"
        plain.trace_id, plain.span_id = b"\3" * 16, b"\3" * 8
        structured = records.add(observed_time_unix_nano=t)
        structured.body.CopyFrom(any_value({"level": "info", "nested": {"a": [1, 2.5, None]}}))
        structured.body.kvlist_value.values.add(key="raw").value.bytes_value = b"\0\xff"
    said: Attributes = {"event.name": "rl.experiment.end", "rl.experiment.status": "aborted"}
    request.resource_logs[0].scope_logs[0].log_records.add(
        time_unix_nano=t, attributes=key_values(said)
    )
    return request
