"""What a span uses of others: what it links to, and what the spans around it and theirs do.

A wait seldom links to what it waits for: the sample is known by its stamp when the step takes it
out of the buffer, and the link stands wherever that is done.
"""

from collections.abc import Iterator

from otel_rl.diagnose.forest import ByEnd, Forest
from otel_rl.records import SpanRecord

__all__ = ["Uses"]


class Uses:
    """Of the spans of a forest; each is looked up once.

    Args:
        forest: All spans.
    """

    def __init__(self, forest: Forest) -> None:
        self._forest = forest
        self._of: dict[bytes, ByEnd] = {}

    def around(self, span: SpanRecord) -> ByEnd:
        """What the span, those of its process around it and those within these link to."""
        top = self._top(span)
        found = self._of.get(top.span_id)
        if found is None:
            found = self._of[top.span_id] = ByEnd(self._linked_within(top))
        return found

    def _top(self, span: SpanRecord) -> SpanRecord:
        seen = {span.span_id}
        while (parent := self._forest.parent(span)) is not None:
            if parent.worker != span.worker or parent.span_id in seen:
                break
            span = parent
            seen.add(span.span_id)
        return span

    def _linked_within(self, top: SpanRecord) -> Iterator[SpanRecord]:
        waiting, seen = [top], {top.span_id}
        while waiting:
            span = waiting.pop()
            yield from self._forest.linked(span)
            for child in self._forest.children(span, top.end_ns):
                if child.worker == top.worker and child.span_id not in seen:
                    seen.add(child.span_id)
                    waiting.append(child)
