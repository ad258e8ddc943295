"""``otel-rl top``: runs and their workers in a terminal, kept up to date."""

import argparse
import os
import signal
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import Final

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from otel_rl.bridge.config import BridgeSettings
from otel_rl.bridge.journal.reader import looking, read_runs, shared_overview
from otel_rl.cli.find_run import (
    WantedRun,
    add_run,
    add_run_names,
    journals,
    shared_journal,
    take_directory,
    wanted_run,
)
from otel_rl.cli.options import add_journal_options, settings_of
from otel_rl.cli.run_snapshot import RunWatch, Snapshot, WorkerLine, counted, notable_first
from otel_rl.cli.standard_streams import say
from otel_rl.errors import JournalError
from otel_rl.plurals import many
from otel_rl.records import ExperimentKey
from otel_rl.redaction import printable

__all__ = ["add_parser"]

_EPILOG: Final = """\
examples:
  otel-rl top                    the runs in this directory, and the workers of the last active one
  otel-rl top grpo-7b            the workers of one
  otel-rl top --once             print it and exit, as it does without a terminal

Ctrl-C exits.
"""

_EVERY_S: Final = 2.0
_MOST_RUNS: Final = 12
_WIDEST: Final = 160  # without a terminal

_RUN_COLUMNS: Final = (
    *("RUN", "STATE", "STEP", "STEPS/S", "REWARD", "WORKERS"),
    *("LAG", "DROPS", "VERDICT"),
)

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


def add_parser(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Add the command to the parser of ``otel-rl``."""
    parser = commands.add_parser(
        "top",
        description="Show runs, and the workers of one with phase and age, until Ctrl-C. Without a "
        "terminal: print it once as plain text.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add_run(parser)
    add_run_names(parser)
    parser.add_argument("--once", action="store_true", help="print once and exit")
    add_journal_options(parser)
    parser.set_defaults(command=_command)


def _command(arguments: argparse.Namespace) -> int:
    take_directory(arguments)
    settings = settings_of(arguments)
    reader = _Reader(settings, wanted_run(arguments))
    is_live = sys.stdout.isatty() and os.environ.get("TERM", "dumb") not in {"", "dumb"}
    if arguments.once or not is_live:
        width = None if sys.stdout.isatty() else _WIDEST
        console = Console(width=width, soft_wrap=False, highlight=False, markup=False)
        with console.capture() as capture:  # rich exits with 1 if the reader is gone
            console.print(_screen(reader.look(), rows=None))
        print(capture.get(), end="")
    else:
        _stay(reader)
    for fault in reader.faults:
        say(fault)
    return 1 if reader.faults else 0


def _stay(reader: "_Reader") -> None:
    """Show the runs until Ctrl-C, or SIGTERM, after which the terminal is as it was."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    console = Console(highlight=False, markup=False)

    def screen() -> RenderableType:
        return _screen(snapshots, rows=console.size.height)

    snapshots = reader.look()
    with (
        suppress(KeyboardInterrupt),
        Live(get_renderable=screen, console=console, screen=True, refresh_per_second=4),
    ):
        while True:
            time.sleep(_EVERY_S)
            snapshots = reader.look()


class _Reader:
    """Reads all runs in reach.

    Attributes:
        faults: Why journals cannot be read, in words.
    """

    def __init__(self, settings: BridgeSettings, wanted: WantedRun) -> None:
        self.faults: Sequence[str] = ()
        self._settings = settings
        self._wanted = wanted
        self._watches: dict[tuple[str, ExperimentKey], RunWatch] = {}

    def look(self) -> Sequence[Snapshot]:
        """Return the runs, the wanted one first, then the last active one.

        Raises:
            ConfigError: There is no run, or not the wanted one.
        """
        found = sorted(self._all(), key=lambda one: one[0], reverse=True)
        of_key: dict[ExperimentKey, Snapshot] = {}
        for _, snapshot in found:
            of_key.setdefault(snapshot.key, snapshot)
        matching = self._wanted.of(of_key)
        place = self._settings.journal_place
        if not of_key:
            raise place.no_run()
        if not matching:
            raise self._wanted.not_found(of_key, place.words)
        first = of_key.pop(matching[0])
        return [first, *of_key.values()]

    def _all(self) -> Iterator[tuple[int, Snapshot]]:
        """Yield each run with the time of its last change."""
        faults: list[str] = []
        if self._settings.journal.url is not None:
            with shared_journal(self._settings) as journal:
                overviews = shared_overview(journal)
                with journal.read() as connection:
                    for run in overviews:
                        yield run.changed_ns, self._watch("", run.key).look(connection, run)
            return
        for directory in journals(self._settings):
            try:
                with looking(directory) as connection:
                    for run in read_runs(connection, directory):
                        watch = self._watch(str(directory), run.key)
                        yield run.changed_ns, watch.look(connection, run)
            except JournalError as exc:
                faults.append(str(exc))
        self.faults = faults

    def _watch(self, place: str, key: ExperimentKey) -> RunWatch:
        return self._watches.setdefault((place, key), RunWatch(key))


def _screen(snapshots: Sequence[Snapshot], *, rows: int | None) -> RenderableType:
    """Return the whole text; lines beyond the height of the terminal are counted instead."""
    first = snapshots[0]
    runs = snapshots[:_MOST_RUNS]
    workers = first.workers
    room = len(workers) if rows is None else max(1, rows - len(runs) - 6)
    left = len(workers) - room
    parts: list[RenderableType] = [_runs(runs)]
    if len(snapshots) > len(runs):
        parts.append(Text(f"and {len(snapshots) - len(runs)} more runs", style="dim"))
    parts += [Text(""), _workers(workers if left <= 0 else notable_first(workers)[:room])]
    if left > 0:
        parts.append(Text(f"and {left} more workers of {printable(str(first.key))}", style="dim"))
    return Group(*parts)


def _runs(snapshots: Sequence[Snapshot]) -> Table:
    table = _table(
        "RUN", "STATE", "STEP", "STEPS/S", "REWARD", "WORKERS", "LAG", "DROPS", "VERDICT"
    )
    for one in snapshots:
        table.add_row(
            printable(str(one.key)),
            Text(one.state, style=_STYLES.get(one.state, "")),
            "-" if one.step is None else str(one.step),
            "-" if one.steps_per_s is None else f"{one.steps_per_s:.3g}",
            "-" if one.reward is None else f"{one.reward:.3g}",
            counted(one),
            many(one.lag_rows, "row"),
            str(one.drops),
            printable(one.verdict) or "-",
        )
    return table


def _workers(lines: Sequence[WorkerLine]) -> Table:
    table = _table("WORKER", "STATE", "STEP", "PHASE", "SINCE", "LAST REPORT")
    for one in lines:
        table.add_row(
            printable(one.name),
            Text(one.standing, style=_STYLES.get(one.standing, "")),
            "-" if one.step is None else str(one.step),
            printable(one.phase) or "-",
            _age(one.phase_s) if one.phase else "-",
            f"{_age(one.idle_s)} ago",
        )
    return table


def _table(*titles: str) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold")
    for title in titles:
        table.add_column(title, no_wrap=True, overflow="ellipsis")
    return table


def _age(seconds: float) -> str:
    if seconds < 60:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 3_600 else f"{seconds / 3_600:.0f} h"
