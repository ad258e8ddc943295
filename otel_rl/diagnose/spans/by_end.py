"""Spans by the time of their end."""

from bisect import bisect_right
from collections.abc import Iterable

from otel_rl.records import SpanRecord


class ByEnd:
    """Spans, sorted by the time of their end.

    Args:
        spans: Spans in any order.
    """

    __slots__ = ("_ends", "_spans")

    def __init__(self, spans: Iterable[SpanRecord]) -> None:
        self._spans = sorted(spans, key=lambda span: (span.end_ns, span.start_ns))
        self._ends = [span.end_ns for span in self._spans]

    def between(self, after_ns: int | None, through_ns: int | None) -> Iterable[SpanRecord]:
        """Return the spans that end in (``after_ns``, ``through_ns``], last first; None is open."""
        first = 0 if after_ns is None else bisect_right(self._ends, after_ns)
        end = len(self._ends) if through_ns is None else bisect_right(self._ends, through_ns)
        for place in range(end - 1, first - 1, -1):
            yield self._spans[place]
