"""The ``otel-rl`` command."""

import argparse
import logging
import os
import sys
from collections.abc import Sequence

from otel_rl import __version__
from otel_rl.cli import bridge, demo, doctor, run
from otel_rl.errors import OtelRLError

__all__ = ["main"]

_COMMANDS = (run, bridge, demo, doctor)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit status.

    Args:
        argv: Arguments without the program's name; those of the process if not given.
    """
    arguments = _parser().parse_args(argv)
    logging.basicConfig(
        level=os.environ.get("OTEL_RL_LOG_LEVEL", "WARNING").upper(),
        format="%(asctime)s %(levelname)s %(name)s: %(message)s",
        stream=sys.stderr,
    )
    try:
        status: int = arguments.command(arguments)
    except OtelRLError as exc:
        print(f"otel-rl: {exc}", file=sys.stderr)
        return 2
    return status


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
