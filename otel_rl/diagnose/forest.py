"""The spans of some processes, found by what a walk back in time asks for.

A walk asks three things: what within a span ended last before a moment; what the process did before
a span; and which spans of other processes a span depends on. Each is one bisection.
"""

from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from typing import Final

from otel_rl.records import SpanRecord
from otel_rl.semconv.names import RlPhaseValues

__all__ = ["UNACCOUNTED", "ByEnd", "Forest"]

UNACCOUNTED: Final = RlPhaseValues.UNACCOUNTED.value
"""The phase of what is within a step and in none of its phases."""

_MAX_OUTLASTING: Final = 256
"""Of what was begun by one span: the last to end, mostly. More would not be said of one sample."""

_BARRIER: Final = RlPhaseValues.RANK_BARRIER.value


class ByEnd:
    """Spans by the time of their end.

    Args:
        spans: In any order.
    """

    __slots__ = ("_ends", "_spans")

    def __init__(self, spans: Iterable[SpanRecord]) -> None:
        self._spans = sorted(spans, key=lambda span: (span.end_ns, span.start_ns))
        self._ends = [span.end_ns for span in self._spans]

    def between(self, after_ns: int | None, through_ns: int | None) -> Iterable[SpanRecord]:
        """Those that ended in (``after_ns``, ``through_ns``], the last first. None is no bound."""
        first = 0 if after_ns is None else bisect_right(self._ends, after_ns)
        end = len(self._ends) if through_ns is None else bisect_right(self._ends, through_ns)
        for place in range(end - 1, first - 1, -1):
            yield self._spans[place]


_NONE = ByEnd(())


class Forest:
    """The spans of a run, or of a part of it.

    Spans whose parent is unknown, because it was lost or is of a process that does not report, are
    roots. A child may begin or end outside of its parent, as one of another process does.

    Args:
        spans: In any order. Of two with one id the first counts: a span may come twice.
    """

    def __init__(self, spans: Iterable[SpanRecord]) -> None:
        self._by_id: dict[bytes, SpanRecord] = {}
        for span in spans:
            self._by_id.setdefault(span.span_id, span)
        children: dict[bytes, list[SpanRecord]] = defaultdict(list)
        tops: dict[str, list[SpanRecord]] = defaultdict(list)
        collectives: dict[tuple[str, int, str], list[SpanRecord]] = defaultdict(list)
        for span in self._by_id.values():
            parent = self.parent(span)
            if parent is not None:
                children[parent.span_id].append(span)
            if parent is None or parent.worker != span.worker or span.start_ns >= parent.end_ns:
                tops[span.worker].append(span)
            if _is_collective(span) and span.step is not None:
                collectives[span.role, span.step, span.phase].append(span)
        self._children = {parent: ByEnd(spans) for parent, spans in children.items()}
        self._tops = {worker: ByEnd(spans) for worker, spans in tops.items()}
        self._around: dict[bytes, SpanRecord | None] = {}
        self._used: dict[bytes, ByEnd] = {}
        self._collectives = {key: _Collective(spans) for key, spans in collectives.items()}

    @property
    def spans(self) -> Iterable[SpanRecord]:
        """All of them."""
        return self._by_id.values()

    def get(self, span_id: bytes) -> SpanRecord | None:
        """The span of this id, if it is known."""
        return self._by_id.get(span_id)

    def parent(self, span: SpanRecord) -> SpanRecord | None:
        """Its parent, if that is known."""
        return self._by_id.get(span.parent_id) if span.parent_id is not None else None

    def children(self, span: SpanRecord, through_ns: int) -> Iterable[SpanRecord]:
        """The children that ended within the span, at ``through_ns`` or before, the last first."""
        return self._children.get(span.span_id, _NONE).between(span.start_ns, through_ns)

    def phase(self, span: SpanRecord) -> str:
        """What was done in the span: the phase that it is or is in, or what it is called."""
        if span.phase:
            return span.phase
        around = self._phase_around(span)
        if around is not None:
            return around.phase
        return span.name if span.step is None else UNACCOUNTED

    def phase_class(self, span: SpanRecord) -> str:
        """The class of that phase; empty for a span that is in none."""
        if span.phase_class:
            return span.phase_class
        around = self._phase_around(span)
        return "" if around is None else around.phase_class

    def is_wait(self, span: SpanRecord) -> bool:
        """Whether somebody else decides when it ends; also of a plain span within a wait."""
        around = self._phase_around(span)
        return span.is_wait or (around is not None and around.is_wait)

    def before(self, span: SpanRecord) -> Iterable[SpanRecord]:
        """What the process had ended when it began the span, of what is not within another.

        The last first.
        """
        return self._tops.get(span.worker, _NONE).between(None, span.start_ns)

    def linked(self, span: SpanRecord) -> Iterable[SpanRecord]:
        """The known spans that it links to."""
        for link in span.links:
            found = self._by_id.get(link)
            if found is not None:
                yield found

    def _phase_around(self, span: SpanRecord) -> SpanRecord | None:
        """The phase of its process that a span is in, if it is none itself."""
        above: SpanRecord | None = span
        found = None
        climbed: list[bytes] = []
        while above is not None and above.worker == span.worker:
            if above.phase:
                found = above if climbed else None
                break
            if above.span_id in self._around:
                found = self._around[above.span_id]
                break
            # Parents may go in circles.
            self._around[above.span_id] = None
            climbed.append(above.span_id)
            above = self.parent(above)
        for span_id in climbed:
            self._around[span_id] = found
        return found

    def used_around(self, span: SpanRecord) -> ByEnd:
        """What the span, those of its process around it and those within these link to.

        A wait seldom links to what it waits for: the sample is known by its stamp when the step
        takes it out of the buffer, and the link stands wherever that is done. What other roles did
        with a sample after it was made is there, too: it came when the last of that was done.
        """
        top = self._top(span)
        found = self._used.get(top.span_id)
        if found is None:
            found = self._used[top.span_id] = ByEnd(self._used_within(top))
        return found

    def _top(self, span: SpanRecord) -> SpanRecord:
        seen = {span.span_id}
        while (parent := self.parent(span)) is not None:
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
            yield from self.linked(span)
            for child in self.children(span, top.end_ns):
                if child.worker == top.worker and child.span_id not in seen:
                    seen.add(child.span_id)
                    waiting.append(child)

    def _outlasting(self, span: SpanRecord, known: set[bytes]) -> Iterator[SpanRecord]:
        """What was begun by a span and ended after it, such as a consumer's work; none twice."""
        waiting, left = [span], _MAX_OUTLASTING
        while waiting:
            parent = waiting.pop()
            for child in self._children.get(parent.span_id, _NONE).between(parent.end_ns, None):
                left -= 1
                if left < 0:
                    return
                if child.span_id not in known:
                    known.add(child.span_id)
                    waiting.append(child)
                    yield child

    def last_to_arrive(self, span: SpanRecord, through_ns: int) -> SpanRecord | None:
        """Of a collective: the own span of the rank that let everybody wait, if another did."""
        if span.step is None or not _is_collective(span):
            return None
        collective = self._collectives[span.role, span.step, span.phase]
        return collective.last_to_arrive(span, through_ns)


def _is_collective(span: SpanRecord) -> bool:
    """Whether every rank has to come before any can go on: a barrier, an all-reduce."""
    return span.phase == _BARRIER or span.phase_class == "sync"


class _Collective:
    """What all ranks of a role do together in a step, by the time at which each came to it."""

    def __init__(self, spans: Sequence[SpanRecord]) -> None:
        self._spans = sorted(spans, key=lambda span: span.start_ns)
        self._starts = [span.start_ns for span in self._spans]

    def last_to_arrive(self, span: SpanRecord, through_ns: int) -> SpanRecord | None:
        first = bisect_right(self._starts, span.start_ns)
        for place in range(bisect_left(self._starts, through_ns) - 1, first - 1, -1):
            other = self._spans[place]
            if other.worker != span.worker:
                return other
        return None
