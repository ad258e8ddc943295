"""The ``otel-rl`` command."""

import argparse
import logging
import os
import signal
import sys
from collections.abc import Sequence

from otel_rl import __version__
from otel_rl.cli import bridge, demo, diagnose, doctor, run
from otel_rl.errors import ConfigError, OtelRLError
from otel_rl.shown import shown

__all__ = ["main"]

_COMMANDS = (run, bridge, demo, diagnose, doctor)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit status.

    Args:
        argv: Arguments without the program's name; those of the process if not given.
    """
    arguments = _parser().parse_args(argv)
    try:
        handler = logging.StreamHandler(sys.stderr)
        handler.setFormatter(_Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
        logging.basicConfig(
            level=_log_level(os.environ.get("OTEL_RL_LOG_LEVEL") or "WARNING"), handlers=[handler]
        )
        status: int = arguments.command(arguments)
        sys.stdout.flush()
    except BrokenPipeError:  # whoever read the output, `head` for example, has read enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 128 + signal.SIGPIPE
    except KeyboardInterrupt:
        return 128 + signal.SIGINT  # before there was anything to finish
    except OtelRLError as exc:
        print(shown(f"otel-rl: {exc}"), file=sys.stderr)
        return 2
    return status


class _Formatter(logging.Formatter):
    """Lines without secrets, and without what a terminal would obey."""

    def format(self, record: logging.LogRecord) -> str:
        return shown(super().format(record))


def _log_level(name: str) -> int:
    levels = logging.getLevelNamesMapping()
    if name.upper() not in levels:
        raise ConfigError(
            f'OTEL_RL_LOG_LEVEL: unknown level (got "{name}").',
            hint="Choose DEBUG, INFO, WARNING or ERROR.",
        )
    return levels[name.upper()]


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="otel-rl",
        description="OpenTelemetry for distributed RL training, ending in one tracker run.",
        epilog="Every command explains itself: otel-rl COMMAND --help",
    )
    parser.add_argument("--version", action="version", version=f"otel-rl {__version__}")
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    for command in _COMMANDS:
        command.add_parser(commands)
    return parser
