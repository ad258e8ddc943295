"""``otel-rl top``: runs and their workers in a terminal, kept up to date."""

import argparse
import signal
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Final

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from otel_rl.bridge.config import BridgeSettings
from otel_rl.cli.find_run import WantedRun, add_run, add_run_names, take_directory, wanted_run
from otel_rl.cli.options import add_journal_options, settings_of
from otel_rl.cli.run_snapshot import RunReader, Snapshot, WorkerLine, counted, notable_first
from otel_rl.cli.terminal import is_live
from otel_rl.plurals import many
from otel_rl.redaction import printable

__all__ = ["add_parser", "watch"]

_EPILOG: Final = """\
examples:
  otel-rl top                    the runs in this directory, and the workers of the last active one
  otel-rl top grpo-7b            the workers of one
  otel-rl top --once             print it and exit, as it does without a terminal

Ctrl-C exits. `otel-rl runs --watch` shows the same.
"""

_EVERY_S: Final = 2.0
_MOST_RUNS: Final = 12
_WIDEST: Final = 160  # without a terminal

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
    return watch(settings_of(arguments), wanted_run(arguments), is_once=arguments.once)


def watch(settings: BridgeSettings, wanted: WantedRun, *, is_once: bool = False) -> int:
    """Show the runs until Ctrl-C, or once, and return the exit status.

    Args:
        settings: With the place of the journals.
        wanted: The run whose workers are shown; of several, the last active one.
        is_once: Whether it is printed once, as it is without a terminal.

    Raises:
        ConfigError: There is no such run.
    """
    reader = RunReader(settings)

    def look() -> Sequence[Snapshot]:
        return reader.snapshots(wanted)

    if is_once or not is_live(sys.stdout):
        width = None if sys.stdout.isatty() else _WIDEST
        console = Console(width=width, soft_wrap=False, highlight=False, markup=False)
        with console.capture() as capture:  # rich exits with 1 if the reader is gone
            console.print(_screen(look(), rows=None))
        print(capture.get(), end="")
    else:
        _stay(look)
    return reader.status()


def _stay(look: Callable[[], Sequence[Snapshot]]) -> None:
    """Show the runs until Ctrl-C, or SIGTERM, after which the terminal is as it was."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    console = Console(highlight=False, markup=False)

    def screen() -> RenderableType:
        return _screen(snapshots, rows=console.size.height)

    snapshots = look()
    with (
        suppress(KeyboardInterrupt),
        Live(get_renderable=screen, console=console, screen=True, refresh_per_second=4),
    ):
        while True:
            time.sleep(_EVERY_S)
            snapshots = look()


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
