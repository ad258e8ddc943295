"""Data of the page *Log* and of the strip of events: consoles, and what happened when."""

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from typing import Any, Final, NamedTuple

from otel_rl.bridge.journal.reader import read_tables
from otel_rl.records import CONSOLE
from otel_rl.view.journals import Found
from otel_rl.view.run_data import RunData, Series
from otel_rl.view.text import in_order, label, passage

__all__ = ["LogWanted", "events", "log"]

_MOST_LINES: Final = 2_000
_MOST_WORKERS: Final = 2_000
_MOST_EVENTS: Final = 200  # of failures, the newest
_AROUND_NS: Final = 10_000_000_000  # after a moment that is looked for

_NS_PER_MS: Final = 1e6
_MS_PER_S: Final = 1e3


class LogWanted(NamedTuple):
    """Lines that a reader wants.

    Attributes:
        worker: ``<role>/<index>``; empty for all.
        search: Text in a line, in any case; empty for all.
        at_ms: A moment, up to shortly after which lines are wanted; None for the newest.
    """

    worker: str = ""
    search: str = ""
    at_ms: float | None = None


class _Line(NamedTuple):
    """Line of a console, as in ``CONSOLE_COLUMNS``."""

    number: int
    time_ns: int
    worker: str
    stream: str
    text: str


def log(found: Found, wanted: LogWanted) -> dict[str, Any]:
    """Return the newest lines that match, in order, of those that the journal still has."""
    with found.open() as connection:
        rows = read_tables(connection, found.id)
    tables = [row.tables[CONSOLE] for row in rows if CONSOLE in row.tables]
    lines = [_line(line) for table in tables for line in table.rows]
    matching = sorted(_matching(lines, wanted))
    return {
        "workers": sorted({label(line.worker) for line in lines}, key=in_order)[:_MOST_WORKERS],
        "all": len(lines),
        "matching": len(matching),
        "lines": [
            [
                line.number,
                line.time_ns / _NS_PER_MS,
                label(line.worker),
                label(line.stream),
                passage(line.text),
            ]
            for line in matching[-_MOST_LINES:]
        ],
    }


def _line(cells: Sequence[object]) -> _Line:
    number, time_ns, *texts = cells
    return _Line(int(str(number)), int(str(time_ns)), *map(str, texts))


def _matching(lines: Sequence[_Line], wanted: LogWanted) -> Iterator[_Line]:
    text = wanted.search.casefold()
    end_ns = None if wanted.at_ms is None else wanted.at_ms * _NS_PER_MS + _AROUND_NS
    for line in lines:
        if wanted.worker and label(line.worker) != wanted.worker:
            continue
        if text in line.text.casefold() and (end_ns is None or line.time_ns <= end_ns):
            yield line


def events(found: Found, data: RunData) -> dict[str, Any]:
    """Return failures, replacements and attempts in order, and the steps and times of the run."""
    longest = max(data.series.values(), key=lambda one: len(one.steps), default=Series())
    listed = [*_failures(data, longest), *_attempts(found)]
    first = min((of.steps[0] for of in data.series.values() if of.steps), default=0.0)
    return {
        "steps": [first, data.last_step],
        "times": [data.begun_ns / _NS_PER_MS, data.newest_ns / _NS_PER_MS],
        "listed": sorted(listed, key=lambda one: float(one["time_ms"])),
    }


def _failures(data: RunData, longest: Series) -> Iterator[dict[str, Any]]:
    for one in data.failures[-_MOST_EVENTS:]:
        time_ms, worker = one.time_ns / _NS_PER_MS, label(one.worker)
        words = label(str(one))
        yield _event("failure", step=one.step, time_ms=time_ms, worker=worker, words=words)
        if one.recovery_s is not None:
            back_ms = time_ms + one.recovery_s * _MS_PER_S
            place = bisect_right(longest.times_ms, back_ms)
            step = longest.steps[place - 1] if place else one.step
            words = f"{worker} is back"
            yield _event("restart", step=step, time_ms=back_ms, worker=worker, words=words)


def _attempts(found: Found) -> Iterator[dict[str, Any]]:
    for one in found.run.description.attempts:
        words = f"attempt {one.number} goes back to step {one.first_step}"
        time_ms = one.since_ns / _NS_PER_MS
        yield _event("attempt", step=one.first_step, time_ms=time_ms, worker="", words=words)


def _event(
    kind: str, *, step: float | None, time_ms: float, worker: str, words: str
) -> dict[str, Any]:
    return {"kind": kind, "step": step, "time_ms": time_ms, "worker": worker, "words": words}
