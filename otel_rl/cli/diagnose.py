"""``otel-rl diagnose``: from a symptom to its cause."""

import argparse
import json
import re
from collections.abc import Mapping, Sequence

from otel_rl.bridge.config import BridgeSettings
from otel_rl.bridge.overview import histories, shared_histories
from otel_rl.cli.journals import journals, shared_journal
from otel_rl.cli.options import add_bridge_options, settings_of
from otel_rl.diagnose.facts import Facts
from otel_rl.diagnose.history import History
from otel_rl.diagnose.verdict import diagnose
from otel_rl.diagnose.words import as_json, in_words
from otel_rl.errors import ConfigError
from otel_rl.records import ExperimentKey

__all__ = ["add_parser"]

_DESCRIPTION = """\
Say what is wrong with a run, and who did it: from what its bridge has kept of it, while it goes on
or after its end. Without steps: what has changed over the whole run. With steps: what is different
in them. Ranked causes, each with its evidence. Exits 0 when it could look, whatever it found.
"""

_EPILOG = """\
examples:
  otel-rl diagnose                          the run that was heard of last
  otel-rl diagnose grpo-7b/trial-3          one by name
  otel-rl diagnose --steps 412              why was step 412 slow?
  otel-rl diagnose --steps 400:500 --json   what is different in these, for a program
"""


def add_parser(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Add the command to the parser of ``otel-rl``."""
    parser = commands.add_parser(
        "diagnose",
        help="say what is wrong with a run, and which worker and phase did it",
        description=_DESCRIPTION,
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "run",
        nargs="?",
        metavar="EXPERIMENT[/TRIAL]",
        help="default: the run that was heard of last",
    )
    parser.add_argument(
        "--steps", type=_steps, metavar="FIRST[:LAST]", help="the steps to explain (all)"
    )
    parser.add_argument("--json", action="store_true", help="as JSON")
    add_bridge_options(parser)
    parser.set_defaults(command=_command)


def _steps(text: str) -> tuple[int, int]:
    found = re.fullmatch(r"(\d+)(?::(\d+))?", text)
    if found is None or int(found[2] or found[1]) < int(found[1]):
        raise argparse.ArgumentTypeError(f"write N or FIRST:LAST (got {text!r})")
    return int(found[1]), int(found[2] or found[1])


def _command(arguments: argparse.Namespace) -> int:
    settings = settings_of(arguments)
    key, bodies = _chosen(arguments.run, _histories(settings), settings)
    history = History(Facts.decode(body) for body in bodies)
    if arguments.steps is not None and arguments.steps[0] > history.last:
        raise ConfigError(
            f"--steps: {key} has come to step {history.last} (got {arguments.steps[0]}).",
            hint="Steps are those of rl.loop.iteration.",
        )
    report = diagnose(history, arguments.steps)
    if arguments.json:
        run = {"experiment": key.experiment, "trial": key.trial}
        print(json.dumps({**run, **as_json(report)}, indent=1, allow_nan=False))
        return 0
    print(f"{key}, {history.last} steps, {len(bodies)} moments of it known")
    for line in in_words(report, trace_url=settings.align.trace_url):
        print(line)
    return 0


def _histories(settings: BridgeSettings) -> Mapping[ExperimentKey, Sequence[bytes]]:
    """Of every run that can be found; what was heard of last comes last."""
    found: dict[ExperimentKey, Sequence[bytes]] = {}
    if settings.journal.url is not None:
        with shared_journal(settings) as journal:
            return shared_histories(journal)
    directories = sorted(journals(settings), key=lambda path: path.stat().st_mtime)
    for directory in directories:
        found |= histories(directory)
    return found


def _chosen(
    name: str | None, found: Mapping[ExperimentKey, Sequence[bytes]], settings: BridgeSettings
) -> tuple[ExperimentKey, Sequence[bytes]]:
    wanted = [key for key in found if name in {None, str(key)}]
    wanted = wanted or [key for key in found if name in {key.experiment, key.trial}]
    if wanted:
        return wanted[-1], found[wanted[-1]]
    if found:
        raise ConfigError(
            f"There is no run {name!r} in the journals below {str(settings.data)!r}.",
            hint=f"There are: {', '.join(sorted(map(str, found)))}.",
        )
    raise ConfigError(
        f"No journal below {str(settings.data)!r} has kept anything of a run.",
        hint="Say where the bridge keeps its journal: --data DIR, or --config FILE. Bridges keep "
        "what is needed unless align.max_history_bytes is 0.",
    )
