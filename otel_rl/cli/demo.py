"""``otel-rl demo``: a real asynchronous GRPO run on this machine, ending in one tracker run."""

import argparse
import importlib.util
import os
from pathlib import Path

from otel_rl.cli.embedded import embedded, embedded_defaults, finish, say
from otel_rl.cli.environment import reporting_environment
from otel_rl.cli.options import add_bridge_options, experiment_key, settings_of
from otel_rl.errors import ConfigError
from otel_rl.records import ExperimentKey

__all__ = ["add_parser"]

_DESCRIPTION = """\
Train a small policy with asynchronous GRPO in ten processes on CPU: two trainer ranks, three
generator replicas with a KV cache, a replay buffer, two reward workers. One generator is killed
half-way. Everything they measure ends in one tracker run. Takes about a minute.
"""


def add_parser(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Add the command to the parser of ``otel-rl``."""
    parser = commands.add_parser(
        "demo",
        help="a real asynchronous GRPO run on this machine, ending in one tracker run",
        description=_DESCRIPTION,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--experiment", metavar="NAME", help="default: grpo-demo")
    parser.add_argument("--trial", metavar="NAME", help="default: the time, so each is a new run")
    parser.add_argument("--steps", type=_positive, metavar="N", help="policy updates (100)")
    parser.add_argument("--seed", type=int, default=0, metavar="N", help="(%(default)s)")
    parser.add_argument("--no-kill", action="store_true", help="let every generator live")
    parser.add_argument(
        "--endpoint",
        metavar="HOST:PORT",
        help="OTLP/HTTP of a bridge or collector that runs already, instead of an embedded bridge",
    )
    add_bridge_options(parser)
    parser.set_defaults(command=_command)


def _positive(text: str) -> int:
    if not text.isdigit() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"must be a number from 1 on (got {text!r})")
    return int(text)


def _command(arguments: argparse.Namespace) -> int:
    if importlib.util.find_spec("numpy") is None:
        raise ConfigError("The demo needs numpy.", hint="pip install 'otel-rl[demo,wandb]'")
    key = experiment_key(arguments, default_experiment="grpo-demo")
    if arguments.endpoint:
        return _train(arguments, key, arguments.endpoint, work_dir=None)
    bridge = embedded(settings_of(arguments, defaults=embedded_defaults(key)))
    status, complete = 1, False
    try:
        say(f"experiment {key}, OTLP on http://{bridge.http}")
        status = _train(arguments, key, bridge.http, work_dir=bridge.settings.data / "demo")
    finally:
        complete = finish(bridge, exit_code=status)
    return status or (0 if complete else 1)


def _train(
    arguments: argparse.Namespace, key: ExperimentKey, http: str, *, work_dir: Path | None
) -> int:
    from otel_rl.demo import DemoSettings, run  # needs numpy

    given: dict[str, object] = {
        "experiment": key.experiment,
        "trial": key.trial,
        "seed": arguments.seed,
        "work_dir": work_dir,
    }
    if arguments.steps is not None:
        given["steps"] = arguments.steps
    if arguments.no_kill:
        given["kill_share"] = None
    environment = reporting_environment(os.environ, http=http, key=key)
    result = run(DemoSettings.model_validate(given), environment)
    print(result, flush=True)
    return 0 if result.ok else 1
