"""Steps of spans that do not tell theirs.

Metrics tell the step of a time, where there are any. Else a span around does, or spans with a step
that ended before: these steps are over.
"""

from bisect import bisect_right, insort
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Final

from otel_rl.records import SpanRecord
from otel_rl.semconv.spec import STEP_SPAN

__all__ = ["SpanSteps"]

_MAX_DEPTH: Final = 16
_MAX_ROLES: Final = 64
_MAX_ENDS: Final = 1_000  # of a role: spans arrive within a minute or two


class SpanSteps:
    """Steps that spans have told."""

    def __init__(self) -> None:
        # By role: (end, the step that follows), in order.
        self._ends: dict[str, list[tuple[int, int]]] = defaultdict(list)
        self._loop = ""

    def of(
        self, spans: Sequence[SpanRecord], step_at: Callable[[int], int | None]
    ) -> Iterator[tuple[SpanRecord, int]]:
        """Yield each span with its step.

        Args:
            spans: New spans of one message.
            step_at: Returns the step in progress at a time in ns; None where no metric tells it.
        """
        by_id: Mapping[bytes, SpanRecord] = {}
        if any(span.step is None for span in spans):
            by_id = {span.span_id: span for span in spans}
            self._observe(spans)
        for span in spans:
            yield span, self._step_of(span, by_id, step_at)

    def _step_of(
        self,
        span: SpanRecord,
        by_id: Mapping[bytes, SpanRecord],
        step_at: Callable[[int], int | None],
    ) -> int:
        if span.step is not None:
            return span.step
        # Metrics are asked first: a span around ends later, and may come in a later message. Some
        # spans of a worker would have its step and some that of the metrics, one apart.
        step = step_at(span.end_ns)
        if step is None:
            step = _of_span_around(span, by_id)
        return self._at(span) if step is None else step

    def _observe(self, spans: Sequence[SpanRecord]) -> None:
        for span in spans:
            is_known = span.role in self._ends or len(self._ends) < _MAX_ROLES
            if span.step is None or not is_known:
                continue
            if span.name == STEP_SPAN or not self._loop:
                self._loop = span.role
            ends = self._ends[span.role]
            insort(ends, (span.end_ns, span.step + 1))
            if len(ends) > _MAX_ENDS:
                del ends[: _MAX_ENDS // 2]

    def _at(self, span: SpanRecord) -> int:
        """Return the step in progress when a span ended, by its own role, else by the loop."""
        ends = self._ends.get(span.role) or self._ends.get(self._loop) or []
        place = bisect_right(ends, span.end_ns, key=lambda one: one[0])
        return ends[place - 1][1] if place else 0


def _of_span_around(span: SpanRecord, by_id: Mapping[bytes, SpanRecord]) -> int | None:
    """Return the step of a span, or of the nearest one around it."""
    around: SpanRecord | None = span
    for _ in range(_MAX_DEPTH):
        if around is None or around.step is not None:
            break
        around = None if around.parent_id is None else by_id.get(around.parent_id)
    return None if around is None else around.step
