"""Data of the page *Timeline*: spans of some steps, by worker, with the critical path.

The spans are those that the bridge keeps to explain steps, of the last minute or more (see
``rows.spans_horizon``), at most 100,000; and those of chosen steps, which stay.
"""

import heapq
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from otel_rl.bridge.journal.reader import KnownWorker, Standing
from otel_rl.bridge.rows.series.streams import WorkerStanding
from otel_rl.bridge.rows.stored_run import read_standing
from otel_rl.diagnose.spans.clocks import estimate_clocks, with_one_clock
from otel_rl.diagnose.spans.critical_path import critical_path
from otel_rl.diagnose.spans.span_forest import Forest
from otel_rl.records import SpanRecord
from otel_rl.semconv.spec import STEP_SPAN
from otel_rl.view.found import Found
from otel_rl.view.run_data import RunData
from otel_rl.view.text import in_order, label
from otel_rl.view.worker_places import spans_of

_MAX_SPANS: Final = 3_000
_MAX_LINKS: Final = 4_000
_MAX_STEPS: Final = 8
_USUAL_OF: Final = 9  # steps before a fault, the nearest to it
_SLOWER: Final = 1.2  # than the first step of a fault: the slowest then shows something else
_DEPTH: Final = 6  # spans of one worker side by side; deeper ones share the last row


def timeline(found: Found, *, first: int | None = None, last: int | None = None) -> dict[str, Any]:
    """Return the spans of a few steps, the last two unless others are asked for.

    Args:
        found: The run.
        first: The first step.
        last: The last step; at most eight are shown.
    """
    standing, spans = _read(found)
    workers = standing.workers
    roots = _roots(spans, workers)
    if not roots:
        return {"steps": [], "spans": [], "lanes": [], "path": []}
    known = sorted(roots)
    end = known[-1] if last is None else max(known[0], min(last, known[-1]))
    begin = end - 1 if first is None else first
    begin = max(begin, end - _MAX_STEPS + 1)
    steps = [step for step in known if begin <= step <= end] or [known[-1]]
    return {
        **_picture(workers, spans, steps, role=_role_of(roots)),
        "known": _ranges(known),
        "slowest": max(known, key=lambda step: _took_ns(roots[step])),
        "median": _usual(known, roots),
        "is_full": standing.is_full,
    }


def before_and_after(found: Found, since: int, until: int | None = None) -> dict[str, Any] | None:
    """Return a usual step of before a fault, the first one since it began, and the slowest.

    None if the journal has no spans of one before or since. ``slowest`` is there where
    it took clearly longer than the first one.

    Args:
        found: The run.
        since: Step with which the fault began.
        until: The last step with it; None if it goes on.
    """
    standing, spans = _read(found)
    workers = standing.workers
    roots = _roots(spans, workers)
    before = [step for step in sorted(roots) if step < since][-_USUAL_OF:]
    after = [step for step in sorted(roots) if since <= step <= (until or step)]
    if not before or not after:
        return None
    chosen = {"before": _usual(before, roots), "after": after[0]}
    slowest = max(after, key=lambda step: _took_ns(roots[step]))
    if _took_ns(roots[slowest]) > _SLOWER * _took_ns(roots[after[0]]):
        chosen["slowest"] = slowest
    return {
        name: _picture(workers, _near(spans, roots[step]), [step], role=_role_of(roots))
        for name, step in chosen.items()
    }


def _near(spans: Sequence[SpanRecord], roots: Sequence[SpanRecord]) -> list[SpanRecord]:
    """Return the spans of a step, and around it for as long as it took."""
    took_ns = _took_ns(roots)
    begun_ns, end_ns = roots[0].start_ns - took_ns, roots[-1].end_ns + took_ns
    return [span for span in spans if span.end_ns > begun_ns and span.start_ns < end_ns]


def _read(found: Found) -> tuple[Standing, list[SpanRecord]]:
    with found.open() as connection:
        return read_standing(connection, found.id), spans_of(connection, found.id)


def _usual(steps: Sequence[int], roots: Mapping[int, Sequence[SpanRecord]]) -> int:
    """Return the step with the median duration."""
    return sorted(steps, key=lambda step: _took_ns(roots[step]))[(len(steps) - 1) // 2]


def _ranges(steps: Sequence[int]) -> list[list[int]]:
    """Return the first and the last of steps that follow each other, in order."""
    ranges: list[list[int]] = []
    for step in steps:
        if ranges and step == ranges[-1][1] + 1:
            ranges[-1][1] = step
        else:
            ranges.append([step, step])
    return ranges


def _picture(
    workers: Sequence[KnownWorker], spans: list[SpanRecord], steps: Sequence[int], *, role: str
) -> dict[str, Any]:
    """Return the spans of some steps of a role, by worker, and the critical path through them."""
    roots = _roots(spans, workers, role)
    spans, ahead = _on_one_clock(spans, roots[steps[-1]])
    roots = _roots(spans, workers, role)
    start_ns = min(root.start_ns for step in steps for root in roots[step])
    end_ns = max(root.end_ns for step in steps for root in roots[step])
    inside = [span for span in spans if span.end_ns > start_ns and span.start_ns < end_ns]
    shown = heapq.nlargest(_MAX_SPANS, inside, key=lambda span: span.end_ns - span.start_ns)
    shown.sort(key=lambda span: (span.start_ns, -span.end_ns))
    lanes = _lanes(shown, workers, first_role=role)
    places = {span.span_id: place for place, span in enumerate(shown)}
    return {
        "steps": [_step(step, roots[step], start_ns) for step in steps],
        "seconds": (end_ns - start_ns) / 1e9,
        "start_ms": start_ns / 1e6,
        "lanes": [lane.as_json(start_ns) for lane in lanes.values()],
        "spans": [
            {
                "lane": lanes[span.worker].place,
                "row": lanes[span.worker].row(span),
                "start": (span.start_ns - start_ns) / 1e9,
                "seconds": (span.end_ns - span.start_ns) / 1e9,
                "name": label(span.name),
                "phase": label(span.phase),
                "waits": span.is_wait,
                "step": span.step,
                "failed": span.failed,
                "trace": span.span_id[:16].hex(),
            }
            for span in shown
        ],
        "links": _links(shown, places),
        "path": _path(spans, [roots[step] for step in steps], lanes, start_ns),
        "left_out": len(inside) - len(shown),
        "clocks": [{"host": label(host), "seconds": ns / 1e9} for host, ns in ahead.items()],
    }


def step_without_spans(data: RunData, step: int) -> dict[str, Any]:
    """Return what the history has of a step whose spans are gone: time, phase, worker, trace."""
    known = next((one for one in reversed(data.steps) if one.step == step), None)
    if known is None:
        return {"step": step}
    return {
        "step": step,
        "seconds": known.seconds,
        "longest": label(known.longest),
        "worker": label(known.worker),
        "trace": known.trace_id,
    }


def _roots(
    spans: Iterable[SpanRecord], workers: Sequence[KnownWorker], role: str | None = None
) -> Mapping[int, list[SpanRecord]]:
    """Return the spans of whole steps in their last pass, of a role or of that with most of them.

    Ranks are told apart by their names: one that was replaced goes on as the one before it. That
    others made a step long ago says nothing, since their clocks may be behind.
    """
    names = {one.instance: one.name for one in workers}
    by_role: dict[str, dict[int, dict[str, list[SpanRecord]]]] = defaultdict(dict)
    roots = [span for span in spans if span.name == STEP_SPAN and span.step is not None]
    for root in sorted(roots, key=lambda root: root.start_ns):
        ranks = by_role[root.role].setdefault(root.step or 0, {})
        name = names.get(root.worker, root.worker)
        own = ranks.get(name)
        if own and root.start_ns - own[-1].end_ns > _took_ns(own):
            ranks.clear()  # long after its end, the rank makes the step again
        ranks.setdefault(name, []).append(root)
    wanted = max(by_role.values(), key=len, default={}) if role is None else by_role[role]
    return {
        step: sorted((one for own in ranks.values() for one in own), key=lambda one: one.start_ns)
        for step, ranks in wanted.items()
    }


def _role_of(roots: Mapping[int, Sequence[SpanRecord]]) -> str:
    return next(iter(roots.values()))[0].role


def _on_one_clock(
    spans: list[SpanRecord], roots: Sequence[SpanRecord]
) -> tuple[list[SpanRecord], dict[str, int]]:
    reference = min((root.worker, root.host) for root in roots)[1]
    clocks = estimate_clocks(Forest(spans), reference)
    ahead = {host: clock.ahead_ns for host, clock in clocks.items() if clock.ahead_ns}
    return (list(with_one_clock(spans, clocks)), ahead) if ahead else (spans, ahead)


class _Lane:
    """Spans of one process, in rows that do not overlap."""

    def __init__(self, place: int, name: str, known: KnownWorker | None) -> None:
        self.place = place
        self._name = name
        self._known = known
        self._ends_ns: list[int] = []
        self._rows: dict[bytes, int] = {}
        self.last_ns = 0

    def add(self, span: SpanRecord) -> None:
        """Find a row; spans come in the order of their starts."""
        ends_ns = self._ends_ns
        row = next((row for row, end_ns in enumerate(ends_ns) if end_ns <= span.start_ns), None)
        if row is None:
            row = min(len(ends_ns), _DEPTH - 1)
            if row == len(ends_ns):
                ends_ns.append(0)
        ends_ns[row] = max(ends_ns[row], span.end_ns)
        self._rows[span.span_id] = row
        self.last_ns = max(self.last_ns, span.end_ns)

    def row(self, span: SpanRecord) -> int:
        """Return the row of a span."""
        return self._rows[span.span_id]

    def as_json(self, start_ns: int) -> dict[str, Any]:
        """Return its name and size; whether its worker was lost, and is not shown any further."""
        known = self._known
        is_lost = known is not None and known.standing == WorkerStanding.FAILED
        return {
            "name": label(self._name),
            "rows": len(self._ends_ns),
            "lost": is_lost,
            "end": (self.last_ns - start_ns) / 1e9,
        }


def _lanes(
    spans: Sequence[SpanRecord], workers: Sequence[KnownWorker], *, first_role: str
) -> Mapping[str, _Lane]:
    """Return a lane for each process; those of the role that makes the steps come first."""
    known = {one.instance: one for one in workers}
    names = {
        span.worker: known[span.worker].name
        if span.worker in known
        else f"{span.role}/{span.worker[-6:]}"
        for span in spans
    }
    first_ns: dict[str, int] = {}
    roles: dict[str, str] = {}
    for span in spans:
        first_ns.setdefault(span.worker, span.start_ns)
        roles[span.worker] = span.role
    order = sorted(
        names,
        key=lambda worker: (
            roles[worker] != first_role,
            in_order(names[worker]),
            first_ns[worker],
        ),
    )
    lanes = {
        worker: _Lane(place, names[worker], known.get(worker)) for place, worker in enumerate(order)
    }
    for span in spans:
        lanes[span.worker].add(span)
    return lanes


def _took_ns(roots: Sequence[SpanRecord]) -> int:
    return max(one.end_ns for one in roots) - min(one.start_ns for one in roots)


def _step(step: int, roots: Sequence[SpanRecord], start_ns: int) -> dict[str, Any]:
    begun_ns, end_ns = min(one.start_ns for one in roots), max(one.end_ns for one in roots)
    return {
        "step": step,
        "start": (begun_ns - start_ns) / 1e9,
        "seconds": (end_ns - begun_ns) / 1e9,
    }


def _links(spans: Sequence[SpanRecord], places: Mapping[bytes, int]) -> list[tuple[int, int]]:
    """Return pairs of places: a span, and one whose output it uses."""
    links = [
        (place, places[link])
        for place, span in enumerate(spans)
        for link in span.links
        if link in places
    ]
    return links[:_MAX_LINKS]


def _path(
    spans: Sequence[SpanRecord],
    steps: Sequence[Sequence[SpanRecord]],
    lanes: Mapping[str, _Lane],
    start_ns: int,
) -> list[dict[str, Any]]:
    forest = Forest(spans, finds_collectives=True)
    last_ranks = [max(roots, key=lambda root: root.end_ns) for roots in steps]
    return [
        {
            "lane": lanes[part.worker].place,
            "start": (part.start_ns - start_ns) / 1e9,
            "seconds": (part.end_ns - part.start_ns) / 1e9,
            "phase": label(part.phase),
        }
        for root in last_ranks
        for part in critical_path(forest, root)
        if part.worker in lanes
    ]
