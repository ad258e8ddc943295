"""``otel-rl compare``: what differs between two sides of runs, and whether that is sure."""

import argparse
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

from otel_rl.bridge.journal.reader import whole_history
from otel_rl.cli.find_run import Runs, take_directory
from otel_rl.cli.options import FOUND, add_journal_options, settings_of
from otel_rl.cli.standard_streams import say
from otel_rl.cli.terminal import counted, progress
from otel_rl.diagnose.compare import Comparison, Limit, common_measures
from otel_rl.diagnose.history.records import Facts
from otel_rl.diagnose.history.run_history import RunHistory
from otel_rl.errors import ConfigError
from otel_rl.plurals import many
from otel_rl.redaction import printable
from otel_rl.view.found import Found
from otel_rl.view.parts.sides import Side, Sides, measure_named
from otel_rl.view.report import write_comparison

BETWEEN: Final = "\0--"
"""Stands for the word ``--`` between the sides, which argparse would drop."""

DESCRIPTION = """\
Compare runs with runs: times, rates and learning, each with an interval, and what else differs.
The exit status is 3 if a change is beyond a --fail-on.
"""

EPILOG = """\
examples:
  otel-rl compare grpo/before grpo/after        two runs
  otel-rl compare ppo -- grpo                   all runs of two experiments, such as seeds
  otel-rl compare a/1 a/2 a/3 -- b/1 b/2 b/3    three seeds a side
  otel-rl compare main new --fail-on 'time_per_step>+5%'
  otel-rl compare main new --markdown >> "$GITHUB_STEP_SUMMARY"
  otel-rl compare main new --html compare.html --by trainer/tokens

Times and rates are compared step by step; one run a side gives an interval of these two runs.
Learning is told with three runs a side or more.
"""

_MOST_LINES: Final = 12
_MOST_CHANGES: Final = 20
_LONGEST: Final = 60


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "runs",
        nargs="+",
        metavar="RUN",
        help="two runs, or several of each side with `--` between the sides; an experiment stands "
        "for all its runs, a data directory for its last active one; also a log of others "
        "(`otel-rl help read-a-log`)",
    )
    parser.add_argument(
        "--by",
        metavar="AXIS",
        default="step",
        help="align learning by step (the default), time, or the key of a total such as of tokens",
    )
    parser.add_argument(
        "--metric", metavar="KEY", action="append", default=[], help="compare this key, too"
    )
    parser.add_argument(
        "--fail-on",
        metavar="LIMIT",
        action="append",
        type=_limit,
        default=[],
        help="exit with 3 if a measure has surely changed, and by more than that, e.g. "
        "'time_per_step>+5%%' or 'reward/mean<-10%%'",
    )
    output = parser.add_mutually_exclusive_group()
    output.add_argument("--json", action="store_true", help="as JSON")
    output.add_argument("--markdown", action="store_true", help="as Markdown, for a summary of CI")
    parser.add_argument(
        "--html", type=Path, metavar="FILE", help="also write a page, with the curves of both sides"
    )
    add_journal_options(parser)


def _limit(text: str) -> Limit:
    try:
        return Limit.parse(text)
    except ValueError as exc:
        raise argparse.ArgumentTypeError(str(exc)) from exc


def command(arguments: argparse.Namespace) -> int:
    (before, faults), (after, others) = (
        _side(arguments, names) for names in _sides(arguments.runs)
    )
    names = common_measures([*before.histories, *after.histories])
    limits = [limit._replace(name=measure_named(limit.name, names)) for limit in arguments.fail_on]
    also = [*arguments.metric, *(limit.name for limit in limits)]
    sides = Sides.of(before, after, arguments.by, also)
    measured = {one.name: one for one in sides.found}
    broken = [
        limit
        for limit in limits
        if limit.name in measured and limit.is_broken_by(measured[limit.name])
    ]
    for limit in limits:
        one = measured.get(limit.name)
        if why_not := "the runs have no common part" if one is None else one.why_not:
            say(f"--fail-on {limit}: cannot tell ({why_not})")
    if arguments.json:
        print(json.dumps(sides.as_json(broken), indent=1))
    else:
        write = _markdown if arguments.markdown else _text
        for line in write(sides):
            print(printable(line))
        if broken and arguments.markdown:
            print()
        for limit in broken:
            line = f"fails: {limit} ({_percent(measured[limit.name].change)})"
            print(printable(_escaped(line) if arguments.markdown else line))
    if arguments.html is not None:
        size = write_comparison(sides, broken, arguments.html)
        say(f"{arguments.html} ({size / 1e6:.1f} MB)")
    return FOUND if broken else int(faults or others)


def _sides(words: Sequence[str]) -> tuple[Sequence[str], Sequence[str]]:
    if BETWEEN in words:
        place = words.index(BETWEEN)
        before, after = words[:place], words[place + 1 :]
        if before and after and BETWEEN not in after:
            return before, after
    elif len(words) == 2:
        return words[:1], words[1:]
    raise ConfigError(
        "compare takes two sides.", hint="Write: otel-rl compare A B, or A... -- B..."
    )


def _side(arguments: argparse.Namespace, names: Sequence[str]) -> tuple[Side, bool]:
    """Return a side, and whether a journal could not be read."""
    # By directory, too: logs of several seeds often have one name.
    found: dict[tuple[Path | None, str], Found] = {}
    histories, has_faults = [], False
    for name in names:
        of_name = argparse.Namespace(**{**vars(arguments), "run": name})
        take_directory(of_name, is_one_of_several=True)
        with progress(f"reading {name}") as news, Runs(settings_of(of_name)) as runs:
            matching = runs.named(of_name.run)
            for run in matching if of_name.run is not None else matching[:1]:
                if (run.directory, run.id) in found:
                    continue
                with run.open() as connection:
                    bodies = counted([*whole_history(connection, run.id)], name, news)
                    histories.append(RunHistory(Facts.decode(body) for body in bodies))
                found[run.directory, run.id] = run
            has_faults = has_faults or bool(runs.faults)
    overviews = [run.run for run in found.values()]
    title = str(overviews[0].key) if len(overviews) == 1 else ", ".join(names)
    return Side(title, overviews, histories), has_faults


def _text(sides: Sides) -> Iterator[str]:
    before, after, _, found, changed = sides
    for letter, side in (("A", before), ("B", after)):
        counts = sorted(len(one.known_steps) for one in side.histories)
        fewest = f"{counts[0]} to " if counts[0] < counts[-1] else ""
        runs = f", {len(side.overviews)} runs" if len(side.overviews) > 1 else ""
        yield f"{letter}: {side.name}{runs}, {fewest}{many(counts[-1], 'step')}"
    lines = [["", "A", "B", "CHANGE", "99 OF 100", ""], *map(_cells, found[:_MOST_LINES])]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    for line in lines:
        cells = (cell.ljust(width) for cell, width in zip(line, widths, strict=True))
        yield "  ".join(cells).rstrip()
    if len(found) > _MOST_LINES:
        yield f"and {len(found) - _MOST_LINES} more with --json"
    if not found:
        yield "There is nothing that both sides have measured."
    for name, old, new in changed[:_MOST_CHANGES]:
        yield f"{name}: {_short(old)} -> {_short(new)}"
    if len(changed) > _MOST_CHANGES:
        yield f"and {many(len(changed) - _MOST_CHANGES, 'difference')} more with --json"


def _cells(one: Comparison) -> list[str]:
    unit = " s" if one.about == "time" else ""
    values = [f"{value:.4g}{unit}" for value in (one.before, one.after)]
    interval = one.why_not or f"{_percent(one.low)} to {_percent(one.high)}"
    word = ""
    if one.is_sure:
        more, less = ("longer", "shorter") if one.about == "time" else ("more", "less")
        word = more if one.change > 0 else less
    return [one.name, *values, _percent(one.change), interval, word]


def _percent(part: float) -> str:
    return f"{100 * part:+.1f} %"


def _short(text: str) -> str:
    line = " ".join(text.split()) or "-"
    return line if len(line) <= _LONGEST else f"{line[: _LONGEST - 3]}..."


def _markdown(sides: Sides) -> Iterator[str]:
    before, after, _, found, changed = sides
    yield f"### {_escaped(before.name)} and {_escaped(after.name)}"
    yield ""
    yield "| | A | B | change | 99 of 100 | |"
    yield "|---|---|---|---|---|---|"
    for one in found[:_MOST_LINES]:
        yield f"| {' | '.join(map(_escaped, _cells(one)))} |"
    if len(found) > _MOST_LINES:
        yield ""
        yield f"and {len(found) - _MOST_LINES} more with --json"
    if changed:
        yield ""
        yield "| differs | A | B |"
        yield "|---|---|---|"
        for line in changed[:_MOST_CHANGES]:
            yield f"| {' | '.join(_escaped(_short(cell)) for cell in line)} |"


def _escaped(text: str) -> str:
    """Return the text as Markdown shows it as it is, within a table."""
    return "".join(f"\\{one}" if one in "\\`*_{}[]<>#|~@$" else one for one in text)
