"""Buffers spans between the threads that end them and the exporter that sends them."""

from collections import deque
from typing import Final, NamedTuple, Protocol

from opentelemetry.sdk.trace import ReadableSpan, SpanProcessor

from otel_rl.worker.drops import DropReason, Drops
from otel_rl.worker.guard import Guard
from otel_rl.worker.otlp.request_packer import Request
from otel_rl.worker.otlp.spans import span_requests
from otel_rl.worker.phases.device_clock import SpanTimes

__all__ = ["SpanBuffer"]

_CROWDED: Final = 0.25
"""Fill that triggers an early export."""


class Reader(Protocol):
    """Sender of the spans of a buffer."""

    def flush(self, timeout_s: float) -> bool:
        """Send the ended spans. True if that finished in time."""
        ...


class _OnDevice(NamedTuple):
    """Span that a device may not have reached the end of.

    Attributes:
        span: With the program's times.
        times: The device's.
    """

    span: ReadableSpan
    times: SpanTimes


class SpanBuffer(SpanProcessor):
    """Bounded queue. Any thread may end a span; one thread collects. No lock, like ``Buffer``.

    Args:
        capacity: In spans, each about 3 KB until it is encoded.
    """

    def __init__(self, capacity: int) -> None:
        self._capacity = capacity
        self._ended: deque[ReadableSpan | _OnDevice] = deque()
        self.device_times: dict[int, SpanTimes] = {}
        """Times on a device, by span id, of spans that are about to end."""
        self.unready_since_ns: int | None = None
        """End of the oldest span that a device has yet to reach the end of, in ns since the Unix
        epoch; None for none."""
        self.guard = Guard(Drops())
        """Counts lost spans, apart from the measurements."""
        self.reader: Reader | None = None
        """Sender of the spans; None before it starts and after it ends."""
        self.are_wanted = False
        """True if a span that ends without a sender counts as lost."""

    def on_end(self, span: ReadableSpan) -> None:
        """See ``SpanProcessor``."""
        if not span.context.trace_flags.sampled:
            return
        if self.reader is None:
            if self.are_wanted:
                self.guard.drop(
                    DropReason.NOT_STARTED,
                    "A span has ended after otel_rl.finish(), or after the program's own "
                    "shutdown of its tracing; such spans are lost.",
                )
            return
        if len(self._ended) >= self._capacity:
            self.guard.drop(
                DropReason.BUFFER_FULL,
                f"More than {self._capacity} spans ended between two exports; the newest are "
                "dropped. OTEL_BSP_MAX_QUEUE_SIZE sets the limit.",
            )
            return
        times = self.device_times.pop(span.context.span_id, None)
        self._ended.append(span if times is None else _OnDevice(span, times))

    def force_flush(self, timeout_millis: int = 30_000) -> bool:
        """See ``SpanProcessor``."""
        reader = self.reader
        return reader is None or reader.flush(timeout_millis / 1000)

    def shutdown(self) -> None:
        """Flush for a program that shuts down its tracing; see ``SpanProcessor``."""
        self.force_flush()
        self.reader = None

    @property
    def is_crowded(self) -> bool:
        """Report whether an export should start before the interval ends."""
        return len(self._ended) >= self._capacity * _CROWDED

    def collect(self) -> list[Request]:
        """Return the spans ended since the last call, ready to send."""
        ready: list[ReadableSpan] = []
        unready: list[_OnDevice] = []
        times: dict[int, tuple[int, int]] = {}
        for ended in self._take_all():
            if not isinstance(ended, _OnDevice):
                ready.append(ended)
            elif ended.times.is_ready:
                ready.append(ended.span)
                times[ended.span.context.span_id] = ended.times.in_wall_ns()
            else:
                unready.append(ended)
        self.unready_since_ns = unready[0].span.end_time if unready else None
        self._ended.extendleft(reversed(unready))
        return span_requests(ready, self.guard, times=times)

    def abandon(self) -> int:
        """Clear the buffer. Returns the number of spans in it."""
        return len(self._take_all())

    def forget(self) -> None:
        """Reset in a forked child: the parent sends the waiting spans."""
        self.unready_since_ns = None
        self._ended.clear()
        self.guard.drops.reset()

    def _take_all(self) -> list[ReadableSpan | _OnDevice]:
        popleft = self._ended.popleft
        taken: list[ReadableSpan | _OnDevice] = []
        try:
            taken.extend(popleft() for _ in range(len(self._ended)))
        except IndexError:  # at the end of a process two threads may run this
            return taken
        return taken
