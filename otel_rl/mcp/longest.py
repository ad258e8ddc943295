"""Longest spans of a run, and the use of the time of one step."""

import heapq
from collections import defaultdict
from statistics import median
from typing import Any

from otel_rl.bridge.rows.stored_run import read_standing
from otel_rl.view.found import Found
from otel_rl.view.run_data import RunData
from otel_rl.view.text import in_order, label
from otel_rl.view.worker_places import spans_of

_NS_PER_S = 1e9


def longest_spans(found: Found, *, name: str = "", worker: str = "", most: int) -> dict[str, Any]:
    """Return the longest spans of those that the journal keeps: see ``spans_of``.

    Args:
        found: The run.
        name: Text in the name or phase of a span; empty for all.
        worker: ``<role>/<index>``, or the role; empty for all.
        most: Spans.
    """
    with found.open() as connection:
        known = {one.instance: one.name for one in read_standing(connection, found.id).workers}
        spans = spans_of(connection, found.id)
    matching = [
        span
        for span in spans
        if name.casefold() in f"{span.name}\n{span.phase}".casefold()
        and worker in {"", span.role, known.get(span.worker)}
    ]
    chosen = heapq.nlargest(most, matching, key=lambda span: span.end_ns - span.start_ns)
    return {
        "matching": len(matching),
        "spans": [
            {
                "name": label(span.name),
                "phase": label(span.phase),
                "worker": label(known.get(span.worker, span.role)),
                "host": label(span.host),
                "step": span.step,
                "seconds": (span.end_ns - span.start_ns) / _NS_PER_S,
                "start_ns": span.start_ns,
                "waits": span.is_wait,
                "failed": span.failed,
                "trace": span.span_id[:16].hex(),
            }
            for span in chosen
        ],
    }


def longest_phases(
    data: RunData, *, name: str = "", worker: str = "", step: int | None = None, most: int
) -> list[dict[str, Any]]:
    """Return the longest times of a phase by worker and step, of the whole run.

    Args:
        data: Of the run.
        name: Text in the name of the phase; empty for all.
        worker: ``<role>/<index>``, or the role; empty for all.
        step: Only of this step.
        most: Times.
    """
    names = {place: known for known, place in data.workers.items()}
    found = []
    for (role, phase), cells in data.phases.items():
        if name.casefold() not in phase.casefold():
            continue
        usual_s = median(cells.seconds) if cells.seconds else 0.0
        for place, at, seconds in zip(cells.workers, cells.steps, cells.seconds, strict=True):
            if step in {None, at} and worker in {"", role, names[place]}:
                found.append((seconds, phase, names[place], at, usual_s, (role, phase)))
    chosen = heapq.nlargest(most, found, key=lambda one: one[0])
    return [
        {
            "phase": label(phase),
            "worker": label(who),
            "step": at,
            "seconds": round(seconds, 6),
            "usual_s": round(usual_s, 6),
            "waits": key in data.waits,
        }
        for seconds, phase, who, at, usual_s, key in chosen
    ]


def step_time(data: RunData, step: int) -> dict[str, Any] | None:
    """Return the duration of a step, its usual one, and who decided it; None without its spans."""
    of = next((one for one in reversed(data.steps) if one.step == step), None)
    if of is None:
        return None
    slow: dict[str, float] = defaultdict(float)
    for (role, phase), cells in data.phases.items():
        for at, seconds in zip(cells.steps, cells.seconds, strict=True):
            if at == step:
                slow[f"{role}/{phase}"] = max(seconds, slow[f"{role}/{phase}"])
    return {
        "seconds": of.seconds,
        "usual_s": median(one.seconds for one in data.steps),
        "most_of_it": label(of.longest),
        "worker": label(of.worker),
        "trace": of.trace_id,
        "known_steps": [data.steps[0].step, data.steps[-1].step],
        "longest_of_each_phase_s": {
            label(phase): round(seconds, 6)
            for phase, seconds in sorted(slow.items(), key=lambda one: in_order(one[0]))[:50]
        },
    }
