"""``otel-rl runs``: lists the runs of a data directory, live and ended."""

import argparse
import json
import os
import shutil
import stat
import sys
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from otel_rl.bridge.config import BridgeSettings
from otel_rl.bridge.journal.interface import Connection
from otel_rl.bridge.journal.reader import (
    RunOverview,
    state_of,
)
from otel_rl.bridge.rows.stored_run import read_standing
from otel_rl.cli.find_run import WantedRun
from otel_rl.cli.options import add_journal_options, settings_of
from otel_rl.cli.run_deletion import delete
from otel_rl.cli.run_snapshot import RunReader
from otel_rl.errors import ConfigError
from otel_rl.goodput import Spent, as_json
from otel_rl.redaction import printable, redacted
from otel_rl.run_id import run_id

__all__ = ["add_parser"]

_EPILOG: Final = """\
examples:
  otel-rl runs                   those of `otel-rl run` and `otel-rl bridge` in this directory
  otel-rl runs /data/otel_rl     those of another data directory
  otel-rl runs --json            for a program
  otel-rl runs --watch           kept up to date, with the workers of one: as `otel-rl top`
  otel-rl runs --delete ppo/7    delete a run; a directory before it says where

states:
  running    its workers report
  stalled    no report for a minute, no new step for ten usual step times and 5 minutes, or
             since the diagnosis has found a stall
  interrupted                    no bridge works on it: killed or stopped before the run ended
  finished, aborted, crashed     how the run ended
"""

_UNITS: Final = ((86_400, "d"), (3_600, "h"), (60, "min"))
_COLUMNS: Final[Sequence[str]] = (
    "RUN",
    "ID",
    "STATE",
    "STEP",
    "GOODPUT",
    "AGE",
    "ACTIVE",
    "JOURNAL",
    "FILES",
    "LINK",
)
_GAP: Final = "  "
_USUAL_NAME: Final = 60  # a longer one, in a pipe, leaves other lines as they are
_SHORTEST_CUT: Final = 24


def add_parser(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Add the command to the parser of ``otel-rl``."""
    parser = commands.add_parser(
        "runs",
        description="List the runs that a bridge keeps, the last active one first: id, state, "
        "step, goodput, age, idle time, sizes, place in the tracker.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "directory", nargs="?", type=Path, metavar="DIR", help="data directory (default: --data)"
    )
    parser.add_argument("--json", action="store_true", help="as JSON")
    parser.add_argument(
        "--watch",
        action="store_true",
        help="show runs, and the workers of one, until Ctrl-C; as `otel-rl top`",
    )
    parser.add_argument(
        "--delete",
        metavar="RUN",
        help="delete what this machine has of a run, by EXPERIMENT[/TRIAL] or id; a tracker keeps "
        "what it has",
    )
    parser.add_argument("--yes", action="store_true", help="delete without a question")
    add_journal_options(parser)
    parser.set_defaults(command=_command)


@dataclass(frozen=True, slots=True)
class _Listed:
    """Run in the list.

    Attributes:
        run: As the journal has it.
        state: In one word.
        age_s: Since its first data.
        idle_s: Since its last.
        file_bytes: Size of the tracker's files on this machine; None if there are none.
        goodput: Time of its allocation, by role; nothing if it is unknown.
    """

    run: RunOverview
    state: str
    age_s: float
    idle_s: float
    file_bytes: int | None
    goodput: Mapping[str, Spent]

    @property
    def ratio(self) -> float | None:
        """Return the productive share of the run's time; None if it is unknown."""
        return self.goodput[""].ratio if "" in self.goodput else None

    @property
    def journal_bytes(self) -> int:
        """Return its size in the journal, about."""
        return self.run.made_bytes + self.run.waiting_bytes


def _command(arguments: argparse.Namespace) -> int:
    if arguments.directory is not None:
        if arguments.data is not None:
            raise ConfigError("Name the directory once, as DIR or by --data.")
        arguments.data = arguments.directory
    settings = settings_of(arguments)
    is_named = arguments.data is not None and settings.journal.url is None
    if is_named and not arguments.data.is_dir():
        raise settings.journal_place.no_run()
    if arguments.watch:
        from otel_rl.cli.commands.top import watch  # rich is not needed for a list

        return watch(settings, WantedRun(None))
    if arguments.delete is not None:
        return delete(settings, arguments.delete, is_confirmed=arguments.yes)
    reader, now_ns = RunReader(settings), time.time_ns()
    listed = [_listed(run, connection, now_ns) for run, connection, _ in reader.runs()]
    listed.sort(key=lambda one: (one.idle_s, str(one.run.key)))
    if arguments.json:
        print(json.dumps([_as_json(one) for one in listed], indent=1))
    else:
        for line in _table(listed) if listed else _nothing(settings):
            print(line)
    return reader.status()


def _listed(run: RunOverview, connection: Connection, now_ns: int) -> _Listed:
    standing = read_standing(connection, run_id(*run.key))
    idle_s = max(0.0, (now_ns - run.changed_ns) / 1e9)
    age_s = max(idle_s, (now_ns - (run.begun_ns or run.changed_ns)) / 1e9)
    state, size = state_of(run, standing, now_ns), _size(run.location)
    return _Listed(run, state, age_s, idle_s, size, standing.goodput)


def _size(location: str) -> int | None:
    """Return the bytes of a file, or of all files in a directory; None if it is not here."""
    if not location or "://" in location:
        return None
    path = Path(location)
    try:
        status = path.stat()
    except OSError:
        return None
    if not stat.S_ISDIR(status.st_mode):
        return status.st_size
    return sum(_file_sizes(path))


def _file_sizes(directory: Path) -> Iterator[int]:
    for parent, _, names in os.walk(directory):
        for name in names:
            try:
                status = (Path(parent) / name).lstat()
            except OSError:  # removed meanwhile
                continue
            if stat.S_ISREG(status.st_mode):
                yield status.st_size


def _as_json(one: _Listed) -> dict[str, object]:
    run = one.run
    crash = run.description.crash
    return {
        "experiment": printable(run.key.experiment),
        "trial": printable(run.key.trial),
        "id": run_id(*run.key),
        "state": one.state,
        "crash": None if crash is None else printable(crash.as_crash),
        "step": run.step,
        "goodput": None if one.ratio is None else round(one.ratio, 4),
        "spent": {printable(role): of for role, of in as_json(one.goodput).items()},
        "age_s": round(one.age_s, 3),
        "idle_s": round(one.idle_s, 3),
        "begun_ns": run.begun_ns,
        "changed_ns": run.changed_ns,
        "tracker": run.tracker,
        "location": printable(redacted(run.location)),
        "rows": run.rows,
        "unconfirmed_rows": run.unconfirmed,
        "journal_bytes": one.journal_bytes,
        "file_bytes": one.file_bytes,
        "failures": [printable(str(failure)) for failure in run.description.failures],
    }


def _table(listed: Iterable[_Listed]) -> Iterator[str]:
    lines: list[tuple[Sequence[str], str]] = [(_COLUMNS, "")]
    for one in listed:
        run = one.run
        crash = run.description.crash
        cells = (
            str(run.key),
            run_id(*run.key),
            one.state,
            "-" if run.step is None else str(run.step),
            "-" if one.ratio is None else f"{one.ratio:.0%}",
            _duration(one.age_s),
            _duration(one.idle_s),
            _bytes(one.journal_bytes),
            "-" if one.file_bytes is None else _bytes(one.file_bytes),
            redacted(run.location) or "-",
        )
        lines.append(([*map(printable, cells)], "" if crash is None else crash.as_crash))
    widths = [max(len(row[place]) for row, _ in lines) for place in range(len(_COLUMNS))]
    longest = _room_for_names(widths)
    widths[0] = min(widths[0], longest or _USUAL_NAME)
    for (name, *row), note in lines:
        padded = map(str.ljust, (_cut(name, longest), *row), widths)
        yield _GAP.join(padded).rstrip()
        if note:
            yield printable(f"  {note}")


def _room_for_names(widths: Sequence[int]) -> int | None:
    """Return how many characters of names leave room for the other columns of a terminal."""
    if not sys.stdout.isatty():
        return None
    others = sum(widths[1:]) + len(_GAP) * (len(widths) - 1)
    return max(_SHORTEST_CUT, shutil.get_terminal_size().columns - others)


def _cut(name: str, longest: int | None) -> str:
    """Return a name without its middle if it is too long: runs may differ at either end."""
    if longest is None or len(name) <= longest:
        return name
    end = longest // 3
    return f"{name[: longest - end - 1]}…{name[-end:]}"


def _nothing(settings: BridgeSettings) -> Iterator[str]:
    yield printable(settings.journal_place.without_runs)
    if settings.journal.url is not None:
        return
    yield "Start one with `otel-rl run -- python train.py` or `otel-rl demo`, or name the data"
    yield "directory of a bridge: otel-rl runs DIR. Ended runs are removed from a journal after"
    yield "journal.keep_ended; their rows stay in the tracker."


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
