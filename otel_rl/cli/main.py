"""The ``otel-rl`` command.

Loads the module of the given command only, so that it works without the extras of the others.
"""

import argparse
import importlib
import importlib.util
import logging
import os
import re
import signal
import sys
import textwrap
from collections.abc import Callable, Iterable, Mapping, Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from otel_rl.bridge.garbage import collect_rarely
from otel_rl.cli.standard_streams import (
    FULL,
    Formatter,
    JsonFormatter,
    abandon_output,
    complain,
    open_closed_streams,
    print_error,
)
from otel_rl.errors import ConfigError, MissingExtra, OtelRLError
from otel_rl.version import __version__

if TYPE_CHECKING:
    from types import ModuleType


class _Command(NamedTuple):
    """Subcommand.

    Attributes:
        summary: One line for the list of commands.
        extra: Extra with the libraries that it needs; empty if it needs none.
        library: One of them that the command, but not its help, needs; empty for none.
    """

    summary: str
    extra: str
    library: str = ""


COMMANDS: Final = {
    "run": _Command("run a command and write what it reports to one tracker run", "bridge"),
    "bridge": _Command(
        "receive OTLP from any sender, write one tracker run per experiment", "bridge"
    ),
    "finish": _Command("write what a run has left, to its tracker and its archive", "bridge"),
    "demo": _Command(
        "train a small policy by GRPO on this machine, ending in one tracker run", "demo", "numpy"
    ),
    "diagnose": _Command("find what makes a run slow or bad: worker, phase and evidence", "bridge"),
    "compare": _Command("compare runs: what takes longer, learns better, or differs", "bridge"),
    "export": _Command("write the spans of a run as a trace for Perfetto", "bridge"),
    "replay": _Command("write stored runs to a tracker, again or for the first time", "bridge"),
    "runs": _Command("list runs, or the workers of one; once, or kept up to date", "bridge"),
    "view": _Command(
        "show runs in a browser, or write one to a file; without any account", "bridge"
    ),
    "mcp": _Command("serve runs to agents, over the Model Context Protocol", "mcp", "mcp"),
    "dashboard": _Command("arrange the charts of runs in a W&B workspace, by topic", "bridge"),
    "help": _Command("print a page of the documentation, or list the topics", ""),
    "doctor": _Command("check this machine and its settings, and suggest remedies", "bridge"),
}


_WIDTH: Final = 90
"""Of the lines that describe a command, in characters."""

_ALIKE: Final = 0.7
"""Of two words, from 0 to 1, that differ by a typing mistake."""


def main(argv: Sequence[str] | None = None, *, loaded: Callable[[], None] = lambda: None) -> int:
    """Run the command line and return its exit status.

    Args:
        argv: Arguments without the program's name; those of the process if not given.
        loaded: Called before the command begins.
    """
    given = sys.argv[1:] if argv is None else argv
    open_closed_streams()
    collect_rarely()  # before the imports of a command: it would be a sixth of their CPU time
    try:
        arguments = _parsed(given)
        handler = logging.StreamHandler(sys.stderr)
        handler.setFormatter(_formatter(os.environ.get("OTEL_RL_LOG_FORMAT") or "text"))
        logging.basicConfig(
            level=_log_level(os.environ.get("OTEL_RL_LOG_LEVEL") or "WARNING"), handlers=[handler]
        )
        _check_working_directory()
        _check_extra(given[0])
        loaded()
        status: int = arguments.command(arguments)
        sys.stdout.flush()
    except BrokenPipeError:  # the reader, such as `head`, has closed the pipe
        abandon_output()
        return 128 + signal.SIGPIPE
    except KeyboardInterrupt:
        return 128 + signal.SIGINT  # nothing was started yet
    except OtelRLError as exc:
        complain(str(exc))
        return 2
    except OSError as exc:
        if exc.errno not in FULL or exc.filename is not None:
            raise
        abandon_output()
        print_error(f"otel-rl: the output cannot be written: {exc.strerror}.")
        return 1
    return status


def _check_extra(name: str) -> None:
    command = COMMANDS[name]
    if command.library and importlib.util.find_spec(command.library) is None:
        raise MissingExtra(f"`otel-rl {name}`", command.library, command.extra)


def _check_working_directory() -> None:
    try:
        Path.cwd()
    except FileNotFoundError as exc:
        raise ConfigError(
            "The working directory was removed.", hint="Change to another one and call it again."
        ) from exc


def _formatter(name: str) -> logging.Formatter:
    if name == "json":
        return JsonFormatter()
    if name != "text":
        raise ConfigError(
            f'OTEL_RL_LOG_FORMAT: unknown format (got "{name}").', hint="Choose text or json."
        )
    return Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s")


def _log_level(name: str) -> int:
    levels = logging.getLevelNamesMapping()
    if name.upper() not in levels:
        raise ConfigError(
            f'OTEL_RL_LOG_LEVEL: unknown level (got "{name}").',
            hint="Choose DEBUG, INFO, WARNING or ERROR.",
        )
    return levels[name.upper()]


def _parsed(given: Sequence[str]) -> argparse.Namespace:
    """Parse the command line; a mistyped command or option is told with what was meant."""
    chosen = given[0] if given else ""
    parser = _parser(chosen)
    if chosen and not chosen.startswith("-") and chosen not in COMMANDS:
        parser.error(f"there is no command {chosen!r}.{_meant(chosen, COMMANDS)}")
    if not chosen:
        parser.print_help(sys.stderr)
        parser.exit(2)
    between = ""
    if chosen == "compare":  # argparse would drop what stands between the sides
        between = _module(chosen).BETWEEN
        given = [between if word == "--" else word for word in given]
    arguments, unknown = parser.parse_known_args(given)
    if unknown:
        unknown = ["--" if word == between else word for word in unknown]
        usage = parser.of_commands.get(chosen, parser)
        options = re.findall(r"(?<![\w-])--[a-z][a-z-]*", usage.format_help())
        usage.error(f"unrecognized arguments: {' '.join(unknown)}.{_meant(unknown[0], options)}")
    return arguments


def _meant(given: str, known: Iterable[str]) -> str:
    words = {name.lstrip("-"): name for name in known}
    word = given.partition("=")[0].lstrip("-")
    begun = [name for name in words if name.startswith(word)]
    near = begun if len(begun) == 1 else get_close_matches(word, words, 1, _ALIKE)
    return f" Did you mean {words[near[0]]}?" if near else ""


class _Parser(argparse.ArgumentParser):
    """Parser of whole words: an abbreviation would become another option with the next version.

    Attributes:
        of_commands: Of all commands: parser of each, which shows its own usage.
    """

    of_commands: Mapping[str, argparse.ArgumentParser]

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings, allow_abbrev=False)


def _parser(chosen: str) -> _Parser:
    """Make the parser; only the module of the chosen command is loaded, and adds its options."""
    parser = _Parser(
        prog="otel-rl",
        description="OpenTelemetry for distributed RL training, ending in one tracker run.",
        epilog="Help for one command: otel-rl COMMAND --help. Documentation: otel-rl help",
    )
    parser.add_argument("--version", action="version", version=f"otel-rl {__version__}")
    commands = parser.add_subparsers(
        title="commands",
        metavar="COMMAND",
        required=True,
        parser_class=_Parser,
    )
    for name, command in COMMANDS.items():
        if name == chosen:
            module = _module(name)
            of_command = commands.add_parser(
                name,
                description=textwrap.fill(module.DESCRIPTION, _WIDTH),
                epilog=getattr(module, "EPILOG", None),
                formatter_class=argparse.RawDescriptionHelpFormatter,
            )
            of_command.set_defaults(command=module.command)
            module.add_options(of_command)
        else:
            commands.add_parser(name, help=command.summary)
    parser.of_commands = commands.choices
    return parser


def command_parser(name: str) -> argparse.ArgumentParser:
    return _parser(name).of_commands[name]


def _module(name: str) -> "ModuleType":
    try:
        return importlib.import_module(f"otel_rl.cli.commands.{name}")
    except ModuleNotFoundError as exc:
        library = (exc.name or "").partition(".")[0]
        if library in ("", "otel_rl"):
            raise
        raise MissingExtra(f"`otel-rl {name}`", library, COMMANDS[name].extra) from exc
