"""Finds the samples that a process has used, and the work of other processes on them."""

from collections.abc import Iterable, Iterator
from typing import Final, Protocol

from otel_rl.diagnose.spans.by_end import ByEnd
from otel_rl.records import SpanRecord
from otel_rl.semconv.names import RlPhaseValues

__all__ = ["UsedSamples"]

_MAX_OUTLASTING: Final = 256
"""Bound on work begun by one span and ended later, mostly the last to end. One sample needs no
more.
"""

_SAMPLE: Final = RlPhaseValues.GENERATE.value
_SAMPLE_WAIT: Final = RlPhaseValues.COLLECTOR_WAIT.value


class _Forest(Protocol):
    """See ``span_forest.py``."""

    @property
    def spans(self) -> Iterable[SpanRecord]: ...

    def phase(self, span: SpanRecord, /) -> str: ...
    def parent(self, span: SpanRecord, /) -> SpanRecord | None: ...
    def linked(self, span: SpanRecord, /) -> Iterable[SpanRecord]: ...
    def children(self, span: SpanRecord, through_ns: int, /) -> Iterable[SpanRecord]: ...
    def outlasting(self, span: SpanRecord, /) -> Iterable[SpanRecord]: ...


class UsedSamples:
    """Samples behind the waits of processes, by links, or else by time.

    Args:
        forest: Spans of all processes.
    """

    def __init__(self, forest: _Forest) -> None:
        self._forest = forest
        self._used: dict[bytes, ByEnd] = {}
        has_links = any(span.links for span in forest.spans)
        self._unlinked = ByEnd(() if has_links else filter(self._is_sample, forest.spans))

    def around(self, span: SpanRecord) -> ByEnd:
        """Return the spans linked by the span, its ancestors in the process and their children.

        A wait seldom links to the awaited span: the sample is known by its stamp when the step
        takes it out of the buffer, and the link is set there. Later work of other roles on a sample
        is included: the sample was there when the last of it was done.
        """
        top = self._top(span)
        found = self._used.get(top.span_id)
        if found is None:
            found = self._used[top.span_id] = ByEnd(self._used_within(top))
        return found

    def last_before(self, wait: SpanRecord, through_ns: int) -> SpanRecord | None:
        """Return the last sample that another process ended during a wait for samples.

        Only where no span links to any: in separate traces nothing else tells which sample it was.
        """
        if self._forest.phase(wait) != _SAMPLE_WAIT:
            return None
        ended = self._unlinked.between(wait.start_ns, through_ns)
        return next((span for span in ended if span.worker != wait.worker), None)

    def _top(self, span: SpanRecord) -> SpanRecord:
        seen = {span.span_id}
        while (parent := self._forest.parent(span)) is not None:
            if parent.worker != span.worker or parent.span_id in seen:
                break
            span = parent
            seen.add(span.span_id)
        return span

    def _used_within(self, top: SpanRecord) -> Iterator[SpanRecord]:
        linked = {found.span_id: found for found in self._linked_within(top)}
        yield from linked.values()
        known = set(linked)
        for found in linked.values():
            yield from (one for one in self._outlasting(found, known) if one.role != top.role)

    def _linked_within(self, top: SpanRecord) -> Iterator[SpanRecord]:
        waiting, seen = [top], {top.span_id}
        while waiting:
            span = waiting.pop()
            yield from self._forest.linked(span)
            for child in self._forest.children(span, top.end_ns):
                if child.worker == top.worker and child.span_id not in seen:
                    seen.add(child.span_id)
                    waiting.append(child)

    def _outlasting(self, span: SpanRecord, known: set[bytes]) -> Iterator[SpanRecord]:
        """Yield work that a span began and that ended after it, such as a consumer's."""
        waiting, left = [span], _MAX_OUTLASTING
        while waiting:
            for child in self._forest.outlasting(waiting.pop()):
                left -= 1
                if left < 0:
                    return
                if child.span_id not in known:
                    known.add(child.span_id)
                    waiting.append(child)
                    yield child

    def _is_sample(self, span: SpanRecord) -> bool:
        parent = self._forest.parent(span)
        return span.phase == _SAMPLE and (parent is None or parent.worker != span.worker)
