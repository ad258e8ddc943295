"""A receiving end for tests: OTLP/HTTP on a loopback port, parsing what it gets."""

import gzip
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Condition, Thread

from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import (
    ExportMetricsServiceRequest,
)
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.common.v1.common_pb2 import AnyValue, KeyValue

from otel_rl.semconv.names import LOG_RECORD_UID

Answer = tuple[int, dict[str, str], bytes]
OK: Answer = (200, {}, b"")


@dataclass(frozen=True)
class Measurement:
    """One measurement of a gauge as a bridge would read it."""

    name: str
    value: float
    step: int | None
    attributes: dict[str, object]
    resource: dict[str, object]
    scope: dict[str, object]
    time_ns: int
    trace_id: str
    span_id: str


@dataclass(frozen=True)
class Event:
    """One event as a bridge would read it."""

    name: str
    attributes: dict[str, object]
    body: object
    resource: dict[str, object]
    time_ns: int


@dataclass
class Sink:
    """What arrived, in order. ``answer`` decides each reply and may block.

    Requests of log events are answered by ``answer_events`` and not counted in ``requests``: their
    number is nothing that a test of measurements depends on.

    A sender whose answer comes too late, on a busy machine, sends a request again. ``measurements``
    and ``events`` know what comes again, as a bridge does; ``metrics`` and ``logs`` have it, too.
    """

    answer: Callable[[int], Answer] = lambda _number: OK
    answer_events: Callable[[int], Answer] = lambda _number: OK
    metrics: list[ExportMetricsServiceRequest] = field(default_factory=list)
    traces: list[ExportTraceServiceRequest] = field(default_factory=list)
    logs: list[ExportLogsServiceRequest] = field(default_factory=list)
    order: list[str] = field(default_factory=list)
    """The path of each request that was taken."""
    headers: list[dict[str, str]] = field(default_factory=list)
    sizes: list[int] = field(default_factory=list)
    ports: list[int] = field(default_factory=list)
    """The sender's port of each request: one port is one connection."""
    trace_ports: list[int] = field(default_factory=list)
    """Those of trace requests that were taken."""
    requests: int = 0
    event_requests: int = 0
    url: str = ""
    _taken: set[bytes] = field(default_factory=set)
    """Requests of metrics that were taken."""
    _repeats: list[ExportMetricsServiceRequest] = field(default_factory=list)
    """Those of ``metrics`` that are equal to an earlier one."""
    _changed: Condition = field(default_factory=Condition)

    def receive(self, path: str, headers: dict[str, str], body: bytes, port: int) -> Answer:
        is_events = path == "/v1/logs"
        with self._changed:
            number = self.event_requests if is_events else self.requests
            self.event_requests += is_events
            self.requests += not is_events
            self.ports.append(port)
            self._changed.notify_all()
        status, reply_headers, reply = (self.answer_events if is_events else self.answer)(number)
        with self._changed:
            if status == 200:
                payload = gzip.decompress(body) if headers.get("content-encoding") else body
                self.order.append(path)
                if is_events:
                    self.logs.append(ExportLogsServiceRequest.FromString(payload))
                    self._changed.notify_all()
                    return status, reply_headers, reply
                self.headers.append(headers)
                if path == "/v1/metrics":
                    self.metrics.append(ExportMetricsServiceRequest.FromString(payload))
                    if payload in self._taken:
                        self._repeats.append(self.metrics[-1])
                    self._taken.add(payload)
                    self.sizes.append(len(payload))
                else:
                    self.trace_ports.append(port)
                    self.traces.append(ExportTraceServiceRequest.FromString(payload))
            self._changed.notify_all()
        return status, reply_headers, reply

    def wait(self, condition: Callable[["Sink"], bool], timeout_s: float = 90.0) -> None:
        with self._changed:
            if not self._changed.wait_for(lambda: condition(self), timeout_s):
                raise AssertionError(f"not reached in {timeout_s} s; got {self.metrics}")

    def measurements(self, name: str | None = None) -> list[Measurement]:
        with self._changed:
            requests = [r for r in self.metrics if not any(r is one for one in self._repeats)]
            return [m for m in measurements(requests) if name in (None, m.name)]

    def events(self, name: str | None = None) -> list[Event]:
        with self._changed:
            found = [event for event in events(self.logs) if name in (None, event.name)]
        once: dict[object, Event] = {}
        for number, event in enumerate(found):
            once.setdefault(event.attributes.get(LOG_RECORD_UID, number), event)
        return [*once.values()]

    def resources(self) -> list[dict[str, object]]:
        with self._changed:
            return [
                pairs(resource.resource.attributes)
                for request in self.metrics
                for resource in request.resource_metrics
            ]


def events(requests: list[ExportLogsServiceRequest]) -> Iterator[Event]:
    for request in requests:
        for resource in request.resource_logs:
            for scope in resource.scope_logs:
                for record in scope.log_records:
                    yield Event(
                        record.event_name,
                        pairs(record.attributes),
                        plain(record.body),
                        pairs(resource.resource.attributes),
                        record.time_unix_nano,
                    )


def measurements(requests: list[ExportMetricsServiceRequest]) -> Iterator[Measurement]:
    for request in requests:
        for resource in request.resource_metrics:
            for scope in resource.scope_metrics:
                for metric in scope.metrics:
                    for point in metric.gauge.data_points:
                        for exemplar in point.exemplars:
                            filtered = pairs(exemplar.filtered_attributes)
                            step = filtered.get("rl.loop.iteration")
                            yield Measurement(
                                metric.name,
                                getattr(exemplar, exemplar.WhichOneof("value") or "as_int"),
                                step if isinstance(step, int) else None,
                                pairs(point.attributes),
                                pairs(resource.resource.attributes),
                                pairs(scope.scope.attributes),
                                exemplar.time_unix_nano,
                                exemplar.trace_id.hex(),
                                exemplar.span_id.hex(),
                            )


def sums(requests: list[ExportMetricsServiceRequest], name: str) -> dict[tuple[object, ...], float]:
    """Last total of each series of a counter, by instance id and attribute values."""
    found: dict[tuple[object, ...], float] = {}
    for request in requests:
        for resource in request.resource_metrics:
            instance = pairs(resource.resource.attributes)["service.instance.id"]
            for scope in resource.scope_metrics:
                for metric in scope.metrics:
                    if metric.name == name:
                        for point in metric.sum.data_points:
                            key = (instance, *pairs(point.attributes).values())
                            found[key] = getattr(point, point.WhichOneof("value") or "as_int")
    return found


def pairs(attributes: Iterable[KeyValue]) -> dict[str, object]:
    return {pair.key: plain(pair.value) for pair in attributes}


def plain(value: AnyValue) -> object:
    kind = value.WhichOneof("value")
    if kind is None:
        return None
    if kind == "array_value":
        return [plain(item) for item in value.array_value.values]
    if kind == "kvlist_value":
        return pairs(value.kvlist_value.values)
    found: object = getattr(value, kind)
    return found


@contextmanager
def serve(sink: Sink) -> Iterator[Sink]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            headers = {key.lower(): value for key, value in self.headers.items()}
            status, reply_headers, reply = sink.receive(
                self.path, headers, body, self.client_address[1]
            )
            try:
                self.send_response(status)
                for key, value in reply_headers.items():
                    self.send_header(key, value)
                self.send_header("Content-Length", str(len(reply)))
                self.end_headers()
                self.wfile.write(reply)
            except OSError:
                self.close_connection = True  # the sender gave up; that is its right

        def log_message(self, *_arguments: object) -> None:
            return

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    sink.url = f"http://127.0.0.1:{server.server_address[1]}"
    thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    try:
        yield sink
    finally:
        server.shutdown()
        server.server_close()
        thread.join(60)
