"""The exporters of OpenTelemetry for Python against a receiver that fails at random.

Every item is delivered, or accounted as dropped by its exporter; none is both, none is neither.
"""

import itertools
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from importlib.metadata import entry_points
from random import Random
from typing import Protocol, cast

import pytest
from opentelemetry.exporter.otlp.proto.grpc.metric_exporter import (
    OTLPMetricExporter as GrpcMetricExporter,
)
from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import (
    OTLPSpanExporter as GrpcSpanExporter,
)
from opentelemetry.exporter.otlp.proto.http.metric_exporter import (
    OTLPMetricExporter as HttpMetricExporter,
)
from opentelemetry.exporter.otlp.proto.http.trace_exporter import (
    OTLPSpanExporter as HttpSpanExporter,
)
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import (
    ExportMetricsServiceRequest,
)
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader, MetricExportResult
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SpanExportResult

from otel_rl.errors import JournalClosed, JournalFull, MalformedRequest, RequestTooLarge
from otel_rl.records import Batch, Signal
from tests.support.otlp_requests import Receiver, grpc_receiver, http_receiver
from tests.support.slow import slow_after

RESOURCE = Resource({"rl.experiment.name": "x"})
PROTOCOLS = ["http", "grpc"]

RETRYABLE = (JournalFull("full"), JournalClosed("stopping"), RuntimeError("a bug"), OSError(5, "x"))
PERMANENT = (MalformedRequest("bad"), RequestTooLarge("large"))

Send = Callable[[int], bool]
"""Exports an item, and says whether the exporter has delivered it."""


class RandomFailures:
    """Fails four times in ten, before anything is stored."""

    def __init__(self, seed: int) -> None:
        # _lock guards _random.
        self._lock = threading.Lock()
        self._random = Random(seed)

    def __call__(self) -> None:
        with self._lock:
            choice = self._random.random()
            error = self._random.choice(PERMANENT if choice < 0.15 else RETRYABLE)
        if choice < 0.4:
            raise error


def receiver_of(protocol: str):  # type: ignore[no-untyped-def]  # one of two context managers
    return http_receiver() if protocol == "http" else grpc_receiver()


def sends_metrics(receiver: Receiver, protocol: str) -> Send:
    exporter = (
        HttpMetricExporter(endpoint=f"{receiver.url}/v1/metrics")
        if protocol == "http"
        else GrpcMetricExporter(endpoint=receiver.url, insecure=True)
    )

    def send(item: int) -> bool:
        reader = InMemoryMetricReader()
        provider = MeterProvider([reader], resource=RESOURCE)
        provider.get_meter("test").create_counter(f"item.{item}").add(1)
        data = reader.get_metrics_data()
        provider.shutdown()
        assert data is not None
        return exporter.export(data) is MetricExportResult.SUCCESS

    return send


def sends_spans(receiver: Receiver, protocol: str) -> Send:
    exporter = (
        HttpSpanExporter(endpoint=f"{receiver.url}/v1/traces")
        if protocol == "http"
        else GrpcSpanExporter(endpoint=receiver.url, insecure=True)
    )
    tracer = TracerProvider(resource=RESOURCE, shutdown_on_exit=False).get_tracer("test")

    def send(item: int) -> bool:
        span = tracer.start_span(f"item.{item}")
        span.end()
        assert isinstance(span, ReadableSpan)
        return exporter.export([span]) is SpanExportResult.SUCCESS

    return send


class LogsExporter(Protocol):
    """What an exporter of logs of the SDK does."""

    def export(self, batch: Sequence[object]) -> object: ...


class Keeper:
    """A processor that keeps the records of a logger."""

    def __init__(self) -> None:
        self.records: list[object] = []

    def on_emit(self, log_record: object) -> None:
        self.records.append(log_record)

    def shutdown(self) -> None:
        """There is nothing to end."""


def plugged_in(kind: str, name: str) -> Callable[..., object]:
    """What the SDK's own configuration would load: its modules for logs are not public yet."""
    (found,) = entry_points(group=f"opentelemetry_{kind}", name=name)
    return cast("Callable[..., object]", found.load())


def sends_logs(receiver: Receiver, protocol: str) -> Send:
    exporter = cast(
        "LogsExporter",
        plugged_in("logs_exporter", "otlp_proto_http")(endpoint=f"{receiver.url}/v1/logs")
        if protocol == "http"
        else plugged_in("logs_exporter", "otlp_proto_grpc")(endpoint=receiver.url, insecure=True),
    )
    provider = plugged_in("logger_provider", "sdk_logger_provider")(
        resource=RESOURCE, shutdown_on_exit=False
    )
    keeper = Keeper()
    provider.add_log_record_processor(keeper)  # type: ignore[attr-defined]  # see plugged_in
    logger = provider.get_logger("test")  # type: ignore[attr-defined]

    def send(item: int) -> bool:
        keeper.records.clear()
        said = {"rl.worker.status": "complete", "log.record.uid": f"item.{item}"}
        logger.emit(timestamp=time.time_ns(), event_name="rl.worker.end", attributes=said)
        return str(exporter.export(list(keeper.records))).endswith("SUCCESS")

    return send


def items_of(batches: Sequence[Batch]) -> list[int]:
    names: list[str] = []
    for batch in batches:
        if batch.signal is Signal.METRICS:
            metrics = ExportMetricsServiceRequest.FromString(batch.payload)
            names += [
                metric.name
                for resource in metrics.resource_metrics
                for scope in resource.scope_metrics
                for metric in scope.metrics
            ]
        elif batch.signal is Signal.LOGS:
            logs = ExportLogsServiceRequest.FromString(batch.payload)
            names += [
                attribute.value.string_value
                for resource in logs.resource_logs
                for scope in resource.scope_logs
                for record in scope.log_records
                for attribute in record.attributes
                if attribute.key == "log.record.uid"
            ]
        else:
            traces = ExportTraceServiceRequest.FromString(batch.payload)
            names += [
                span.name
                for resource in traces.resource_spans
                for scope in resource.scope_spans
                for span in scope.spans
            ]
    return sorted(int(name.removeprefix("item.")) for name in names)


def export_all(make: Callable[[], Send], items: int, threads: int) -> dict[int, bool]:
    """Each thread has an exporter of its own and sends its share, one item after another."""

    def share(first: int) -> list[tuple[int, bool]]:
        send = make()
        return [(item, send(item)) for item in range(first, items, threads)]

    with ThreadPoolExecutor(threads) as pool:
        return dict(pair for pairs in pool.map(share, range(threads)) for pair in pairs)


@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.parametrize("sends", slow_after(1, [sends_metrics, sends_spans, sends_logs]))
def test_40_every_item_is_delivered_or_accounted_as_dropped(
    protocol: str, sends: Callable[[Receiver, str], Send]
) -> None:
    items = 24
    with receiver_of(protocol) as receiver:
        receiver.journal.before = RandomFailures(seed=40)
        told = export_all(lambda: sends(receiver, protocol), items, threads=items)
        stored = items_of(receiver.journal.batches)
    assert sorted(told) == list(range(items))
    assert stored == sorted(item for item, is_delivered in told.items() if is_delivered)
    assert 0 < len(stored) < items, "the failures must be of both kinds"


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_41_a_storm_of_503_loses_nothing_of_exporters_that_wait_as_they_are_told(
    protocol: str,
) -> None:
    attempts = itertools.count()

    def storm() -> None:
        if next(attempts) < 20:  # two of each exporter, if they are as fast as each other
            raise JournalFull("full")

    with receiver_of(protocol) as receiver:
        receiver.journal.before = storm
        told = export_all(lambda: sends_metrics(receiver, protocol), items=10, threads=10)
        assert all(told.values())
        assert items_of(receiver.journal.batches) == list(range(10))
        assert receiver.counts()["requests", "no_room"] == 20


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_41_a_batch_that_is_refused_does_not_hold_up_the_next(protocol: str) -> None:
    with receiver_of(protocol) as receiver:
        send = sends_metrics(receiver, protocol)
        assert send(0)
        receiver.journal.error = MalformedRequest("poison")
        assert not send(1)
        receiver.journal.error = None
        assert send(2)
        assert items_of(receiver.journal.batches) == [0, 2]
