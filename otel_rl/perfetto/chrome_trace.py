"""Writes a Chrome trace: JSON of the Trace Event Format, as Perfetto and ``chrome://tracing`` read.

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
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from heapq import heappop, heappush
from itertools import islice
from typing import BinaryIO, Final, NamedTuple

import orjson

from otel_rl.perfetto.span_table import Link, SpanTable, StoredSpan, StoredWorker

__all__ = ["Counter", "Lanes", "TraceSummary", "write_trace"]


class Lanes:
    """Lanes of one process, numbered from 0. The lowest free one is taken."""

    def __init__(self) -> None:
        self._stacks: list[list[tuple[int, int]]] = []  # open spans: id and end
        self._lane_of: dict[int, int] = {}  # of the open spans
        self._busy: list[tuple[int, int]] = []  # heap of ends of outermost spans, with the lane
        self._free: list[int] = []  # heap

    def place(
        self, span_id: int, parent_id: int | None, start_ns: int, end_ns: int
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

    def _fits(self, lane: int, parent_id: int | None, start_ns: int, end_ns: int) -> bool:
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


_Event = dict[str, object]

_SPANS_AT_ONCE: Final = 1_000


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


def write_trace(
    file: BinaryIO,
    table: SpanTable,
    *,
    names: Mapping[str, str],
    counters: Iterable[Counter] = (),
    about: Mapping[str, str] | None = None,
) -> TraceSummary:
    """Write a whole trace.

    Args:
        file: Open for bytes.
        table: The spans, at least one.
        names: ``<role>/<index>`` of each worker, by its instance; others keep their instance.
        counters: Values; those outside the time of the spans are left out.
        about: Texts about the trace, for its reader.
    """
    trace = _Trace(file, table, names)
    start = datetime.fromtimestamp(trace.start_ns // 1_000_000_000, UTC).isoformat()
    other = {**(about or {}), "start": start, "start_unix_ns": str(trace.start_ns)}
    file.write(b'{"displayTimeUnit":"ms","otherData":%b,"traceEvents":[\n' % _encoded(other))
    trace.write_all(counters)
    file.write(b"\n]}\n")
    return trace.summary()


class _Trace:
    def __init__(self, file: BinaryIO, table: SpanTable, names: Mapping[str, str]) -> None:
        self.start_ns = table.start_ns() or 0
        self._end_ns = table.end_ns()
        self._file = file
        self._table = table
        self._processes = _Processes(table.workers(), names)
        self._separator = b""
        self._counts = {"X": 0, "s": 0, "C": 0}

    def summary(self) -> TraceSummary:
        counts = self._counts
        return TraceSummary(counts["X"], counts["s"], counts["C"], len(self._processes.names))

    def write_all(self, counters: Iterable[Counter]) -> None:
        for pid, worker in self._processes.workers.items():
            self._write_spans(pid, worker)
        for link in self._table.links():
            self._write_flow(link)
        for counter in counters:
            if math.isfinite(counter.value) and self.start_ns <= counter.time_ns <= self._end_ns:
                self._write(self._counter(counter))
        for place, (pid, name, labels) in enumerate(self._processes.sorted()):
            self._write_metadata(pid, "process_name", {"name": name})
            self._write_metadata(pid, "process_labels", {"labels": labels})
            self._write_metadata(pid, "process_sort_index", {"sort_index": place})

    def _write_spans(self, pid: int, worker: StoredWorker) -> None:
        lanes, last = Lanes(), 0
        spans = self._table.of(worker)
        while some := [*islice(spans, _SPANS_AT_ONCE)]:
            places = []
            for span in some:
                lane, is_within = lanes.place(
                    span.span_id, span.parent_id, span.start_ns, span.end_ns
                )
                tid = lane + 1
                if tid > last:
                    last = tid
                    self._write_metadata(pid, "thread_name", {"name": f"lane {tid}"}, tid)
                    self._write_metadata(pid, "thread_sort_index", {"sort_index": tid}, tid)
                self._write(self._span(span, pid, tid, is_within=is_within))
                places.append((span, pid, tid))
            self._table.place(places)

    def _write_metadata(self, pid: int, name: str, what: object, tid: int = 0) -> None:
        self._write({"ph": "M", "name": name, "pid": pid, "tid": tid, "args": what})

    def _span(self, span: StoredSpan, pid: int, tid: int, *, is_within: bool) -> _Event:
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
            about["trace_id"] = span.trace_id.hex()
        if span.failed:
            about["failed"] = True
            event["cname"] = "terrible"  # red in chrome://tracing
        if about:
            event["args"] = about
        return event

    def _write_flow(self, link: Link) -> None:
        """Write both ends of a flow, each at a time when its span is open.

        The arrow begins with the span that is linked to, and ends where the other one begins, or
        where it could have used the first one. Without such a time, by clocks that differ, there
        is none.
        """
        (from_pid, from_tid, begun_ns, ended_ns), (pid, tid, start_ns, end_ns) = link
        at_ns = start_ns if begun_ns < start_ns else max(begun_ns, min(ended_ns, end_ns - 1))
        if at_ns > end_ns:
            return
        common = b'"name":"link","cat":"link","id":%d' % (self._counts["s"] + 1)
        self._write_text(
            "s",
            b'{"ph":"s",%b,"pid":%d,"tid":%d,"ts":%r}'
            % (common, from_pid, from_tid, self._us(begun_ns)),
        )
        self._write_text(
            "f",
            b'{"ph":"f","bp":"e",%b,"pid":%d,"tid":%d,"ts":%r}'
            % (common, pid, tid, self._us(at_ns)),
        )

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
        self._write_text(str(event["ph"]), _encoded(event))

    def _write_text(self, kind: str, text: bytes) -> None:
        self._file.write(self._separator)
        self._file.write(text)
        self._separator = b",\n"
        if kind in self._counts:
            self._counts[kind] += 1


class _Processes:
    """Numbers of the workers, from 1.

    A worker that was replaced is a process of its own, with the name of the other one.

    Attributes:
        workers: Those with spans, by number.
        names: Of all, by number.
    """

    def __init__(self, workers: Sequence[StoredWorker], names: Mapping[str, str]) -> None:
        self.workers = dict(enumerate(workers, start=1))
        self.names = {
            pid: names.get(one.worker) or f"{one.role}/{one.worker}"
            for pid, one in self.workers.items()
        }
        self._with_name: dict[str, list[int]] = {}
        for pid, name in self.names.items():
            self._with_name.setdefault(name, []).append(pid)

    def pid_at(self, name: str, time_ns: int) -> int:
        """Return the process that had a name at a time; one without spans is added."""
        pids = self._with_name.get(name)
        if pids is None:
            pid = len(self.names) + 1
            self.names[pid] = name
            pids = self._with_name[name] = [pid]
        begun = [pid for pid in pids[1:] if self.workers[pid].start_ns <= time_ns]
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
            (pid, self.names[pid], self.workers[pid].host if pid in self.workers else "")
            for pid in sorted(self.names, key=order)
        ]


def _encoded(what: object) -> bytes:
    # Perfetto 52 takes the quote after an escaped backslash for an escaped one.
    return orjson.dumps(what).replace(b"\\\\", b"\\u005c")
