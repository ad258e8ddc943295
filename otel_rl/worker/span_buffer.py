"""Spans between the threads that end them and the exporter that sends them."""

from collections import deque
from typing import Final, Protocol

from opentelemetry.sdk.trace import ReadableSpan, SpanProcessor

from otel_rl.worker.drops import DropReason, Drops
from otel_rl.worker.encode import Request
from otel_rl.worker.encode_spans import span_requests
from otel_rl.worker.guard import Guard
from otel_rl.worker.light_span import LightSpan

__all__ = ["SpanBuffer"]

_CROWDED: Final = 0.25
"""Fill at which it is emptied before the interval is over."""


class Reader(Protocol):
    """Who sends the spans of a buffer."""

    def flush(self, timeout_s: float) -> bool:
        """Send those that have ended. Whether that was done in time."""
        ...


class SpanBuffer(SpanProcessor):
    """A bounded queue. Any thread may end a span; one thread collects. No lock, as ``Buffer``.

    Args:
        capacity: In spans, each about 2 KB until it is encoded.
    """

    def __init__(self, capacity: int) -> None:
        self._capacity = capacity
        self._ended: deque[ReadableSpan | LightSpan] = deque()
        self.guard = Guard(Drops())
        """Counts the spans that are lost, apart from the measurements."""
        self.reader: Reader | None = None
        """Who sends the spans; None before there is anybody and after that has ended."""
        self.are_wanted = False
        """Whether a span that ends while nobody sends them is a loss."""

    def on_end(self, span: ReadableSpan | LightSpan) -> None:
        """See ``SpanProcessor``."""
        if not span.context.trace_flags.sampled:
            return
        if self.reader is None:
            if self.are_wanted:
                self.guard.drop(
                    DropReason.NOT_STARTED,
                    "A span has ended after otel_rl.shutdown(), or after the program's own "
                    "shutdown of its tracing; such spans are lost.",
                )
            return
        if len(self._ended) >= self._capacity:
            self.guard.drop(
                DropReason.BUFFER_FULL,
                f"More than {self._capacity} spans ended between two exports; the newest are "
                "dropped. OTEL_BSP_MAX_QUEUE_SIZE makes room for more.",
            )
            return
        self._ended.append(span)

    def force_flush(self, timeout_millis: int = 30_000) -> bool:
        """See ``SpanProcessor``."""
        reader = self.reader
        return reader is None or reader.flush(timeout_millis / 1000)

    def shutdown(self) -> None:
        """See ``SpanProcessor``: of a program that ends its tracing, and not otel_rl."""
        self.force_flush()
        self.reader = None

    @property
    def is_crowded(self) -> bool:
        """Whether to collect before the interval is over."""
        return len(self._ended) >= self._capacity * _CROWDED

    def collect(self) -> list[Request]:
        """The spans that have ended since the last call, ready to send."""
        return span_requests(self._take_all(), self.guard)

    def abandon(self) -> int:
        """Forget everything. Returns how many spans that were."""
        return len(self._take_all())

    def forget(self) -> None:
        """Begin anew in a forked child: what waits is the parent's to send."""
        self._ended.clear()
        self.guard.drops.reset()

    def _take_all(self) -> list[ReadableSpan | LightSpan]:
        popleft = self._ended.popleft
        taken: list[ReadableSpan | LightSpan] = []
        try:
            taken.extend(popleft() for _ in range(len(self._ended)))
        except IndexError:  # at the end of a process two threads may be here
            return taken
        return taken
