"""``otel-rl compare``: what differs between two sides of runs, and whether that is sure."""

import argparse
import json
from collections.abc import Iterator, Mapping, Sequence
from math import isfinite
from typing import Any, Final, NamedTuple

from otel_rl.bridge.journal.places import names_there_are
from otel_rl.bridge.journal.reader import whole_history
from otel_rl.cli.find_run import FoundRun, Runs, take_directory
from otel_rl.cli.options import FOUND, add_journal_options, settings_of
from otel_rl.cli.standard_streams import say
from otel_rl.cli.terminal import counted, progress
from otel_rl.diagnose.compare import AXES, Comparison, Limit, common_measures, compared
from otel_rl.diagnose.engine import diagnose
from otel_rl.diagnose.history.records import Facts
from otel_rl.diagnose.history.run_history import RunHistory
from otel_rl.errors import ConfigError
from otel_rl.plurals import many
from otel_rl.redaction import printable
from otel_rl.view.parts.health import environment

__all__ = ["BETWEEN", "DESCRIPTION", "EPILOG", "add_options", "command"]

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

Times and rates are compared step by step; one run a side gives an interval of these two runs.
Learning is told with three runs a side or more.
"""

_MOST_LINES: Final = 12
_MOST_CHANGES: Final = 20
_LONGEST: Final = 60


class _Difference(NamedTuple):
    """What differs, and how it is on each side, in words."""

    name: str
    before: str
    after: str


class _Side(NamedTuple):
    """One side.

    Attributes:
        name: As people call it.
        runs: As the journals have them.
        histories: Of the runs.
        has_faults: Whether a journal could not be read.
    """

    name: str
    runs: Sequence[FoundRun]
    histories: Sequence[RunHistory]
    has_faults: bool


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "runs",
        nargs="+",
        metavar="RUN",
        help="two runs, or several of each side with `--` between the sides; an experiment stands "
        "for all its runs, a data directory for its last active one",
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
    add_journal_options(parser)


def _limit(text: str) -> Limit:
    try:
        return Limit.parse(text)
    except ValueError as exc:
        raise argparse.ArgumentTypeError(str(exc)) from exc


def command(arguments: argparse.Namespace) -> int:
    before, after = (_side(arguments, names) for names in _sides(arguments.runs))
    names = common_measures([*before.histories, *after.histories])
    limits = [limit._replace(name=_named(limit.name, names)) for limit in arguments.fail_on]
    keys = [*(_named(key, names) for key in arguments.metric), *(limit.name for limit in limits)]
    axis = arguments.by if arguments.by in AXES else _named(arguments.by, names)
    found = compared(before.histories, after.histories, axis=axis, also=keys)
    measured = {one.name: one for one in found}
    broken = [
        limit
        for limit in limits
        if limit.name in measured and limit.is_broken_by(measured[limit.name])
    ]
    for limit in limits:
        one = measured.get(limit.name)
        if why_not := "the runs have no common part" if one is None else one.why_not:
            say(f"--fail-on {limit}: cannot tell ({why_not})")
    changed = [*_changed(before, after)]
    if arguments.json:
        print(json.dumps(_as_json(before, after, found, changed, broken), indent=1))
    else:
        write = _markdown if arguments.markdown else _text
        for line in write(before, after, found, changed):
            print(printable(line))
        if broken and arguments.markdown:
            print()
        for limit in broken:
            line = f"fails: {limit} ({_percent(measured[limit.name].change)})"
            print(printable(_escaped(line) if arguments.markdown else line))
    return FOUND if broken else int(before.has_faults or after.has_faults)


def _named(name: str, names: Sequence[str]) -> str:
    """Return the measure of a name, which may lack its role.

    Raises:
        ConfigError: Not every run has it, or several are called so.
    """
    found = [one for one in names if one == name] or [
        one for one in names if one.endswith(f"/{name}")
    ]
    if len(found) == 1:
        return found[0]
    if found:
        raise ConfigError(f"{name}: several measures.", hint=f"Name one: {', '.join(found)}.")
    raise ConfigError(f"{name}: not every run has this measure.", hint=names_there_are(name, names))


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


def _side(arguments: argparse.Namespace, names: Sequence[str]) -> _Side:
    found: dict[str, FoundRun] = {}
    histories, has_faults = [], False
    for name in names:
        of_name = argparse.Namespace(**{**vars(arguments), "run": name})
        take_directory(of_name)
        with progress(f"reading {name}") as news, Runs(settings_of(of_name)) as runs:
            matching = runs.named(of_name.run)
            for run in matching if of_name.run is not None else matching[:1]:
                if run.id in found:
                    continue
                with run.open() as connection:
                    bodies = counted([*whole_history(connection, run.id)], name, news)
                    histories.append(RunHistory(Facts.decode(body) for body in bodies))
                found[run.id] = run
            has_faults = has_faults or bool(runs.faults)
    runs_of_side = [*found.values()]
    title = str(runs_of_side[0].key) if len(runs_of_side) == 1 else ", ".join(names)
    return _Side(title, runs_of_side, histories, has_faults)


def _changed(before: _Side, after: _Side) -> Iterator[_Difference]:
    """Yield what else differs: its name, and both sides in words."""
    sides = [
        [environment(run.overview.description) for run in side.runs] for side in (before, after)
    ]
    for name in dict.fromkeys(name for side in sides for one in side for name in one):
        values = [_together(one.get(name, "") for one in side) for side in sides]
        if values[0] != values[1]:
            yield _Difference(name, *values)
    packages = [_packages(side) for side in (before, after)]
    for name in sorted({*packages[0], *packages[1]}):
        versions = [of.get(name, "") for of in packages]
        if versions[0] != versions[1]:
            yield _Difference(f"package {name}", *versions)
    phases = [
        {str(place) for history in side.histories for place in history.spans}
        for side in (before, after)
    ]
    for phase in sorted(phases[0] ^ phases[1]):
        yield _Difference(f"phase {phase}", *("there" if phase in of else "" for of in phases))
    causes = [_causes(side) for side in (before, after)]
    if causes[0] != causes[1]:
        yield _Difference("diagnosis", *causes)


def _together(values: Iterator[str]) -> str:
    return " | ".join(dict.fromkeys(values))


def _packages(side: _Side) -> Mapping[str, str]:
    found: dict[str, dict[str, None]] = {}
    for run in side.runs:
        made = run.overview.description.provenance
        for one in made.packages if made is not None else ():
            name, _, version = one.partition("==")
            found.setdefault(name, {})[version] = None
    return {name: " | ".join(versions) for name, versions in found.items()}


def _causes(side: _Side) -> str:
    found = (
        f"{cause.kind} {cause.worker or cause.role or ''}".strip()
        for history in side.histories
        for cause in diagnose(history, passed=True).causes
    )
    return ", ".join(dict.fromkeys(found)) or "no cause"


def _text(
    before: _Side,
    after: _Side,
    found: Sequence[Comparison],
    changed: Sequence[_Difference],
) -> Iterator[str]:
    for letter, side in (("A", before), ("B", after)):
        counts = sorted(len(one.known_steps) for one in side.histories)
        fewest = f"{counts[0]} to " if counts[0] < counts[-1] else ""
        runs = f", {len(side.runs)} runs" if len(side.runs) > 1 else ""
        yield f"{letter}: {side.name}{runs}, {fewest}{many(counts[-1], 'step')}"
    lines = [["", "A", "B", "CHANGE", "99 OF 100", ""]]
    lines += [_cells(one) for one in found[:_MOST_LINES]]
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


def _markdown(
    before: _Side,
    after: _Side,
    found: Sequence[Comparison],
    changed: Sequence[_Difference],
) -> Iterator[str]:
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


def _as_json(
    before: _Side,
    after: _Side,
    found: Sequence[Comparison],
    changed: Sequence[_Difference],
    broken: Sequence[Limit],
) -> Mapping[str, Any]:
    return {
        "a": [str(run.key) for run in before.runs],
        "b": [str(run.key) for run in after.runs],
        "measures": [
            {
                name: None if isinstance(value, float) and not isfinite(value) else value
                for name, value in {**one._asdict(), "is_sure": one.is_sure}.items()
            }
            for one in found
        ],
        "differences": [{"name": name, "a": old, "b": new} for name, old, new in changed],
        "broken": [str(limit) for limit in broken],
    }
