"""``otel-rl export``: writes the spans of a run for other viewers."""

import argparse
import gzip
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from fnmatch import fnmatchcase
from pathlib import Path
from typing import BinaryIO, Final, cast

from otel_rl.bridge.journal.interface import Connection
from otel_rl.bridge.journal.reader import read_named_keys, whole_history
from otel_rl.bridge.rows.stored_run import read_standing
from otel_rl.cli.find_run import Runs, add_run, steps, take_directory
from otel_rl.cli.options import add_journal_options, settings_of
from otel_rl.cli.standard_streams import say
from otel_rl.cli.terminal import News, progress
from otel_rl.diagnose.history.records import Facts
from otel_rl.diagnose.spans.clocks import estimate_clocks, with_one_clock
from otel_rl.diagnose.spans.span_forest import Forest
from otel_rl.errors import ConfigError
from otel_rl.perfetto import (
    Counter,
    TraceSummary,
    known_steps,
    of_steps,
    unknown_links,
    write_trace,
)
from otel_rl.plurals import many
from otel_rl.records import SpanRecord
from otel_rl.semconv.spec import STEP_SPAN
from otel_rl.view.found import Found
from otel_rl.view.worker_places import spans_of

DESCRIPTION: Final = (
    "Write the spans of a run, as far as its journal has them, as a Chrome trace for Perfetto."
)

EPILOG: Final = """\
examples:
  otel-rl export -o trace.json.gz             the most recently active run
  otel-rl export --steps 400:420 grpo-7b -o trace.json
  otel-rl export grpo-7b/trial-3 > trace.json

Open the file at https://ui.perfetto.dev, which keeps it on your machine, or in chrome://tracing.
"""

_COUNTERS: Final = (
    "*.queue.depth",
    "*.requests.running",
    "rl.replay_buffer.size",
    "hw.gpu.*",
    "rl.gpu.*",
)
"""Metrics that become counters, by name: queues and devices."""

_MOST_RANGES: Final = 12  # of steps, in a message


def add_options(parser: argparse.ArgumentParser) -> None:
    add_run(parser)
    parser.add_argument(
        "--steps",
        type=steps,
        metavar="FIRST[:LAST]",
        help="only these, with the samples and weights that they used (all)",
    )
    parser.add_argument(
        "-o",
        "--output",
        type=Path,
        metavar="FILE",
        help="compressed if its name ends in .gz (default: standard output)",
    )
    add_journal_options(parser)


def command(arguments: argparse.Namespace) -> int:
    if arguments.output is None and sys.stdout.isatty():
        raise ConfigError(
            "A trace is not text for a terminal.", hint="Name a file: -o trace.json.gz"
        )
    take_directory(arguments)
    with progress("reading the spans") as news, Runs(settings_of(arguments)) as runs:
        run, *_ = runs.named(arguments.run)
        chosen, unknown, summary = _export(run, arguments, news)
    _report(summary, chosen, unknown, arguments.output)
    return 1 if runs.faults else 0


def _export(
    run: Found, arguments: argparse.Namespace, news: News
) -> tuple[tuple[int, int], int, TraceSummary]:
    """Write the trace. Returns its steps, the number of links to nowhere, and what it has."""
    with run.open() as connection:
        names = {of.instance: of.name for of in read_standing(connection, run.id).workers}
        found = _on_one_clock(spans_of(connection, run.id, say))
        news("writing the trace")
        chosen, spans = _select(found, run, arguments.steps)
        about = {"run": str(run.key), "steps": f"{chosen[0]}:{chosen[1]}"}
        counters = _counters(connection, run.id)
        with _written(arguments.output) as file:
            summary = write_trace(file, spans, names=names, counters=counters, about=about)
    return chosen, unknown_links(spans), summary


def _select(
    spans: Sequence[SpanRecord], run: Found, wanted: tuple[int, int] | None
) -> tuple[tuple[int, int], Sequence[SpanRecord]]:
    """Return the first and last of the wanted steps that there is, and the spans of the steps.

    Raises:
        ConfigError: There are no spans of them.
    """
    if not spans:
        raise ConfigError(
            f"The journal has no spans of {run.key}.",
            hint="Workers make spans of steps and phases (`otel-rl help phases`), unless "
            "OTEL_RL_TRACE_STEPS or OTEL_TRACES_SAMPLER is 0.",
        )
    known = known_steps(spans)
    if wanted is None:
        return ((known[0], known[-1]) if known else (0, 0)), spans
    first, last = wanted
    chosen = of_steps(spans, first, last)
    if not chosen:
        there = f"of steps {_in_words(known)}" if known else "of no step"
        raise ConfigError(
            f"--steps: the journal has spans {there} of {run.key} (got {first}:{last}).",
            hint="A bridge keeps spans for rows.spans_horizon, at most 100,000 of a run, and those "
            "of some steps of the whole run. All are in Jaeger, if a Collector sends them there "
            "(`otel-rl help deploy`).",
        )
    there_are = [step for step in known if first <= step <= last]
    if len(there_are) <= last - first:
        say(f"the journal has the spans of steps {_in_words(known)} only")
    return ((there_are[0], there_are[-1]) if there_are else wanted), chosen


def _in_words(steps: Sequence[int]) -> str:
    """Return steps as ranges of those that follow each other: ``3, 50 to 59``."""
    ranges: list[tuple[int, int]] = []
    for step in steps:
        if ranges and step == ranges[-1][1] + 1:
            ranges[-1] = ranges[-1][0], step
        else:
            ranges.append((step, step))
    words = [f"{first} to {last}" if last > first else f"{first}" for first, last in ranges]
    if len(words) > _MOST_RANGES:
        half = _MOST_RANGES // 2
        words[half:-half] = ["…"]
    return ", ".join(words)


def _on_one_clock(spans: Sequence[SpanRecord]) -> Sequence[SpanRecord]:
    """Return the spans by the clock of the host that makes the steps, as the page shows them."""
    hosts = {(span.name != STEP_SPAN, span.worker, span.host) for span in spans}
    if not hosts:
        return spans
    *_, reference = min(hosts)
    return [*with_one_clock(spans, estimate_clocks(Forest(spans), reference))]


def _counters(connection: Connection, run: str) -> Iterator[Counter]:
    """Yield the values of queues and devices of each worker, the mean of about a second each."""
    names = read_named_keys(connection, run)
    wanted = {
        spec.key
        for spec in names.specs
        if spec.statistic == "value"
        and not spec.worker
        and any(fnmatchcase(spec.name, pattern) for pattern in _COUNTERS)
    }
    for facts in map(Facts.decode, whole_history(connection, run)):
        for key, measured in facts.workers.items():
            name, divisor = names.of(key)
            for one in measured if name in wanted else ():
                if one.measurements:
                    value = one.total / one.measurements / divisor
                    yield Counter(one.worker, name, facts.time_ns, value)


@contextmanager
def _written(path: Path | None) -> Iterator[BinaryIO]:
    """Open a file that appears under its name once it is complete.

    Raises:
        ConfigError: It cannot be written.
    """
    if path is None:
        yield sys.stdout.buffer
        return
    part = path.with_name(f".{path.name}.part")
    try:
        with _opened(part, is_compressed=path.suffix == ".gz") as file:
            yield file
        part.replace(path)
    except OSError as exc:
        raise ConfigError(
            f"-o: cannot write {str(path)!r}: {exc.strerror}.",
            hint="Choose a directory with room that this user may write.",
        ) from exc
    finally:
        part.unlink(missing_ok=True)


def _opened(path: Path, *, is_compressed: bool) -> BinaryIO:
    if is_compressed:
        return cast("BinaryIO", gzip.open(path, "wb", compresslevel=5))
    return path.open("wb")


def _report(
    summary: TraceSummary, chosen: tuple[int, int], unknown: int, path: Path | None
) -> None:
    first, last = chosen
    steps = f"step {first}" if first == last else f"steps {first} to {last}"
    spans, workers = many(summary.spans, "span"), many(summary.processes, "worker")
    said = f"{spans} of {workers} in {steps}, {many(summary.flows, 'link')}"
    if unknown:
        said += f" ({unknown} more to spans that are not in the journal)"
    if path is not None:
        size = path.stat().st_size
        said += f": {path}, {size / 1e6:.1f} MB"
    say(f"{said}. Open it at https://ui.perfetto.dev or in chrome://tracing")
