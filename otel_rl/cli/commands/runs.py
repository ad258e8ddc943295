"""``otel-rl runs``: one table of runs, or of the workers of one, once or kept up to date."""

import argparse
import json
import shutil
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, NamedTuple

from otel_rl.bridge.config import BridgeSettings
from otel_rl.bridge.journal.reader import RunOverview
from otel_rl.cli.ending.report import own_command
from otel_rl.cli.find_run import Runs, add_run, take_directory
from otel_rl.cli.options import add_journal_options, settings_of
from otel_rl.cli.run_deletion import delete, delete_team
from otel_rl.cli.run_snapshot import RunWatch, Snapshot, WorkerLine, figures, worst_first
from otel_rl.cli.terminal import Line, Screen, is_live, keep_on_screen
from otel_rl.errors import JournalError
from otel_rl.goodput import as_json
from otel_rl.inbox import DATA_DIRECTORY
from otel_rl.redaction import printable, redacted
from otel_rl.view.found import Found

DESCRIPTION: Final = (
    "List the runs that a bridge keeps, the last active one first: id, state, "
    "verdict, step, reward, goodput, size, place in the tracker; or the workers of one."
)

EPILOG: Final = """\
examples:
  otel-rl runs                   those of `otel-rl run` and `otel-rl bridge` in this directory
  otel-rl runs /data/otel_rl     those of another data directory
  otel-rl runs grpo-7b           one run and its workers, those with a problem first
  otel-rl runs --watch           kept up to date, with the workers of the last active one
  otel-rl runs --json            for a program
  otel-rl runs --delete ppo/7    delete a run; a directory before it says where
  otel-rl runs --delete-team red --config bridge.toml

states:
  running    its workers report
  stalled    no report for a minute, no new step for ten usual step times and 5 minutes, or
             since the diagnosis has found a stall
  interrupted                    no bridge works on it: killed or stopped before the run ended
  finished, aborted, crashed     how the run ended

workers: PHASE is the work in which a worker differs most from its peers in the last minutes,
TIME its mean time of that in a step, PEERS how many times that of the median of its role.
--watch: arrow keys, PgUp, PgDn, Home and End scroll; q or Ctrl-C ends it.
"""

_UNITS: Final = ((86_400, "d"), (3_600, "h"), (60, "min"))
_GAP: Final = "  "
_USUAL_NAME: Final = 60  # a longer one, in a pipe, leaves other lines as they are
_SHORTEST_CUT: Final = 24
_LONGEST_VERDICT: Final = 24
_OF_ONE, _OF_MANY = 120, 20  # newest records of the history that are read, each of about a second

_STILL: Final = ("JOURNAL", "AGE", "ID")
"""Columns that hardly change while one watches."""

_RARELY_NEEDED: Final = ("JOURNAL", "AGE", "STEPS/S", "GOODPUT", "ACTIVE", "WORKERS", "REWARD")
"""What a narrow terminal does without, in this order."""

_STYLES: Final = {
    "running": "green",
    "alive": "green",
    "stalled": "yellow",
    "interrupted": "yellow",
    "silent": "yellow",
    "unknown": "yellow",
    "crashed": "red",
    "failed": "red",
}


def add_options(parser: argparse.ArgumentParser) -> None:
    add_run(parser, "all runs of --data", takes_logs=False)
    parser.add_argument("--json", action="store_true", help="as JSON")
    parser.add_argument(
        "--watch",
        action="store_true",
        help="keep it up to date until q or Ctrl-C; without a terminal it is printed once",
    )
    parser.add_argument(
        "--delete",
        metavar="RUN",
        help="delete a run from its journal, archive and the tracker's files, by "
        "EXPERIMENT[/TRIAL] or id; a tracker's server keeps what it has",
    )
    parser.add_argument(
        "--delete-team", metavar="NAME", help="delete every run of a team of the settings so"
    )
    parser.add_argument("--yes", action="store_true", help="delete without a question")
    add_journal_options(parser)


class _Listed(NamedTuple):
    """Run in the table."""

    run: Found
    now: Snapshot


def command(arguments: argparse.Namespace) -> int:
    take_directory(arguments, may_be_empty=True, takes_logs=False)
    settings = settings_of(arguments)
    if arguments.data is not None and settings.journal.url is None and not settings.data.is_dir():
        raise settings.journal_place.no_run()
    if arguments.delete is not None:
        return delete(settings, arguments.delete, is_confirmed=arguments.yes)
    if arguments.delete_team is not None:
        return delete_team(settings, arguments.delete_team, is_confirmed=arguments.yes)
    with Runs(settings) as runs:
        table = _Table(settings, runs, arguments.run)
        if arguments.json:
            found = [_as_json(one, of) for one in table.look() for of in one.run.overviews]
            print(json.dumps(found, indent=1))
        elif arguments.watch and is_live(sys.stdout):
            keep_on_screen(lambda columns: table.screen(columns, is_watched=True))
        else:
            columns = shutil.get_terminal_size().columns if sys.stdout.isatty() else None
            screen = table.screen(columns, is_watched=arguments.watch)
            print(*(line.text for line in (*screen.head, *screen.body)), sep="\n")
        return runs.status()


@dataclass(frozen=True, slots=True)
class _Table:
    """The runs that a command shows, and what was read of each so far.

    Attributes:
        name: Of those that are wanted; None for all.
    """

    settings: BridgeSettings
    runs: Runs
    name: str | None
    _watches: dict[tuple[Path | None, str], RunWatch] = field(default_factory=dict)

    def look(self, *, with_workers: bool = False) -> Sequence[_Listed]:
        """Return the runs, the last active one first.

        Args:
            with_workers: Whether the workers of the first one will be shown.

        Raises:
            ConfigError: There is no run of the name.
        """
        found = self.runs.look(self.name)
        listed = []
        for place, run in enumerate(found):
            records = _OF_ONE if with_workers and place == 0 else _OF_MANY
            watch = self._watches.setdefault((run.directory, run.id), RunWatch(records))
            with suppress(JournalError), run.open() as connection:  # it was removed meanwhile
                listed.append(_Listed(run, watch.look(connection, run.run)))
        for gone in self._watches.keys() - {(run.directory, run.id) for run in found}:
            del self._watches[gone]
        return listed

    def screen(self, columns: int | None, *, is_watched: bool) -> Screen:
        """Return what is shown.

        Args:
            columns: Of the terminal; None without one.
            is_watched: Whether it is kept up to date.
        """
        shows_workers = is_watched or self.name is not None
        listed = self.look(with_workers=shows_workers)
        if not listed:
            return Screen([], [Line(text) for text in _nothing(self.settings)])
        if self.name is not None and len(listed) == 1:
            return self._one(listed[0], columns, is_watched=is_watched)
        head, *body = _table_of_runs(listed, columns, is_watched=is_watched)
        if shows_workers:
            of_first = self._one(listed[0], columns, is_watched=is_watched)
            body += [Line(""), *of_first.head, *of_first.body]
        return Screen([head], body)

    def _one(self, one: _Listed, columns: int | None, *, is_watched: bool) -> Screen:
        """Return one run: its verdict, what it does, and its workers."""
        now, key = one.now, str(one.run.key)
        head = [f"{key}: {now.state}, {figures(now)}"]
        if now.is_faulty:
            data = self.settings.data
            place = () if data == Path(DATA_DIRECTORY) else ("--data", str(data))
            command = own_command("diagnose", key, *place)
            head = [f"{now.verdict}; evidence and what to do: {command}", *head]
        if not is_watched:
            head += _notes(one)
        workers = worst_first(now.workers, now.verdict)
        above = [*map(Line, map(printable, head)), Line("")]
        if not workers:
            return Screen(above, [Line("no worker is known")])
        title, *lines = _grid([_worker_cells(worker) for worker in workers], columns)
        return Screen([*above, title], lines)


def _notes(one: _Listed) -> Sequence[str]:
    """Return how a run has crashed, and its places in trackers."""
    crash = one.run.run.description.crash
    notes = [] if crash is None else [crash.as_crash]
    notes += [redacted(of.location) for of in one.run.overviews if of.location]
    return [f"  {printable(note)}" for note in notes]


def _as_json(one: _Listed, of: RunOverview) -> dict[str, object]:
    now, crash = one.now, of.description.crash
    ratio = _goodput(now)
    return {
        "experiment": printable(of.key.experiment),
        "trial": printable(of.key.trial),
        "id": one.run.id,
        "state": now.state,
        "verdict": now.verdict,
        "crash": None if crash is None else printable(crash.as_crash),
        "step": now.step,
        "reward": now.reward,
        "goodput": None if ratio is None else round(ratio, 4),
        "spent": {printable(role): spent for role, spent in as_json(now.goodput).items()},
        "age_s": round(now.age_s, 3),
        "idle_s": round(now.idle_s, 3),
        "begun_ns": of.begun_ns,
        "changed_ns": of.changed_ns,
        "tracker": of.tracker,
        "location": printable(redacted(of.location)),
        "rows": of.rows,
        "unconfirmed_rows": of.unconfirmed,
        "journal_bytes": _journal_bytes(of),
        "failures": [printable(str(failure)) for failure in of.description.failures],
    }


def _goodput(now: Snapshot) -> float | None:
    """Return the productive share of a run's time; None if it is unknown."""
    return now.goodput[""].ratio if "" in now.goodput else None


def _journal_bytes(of: RunOverview) -> int:
    return of.made_bytes + of.waiting_bytes


# Cells


def _table_of_runs(
    listed: Sequence[_Listed], columns: int | None, *, is_watched: bool
) -> Sequence[Line]:
    without = _STILL if is_watched else ()
    rows = [
        {title: text for title, text in _cells(one).items() if title not in without}
        for one in listed
    ]
    head, *lines = _grid(rows, columns)
    found = [head]
    for one, line in zip(listed, lines, strict=True):
        found += [line, *map(Line, () if is_watched else _notes(one))]
    return found


def _cells(one: _Listed) -> Mapping[str, str]:
    now, ratio = one.now, _goodput(one.now)
    return {
        "RUN": str(one.run.key),
        "ID": one.run.id,
        "STATE": now.state,
        "VERDICT": _cut(now.verdict, _LONGEST_VERDICT) or "-",
        "STEP": _or_dash(now.step, "d"),
        "STEPS/S": _or_dash(now.steps_per_s, ".3g"),
        "REWARD": _or_dash(now.reward, ".3g"),
        "WORKERS": now.counted,
        "GOODPUT": _or_dash(ratio, ".0%"),
        "AGE": _duration(now.age_s),
        "ACTIVE": _duration(now.idle_s),
        "JOURNAL": _bytes(_journal_bytes(one.run.run)),
    }


def _worker_cells(worker: WorkerLine) -> Mapping[str, str]:
    return {
        "WORKER": worker.name,
        "STATE": worker.standing,
        "STEP": _or_dash(worker.step, "d"),
        "PHASE": _cut(worker.phase, _LONGEST_VERDICT) or "-",
        "TIME": _short(worker.phase_s) if worker.phase else "-",
        "PEERS": "-" if worker.ratio is None else f"{worker.ratio:.1f}x",
        "REPORT": f"{_duration(worker.idle_s)} ago",
    }


def _grid(rows: Sequence[Mapping[str, str]], columns: int | None) -> Sequence[Line]:
    """Return a header, and a line for each row, all of the same cells.

    On a terminal that is narrow the first cell is cut, and some others are left out.
    """
    rows = [{title: printable(text) for title, text in row.items()} for row in rows]
    first, *_ = rows[0]
    widths = {title: max(len(title), *(len(row[title]) for row in rows)) for title in rows[0]}
    longest = None
    if columns is None:
        widths[first] = min(widths[first], _USUAL_NAME)
    else:
        least = min(widths[first], _SHORTEST_CUT)
        for title in _RARELY_NEEDED:
            if least + _others(widths) <= columns:
                break
            widths.pop(title, None)
        longest = max(_SHORTEST_CUT, columns - _others(widths))
        widths[first] = min(widths[first], longest)
    found = []
    for row in ({title: title for title in widths}, *rows):
        cells = {**row, first: _cut(row[first], longest)}
        text = _GAP.join(cells[title].ljust(width) for title, width in widths.items()).rstrip()
        style = _STYLES.get(row.get("STATE", ""), "")
        found.append(Line(text, style))
    return found


def _others(widths: Mapping[str, int]) -> int:
    """Return what all columns but the first one take, with their gaps."""
    return sum(list(widths.values())[1:]) + len(_GAP) * (len(widths) - 1)


def _cut(text: str, longest: int | None) -> str:
    """Return a text without its middle if it is too long: names may differ at either end."""
    if longest is None or len(text) <= longest:
        return text
    end = longest // 3
    return f"{text[: longest - end - 1]}…{text[-end:]}"


def _nothing(settings: BridgeSettings) -> Iterator[str]:
    yield printable(settings.journal_place.without_runs)
    if settings.journal.url is not None:
        return
    yield "Start one with `otel-rl run -- python train.py` or `otel-rl demo`, or name the data"
    yield "directory of a bridge: otel-rl runs DIR. Ended runs are removed from a journal after"
    yield "journal.keep_ended; their rows stay in the tracker."


def _or_dash(value: float | None, form: str) -> str:
    return "-" if value is None else format(value, form)


def _short(seconds: float) -> str:
    return _duration(seconds) if seconds >= 60 else f"{seconds:.3g} s"


def _duration(seconds: float) -> str:
    for unit_s, name in _UNITS:
        if seconds >= unit_s:
            return f"{seconds / unit_s:.0f} {name}"
    return f"{seconds:.0f} s"


def _bytes(n: int) -> str:
    for exponent, name in ((3, "GB"), (2, "MB"), (1, "kB")):
        if n >= 1000**exponent:
            return f"{n / 1000**exponent:.1f} {name}"
    return f"{n} B"
