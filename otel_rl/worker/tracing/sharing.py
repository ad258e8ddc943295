"""Shares spans with a TracerProvider that the program sets after otel_rl's is the global one.

Spans go to the processors of the later provider, too, as its sampler decides.
"""

import logging
from typing import Final

from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan, Span, SpanProcessor, TracerProvider
from opentelemetry.sdk.trace import Tracer as SdkTracer
from opentelemetry.sdk.trace.sampling import Decision

from otel_rl.worker.drops import DropReason
from otel_rl.worker.guard import Guard
from otel_rl.worker.later_providers import take_later
from otel_rl.worker.tracing.spans import copied

__all__ = ["share_with_later"]

_log = logging.getLogger("otel_rl")

_SCOPE: Final = "otel_rl.sharing"


def share_with_later(own: TracerProvider, guard: Guard) -> None:
    """Make ``trace.set_tracer_provider`` share the spans of ``own``. Idempotent.

    Args:
        own: Keeps making all spans.
        guard: Counts exceptions of the program's processors.
    """

    def share(provider: object) -> bool:
        with guard:
            later = _Later.of(provider, guard)
            if later is not None:
                own.add_span_processor(later)
                _log.info("The program's TracerProvider gets the spans, too.")
                return True
        return False

    take_later(trace, "tracer", own, share)


class _Later(SpanProcessor):
    """Passes spans on to the processors of another provider, with its resource."""

    def __init__(self, provider: TracerProvider, processors: SpanProcessor, guard: Guard) -> None:
        self.provider = provider
        self._processors = processors
        self._guard = guard
        self._resources: tuple[Resource, Resource, Resource] | None = None

    @classmethod
    def of(cls, provider: object, guard: Guard) -> "_Later | None":
        """Return one for ``provider``; None for one that is not of the SDK."""
        if not isinstance(provider, TracerProvider):
            return None
        tracer = provider.get_tracer(_SCOPE)
        # The SDK's provider shows its processors, also those that are added later, by its tracers.
        return (
            cls(provider, tracer.span_processor, guard) if isinstance(tracer, SdkTracer) else None
        )

    def on_start(self, span: Span, parent_context: Context | None = None) -> None:
        """See ``SpanProcessor``."""
        try:
            if self._is_wanted(span):
                self._processors.on_start(span, parent_context)
        except Exception as error:  # noqa: BLE001  # phases have spans, and may not raise
            self._failed(error)

    def on_end(self, span: ReadableSpan) -> None:
        """See ``SpanProcessor``."""
        try:
            if self._is_wanted(span):
                self._processors.on_end(copied(span, resource=self._resource(span.resource)))
        except Exception as error:  # noqa: BLE001  # see on_start
            self._failed(error)

    def shutdown(self) -> None:
        """Shut the provider down, for a program that shuts down its tracing."""
        try:
            self.provider.shutdown()
        except Exception as error:  # noqa: BLE001  # otel_rl's own processors have to go on
            self._failed(error)

    def force_flush(self, timeout_millis: int = 30_000) -> bool:
        """See ``SpanProcessor``."""
        return self.provider.force_flush(timeout_millis)

    def _is_wanted(self, span: ReadableSpan) -> bool:
        """Ask the provider's sampler as at the root of the trace, so that it keeps whole ones."""
        sampler = self.provider.sampler
        number = span.context.trace_id
        result = sampler.should_sample(Context(), number, span.name, span.kind)
        return result.decision is Decision.RECORD_AND_SAMPLE

    def _resource(self, own: Resource) -> Resource:
        """Return the provider's resource with what ``own`` names differently.

        Its exporter may send to the bridge, too, which takes a span of one worker once.
        """
        theirs, known = self.provider.resource, self._resources
        if known is not None and known[0] is own and known[1] is theirs:
            return known[2]
        merged = theirs.merge(own)
        self._resources = (own, theirs, merged)
        return merged

    def _failed(self, error: Exception) -> None:
        self._guard.drops.add(DropReason.INTERNAL)
        self._guard.warn(
            "later", "A processor of the program's TracerProvider failed.", error=error
        )
