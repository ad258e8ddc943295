"""Spans of some processes, indexed for a walk back in time.

A walk needs three queries: the last child of a span that ended before a moment; the last span of
the process before a span; and the spans of other processes that a span depends on. Each is one
bisection.

Collectives that have no telling name are spans that end together, whenever they began:

    trainer/0   [ train ][ my_all_reduce ......]
    trainer/1   [ train ....................][ ]        ends apart by 1, begins by 20
"""

from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from collections.abc import Set as AbstractSet
from typing import Final, Protocol

from otel_rl.diagnose.spans.by_end import ByEnd
from otel_rl.diagnose.thresholds import A_FEW, MOSTLY
from otel_rl.records import SpanRecord
from otel_rl.semconv import names
from otel_rl.semconv.names import RlPhaseValues
from otel_rl.semconv.spec import STEP_SPAN

_TOGETHER: Final = 0.1  # times as far apart as the begins

_Place = tuple[str, str]


def collectives_in(spans: Iterable[tuple[SpanRecord, int]]) -> AbstractSet[_Place]:
    """Return (role, name) of the spans in which each rank waits for the last one.

    Args:
        spans: Spans with their steps.
    """
    by_place: dict[_Place, dict[int, list[SpanRecord]]] = defaultdict(lambda: defaultdict(list))
    for span, step in spans:
        by_place[span.role, span.name][step].append(span)
    return {place for place, steps in by_place.items() if _is_collective(steps.values())}


def _is_collective(steps: Iterable[list[SpanRecord]]) -> bool:
    told = [is_one for spans in steps if (is_one := _end_together(spans)) is not None]
    return len(told) >= A_FEW and sum(told) >= MOSTLY * len(told)


def _end_together(spans: list[SpanRecord]) -> bool | None:
    """Return whether the ranks end at the same time; None where their begins show nothing."""
    if len(spans) < 2 or len({span.worker for span in spans}) < len(spans):
        return None
    begins, ends = [span.start_ns for span in spans], [span.end_ns for span in spans]
    apart_ns = max(begins) - min(begins)
    if apart_ns < _TOGETHER * max(span.end_ns - span.start_ns for span in spans):
        return None
    return max(begins) <= min(ends) and max(ends) - min(ends) <= _TOGETHER * apart_ns


_MAX_OUTLASTING: Final = 256
"""Bound on work begun by one span and ended later, mostly the last to end. One sample needs no
more.
"""

_SAMPLE: Final = RlPhaseValues.GENERATE.value
_SAMPLE_WAIT: Final = RlPhaseValues.COLLECTOR_WAIT.value


class _Forest(Protocol):
    """Interface of ``Forest`` for ``UsedSamples``."""

    @property
    def spans(self) -> Iterable[SpanRecord]: ...

    def phase(self, span: SpanRecord, /) -> str: ...
    def parent(self, span: SpanRecord, /) -> SpanRecord | None: ...
    def linked(self, span: SpanRecord, /) -> Iterable[SpanRecord]: ...
    def children(self, span: SpanRecord, through_ns: int, /) -> Iterable[SpanRecord]: ...
    def outlasting(self, span: SpanRecord, /) -> Iterable[SpanRecord]: ...


class UsedSamples:
    """Samples that processes wait for, found by links, or else by time."""

    def __init__(self, forest: _Forest) -> None:
        self._forest = forest
        self._used: dict[bytes, ByEnd] = {}
        has_links = any(span.links for span in forest.spans)
        self._unlinked = ByEnd(() if has_links else filter(self._is_sample, forest.spans))

    def around(self, span: SpanRecord) -> ByEnd:
        """Return the spans linked by a span, its ancestors in the process and their children.

        A wait seldom links to the awaited span: the sample is known by its stamp when the step
        takes it out of the buffer, and the link is set at that point. Later work of other roles on
        a sample is included: the sample was ready when the last of that work was done.
        """
        top = self._top(span)
        found = self._used.get(top.span_id)
        if found is None:
            found = self._used[top.span_id] = ByEnd(self._used_within(top))
        return found

    def last_before(self, wait: SpanRecord, through_ns: int) -> SpanRecord | None:
        """Return the last sample that another process ended during a wait for samples.

        Return it only where no span links to any: in separate traces nothing else tells which
        sample it was.
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


UNACCOUNTED: Final = RlPhaseValues.UNACCOUNTED.value
"""Phase of the part of a step that is in none of its phases."""

_OTHER: Final = names.RlPhaseClassValues.OTHER.value
_BARRIER: Final = RlPhaseValues.RANK_BARRIER.value


_NONE = ByEnd(())


class Forest:
    """Spans of a run, or of a part of it.

    Spans whose parent is unknown, because the parent was lost or its process does not report, are
    roots. A child may begin or end outside of its parent, as a child in another process does.

    Args:
        spans: Spans in any order. Of two with one id the first counts, because a span may come
            twice.
        finds_collectives: Whether to find collectives that no phase names, see ``collectives.py``.

    Attributes:
        samples: Samples that the processes use.
    """

    def __init__(self, spans: Iterable[SpanRecord], *, finds_collectives: bool = False) -> None:
        self._by_id: dict[bytes, SpanRecord] = {}
        for span in spans:
            self._by_id.setdefault(span.span_id, span)
        children: dict[bytes, list[SpanRecord]] = defaultdict(list)
        tops: dict[str, list[SpanRecord]] = defaultdict(list)
        collectives: dict[tuple[str, int, str], list[SpanRecord]] = defaultdict(list)
        self._steps: dict[bytes, int | None] = {}
        for span in self._by_id.values():
            parent = self.parent(span)
            if parent is not None:
                children[parent.span_id].append(span)
            if parent is None or parent.worker != span.worker or span.start_ns >= parent.end_ns:
                tops[span.worker].append(span)
        self._found = collectives_in(self._with_steps()) if finds_collectives else frozenset()
        for span in filter(self._is_collective, self._by_id.values()):
            if (step := self.step(span)) is not None:
                collectives[span.role, step, span.phase or span.name].append(span)
        self._children = {parent: ByEnd(spans) for parent, spans in children.items()}
        self._tops = {worker: ByEnd(spans) for worker, spans in tops.items()}
        self._around: dict[bytes, SpanRecord | None] = {}
        self._collectives = {key: _Collective(spans) for key, spans in collectives.items()}
        self.samples: Final = UsedSamples(self)

    @property
    def spans(self) -> Iterable[SpanRecord]:
        return self._by_id.values()

    def get(self, span_id: bytes) -> SpanRecord | None:
        """Return the span with this id, or None."""
        return self._by_id.get(span_id)

    def parent(self, span: SpanRecord) -> SpanRecord | None:
        return self._by_id.get(span.parent_id) if span.parent_id is not None else None

    def step(self, span: SpanRecord) -> int | None:
        """Return a span's step, else that of the nearest span around it in its process, or None."""
        climbed: list[bytes] = []
        above: SpanRecord | None = span
        step = None
        while above is not None and above.worker == span.worker:
            step = self._steps.get(above.span_id, above.step)
            if step is not None or above.span_id in self._steps:
                break
            self._steps[above.span_id] = None  # parents may form a cycle
            climbed.append(above.span_id)
            above = self.parent(above)
        for span_id in climbed:
            self._steps[span_id] = step
        return step

    def children(self, span: SpanRecord, through_ns: int) -> Iterable[SpanRecord]:
        """Return the children that ended within the span by ``through_ns``, last first."""
        return self._children.get(span.span_id, _NONE).between(span.start_ns, through_ns)

    def outlasting(self, span: SpanRecord) -> Iterable[SpanRecord]:
        """Return the children that ended after the span, last first."""
        return self._children.get(span.span_id, _NONE).between(span.end_ns, None)

    def phase(self, span: SpanRecord) -> str:
        """Return the phase of a span or around it, else its name."""
        if span.phase:
            return span.phase
        around = self._phase_around(span)
        if around is not None:
            return around.phase
        return span.name if span.step is None or self._is_within_a_step(span) else UNACCOUNTED

    def _is_within_a_step(self, span: SpanRecord) -> bool:
        around = self.parent(span)
        return around is not None and around.worker == span.worker and self.step(around) is not None

    def phase_class(self, span: SpanRecord) -> str:
        """Return the class of the span's phase; empty without one."""
        if span.phase_class:
            return span.phase_class
        around = self._phase_around(span)
        return "" if around is None else around.phase_class

    def is_wait(self, span: SpanRecord) -> bool:
        """Return whether another process decides a span's end, including a plain span in a wait."""
        around = self._phase_around(span)
        return span.is_wait or self._is_found(span) or (around is not None and around.is_wait)

    def before(self, span: SpanRecord) -> Iterable[SpanRecord]:
        """Return the top-level spans that the process had ended before the span, last first."""
        return self._tops.get(span.worker, _NONE).between(None, span.start_ns)

    def linked(self, span: SpanRecord) -> Iterable[SpanRecord]:
        for link in span.links:
            found = self._by_id.get(link)
            if found is not None:
                yield found

    def _phase_around(self, span: SpanRecord) -> SpanRecord | None:
        """Return the phase of its process around a span that is not a phase itself."""
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
            # Parents may form a cycle.
            self._around[above.span_id] = None
            climbed.append(above.span_id)
            above = self.parent(above)
        for span_id in climbed:
            self._around[span_id] = found
        return found

    def last_to_arrive(self, span: SpanRecord, through_ns: int) -> SpanRecord | None:
        """Return the span of the last rank to arrive at a collective, if it is another span."""
        if not self._is_collective(span) or (step := self.step(span)) is None:
            return None
        of = self._collectives[span.role, step, span.phase or span.name]
        return of.last_to_arrive(span, through_ns)

    def _is_collective(self, span: SpanRecord) -> bool:
        """Return whether all ranks must arrive before any can go on, as in an all-reduce."""
        return span.phase == _BARRIER or span.phase_class == "sync" or self._is_found(span)

    def _is_found(self, span: SpanRecord) -> bool:
        return (span.role, span.name) in self._found

    def _with_steps(self) -> Iterator[tuple[SpanRecord, int]]:
        """Yield the spans whose kind of work no phase names."""
        for span in self._by_id.values():
            is_unknown = not span.phase or span.phase_class == _OTHER
            if is_unknown and span.name != STEP_SPAN and (step := self.step(span)) is not None:
                yield span, step


class _Collective:
    """Spans of all ranks of a role in one collective of a step, by their arrival."""

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
