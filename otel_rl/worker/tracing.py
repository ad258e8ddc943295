"""A worker's spans: the SDK's provider, ended spans on their way to the store, a sampler of steps.

    end() -> kept until an export, or until a device has reached the end too -> requests -> store

Spans are sampled by whole steps, identically in all processes without communication. Steps are kept
in blocks of eight, because their work overlaps: a step uses samples generated during others. The
decision depends only on the run and the block, so every process decides alike. A sample is
generated before its step is known; any of the eight steps after its policy version may use the
sample, and it is kept if one of them is kept.

The deciding number is sent in W3C ``tracestate``, in OpenTelemetry's format for consistent sampling
(``ot=rv:...;th:...``), so that a Collector that samples further also keeps whole blocks.
"""

import os
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache
from hashlib import sha256
from inspect import signature
from time import time_ns
from typing import Any, Final

from opentelemetry.context import Context, get_current
from opentelemetry.exporter.otlp.proto.common import trace_encoder
from opentelemetry.metrics import NoOpMeterProvider
from opentelemetry.proto.trace.v1.trace_pb2 import ScopeSpans
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan, Span, SpanProcessor, TracerProvider
from opentelemetry.sdk.trace.sampling import Decision, Sampler, SamplingResult
from opentelemetry.trace import Link, SpanContext, SpanKind, TraceState, get_current_span
from opentelemetry.util.types import Attributes

from otel_rl.semconv.names import RL_LOOP_ITERATION, RL_POLICY_VERSION
from otel_rl.semconv.spec import BLOCK_STEPS
from otel_rl.signals import Signal
from otel_rl.worker import served_policy
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
from otel_rl.worker.tensors import as_step

_BITS: Final = 56  # of the numbers in tracestate

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


class StepSampler(Sampler):
    """Keeps the spans of a share of all steps; the same steps in all processes of a run.

    A child span follows its parent. A root span has in its attributes its step, or the policy
    version with which it generates samples; else it belongs to the weights that the process serves.
    A root span without any of these is kept.
    """

    def __init__(self, run_id: str = "") -> None:
        self.run_id = run_id
        """Run of the steps. May be changed at any time."""
        self._threshold = 0

    def keep(self, share: float) -> None:
        """Set the share of steps to keep, from 0 to 1."""
        self._threshold = round((1 - share) * (1 << _BITS))

    def should_sample(
        self,
        parent_context: Context | None,
        trace_id: int,  # noqa: ARG002  # Sampler.should_sample
        name: str,  # noqa: ARG002  # Sampler.should_sample
        kind: SpanKind | None = None,  # noqa: ARG002  # Sampler.should_sample
        attributes: Attributes = None,
        links: Sequence[Link] | None = None,  # noqa: ARG002  # Sampler.should_sample
        trace_state: TraceState | None = None,  # noqa: ARG002  # Sampler.should_sample
    ) -> SamplingResult:
        parent = get_current_span(parent_context).get_span_context()
        is_kept, state = self.decide(parent, attributes)
        decision = Decision.RECORD_AND_SAMPLE if is_kept else Decision.DROP
        return SamplingResult(decision, attributes if is_kept else None, state)

    def decide(self, parent: SpanContext, attributes: Attributes) -> tuple[bool, TraceState | None]:
        """Return (kept, trace state) of a span within ``parent``, which is invalid for a root."""
        if parent.is_valid:
            return parent.trace_flags.sampled, parent.trace_state
        blocks = _blocks(attributes)
        if blocks is None:
            return True, None
        number = max(_number(self.run_id, block) for block in blocks)
        is_kept = number >= self._threshold
        return is_kept, self._state(number) if is_kept else None

    def get_description(self) -> str:
        return f"StepSampler{{{1 - self._threshold / (1 << _BITS):g}}}"

    def _state(self, number: int) -> TraceState:
        threshold = f"{self._threshold:014x}".rstrip("0") or "0"
        return TraceState([("ot", f"rv:{number:014x};th:{threshold}")])


def _blocks(attributes: Attributes) -> tuple[int, ...] | None:
    """Return the blocks that a trace may belong to; None if unknown."""
    known = attributes or {}
    step = as_step(known.get(RL_LOOP_ITERATION))
    if step is not None:
        return (step // BLOCK_STEPS,)
    version = as_step(known.get(RL_POLICY_VERSION))
    if version is None:
        served = served_policy.served()
        version = None if served is None else served.version
    if version is None:
        return None
    return (version + 1) // BLOCK_STEPS, (version + BLOCK_STEPS) // BLOCK_STEPS


@lru_cache(maxsize=1024)
def _number(run_id: str, block: int) -> int:
    """Return a pseudo-random number from 0 to 2**56."""
    return int.from_bytes(sha256(f"{run_id}/{block}".encode()).digest()[: _BITS // 8])
