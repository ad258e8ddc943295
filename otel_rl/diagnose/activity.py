"""What each process was busy with at each moment, as far as its spans say.

At each moment a process does one thing: of the spans that are open and have no open span of the
same process within them, the one that began last of those that work; else of those that wait. So
requests that are served side by side, and threads, are counted once, and the times of a process add
up to the interval, with what is in no span at all.

    open spans     [ train .....................]
                          [ param_sync ]
    activity       [train][ param_sync ][ train ]
"""

from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from heapq import heappop, heappush
from operator import attrgetter
from typing import Final, NamedTuple

from otel_rl.diagnose.forest import Forest
from otel_rl.records import SpanRecord

__all__ = ["STANDSTILL", "Activity", "Process", "Stretch"]

STANDSTILL: Final = frozenset({"wait", "sync"})
"""Classes of phases in which a process does nothing itself."""


class Process(NamedTuple):
    """A worker process.

    Attributes:
        role: Of the worker.
        worker: Unique to the process.
    """

    role: str
    worker: str


class Stretch(NamedTuple):
    """A time in which a process did one thing.

    Attributes:
        start_ns: Not before the end of the one before.
        end_ns: After ``start_ns``.
        phase: What it did: a phase, or the name of a span that is in none.
        phase_class: What kind of time it is.
    """

    start_ns: int
    end_ns: int
    phase: str
    phase_class: str

    @property
    def is_standstill(self) -> bool:
        """Whether the process did nothing itself."""
        return self.phase_class in STANDSTILL


class Activity:
    """What all processes did in an interval.

    Args:
        forest: Of their spans, by clocks that agree.
        start_ns: Of the interval.
        end_ns: Of the interval.
    """

    def __init__(self, forest: Forest, start_ns: int, end_ns: int) -> None:
        self.start_ns = start_ns
        self.end_ns = end_ns
        self._lives: dict[Process, tuple[int, int]] = {}
        open_of: dict[Process, list[SpanRecord]] = defaultdict(list)
        for span in forest.spans:
            process = Process(span.role, span.worker)
            first_ns, last_ns = self._lives.get(process, (span.start_ns, span.end_ns))
            self._lives[process] = min(first_ns, span.start_ns), max(last_ns, span.end_ns)
            if span.start_ns < span.end_ns and span.start_ns < end_ns and span.end_ns > start_ns:
                open_of[process].append(span)
        self._stretches = {
            process: list(_stretches(forest, spans)) for process, spans in open_of.items()
        }
        self._starts = {
            process: [stretch.start_ns for stretch in stretches]
            for process, stretches in self._stretches.items()
        }

    def within(self, start_ns: int, end_ns: int) -> Mapping[Process, Sequence[Stretch]]:
        """What each process did in a part of the interval, in order of time, cut off at its ends.

        Processes that lived in it are there, also those that did nothing: a process lives from its
        first span to its last.
        """
        return {
            process: self._cut(process, start_ns, end_ns)
            for process, (first_ns, last_ns) in self._lives.items()
            if first_ns < end_ns and last_ns > start_ns
        }

    def _cut(self, process: Process, start_ns: int, end_ns: int) -> Sequence[Stretch]:
        stretches, starts = self._stretches.get(process, []), self._starts.get(process, [])
        first = max(0, bisect_right(starts, start_ns) - 1)
        cut = stretches[first : bisect_left(starts, end_ns)]
        if cut and cut[0].end_ns <= start_ns:
            del cut[0]
        if cut:
            cut[0] = cut[0]._replace(start_ns=max(start_ns, cut[0].start_ns))
            cut[-1] = cut[-1]._replace(end_ns=min(end_ns, cut[-1].end_ns))
        return cut


def _stretches(forest: Forest, spans: list[SpanRecord]) -> Iterator[Stretch]:
    """Of the spans of one process, in order of time."""
    spans.sort(key=attrgetter("start_ns"))
    doing = [(forest.phase(span), forest.phase_class(span)) for span in spans]
    stands = [phase_class in STANDSTILL for _, phase_class in doing]
    place_of = {span.span_id: place for place, span in enumerate(spans)}
    within = [place_of.get(span.parent_id) if span.parent_id else None for span in spans]
    is_open = bytearray(len(spans))
    open_within = [0] * len(spans)
    # Places that may be innermost, negative, so that the last is first: of spans that work, and of
    # those that wait. Some are no more, and some stand there twice.
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
    """The times at which spans end or begin, each with the places of those that do.

    Args:
        spans: By the time of their start, each longer than 0.
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
