"""Writes the spans of a run as a Chrome trace, which Perfetto and ``chrome://tracing`` open.

    process         worker
    thread          lane of the worker
    complete event  span
    flow            link between spans, from the one that is linked to
    counter         values of a worker, such as queues and devices

Times are microseconds since the first span, with three digits for the nanoseconds: a double does
not hold those since the epoch. The file is written event by event.

Slices of a thread have to nest. A process works on many requests at once, so its spans overlap; a
span shares the lane of its parent if it fits inside, and else begins another one:

    lane 1   [ step .............................]
                [ wait ][ train .............]
    lane 2   [ request 1 ......]   [ request 3 ]
    lane 3        [ request 2 ......]
"""

import math
from collections.abc import Hashable, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from heapq import heappop, heappush
from typing import BinaryIO, Final, NamedTuple

import orjson

from otel_rl.records import SpanRecord
from otel_rl.semconv.spec import STEP_SPAN

# A rollout that a step used was generated with weights that a sync brought.
_HOPS: Final = 2

_Event = dict[str, object]


class Counter(NamedTuple):
    """Value of a worker at a time.

    Attributes:
        worker: ``<role>/<index>``.
        name: Of the value, e.g. a tracker key.
        time_ns: Since the epoch.
        value: NaN and infinities are left out: JSON has none.
    """

    worker: str
    name: str
    time_ns: int
    value: float


class TraceSummary(NamedTuple):
    """Numbers of spans, links, values and workers in a written trace."""

    spans: int
    flows: int
    counters: int
    processes: int


# Which spans


def known_steps(spans: Sequence[SpanRecord]) -> Sequence[int]:
    """Return the steps with a span, in order: those of whole steps if there are any."""
    of_any = [span for span in spans if span.step is not None]
    whole = [span for span in of_any if span.name == STEP_SPAN]
    return sorted({span.step for span in whole or of_any if span.step is not None})


def of_steps(spans: Sequence[SpanRecord], first: int, last: int) -> list[SpanRecord]:
    """Return the spans of some steps, inclusive: those in their time, and linked ones.

    Of the linked spans before that time, those that made the samples of the steps are there, and
    those that brought the weights to them. Nothing is returned if no span is of these steps.
    """
    of_them = [span for span in spans if span.step is not None and first <= span.step <= last]
    # Whole steps, if there are any: a rollout bears the number of the step in which it began.
    whole = [span for span in of_them if span.name == STEP_SPAN]
    passes = _passes(whole or of_them, are_whole=bool(whole))
    used = {
        span.span_id
        for span in spans
        if any(span.start_ns <= end_ns and span.end_ns >= begin_ns for begin_ns, end_ns in passes)
    }
    for _ in range(_HOPS):
        used.update(link for span in spans if span.span_id in used for link in span.links)
    return [span for span in spans if span.span_id in used]


def _passes(steps: Iterable[SpanRecord], *, are_whole: bool) -> Sequence[tuple[int, int]]:
    """Return begin and end of each pass over some steps.

    A worker that goes back to a step begins its next pass; what is between is of other steps.

    Args:
        steps: Their spans, each with its step.
        are_whole: Whether they are whole steps. Else a step may have several spans.
    """
    of_worker: dict[str, tuple[int, int]] = {}  # the pass that it is in, and its highest step there
    passes: dict[int, tuple[int, int]] = {}
    for span in sorted(steps, key=lambda one: one.start_ns):
        step = span.step or 0
        number, highest = of_worker.get(span.worker, (0, step - 1))
        is_back = are_whole and step <= highest
        number += is_back
        of_worker[span.worker] = number, step if is_back else max(step, highest)
        begin_ns, until_ns = passes.get(number, (span.start_ns, span.end_ns))
        passes[number] = min(begin_ns, span.start_ns), max(until_ns, span.end_ns)
    return [*passes.values()]


def unknown_links(spans: Sequence[SpanRecord]) -> int:
    """Return how many links lead to spans that are not among these."""
    known = {span.span_id for span in spans}
    return sum(len({*span.links} - known) for span in spans)


# Where each span is drawn


class Lanes:
    """Lanes of one process, numbered from 0. The lowest free one is taken."""

    def __init__(self) -> None:
        self._stacks: list[list[tuple[Hashable, int]]] = []  # open spans: id and end
        self._lane_of: dict[Hashable, int] = {}  # of the open spans
        self._busy: list[tuple[int, int]] = []  # heap of ends of outermost spans, with the lane
        self._free: list[int] = []  # heap

    def place(
        self, span_id: Hashable, parent_id: Hashable | None, start_ns: int, end_ns: int
    ) -> tuple[int, bool]:
        """Return the lane of a span, and whether the span is within its parent there.

        Args:
            span_id: Unique.
            parent_id: Of any process; None for a root.
            start_ns: Not before that of the last one; of two with one start, the longer is first.
            end_ns: Not before ``start_ns``.
        """
        self._end_through(start_ns)
        lane = self._lane_of.get(parent_id) if parent_id is not None else None
        is_within = lane is not None and self._fits(lane, parent_id, start_ns, end_ns)
        if lane is None or not is_within:
            lane = self._free_lane()
            heappush(self._busy, (end_ns, lane))
        self._stacks[lane].append((span_id, end_ns))
        self._lane_of[span_id] = lane
        return lane, is_within

    def _end_through(self, start_ns: int) -> None:
        while self._busy and self._busy[0][0] <= start_ns:
            _, lane = heappop(self._busy)
            self._pop_through(lane, start_ns)
            heappush(self._free, lane)

    def _fits(self, lane: int, parent_id: Hashable, start_ns: int, end_ns: int) -> bool:
        self._pop_through(lane, start_ns)
        stack = self._stacks[lane]
        return bool(stack) and stack[-1][0] == parent_id and end_ns <= stack[-1][1]

    def _pop_through(self, lane: int, start_ns: int) -> None:
        stack = self._stacks[lane]
        while stack and stack[-1][1] <= start_ns:
            span_id, _ = stack.pop()
            self._lane_of.pop(span_id, None)

    def _free_lane(self) -> int:
        if self._free:
            return heappop(self._free)
        self._stacks.append([])
        return len(self._stacks) - 1


# The file


def write_trace(
    file: BinaryIO,
    spans: Sequence[SpanRecord],
    *,
    names: Mapping[str, str],
    counters: Iterable[Counter] = (),
    about: Mapping[str, str] | None = None,
) -> TraceSummary:
    """Write a whole trace.

    Args:
        file: Open for bytes.
        spans: At least one, each once, in the order in which they ended.
        names: ``<role>/<index>`` of each worker, by its instance; others keep their instance.
        counters: Values; those outside the time of the spans are left out.
        about: Texts about the trace, for its reader.
    """
    trace = _Trace(file, spans, names)
    start = datetime.fromtimestamp(trace.start_ns // 1_000_000_000, UTC).isoformat()
    other = {**(about or {}), "start": start, "start_unix_ns": str(trace.start_ns)}
    file.write(b'{"displayTimeUnit":"ms","otherData":%b,"traceEvents":[\n' % _encoded(other))
    trace.write_all(counters)
    file.write(b"\n]}\n")
    return trace.summary()


class _Trace:
    def __init__(
        self, file: BinaryIO, spans: Sequence[SpanRecord], names: Mapping[str, str]
    ) -> None:
        self.start_ns = min(span.start_ns for span in spans)
        self._end_ns = max(span.end_ns for span in spans)
        self._file = file
        # By start, of two with one start the longer first; a parent that begins and ends with its
        # child has ended after it.
        self._spans = [*reversed(spans)]
        self._spans.sort(key=lambda span: (span.start_ns, -span.end_ns))
        self._processes = _Processes(self._spans, names)
        self._places: dict[bytes, tuple[int, int, SpanRecord]] = {}
        self._separator = b""
        self._counts = {"X": 0, "s": 0, "C": 0}

    def summary(self) -> TraceSummary:
        counts = self._counts
        return TraceSummary(counts["X"], counts["s"], counts["C"], len(self._processes.names))

    def write_all(self, counters: Iterable[Counter]) -> None:
        self._write_spans()
        for span in self._spans:
            for link in dict.fromkeys(span.links):
                if link in self._places:
                    self._write_flow(self._places[link], self._places[span.span_id])
        for counter in counters:
            if math.isfinite(counter.value) and self.start_ns <= counter.time_ns <= self._end_ns:
                self._write(self._counter(counter))
        for place, (pid, name, host) in enumerate(self._processes.sorted()):
            self._write_metadata(pid, "process_name", {"name": name})
            self._write_metadata(pid, "process_labels", {"labels": host})
            self._write_metadata(pid, "process_sort_index", {"sort_index": place})

    def _write_spans(self) -> None:
        lanes = [Lanes() for _ in self._processes.begun_ns]
        last = [0 for _ in lanes]
        for span in self._spans:
            pid = self._processes.pid_of(span)
            lane, is_within = lanes[pid - 1].place(
                span.span_id, span.parent_id, span.start_ns, span.end_ns
            )
            tid = lane + 1
            if tid > last[pid - 1]:
                last[pid - 1] = tid
                self._write_metadata(pid, "thread_name", {"name": f"lane {tid}"}, tid)
                self._write_metadata(pid, "thread_sort_index", {"sort_index": tid}, tid)
            self._write(self._span(span, pid, tid, is_within=is_within))
            self._places[span.span_id] = pid, tid, span

    def _write_metadata(self, pid: int, name: str, what: object, tid: int = 0) -> None:
        self._write({"ph": "M", "name": name, "pid": pid, "tid": tid, "args": what})

    def _span(self, span: SpanRecord, pid: int, tid: int, *, is_within: bool) -> _Event:
        event: _Event = {
            "ph": "X",
            "name": span.phase or span.name or "span",
            "cat": span.phase_class or "span",
            "pid": pid,
            "tid": tid,
            "ts": self._us(span.start_ns),
            "dur": (span.end_ns - span.start_ns) / 1000,
        }
        about: _Event = {}
        if span.phase and span.phase != span.name:
            about["span"] = span.name
        if span.step is not None:
            about["step"] = span.step
        if not is_within:
            about["trace_id"] = span.span_id[:16].hex()
        if span.failed:
            about["failed"] = True
            event["cname"] = "terrible"  # red in chrome://tracing
        if about:
            event["args"] = about
        return event

    def _write_flow(
        self, producer: tuple[int, int, SpanRecord], consumer: tuple[int, int, SpanRecord]
    ) -> None:
        """Write both ends of a flow, each at a time when its span is open.

        The arrow begins with the span that is linked to, and ends where the other one begins, or
        where it could have used the first one. Without such a time, by clocks that differ, there
        is none.
        """
        (from_pid, from_tid, made), (pid, tid, used) = producer, consumer
        at_ns = used.start_ns
        if made.start_ns >= used.start_ns:
            at_ns = max(made.start_ns, min(made.end_ns, used.end_ns - 1))
        if at_ns > used.end_ns:
            return
        common = {"name": "link", "cat": "link", "id": self._counts["s"] + 1}
        begin = {"pid": from_pid, "tid": from_tid, "ts": self._us(made.start_ns)}
        self._write({"ph": "s", **common, **begin})
        self._write({"ph": "f", "bp": "e", **common, "pid": pid, "tid": tid, "ts": self._us(at_ns)})

    def _counter(self, counter: Counter) -> _Event:
        return {
            "ph": "C",
            "name": counter.name,
            "pid": self._processes.pid_at(counter.worker, counter.time_ns),
            "tid": 0,
            "ts": self._us(counter.time_ns),
            "args": {"value": counter.value},
        }

    def _us(self, time_ns: int) -> float:
        return (time_ns - self.start_ns) / 1000

    def _write(self, event: _Event) -> None:
        self._file.write(self._separator)
        self._file.write(_encoded(event))
        self._separator = b",\n"
        kind = str(event["ph"])
        if kind in self._counts:
            self._counts[kind] += 1


class _Processes:
    """Numbers of the workers, from 1.

    A worker that was replaced is a process of its own, with the name of the other one.

    Args:
        spans: By their start.
        names: Of workers, by instance.

    Attributes:
        begun_ns: Start of each one with spans, in the order of the numbers.
        names: Of all, by number.
    """

    def __init__(self, spans: Sequence[SpanRecord], names: Mapping[str, str]) -> None:
        self.begun_ns: list[int] = []
        self.names: dict[int, str] = {}
        self._hosts: dict[int, str] = {}
        self._pids: dict[tuple[str, str], int] = {}
        self._with_name: dict[str, list[int]] = {}
        first = {(span.role, span.worker): span for span in reversed(spans)}
        for span in sorted(first.values(), key=lambda one: (one.start_ns, one.worker)):
            self.begun_ns.append(span.start_ns)
            pid = self._pids[span.role, span.worker] = len(self.begun_ns)
            name = names.get(span.worker) or f"{span.role}/{span.worker}"
            self.names[pid], self._hosts[pid] = name, span.host
            self._with_name.setdefault(name, []).append(pid)

    def pid_of(self, span: SpanRecord) -> int:
        return self._pids[span.role, span.worker]

    def pid_at(self, name: str, time_ns: int) -> int:
        """Return the process that had a name at a time; one without spans is added."""
        pids = self._with_name.get(name)
        if pids is None:
            pid = len(self.names) + 1
            self.names[pid] = name
            pids = self._with_name[name] = [pid]
        begun = [pid for pid in pids[1:] if self.begun_ns[pid - 1] <= time_ns]
        return begun[-1] if begun else pids[0]

    def sorted(self) -> Sequence[tuple[int, str, str]]:
        """Return number, name and host of all: roles in the order in which they began."""
        roles: dict[str, int] = {}
        for name in self.names.values():
            roles.setdefault(name.partition("/")[0], len(roles))

        def order(pid: int) -> tuple[int, int, str, int]:
            role, _, index = self.names[pid].partition("/")
            return roles[role], int(index) if index.isdecimal() else -1, index, pid

        return [
            (pid, self.names[pid], self._hosts.get(pid, ""))
            for pid in sorted(self.names, key=order)
        ]


def _encoded(what: object) -> bytes:
    # Perfetto 52 takes the quote after an escaped backslash for an escaped one.
    return orjson.dumps(what).replace(b"\\\\", b"\\u005c")
