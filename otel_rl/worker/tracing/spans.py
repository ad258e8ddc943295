"""A worker's spans: the SDK's provider, batches on their way to the store, and losses.

    end() -> held, if a device has yet to reach the end -> BatchSpanProcessor -> requests -> store

The SDK's processor drops spans without telling how many, so the number of lost spans is the number
of ended spans minus the number that came out.
"""

import os
from collections import deque
from collections.abc import Iterator, Sequence
from inspect import signature
from threading import Lock
from typing import Any, Final, NamedTuple, Protocol

from opentelemetry.exporter.otlp.proto.common import trace_encoder
from opentelemetry.metrics import NoOpMeterProvider
from opentelemetry.proto.trace.v1.trace_pb2 import ScopeSpans
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan, SpanProcessor, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult
from opentelemetry.sdk.trace.sampling import Sampler

from otel_rl.signals import Signal
from otel_rl.worker.drops import DropReason, Drops
from otel_rl.worker.forks import Uncut
from otel_rl.worker.guard import Guard
from otel_rl.worker.otlp.requests import (
    MAX_REQUEST_BYTES,
    Request,
    RequestPacker,
    encode_resource,
)
from otel_rl.worker.phases.device_clock import SpanTimes
from otel_rl.worker.step_context import StepOnSpans

_BATCH: Final = 512
"""Spans of a batch, which is encoded as soon as it is full. The SDK's default."""


class SpanSink(Protocol):
    """What takes the requests with spans, and sends them."""

    def put(self, request: Request) -> None:
        """Take a request. Any thread may call it."""
        ...

    def flush_spans(self, timeout_s: float) -> bool:
        """Send the ended spans. Returns whether that finished in time."""
        ...


class _OnDevice(NamedTuple):
    """A span with the program's times, and those of the device, which may still be busy."""

    span: ReadableSpan
    times: SpanTimes


class CountedSpans(SpanProcessor):
    """Counts and sends spans. Any thread may end a span, without a lock of otel_rl; one collects.

    Each of at most ``capacity`` spans takes about 3 KB until it is encoded.
    """

    def __init__(self, resource: Resource, capacity: int, interval_s: float) -> None:
        self.bind(resource)
        self._capacity = capacity
        self._interval_s = interval_s
        self.guard = Guard(Drops())
        """Counts lost spans, apart from the measurements."""
        self.sink: SpanSink | None = None
        """Where spans go; None before the first session and after the last."""
        self.are_wanted = False
        """True if a span that ends without a sink counts as lost."""
        self.is_over = False
        """True at the end of the process, whose session has had its time for the rest."""
        self.device_times: dict[int, SpanTimes] = {}
        """Times on a device, by span id, of spans that are about to end."""
        self.unready_since_ns: int | None = None
        """End of the oldest span that a device has yet to reach the end of, in ns since the Unix
        epoch; None for none."""
        self._uncut = Uncut()
        self._batches: BatchSpanProcessor | None = None
        self._follows_forks = False
        self._forget()

    def bind(self, resource: Resource) -> None:
        """Send spans with this resource from now on; the SDK's provider has its first one."""
        self._resource = encode_resource(resource)

    def _forget(self) -> None:
        """Start from zero in a forked child: the parent sends its spans."""
        self._pid = os.getpid()
        self.unready_since_ns = None
        self._on_device: deque[_OnDevice] = deque()
        # One entry for each span that the SDK's processor got, until it is counted.
        self._given: deque[None] = deque()
        # _counting guards the two below.
        self._counting = Lock()
        self._ended = self._lost = 0
        self._exported = 0  # written under a lock of the SDK's processor
        self.guard.forget()

    def open(self, sink: SpanSink) -> None:
        if (lost := self._settled()) > 0:
            self._came_too_late(lost)
        if self._batches is None:
            self._batches = BatchSpanProcessor(
                _Exporter(self),
                max_queue_size=self._capacity,
                schedule_delay_millis=self._interval_s * 1e3,
                max_export_batch_size=min(_BATCH, self._capacity),
                **_without_metrics(BatchSpanProcessor),
            )
        if not self._follows_forks:
            self._follows_forks = True
            os.register_at_fork(after_in_child=self._forget)
        self.sink = sink
        self.are_wanted = True

    def close(self, sink: SpanSink) -> None:
        """Take no more spans for ``sink``, unless it has been replaced by now.

        The thread of the SDK's processor ends: it would keep alive a child that a thread has
        forked.
        """
        if self.sink is not sink:
            return
        self.sink = None
        batches, self._batches = self._batches, None
        if batches is not None:
            batches.shutdown()  # type: ignore[no-untyped-call]  # of the SDK

    def on_end(self, span: ReadableSpan) -> None:
        if not span.context.trace_flags.sampled:
            return
        if self.sink is None:
            if self.are_wanted:
                self._came_too_late(1)
            return
        times = self.device_times.pop(span.context.span_id, None)
        if times is None:
            self._give(span)
        elif len(self._on_device) < self._capacity:
            self._on_device.append(_OnDevice(span, times))
        else:
            self._overflowed(1)

    def force_flush(self, timeout_millis: int = 30_000) -> bool:
        sink = self.sink
        return sink is None or sink.flush_spans(timeout_millis / 1000)

    def shutdown(self) -> None:
        """Flush for a program that shuts down its tracing; see ``SpanProcessor``."""
        if not self.is_over:
            self.force_flush()
            self.sink = None

    def collect(self) -> None:
        """Give the sink every ended span that is ready, and count lost spans."""
        if self._batches is None or self._pid != os.getpid():  # a child that is about to forget
            return
        waiting = [self._on_device.popleft() for _ in range(len(self._on_device))]
        unready = [held for held in waiting if not held.times.is_ready]
        for span, times in waiting:
            if times.is_ready:
                self._give(_at(span, times.in_wall_ns()))
        self.unready_since_ns = unready[0].span.end_time if unready else None
        self._on_device.extendleft(reversed(unready))
        lost = self._settled()
        if lost:
            self._overflowed(lost)

    def abandon(self) -> int:
        """Discard the spans that have not come out yet. Returns the number of these spans."""
        held = len(self._on_device)
        self._on_device.clear()
        return held + self._settled(discards=True)

    def export(self, spans: Sequence[ReadableSpan]) -> None:
        """Take a batch of the SDK's processor, which calls this from one thread at a time."""
        sink = self.sink
        if sink is None:
            return
        with self._uncut.work():
            for request in span_requests(self._resource, spans, self.guard):
                sink.put(request)
        self._exported += len(spans)

    def _give(self, span: ReadableSpan) -> None:
        batches = self._batches
        if batches is not None:
            batches.on_end(span)
        self._given.append(None)  # later: what is not counted yet is not missed

    def _settled(self, *, discards: bool = False) -> int:
        """Empty the SDK's queue. Returns the number of spans that were lost since the last call."""
        with self._counting:
            for _ in range(len(self._given)):
                self._given.popleft()
                self._ended += 1
            sink = self.sink
            if discards:
                self.sink = None
            if self._batches is not None:
                self._batches.force_flush()
            self.sink = sink
            lost = max(0, self._ended - self._exported - self._lost)
            self._lost += lost
            return lost

    def _came_too_late(self, lost: int) -> None:
        self.guard.drop(
            DropReason.NOT_STARTED,
            "A span has ended after otel_rl.finish(), or after the program's own shutdown of its "
            "tracing; such spans are lost.",
            lost,
        )

    def _overflowed(self, lost: int) -> None:
        self.guard.drop(
            DropReason.BUFFER_FULL,
            f"More than {self._capacity} spans ended between two exports; the oldest are "
            "dropped. OTEL_BSP_MAX_QUEUE_SIZE sets the limit.",
            lost,
        )


def made_tracer_provider(
    resource: Resource, spans: CountedSpans, sampler: Sampler | None
) -> TracerProvider:
    """Return a provider of the SDK whose spans have their step.

    Args:
        resource: Resource that processors of the program see, for the life of the process.
        spans: Receiver of ended spans, which sends them with the worker's present resource.
        sampler: Sampler of spans; None for the sampler of ``OTEL_TRACES_SAMPLER``.
    """
    made = TracerProvider(
        sampler=sampler,
        resource=resource,
        shutdown_on_exit=False,
        **_without_metrics(TracerProvider),
    )
    made.add_span_processor(StepOnSpans())
    made.add_span_processor(spans)
    return made


class _Exporter(SpanExporter):
    def __init__(self, spans: CountedSpans) -> None:
        self._spans = spans

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        with self._spans.guard:
            self._spans.export(spans)
        return SpanExportResult.SUCCESS

    def shutdown(self) -> None:
        """See ``SpanExporter``."""


def _without_metrics(kind: type) -> dict[str, Any]:
    """Return arguments that keep a part of the SDK from asking for the global MeterProvider.

    From 1.40 on the SDK has metrics of its own, and would ask for the provider inside a lock.
    """
    is_known = "meter_provider" in signature(kind).parameters
    return {"meter_provider": NoOpMeterProvider()} if is_known else {}


def span_requests(
    resource: bytes,
    spans: Sequence[ReadableSpan],
    guard: Guard,
    *,
    max_request_bytes: int = MAX_REQUEST_BYTES,
) -> list[Request]:
    """Encode spans as the SDK does, in as many requests as the size limit needs, in order."""
    packer = RequestPacker(resource, Signal.TRACES, max_request_bytes)
    for scope, span in _encoded(spans, guard):
        if not packer.add(scope, span):
            text = "A span alone is larger than a request may be."
            guard.drop(DropReason.TOO_LARGE, text)
    return packer.requests()


def _encoded(spans: Sequence[ReadableSpan], guard: Guard) -> Iterator[tuple[bytes, bytes]]:
    """Yield scope and span, serialized. A span that cannot be encoded loses only itself."""
    try:
        request = trace_encoder.encode_spans(spans)
    except Exception as error:  # noqa: BLE001  # of any span; counted once that one is known
        if len(spans) > 1:
            for span in spans:
                yield from _encoded([span], guard)
        else:
            text = f"A span cannot be encoded ({type(error).__name__}: {error})."
            guard.drop(DropReason.INTERNAL, text)
        return
    for part in request.resource_spans:
        for scoped in part.scope_spans:
            scope = ScopeSpans(scope=scoped.scope, schema_url=scoped.schema_url).SerializeToString()
            for encoded in scoped.spans:
                yield scope, encoded.SerializeToString()


def _at(span: ReadableSpan, times_ns: tuple[int, int]) -> ReadableSpan:
    begun_ns, ended_ns = times_ns
    return ReadableSpan(
        name=span.name,
        context=span.context,
        parent=span.parent,
        resource=span.resource,
        attributes=span.attributes,
        events=span.events,
        links=span.links,
        kind=span.kind,
        status=span.status,
        start_time=begun_ns,
        end_time=ended_ns,
        instrumentation_scope=span.instrumentation_scope,
    )
