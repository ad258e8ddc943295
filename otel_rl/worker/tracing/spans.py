"""A worker's spans: the SDK's provider, and ended spans on their way to the store.

end() -> kept until an export, or until a device has reached the end too -> requests -> store
"""

import os
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from inspect import signature
from time import time_ns
from typing import Any

from opentelemetry.context import Context, get_current
from opentelemetry.exporter.otlp.proto.common import trace_encoder
from opentelemetry.metrics import NoOpMeterProvider
from opentelemetry.proto.trace.v1.trace_pb2 import ScopeSpans
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan, Span, SpanProcessor, TracerProvider
from opentelemetry.sdk.trace.sampling import Sampler

from otel_rl.semconv.names import RL_LOOP_ITERATION
from otel_rl.signals import Signal
from otel_rl.worker.drops import DropReason, Drops
from otel_rl.worker.guard import Guard
from otel_rl.worker.otlp.requests import (
    MAX_REQUEST_BYTES,
    Request,
    RequestPacker,
    encode_resource,
)
from otel_rl.worker.phases.device_clock import SpanTimes
from otel_rl.worker.step_context import scope_in

Flush = Callable[[float], bool]
"""Sends what was recorded, within some seconds. Returns whether that finished in time."""


class CountedSpans(SpanProcessor):
    """Gives spans of any library their step, and keeps ended ones in a bounded queue.

    Any thread may end a span, without a lock; one collects.

    The SDK's batch processor is not used: it drops spans without counting them. Each of at most
    ``capacity`` spans takes about 3 KB until it is encoded; threads that end spans of a full queue
    at the same moment may each add one more.
    """

    def __init__(self, resource: Resource, capacity: int) -> None:
        self.bind(resource)
        self._capacity = capacity
        self.guard = Guard(Drops())
        """Counts lost spans, apart from the measurements."""
        self.flush: Flush | None = None
        """Sends the ended spans; None before the first session and after the last."""
        self.are_wanted = False
        """True if a span that nobody will send counts as lost."""
        self.is_over = False
        """True at the end of the process, whose session has had its time for the rest."""
        self.device_times: dict[int, SpanTimes] = {}
        """Times on a device, by span id, of spans that are about to end."""
        self._forget()
        os.register_at_fork(after_in_child=self._forget)

    def bind(self, resource: Resource) -> None:
        """Send spans with this resource from now on; the SDK's provider has its first one."""
        self._resource = encode_resource(resource)

    def _forget(self) -> None:
        """Start from zero in a forked child: the parent sends its spans."""
        self.unready_since_ns: int | None = None
        """End of the oldest span that a device has yet to reach the end of, in ns since the Unix
        epoch; None for none."""
        self._ended: deque[tuple[ReadableSpan, SpanTimes | None]] = deque()
        self.guard.forget()

    def open(self, flush: Flush) -> None:
        self.flush = flush
        self.are_wanted = True

    def close(self, flush: Flush) -> None:
        """Take no more spans, unless another session has opened by now."""
        if self.flush == flush:
            self.flush = None

    @property
    def is_crowded(self) -> bool:
        """Return whether an export should take the spans before the interval ends."""
        return len(self._ended) > self._capacity // 4

    def on_start(self, span: Span, parent_context: Context | None = None) -> None:
        """See ``SpanProcessor``. A step attribute that the span has already stays."""
        scope = scope_in(get_current() if parent_context is None else parent_context)
        if scope is None or RL_LOOP_ITERATION in (span.attributes or ()):
            return
        number = scope.number_at(time_ns())
        if number is not None:
            span.set_attribute(RL_LOOP_ITERATION, number)

    def on_end(self, span: ReadableSpan) -> None:
        if not span.context.trace_flags.sampled:
            return
        if self.flush is None:
            if self.are_wanted:
                self.guard.drop(
                    DropReason.NOT_STARTED,
                    "A span has ended after otel_rl.finish(), or after the program's own shutdown "
                    "of its tracing; such spans are lost.",
                )
            return
        times = self.device_times.pop(span.context.span_id, None)
        if len(self._ended) < self._capacity:
            self._ended.append((span, times))
        else:
            self.guard.drop(
                DropReason.BUFFER_FULL,
                f"More than {self._capacity} spans ended between two exports; the newest are "
                "dropped. OTEL_BSP_MAX_QUEUE_SIZE sets the limit.",
            )

    def force_flush(self, timeout_millis: int = 30_000) -> bool:
        flush = self.flush
        return flush is None or flush(timeout_millis / 1000)

    def shutdown(self) -> None:
        """Flush for a program that shuts down its tracing; see ``SpanProcessor``."""
        if not self.is_over:
            self.force_flush()
            self.flush = None

    def collect(self) -> list[Request]:
        """Return every span that has ended, and whose device has reached its end, as requests."""
        ready: list[ReadableSpan] = []
        unready: list[tuple[ReadableSpan, SpanTimes | None]] = []
        for span, times in self._take_all():
            if times is None:
                ready.append(span)
            elif times.is_ready:
                ready.append(_at(span, times.in_wall_ns()))
            else:
                unready.append((span, times))
        self.unready_since_ns = unready[0][0].end_time if unready else None
        self._ended.extendleft(reversed(unready))
        return span_requests(self._resource, ready, self.guard)

    def abandon(self) -> int:
        """Discard the spans that were not collected. Returns the number of these spans."""
        self.unready_since_ns = None
        return sum(1 for _ in self._take_all())

    def _take_all(self) -> Iterator[tuple[ReadableSpan, SpanTimes | None]]:
        for _ in range(len(self._ended)):
            try:
                yield self._ended.popleft()
            except IndexError:  # at the end of a process two threads may run this
                return


def made_tracer_provider(
    resource: Resource, spans: CountedSpans, sampler: Sampler | None
) -> TracerProvider:
    """Return a provider of the SDK whose spans have their step.

    Args:
        resource: Resource that processors of the program see, for the life of the process.
        spans: Receiver of ended spans, which sends them with the worker's present resource.
        sampler: Sampler of spans; None for the sampler of ``OTEL_TRACES_SAMPLER``.
    """
    # From 1.40 on the SDK has metrics of its own, and would ask for the global MeterProvider inside
    # a lock.
    has_metrics = "meter_provider" in signature(TracerProvider).parameters
    without: dict[str, Any] = {"meter_provider": NoOpMeterProvider()} if has_metrics else {}
    made = TracerProvider(sampler=sampler, resource=resource, shutdown_on_exit=False, **without)
    made.add_span_processor(spans)
    return made


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
