"""Critical path of an interval: a chain of spans over processes, walked back from its end.

    trainer    [ wait ................][ train ]
                         ^                          the wait ended because the sample did
    generator     [ generate ][ idle ][ generate ]
                  ...

The walk goes back in time and finds at each moment the activity of the process, or the event that
ended its waiting. It is iterative, visits a span at most twice, and its segments tile the interval
exactly: each begins where the next one ends.

* Within a span, the child that ended last comes first, even if it ends exactly where another
  begins. Time without a child is the span's own time.
* A wait is over when the last awaited event has occurred: the end, during the wait, of a span of
  another process that the waiting span, or its parents, link to; the end of later work on it
  elsewhere, such as the scoring of a sample; or the arrival of the last rank at a barrier. Where no
  span links to any, as in separate traces, the event is the last sample.
* A piece of work was started by the last event before it: the previous span of the process, a span
  that it links to, or a parent in another process. The time between is idle time.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from otel_rl.diagnose.spans.span_forest import Forest
from otel_rl.records import SpanRecord
from otel_rl.semconv.names import RlPhaseValues

IDLE: Final = RlPhaseValues.IDLE.value
"""Phase of a segment without any known work of the process."""


@dataclass(frozen=True, slots=True)
class Segment:
    """A segment of the critical path.

    Attributes:
        start_ns: Start, which is the end of the previous segment.
        end_ns: End, which is after ``start_ns``.
        role: Role of the worker on the path.
        phase: Name of a phase, of a span that is in no phase, or ``IDLE``.
        span_id: Id of the span; None for idle time.
    """

    start_ns: int
    end_ns: int
    role: str
    worker: str
    phase: str
    span_id: bytes | None


def critical_path(forest: Forest, root: SpanRecord) -> list[Segment]:
    """Return the chain of segments that decided when ``root`` ended, in order of time.

    Args:
        forest: All spans that may be related, on one clock.
        root: Interval to be explained, mostly the step of the rank that ended last.

    Returns:
        Segments that tile the interval; none for an empty one.
    """
    walk = _Walk(forest, root)
    walk.run()
    return walk.segments()


class _Walk:
    """Walk from the end of an interval back to its start."""

    def __init__(self, forest: Forest, root: SpanRecord) -> None:
        self._forest = forest
        self._root = root
        self._floor_ns = root.start_ns
        # From the end to the start.
        self._back: list[Segment] = []
        self._entered: set[bytes] = set()

    def run(self) -> None:
        span, at_ns = self._root, self._root.end_ns
        while at_ns > self._floor_ns:
            self._entered.add(span.span_id)
            cause = self._cause_within(span, at_ns)
            if cause is not None:
                self._add(span, cause.at_ns, at_ns)
                span, at_ns = cause.span, cause.at_ns
                continue
            self._add(span, span.start_ns, at_ns)
            at_ns = min(at_ns, span.start_ns)
            if at_ns > self._floor_ns:
                before = self._before(span, at_ns)
                from_ns = self._floor_ns if before is None else min(at_ns, before.end_ns)
                self._idle(span, from_ns, at_ns)
                span, at_ns = before or span, from_ns

    def segments(self) -> list[Segment]:
        """Return the segments in order of time, neighbours of one span joined."""
        joined: list[Segment] = []
        for segment in reversed(self._back):
            last = joined[-1] if joined else None
            if last is not None and _is_same(last, segment):
                joined[-1] = Segment(
                    last.start_ns,
                    segment.end_ns,
                    last.role,
                    last.worker,
                    last.phase,
                    last.span_id,
                )
            else:
                joined.append(segment)
        return joined

    def _cause_within(self, span: SpanRecord, at_ns: int) -> "_Cause | None":
        """Return the unvisited cause that ended last within the span, at ``at_ns`` or before."""
        best: _Cause | None = None
        for child in self._forest.children(span, at_ns):
            if child.span_id not in self._entered:
                best = _Cause(child, child.end_ns)
                break
        if self._forest.is_wait(span):
            for producer in self._awaited(span, at_ns):
                if best is None or producer.at_ns > best.at_ns:
                    best = producer
        return best

    def _awaited(self, wait: SpanRecord, at_ns: int) -> Iterator["_Cause"]:
        last = self._forest.last_to_arrive(wait, at_ns)
        if last is not None and last.span_id not in self._entered:
            # Explained by that rank's work before its arrival.
            yield _Cause(last, last.start_ns)
        for producer in self._forest.samples.around(wait).between(wait.start_ns, at_ns):
            if producer.span_id not in self._entered and producer.worker != wait.worker:
                yield _Cause(producer, producer.end_ns)
                return
        sample = self._forest.samples.last_before(wait, at_ns)
        if sample is not None and sample.span_id not in self._entered:
            yield _Cause(sample, sample.end_ns)

    def _before(self, span: SpanRecord, at_ns: int) -> SpanRecord | None:
        """Return the span at which the walk continues from the beginning of a span.

        It is the parent, or else the last to end of all spans that may have let the span begin.
        """
        parent = self._forest.parent(span)
        if parent is not None and parent.start_ns < at_ns <= parent.end_ns:
            return parent
        own = (one for one in self._forest.before(span) if one.span_id not in self._entered)
        candidates = [next(own, None), parent, *self._forest.linked(span)]
        ended = [
            one
            for one in candidates
            if one is not None and one.end_ns <= at_ns and one.span_id not in self._entered
        ]
        return max(ended, key=lambda one: one.end_ns, default=None)

    def _add(self, span: SpanRecord, start_ns: int, end_ns: int) -> None:
        start_ns = max(start_ns, self._floor_ns)
        if start_ns < end_ns:
            phase = self._forest.phase(span)
            self._back.append(
                Segment(start_ns, end_ns, span.role, span.worker, phase, span.span_id)
            )

    def _idle(self, span: SpanRecord, start_ns: int, end_ns: int) -> None:
        start_ns = max(start_ns, self._floor_ns)
        if start_ns < end_ns:
            self._back.append(Segment(start_ns, end_ns, span.role, span.worker, IDLE, None))


@dataclass(frozen=True, slots=True)
class _Cause:
    span: SpanRecord
    at_ns: int


def _is_same(one: Segment, other: Segment) -> bool:
    return one.span_id == other.span_id and one.worker == other.worker and one.phase == other.phase
