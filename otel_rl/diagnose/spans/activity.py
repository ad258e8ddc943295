"""Activity of each process at each moment, by its spans.

A process has one activity at a time. Among its open spans that contain no other open span of the
process, the activity is the working span that began last; without working ones, the waiting span
that began last. So concurrent requests and threads are counted once, and the times of a process,
including those in no span, add up to the interval.

    open spans     [ train .....................]
                          [ param_sync ]
    activity       [train][ param_sync ][ train ]
"""

from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from heapq import heappop, heappush
from itertools import islice
from operator import attrgetter
from typing import Final, NamedTuple

from otel_rl.diagnose.spans.span_forest import Forest
from otel_rl.records import SpanRecord

PART: Final = 8_192
"""Activities found out at a time: some tens of milliseconds."""

STANDSTILL: Final = frozenset({"wait", "sync"})
"""Classes of phases in which a process does no work itself."""


class Process(NamedTuple):
    """A worker process.

    Attributes:
        worker: Name of the worker, unique to the process.
    """

    role: str
    worker: str


class Stretch(NamedTuple):
    """An interval in which a process had one activity.

    Attributes:
        start_ns: Start, which is not before the end of the previous stretch.
        end_ns: End, which is after ``start_ns``.
        phase: The phase, or the name of a span that is in none.
    """

    start_ns: int
    end_ns: int
    phase: str
    phase_class: str

    @property
    def is_standstill(self) -> bool:
        """Return whether the process did no work itself."""
        return self.phase_class in STANDSTILL


class Activity:
    """Activities of all processes in an interval.

    The activities of a process are computed when they are first needed.

    Args:
        forest: Spans of the processes, on one clock.
    """

    def __init__(self, forest: Forest, start_ns: int, end_ns: int) -> None:
        self.start_ns = start_ns
        self.end_ns = end_ns
        self._forest = forest
        self._lives: dict[Process, tuple[int, int]] = {}
        open_of: dict[Process, list[SpanRecord]] = defaultdict(list)
        for span in forest.spans:
            process = Process(span.role, span.worker)
            first_ns, last_ns = self._lives.get(process, (span.start_ns, span.end_ns))
            self._lives[process] = min(first_ns, span.start_ns), max(last_ns, span.end_ns)
            if span.start_ns < span.end_ns and span.start_ns < end_ns and span.end_ns > start_ns:
                open_of[process].append(span)
        self._open_of = dict(open_of)
        self._stretches: dict[Process, Sequence[Stretch]] = {}
        self._starts: dict[Process, Sequence[int]] = {}

    def prepare(self) -> Iterator[None]:
        """Compute the activities of all processes now, with a pause after each ``PART``."""
        found = 0
        for process in [*self._open_of]:
            for found_of_process in self._look(process):
                found += found_of_process
                if found >= PART:
                    found = 0
                    yield

    def _look(self, process: Process) -> Iterator[int]:
        """Compute the activities of a process, and yield the number of new ones now and then."""
        spans = self._open_of.pop(process, None)
        if spans is None:
            return
        stretches: list[Stretch] = []
        coming = _stretches(self._forest, spans)
        while part := [*islice(coming, PART)]:
            stretches += part
            yield len(part)
        self._stretches[process] = stretches
        self._starts[process] = [stretch.start_ns for stretch in stretches]

    def within(self, start_ns: int, end_ns: int) -> Mapping[Process, Sequence[Stretch]]:
        """Return the activities of each process in a part of the interval, in order, clipped to it.

        Includes inactive processes that lived in the part: a process lives from its first span to
        its last.
        """
        return {
            process: self._cut(process, start_ns, end_ns)
            for process, (first_ns, last_ns) in self._lives.items()
            if first_ns < end_ns and last_ns > start_ns
        }

    def _cut(self, process: Process, start_ns: int, end_ns: int) -> Sequence[Stretch]:
        for _ in self._look(process):
            pass
        stretches, starts = self._stretches.get(process, ()), self._starts.get(process, ())
        first = max(0, bisect_right(starts, start_ns) - 1)
        cut = list(stretches[first : bisect_left(starts, end_ns)])
        if cut and cut[0].end_ns <= start_ns:
            del cut[0]
        if cut:
            cut[0] = cut[0]._replace(start_ns=max(start_ns, cut[0].start_ns))
            cut[-1] = cut[-1]._replace(end_ns=min(end_ns, cut[-1].end_ns))
        return cut


def _stretches(forest: Forest, spans: list[SpanRecord]) -> Iterator[Stretch]:
    """Yield the activities of one process, from its spans in order of time."""
    spans.sort(key=attrgetter("start_ns"))
    doing = [(forest.phase(span), forest.phase_class(span)) for span in spans]
    stands = [phase_class in STANDSTILL for _, phase_class in doing]
    place_of = {span.span_id: place for place, span in enumerate(spans)}
    within = [place_of.get(span.parent_id) if span.parent_id else None for span in spans]
    is_open = bytearray(len(spans))
    open_within = [0] * len(spans)
    # Candidates for the innermost span, negated, so that the last is first: of working spans, and
    # of waiting ones. Some are outdated, and some are duplicates.
    working: list[int] = []
    waiting: list[int] = []
    since_ns, current = 0, None
    for at_ns, ended, begun in _moments(spans):
        for place in ended:
            is_open[place] = False
            parent = within[place]
            if parent is not None and parent != place:
                open_within[parent] -= 1
                if not open_within[parent] and is_open[parent]:
                    heappush(waiting if stands[parent] else working, -parent)
        for place in begun:
            is_open[place] = True
            parent = within[place]
            if parent is not None and parent != place:
                open_within[parent] += 1
            heappush(waiting if stands[place] else working, -place)
        for heap in working, waiting:
            while heap and (open_within[-heap[0]] or not is_open[-heap[0]]):
                heappop(heap)
        innermost = -working[0] if working else -waiting[0] if waiting else None
        now = None if innermost is None else doing[innermost]
        if now != current:
            if current is not None:
                yield Stretch(since_ns, at_ns, *current)
            since_ns, current = at_ns, now


def _moments(spans: Sequence[SpanRecord]) -> Iterator[tuple[int, Sequence[int], Sequence[int]]]:
    """Yield the times at which spans end or begin, each with the indexes of those spans.

    Args:
        spans: Spans in order of their start, each longer than 0.
    """
    by_end = sorted(range(len(spans)), key=lambda place: spans[place].end_ns)
    begun = ended = 0
    while ended < len(spans):
        at_ns = spans[by_end[ended]].end_ns
        if begun < len(spans):
            at_ns = min(at_ns, spans[begun].start_ns)
        first_ended, first_begun = ended, begun
        while ended < len(spans) and spans[by_end[ended]].end_ns == at_ns:
            ended += 1
        while begun < len(spans) and spans[begun].start_ns == at_ns:
            begun += 1
        yield at_ns, by_end[first_ended:ended], range(first_begun, begun)
