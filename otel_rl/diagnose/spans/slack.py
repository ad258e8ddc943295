"""Slack of each role: how much later its work could have ended without a longer step.

    trainer      [ wait ...............][ train ]
    generator-0  [ generate ]<- slack ->|
    generator-1  [ generate ...........]|            the last sample decided: no slack

The search goes back from the end of the step like the critical path, but over all awaited events.
An event that arrived earlier has the time until the last one as slack, and its own predecessors
have at least as much. So the slack of a span is the length of the shortest way to the end of the
step, and the slack of a role the least of its spans. Delays between processes are assumed constant.
"""

from collections.abc import Iterable, Iterator, Mapping
from heapq import heappop, heappush
from itertools import count, islice
from typing import Final

from otel_rl.diagnose.spans.critical_path import Segment
from otel_rl.diagnose.spans.span_forest import Forest
from otel_rl.records import SpanRecord

# Candidates of one wait. The latest come first, and have the least slack.
_MAX_PRODUCERS: Final = 256

# Parallel spans in one span.
_MAX_BESIDE: Final = 64

# Visits in one step: a longer search ends with its result so far.
_MAX_LOOKS: Final = 100_000


def slack_of_roles(forest: Forest, root: SpanRecord, path: Iterable[Segment]) -> Mapping[str, int]:
    """Return the nanoseconds by which the work of each role could have ended later.

    Args:
        forest: All spans that may be related, on one clock.
        root: The step's span.
        path: Critical path of the step; roles on it have no slack.

    Returns:
        Slack by role, without roles that the step did not need.
    """
    search = _Search(forest, root)
    search.run()
    return search.slack_ns | {segment.role: 0 for segment in path}


class _Search:
    """Search for the shortest ways back from the end of a step."""

    def __init__(self, forest: Forest, root: SpanRecord) -> None:
        self.slack_ns: dict[str, int] = {}
        self._forest = forest
        self._floor_ns = root.start_ns
        self._order = count()
        # (slack, order of arrival, span, the moment before which it is visited).
        self._waiting: list[tuple[int, int, SpanRecord, int]] = []
        self._seen: set[tuple[bytes, int]] = set()
        self._push(0, root, root.end_ns)

    def run(self) -> None:
        while self._waiting and len(self._seen) < _MAX_LOOKS:
            slack_ns, _, span, at_ns = heappop(self._waiting)
            if (span.span_id, at_ns) in self._seen:
                continue
            self._seen.add((span.span_id, at_ns))
            self.slack_ns.setdefault(span.role, slack_ns)
            if at_ns > self._floor_ns:
                self._look_into(slack_ns, span, at_ns)
            else:
                # Begun before the step: of its past, only the children are visited.
                for child in islice(self._children(span, at_ns), _MAX_BESIDE):
                    self._push_ended(slack_ns, child, at_ns)

    def _look_into(self, slack_ns: int, span: SpanRecord, at_ns: int) -> None:
        is_whole = at_ns == span.end_ns
        if is_whole:
            for used in self._forest.linked(span):
                self._push_ended(slack_ns, used, at_ns)
        children = self._children(span, at_ns)
        child = next(children, None)
        producer = self._awaited(span, at_ns, None if child is None else child.end_ns)
        if producer is not None:
            decided_ns = producer[1]
            self._push(slack_ns, *producer)
            # The wait could have begun as late as this.
            self._look_before(slack_ns + decided_ns - span.start_ns, span)
        elif child is not None:
            decided_ns = child.end_ns
            self._push(slack_ns, child, child.end_ns)
            # Parallel ones; earlier ones are found when the way has reached its start.
            for other in islice(children, _MAX_BESIDE):
                if other.end_ns <= child.start_ns:
                    break
                self._push(slack_ns + decided_ns - other.end_ns, other, other.end_ns)
        else:
            decided_ns = at_ns
            self._look_before(slack_ns, span)
        if self._forest.is_wait(span) and (is_whole or producer is not None):
            for used in self._used_by(span, decided_ns):
                self._push_ended(slack_ns, used, decided_ns)

    def _look_before(self, slack_ns: int, span: SpanRecord) -> None:
        at_ns = span.start_ns
        parent = self._forest.parent(span)
        if parent is not None and parent.start_ns < at_ns <= parent.end_ns:
            self._push(slack_ns, parent, at_ns)
            for used in self._forest.linked(span):
                self._push_ended(slack_ns, used, at_ns)
            return
        own = next(iter(self._forest.before(span)), None)
        ended = [
            one
            for one in (own, parent, *self._forest.linked(span))
            if one is not None and one.end_ns <= at_ns
        ]
        decided_ns = max((one.end_ns for one in ended), default=at_ns)
        for one in ended:
            self._push_ended(slack_ns, one, decided_ns)

    def _children(self, span: SpanRecord, at_ns: int) -> Iterator[SpanRecord]:
        for child in self._forest.children(span, at_ns):
            if child.start_ns < child.end_ns:
                yield child

    def _awaited(
        self, span: SpanRecord, at_ns: int, after_ns: int | None
    ) -> tuple[SpanRecord, int] | None:
        """Return the span of another process that ended a wait, and when, if after ``after_ns``."""
        if not self._forest.is_wait(span):
            return None
        found: tuple[SpanRecord, int] | None = None
        last = self._forest.last_to_arrive(span, at_ns)
        if last is not None:
            found = last, last.start_ns
        used = next(iter(self._used_by(span, at_ns)), None)
        if used is not None and used.end_ns > max(
            span.start_ns, span.start_ns if found is None else found[1]
        ):
            found = used, used.end_ns
        if found is None or (after_ns is not None and found[1] <= after_ns):
            return None
        return found

    def _used_by(self, wait: SpanRecord, through_ns: int) -> Iterator[SpanRecord]:
        around = self._forest.samples.around(wait).between(None, through_ns)
        for used in islice(around, _MAX_PRODUCERS):
            if used.worker != wait.worker:
                yield used

    def _push_ended(self, slack_ns: int, span: SpanRecord, decided_ns: int) -> None:
        if span.end_ns <= decided_ns:
            self._push(slack_ns + decided_ns - span.end_ns, span, span.end_ns)

    def _push(self, slack_ns: int, span: SpanRecord, at_ns: int) -> None:
        if (span.span_id, at_ns) not in self._seen:
            heappush(self._waiting, (slack_ns, next(self._order), span, at_ns))
