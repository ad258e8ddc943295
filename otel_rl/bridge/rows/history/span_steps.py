"""Steps of spans that do not tell theirs: that of a span around them, else that of their time.

Metrics tell the step of a time, where there are any. Else spans with a step do: those that ended
before are over.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Final

from otel_rl.bridge.rows.steps.step_axis import ValueTimeline
from otel_rl.records import SpanRecord
from otel_rl.semconv.spec import STEP_SPAN

__all__ = ["SpanSteps"]

_MAX_DEPTH: Final = 16
_MAX_ROLES: Final = 64


class SpanSteps:
    """Steps that spans have told: by role, the step that follows each ended one."""

    def __init__(self) -> None:
        self._next: dict[str, ValueTimeline] = {}
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
            step = _of_span_around(span, by_id)
            if step is None:
                step = step_at(span.end_ns)
            yield span, self._at(span) if step is None else step

    def _observe(self, spans: Sequence[SpanRecord]) -> None:
        for span in spans:
            if span.step is None:
                continue
            if span.role not in self._next and len(self._next) >= _MAX_ROLES:
                continue
            if span.name == STEP_SPAN or not self._loop:
                self._loop = span.role
            timeline = self._next.setdefault(span.role, ValueTimeline())
            timeline.observe([(span.end_ns, span.step + 1)])

    def _at(self, span: SpanRecord) -> int:
        """Return the step in progress when a span ended, by its own role, else by the loop."""
        timeline = self._next.get(span.role) or self._next.get(self._loop)
        return 0 if timeline is None else timeline.at(span.end_ns) or 0


def _of_span_around(span: SpanRecord, by_id: Mapping[bytes, SpanRecord]) -> int | None:
    """Return the step of a span, or of the nearest one around it."""
    around: SpanRecord | None = span
    for _ in range(_MAX_DEPTH):
        if around is None or around.step is not None:
            break
        around = None if around.parent_id is None else by_id.get(around.parent_id)
    return None if around is None else around.step
