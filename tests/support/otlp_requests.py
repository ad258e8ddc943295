"""OTLP requests and a bridge's receiving end, for tests."""

import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from threading import Lock

from google.protobuf.message import Message
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import (
    ExportMetricsServiceRequest,
)
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.common.v1.common_pb2 import AnyValue, KeyValue
from opentelemetry.proto.logs.v1.logs_pb2 import LogRecord
from opentelemetry.proto.metrics.v1.metrics_pb2 import (
    AGGREGATION_TEMPORALITY_CUMULATIVE,
    AGGREGATION_TEMPORALITY_DELTA,
    Metric,
    NumberDataPoint,
)

from otel_rl.bridge.counters import Counters
from otel_rl.bridge.receive.audit import Audit
from otel_rl.bridge.receive.grpc import GrpcServer
from otel_rl.bridge.receive.limits import ReceiveLimits
from otel_rl.bridge.receive.pipeline import IngestPipeline, Storage
from otel_rl.bridge.receive.server import HttpServer
from otel_rl.bridge.receive.tls import Tls, TlsSettings, load_tls
from otel_rl.bridge.receive.tokens import TeamSettings, Tokens
from otel_rl.records import Batch, Signal, Value

Attributes = Mapping[str, Value]


def backwards(message: Message) -> bytes:
    """Serialize with the fields from the last to the first, as the Collector does."""
    written = bytearray()
    for descriptor, value in reversed(message.ListFields()):
        if descriptor.message_type is None:
            one = type(message)()
            if descriptor.is_repeated:
                getattr(one, descriptor.name).extend(value)
            else:
                setattr(one, descriptor.name, value)
            written += one.SerializeToString()
            continue
        for inner in value if descriptor.is_repeated else [value]:
            content = backwards(inner)
            written += _varint(descriptor.number << 3 | 2) + _varint(len(content)) + content
    return bytes(written)


def _varint(value: int) -> bytes:
    encoded = bytearray()
    while value >= 0x80:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*encoded, value])


def any_value(value: Value) -> AnyValue:
    match value:
        case None:
            return AnyValue()
        case bool():
            return AnyValue(bool_value=value)
        case int():
            return AnyValue(int_value=value)
        case float():
            return AnyValue(double_value=value)
        case str():
            return AnyValue(string_value=value)
        case Mapping():
            nested = AnyValue()
            nested.kvlist_value.SetInParent()  # an empty map is a map
            nested.kvlist_value.values.extend(key_values(value))
            return nested
        case _:
            array = AnyValue()
            array.array_value.SetInParent()
            array.array_value.values.extend(map(any_value, value))
            return array


def key_values(attributes: Attributes) -> list[KeyValue]:
    return [KeyValue(key=key, value=any_value(value)) for key, value in attributes.items()]


def delimited(tag: int, payload: bytes) -> bytes:
    """A field of protobuf that has a length."""
    length, n = b"", len(payload)
    while n > 0x7F:
        length += bytes([n & 0x7F | 0x80])
        n >>= 7
    return bytes([tag]) + length + bytes([n]) + payload


def metrics_request(
    *metrics: Metric, resource: Attributes | None = None
) -> ExportMetricsServiceRequest:
    """One resource, by default of experiment "x", with these metrics or with one sound gauge."""
    request = ExportMetricsServiceRequest()
    resource_metrics = request.resource_metrics.add()
    named: Attributes = {"rl.experiment.name": "x"} if resource is None else resource
    resource_metrics.resource.attributes.extend(key_values(named))
    resource_metrics.scope_metrics.add().metrics.extend(metrics or [gauge()])
    return request


def gauge(*points: NumberDataPoint, name: str = "loss") -> Metric:
    metric = Metric(name=name)
    metric.gauge.data_points.extend(points or [point()])
    return metric


def point(value: float = 1.0, time_ns: int | None = None) -> NumberDataPoint:
    return NumberDataPoint(
        as_double=value, time_unix_nano=time.time_ns() if time_ns is None else time_ns
    )


def request_of_every_type() -> ExportMetricsServiceRequest:
    """Each type of metric, each temporality, and a metric without data."""
    now_ns = time.time_ns()
    integer = gauge(name="integer")
    integer.gauge.data_points[0].as_int = -(2**63)
    delta = Metric(name="delta")
    delta.sum.data_points.add(as_double=1, time_unix_nano=now_ns)
    delta.sum.aggregation_temporality = AGGREGATION_TEMPORALITY_DELTA
    total = Metric(name="total")
    total.sum.data_points.add(as_int=1, start_time_unix_nano=1, time_unix_nano=now_ns)
    total.sum.aggregation_temporality = AGGREGATION_TEMPORALITY_CUMULATIVE
    total.sum.is_monotonic = True
    full = Metric(name="full")
    full.histogram.data_points.add(
        count=3, sum=6, min=1, max=3, bucket_counts=[1, 2], explicit_bounds=[1.5]
    )
    bare = Metric(name="bare")
    bare.histogram.data_points.add(count=3)
    exponential = Metric(name="exponential")
    scaled = exponential.exponential_histogram.data_points.add(
        count=4, scale=3, zero_count=1, zero_threshold=1e-9, time_unix_nano=now_ns
    )
    scaled.positive.offset = -4
    scaled.positive.bucket_counts.extend([1, 0, 1])
    scaled.negative.bucket_counts.extend([1])
    summary = Metric(name="summary")
    summary.summary.data_points.add(count=1, sum=1).quantile_values.add(quantile=0.5, value=1)
    no_data = Metric(name="no_data")
    return metrics_request(integer, delta, total, full, bare, exponential, summary, no_data)


def request_of_odd_points() -> ExportMetricsServiceRequest:
    """Points without a value, without a time, without a finite value; exemplars."""
    now_ns = time.time_ns()
    no_value = point(0.0, now_ns)
    no_value.flags = 1
    timeless = point(math.nan, 0)
    exact = point(math.inf, now_ns)
    exact.start_time_unix_nano = 1
    exemplar = exact.exemplars.add(
        as_double=math.nan, time_unix_nano=now_ns, trace_id=b"t" * 16, span_id=b"s" * 8
    )
    exemplar.filtered_attributes.extend(key_values({"rl.loop.iteration": 3}))
    exact.exemplars.add(as_int=3)
    return metrics_request(gauge(no_value, timeless, exact))


def trace_request(
    n_spans: int = 1, resource: Attributes | None = None
) -> ExportTraceServiceRequest:
    request = ExportTraceServiceRequest()
    resource_spans = request.resource_spans.add()
    named: Attributes = {"rl.experiment.name": "x"} if resource is None else resource
    resource_spans.resource.attributes.extend(key_values(named))
    spans = resource_spans.scope_spans.add().spans
    for i in range(n_spans):
        now_ns = time.time_ns()
        spans.add(
            name="rl.train",
            trace_id=b"\1" * 16,
            span_id=(i + 1).to_bytes(8),
            start_time_unix_nano=now_ns - 1000,
            end_time_unix_nano=now_ns,
        )
    return request


def event(
    name: str = "rl.worker.end",
    attributes: Attributes | None = None,
    body: Value = None,
    *,
    time_ns: int | None = None,
) -> LogRecord:
    """A log event, by default of a worker that ends well."""
    said: Attributes = {"rl.worker.status": "complete"} if attributes is None else attributes
    record = LogRecord(
        event_name=name,
        time_unix_nano=time.time_ns() if time_ns is None else time_ns,
        attributes=key_values(said),
    )
    if body is not None:
        record.body.CopyFrom(any_value(body))
    return record


def logs_request(
    *records: LogRecord, resource: Attributes | None = None
) -> ExportLogsServiceRequest:
    """One resource, by default of experiment "x", with these records or with one event."""
    request = ExportLogsServiceRequest()
    resource_logs = request.resource_logs.add()
    named: Attributes = {"rl.experiment.name": "x"} if resource is None else resource
    resource_logs.resource.attributes.extend(key_values(named))
    resource_logs.scope_logs.add().log_records.extend(records or [event()])
    return request


def every_event() -> list[LogRecord]:
    """Each of the events, with everything that it can say."""
    return [
        event(
            "rl.experiment.start",
            {
                "rl.experiment.config": {
                    "lr": 3e-5,
                    "model": {"name": "qwen", "layers": 28, "tied": True},
                    "betas": [0.9, 0.999],
                    "seed": None,
                },
                "rl.experiment.notes": "a first try\nof two lines",
                "rl.experiment.tags": ["grpo", "math"],
                "rl.experiment.group": "ablation",
                "rl.experiment.job_type": "train",
                "log.record.uid": "i/1",
            },
        ),
        event(
            "rl.rollout.sample",
            {"rl.loop.iteration": 7, "rl.sample.table": "eval", "log.record.uid": "i/2"},
            {"prompt": "1 + 1 =\n", "completion": " 2", "reward": 1.0, "n": 3, "is_ok": True},
        ),
        event(
            "rl.rollout.progress",
            {"rl.loop.iteration": 7, "log.record.uid": "i/3"},
            {"id": "17", "attempt": 1, "stage": "generate", "begun_ns": 10**18, "progress_ns": 1},
        ),
        event("rl.experiment.end", {"rl.experiment.status": "complete"}),
        event(
            "rl.worker.stack",
            {"rl.loop.iteration": 7, "log.record.uid": "i/4"},
            {"phase": "train", "age_s": 12.5, "host": "h", "pid": 42, "stack": "a.py:1 in f"},
        ),
        event(
            "rl.worker.error",
            {"error.type": "ValueError", "exception.message": "no", "rl.loop.iteration": 7},
        ),
        event("rl.worker.end", {"rl.worker.status": "failed", "error.type": "ValueError"}),
        event(
            "rl.worker.start",
            {
                "process.command_args": ["train.py", "--lr", "1e-6"],
                "process.executable.path": "/usr/bin/python3",
                "process.runtime.version": "3.12.1",
                "os.description": "Linux-6.1",
                "vcs.ref.head.revision": "0f4c0de",
                "vcs.repository.url.full": "https://example.org/grpo.git",
                "rl.worker.diff": "diff --git a/train.py b/train.py\n",
                "rl.worker.packages": ["numpy==2.1.0", "torch==2.9.1"],
                "log.record.uid": "i/3",
            },
        ),
        event(
            "rl.worker.console",
            {"log.iostream": "stderr", "log.record.uid": "i/4"},
            "step 1\nWARNING: slow\n",
        ),
    ]


class Journal:
    """Stands for the durable part of the bridge: keeps batches, and can be told to fail."""

    def __init__(self) -> None:
        self.error: Exception | None = None
        self.before: Callable[[], object] = bool
        # _lock guards _batches.
        self._lock = Lock()
        self._batches: list[Batch] = []
        self._threads = ThreadPoolExecutor(64)

    def __call__(self, batches: Sequence[Batch]) -> Future[None]:
        return self._threads.submit(self._keep, batches)

    def close(self) -> None:
        self._threads.shutdown()

    def _keep(self, batches: Sequence[Batch]) -> None:
        self.before()
        if self.error is not None:
            raise self.error
        with self._lock:
            self._batches.extend(batches)

    @property
    def batches(self) -> list[Batch]:
        with self._lock:
            return list(self._batches)

    def take(self) -> list[Batch]:
        """The batches so far; the next call gives only later ones."""
        with self._lock:
            taken, self._batches = self._batches, []
        return taken

    def metrics(self) -> list[ExportMetricsServiceRequest]:
        """The metrics requests taken since the last call."""
        return [
            ExportMetricsServiceRequest.FromString(batch.payload)
            for batch in self.take()
            if batch.signal is Signal.METRICS
        ]


class Receiver:
    """An HTTP or gRPC server with its journal and counters."""

    def __init__(self, server: HttpServer | GrpcServer, journal: Journal, counters: Counters):
        self.server = server
        self.journal = journal
        self.counters = counters

    @property
    def url(self) -> str:
        return f"http://{self.server.address}"

    def counts(self) -> dict[tuple[str, str], int]:
        """All counts that are not 0, without the common prefix of their names."""
        return {
            (name.removeprefix("otel_rl.bridge."), reason): n
            for (name, reason), n in self.counters.snapshot().items()
            if n
        }


def intake(
    journal: Journal,
    counters: Counters,
    limits: ReceiveLimits | None = None,
    auth: Sequence[TeamSettings] = (),
    audit: Audit | None = None,
) -> IngestPipeline:
    return IngestPipeline(
        Storage(journal),
        limits or ReceiveLimits(),
        counters,
        tokens=Tokens(auth),
        audit=audit,
    )


def _loaded(tls: TlsSettings | Tls | None) -> Tls | None:
    return tls if isinstance(tls, Tls) else load_tls(tls or TlsSettings())


@contextmanager
def http_receiver(
    limits: ReceiveLimits | None = None,
    *,
    auth: Sequence[TeamSettings] = (),
    audit: Audit | None = None,
    tls: TlsSettings | Tls | None = None,
    before: Callable[[Receiver], object] = lambda _: None,
) -> Iterator[Receiver]:
    """Serve HTTP inside the context.

    Args:
        before: Is called while the port listens and nothing is served. What it sends is read before
            any timeout of its connection is over.
    """
    journal, counters = Journal(), Counters()
    door = intake(journal, counters, limits, auth, audit)
    server = HttpServer(door, port=0, tls=_loaded(tls))
    receiver = Receiver(server, journal, counters)
    try:
        before(receiver)
        server.start()
        yield receiver
    finally:
        server.stop()
        door.close()
        journal.close()


@contextmanager
def grpc_receiver(
    limits: ReceiveLimits | None = None,
    *,
    auth: Sequence[TeamSettings] = (),
    audit: Audit | None = None,
    tls: TlsSettings | Tls | None = None,
) -> Iterator[Receiver]:
    journal, counters = Journal(), Counters()
    door = intake(journal, counters, limits, auth, audit)
    with GrpcServer(door, port=0, tls=_loaded(tls)) as server:
        yield Receiver(server, journal, counters)
    door.close()
    journal.close()
