"""Data of the page *Log* and of the strip of events: consoles, and what happened when."""

from bisect import bisect_right
from collections.abc import Iterable, Iterator
from functools import cache
from itertools import islice, pairwise
from typing import Any, Final, NamedTuple

import orjson

from otel_rl.bridge.journal.reader import read_tables
from otel_rl.bridge.rows.stored_run import read_standing
from otel_rl.records import CONSOLE, Row
from otel_rl.view.found import Found
from otel_rl.view.parts.workspace import EVALUATION
from otel_rl.view.run_data import RunData, Series
from otel_rl.view.text import in_order, label, passage

_MOST_LINES: Final = 2_000
_MOST_BYTES: Final = 1_000_000  # of lines in an answer, which is asked for again and again
_BYTES_BESIDE_TEXT: Final = 60  # of a line: its number, time, worker and stream
_MOST_WORKERS: Final = 2_000
_MOST_EVENTS: Final = 200  # of a kind, the newest
_VERSION: Final = "/policy/version"  # end of the keys of rl.policy.version
_LOOKED_AT: Final = 16  # keys of evaluations, which have the same steps
_CHECKPOINT: Final = "checkpoint"  # the phase of the registry
_TAKEN_UP_BY: Final = ("generator", "trainer")  # whose version is told, before that of others
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
    """Return the newest lines that match, in order, of those that the journal still has.

    They are read from the end, and no further than to 2,000 lines or a megabyte.
    """
    name = cache(label)
    workers: set[str] = set()
    lines: list[tuple[int, float, str, str, str]] = []
    seen, left_bytes, has_older = 0, _MOST_BYTES, False
    with found.open() as connection:
        for line in _newest_first(read_tables(connection, found.id)):
            worker = name(line.worker)
            if _matches(line, worker, wanted):
                text = passage(line.text)
                left_bytes -= len(orjson.dumps(text)) + _BYTES_BESIDE_TEXT
                if lines and (left_bytes < 0 or len(lines) >= _MOST_LINES):
                    has_older = True
                    break
                time_ms = line.time_ns / _NS_PER_MS
                lines.append((line.number, time_ms, worker, name(line.stream), text))
            workers.add(worker)
            seen += 1
        if has_older:  # their workers can be chosen, too
            workers.update(name(one.name) for one in read_standing(connection, found.id).workers)
    return {
        "workers": sorted(workers, key=in_order)[:_MOST_WORKERS],
        "all": seen,
        "older": has_older,
        "lines": sorted(lines),
    }


def _newest_first(rows: Iterable[Row]) -> Iterator[_Line]:
    for row in rows:
        if CONSOLE in row.tables:
            yield from map(_Line._make, reversed(row.tables[CONSOLE].rows))


def _matches(line: _Line, worker: str, wanted: LogWanted) -> bool:
    if wanted.worker and worker != wanted.worker:
        return False
    if wanted.at_ms is not None and line.time_ns > wanted.at_ms * _NS_PER_MS + _AROUND_NS:
        return False
    return not wanted.search or wanted.search.casefold() in line.text.casefold()


def events(found: Found, data: RunData) -> dict[str, Any]:
    """Return what happened in a run, and its steps and times.

    That are failures, replacements, attempts, new weights, checkpoints and evaluations.
    """
    longest = max(data.series.values(), key=lambda one: len(one.steps), default=Series())
    listed = [
        *_failures(data, longest),
        *_attempts(found),
        *_weights(data),
        *_at_steps(data, longest),
    ]
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


def _weights(data: RunData) -> Iterator[dict[str, Any]]:
    """Yield where generators, or else trainers, took up new weights, unless nearly every step.

    A value that is no whole number is a mean of several workers, of which some have new weights.
    """
    keys = [f"{role}{_VERSION}" for role in _TAKEN_UP_BY]
    keys += sorted(key for key in data.series if key.endswith(_VERSION))
    of = next((data.series[key] for key in keys if key in data.series), Series())
    columns = zip(of.steps, of.times_ms, of.values, strict=True)
    whole = [one for one in columns if one[2].is_integer()]  # NaN and infinities are not
    new = [later for earlier, later in pairwise(whole) if later[2] != earlier[2]]
    if 2 * len(new) <= len(whole):
        for step, time_ms, version in new[-_MOST_EVENTS:]:
            words = f"version {version:g} of the weights"
            yield _event("weights", step=step, time_ms=time_ms, worker="", words=words)


def _at_steps(data: RunData, longest: Series) -> Iterator[dict[str, Any]]:
    """Yield checkpoints and evaluations, unless nearly every step has one."""
    phases = (of for (_, phase), of in data.phases.items() if phase == _CHECKPOINT)
    evaluated = (of for key, of in data.series.items() if EVALUATION.search(key.lower()))
    values = islice(evaluated, _LOOKED_AT)
    times = dict(zip(longest.steps, longest.times_ms, strict=True))
    for kind, words, some in (
        ("checkpoint", "a checkpoint", phases),
        ("evaluation", "an evaluation", values),
    ):
        steps = {float(step) for of in some for step in of.steps} & times.keys()
        if 2 * len(steps) <= len(times):
            for step in sorted(steps)[-_MOST_EVENTS:]:
                yield _event(kind, step=step, time_ms=times[step], worker="", words=words)


def _event(
    kind: str, *, step: float | None, time_ms: float, worker: str, words: str
) -> dict[str, Any]:
    return {"kind": kind, "step": step, "time_ms": time_ms, "worker": worker, "words": words}
