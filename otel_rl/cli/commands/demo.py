"""``otel-rl demo``: a real asynchronous GRPO run on this machine, ending in one tracker run."""

import argparse
import os
import shlex
from typing import TYPE_CHECKING

from pydantic import ValidationError

from otel_rl.bridge.config import BridgeSettings
from otel_rl.cli.embedded_bridge import Embedded, embedded_defaults, say_page
from otel_rl.cli.ending.end import finish, leave
from otel_rl.cli.environment import reporting_environment
from otel_rl.cli.options import add_bridge_options, settings_of
from otel_rl.cli.run_names import RunNames, run_names
from otel_rl.cli.signal_handlers import end_requests
from otel_rl.cli.standard_streams import say
from otel_rl.cli.terminal import live_line
from otel_rl.errors import ConfigError
from otel_rl.records import ExperimentKey
from otel_rl.run_id import run_id

if TYPE_CHECKING:
    from otel_rl.demo import DemoSettings

DESCRIPTION = """\
Train a small policy with asynchronous GRPO in ten processes on CPU and write one tracker run. One
generator is killed half-way. It trains for half a minute, and takes about a minute in all.
"""


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--experiment", metavar="NAME", help="default: grpo-demo")
    parser.add_argument("--trial", metavar="NAME", help="default: the time, so each is a new run")
    parser.add_argument("--steps", type=_positive, metavar="N", help="policy updates (100)")
    parser.add_argument("--seed", type=int, default=0, metavar="N", help="(%(default)s)")
    parser.add_argument("--no-kill", action="store_true", help="do not kill a generator half-way")
    parser.add_argument(
        "--fault",
        action="append",
        dest="faults",
        metavar="KIND[@STEP][:SIZE][@WORKER]",
        help="inject a fault from STEP on (default: after 40 %% of the steps), in place of the "
        "killed generator; may be repeated. `--fault help` lists the kinds",
    )
    parser.add_argument(
        "--endpoint",
        metavar="HOST:PORT",
        help="OTLP/HTTP of a running bridge or collector",
    )
    add_bridge_options(parser)


def _positive(text: str) -> int:
    if not text.isdigit() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"must be a number from 1 on (got {text!r})")
    return int(text)


def command(arguments: argparse.Namespace) -> int:
    if "help" in (arguments.faults or ()):
        return _list_faults()
    names = run_names(arguments, os.environ, default_experiment="grpo-demo").settled()
    settings = _demo_settings(arguments, names.key)
    if arguments.endpoint:
        return _train(settings, names, arguments.endpoint)
    embedded = Embedded(settings_of(arguments, defaults=embedded_defaults(names)), names)
    bridge, names, key = embedded.bridge, embedded.names, embedded.names.key
    status = 1
    try:
        say(f"experiment {key}, OTLP on http://{bridge.http}")
        say_page("page of the run", bridge, key, embedded.token)
        work_dir = bridge.settings.data / "demo"
        settings = settings.model_copy(update={"work_dir": work_dir, "trial": key.trial})
        with live_line(bridge.settings.data, key, is_wanted=True):
            status = _train(settings, names, bridge.http, token=embedded.token)
    finally:
        with end_requests() as requests:
            ending = finish(bridge, exit_code=status, is_over=True, requests=requests)
        if ending.interrupted:
            leave(128 + ending.interrupted)
    if bridge.has_page:
        _write_report(bridge.settings, key)
    if ending.lost:
        say(f"DATA WAS LOST: {ending.lost_in_words}")
    return status or (0 if ending.is_complete and not ending.lost else 1)


def _write_report(settings: BridgeSettings, key: ExperimentKey) -> None:
    from otel_rl.view.report import write_report

    output = settings.data / "report.html"
    try:
        write_report(settings, run_id(key.experiment, key.trial), output)
    except ConfigError as exc:
        say(f"no report was written: {exc}")
    else:
        say(f"report of the run, one HTML file: open {shlex.quote(str(output))}")


def _demo_settings(arguments: argparse.Namespace, key: ExperimentKey) -> "DemoSettings":
    from otel_rl.demo import DemoSettings  # needs numpy
    from otel_rl.demo.faults import Fault

    given: dict[str, object] = {
        "experiment": key.experiment,
        "trial": key.trial,
        "seed": arguments.seed,
    }
    if arguments.steps is not None:
        given["steps"] = arguments.steps
    if arguments.no_kill or arguments.faults:
        given["kill_share"] = None
    try:
        given["faults"] = tuple(Fault.parse(text) for text in arguments.faults or ())
        return DemoSettings.model_validate(given)
    except ValidationError as error:
        words = error.errors()[0]["msg"].removeprefix("Value error, ")
    except ValueError as error:
        words = str(error)
    raise ConfigError(f"--fault: {words}.", hint="otel-rl demo --fault help lists the kinds.")


def _list_faults() -> int:
    from otel_rl.demo.faults import kinds_help

    print(kinds_help())
    return 0


def _train(settings: "DemoSettings", names: RunNames, http: str, *, token: str = "") -> int:
    from otel_rl.demo import run  # needs numpy

    environment = reporting_environment(os.environ, http=http, names=names, token=token)
    result = run(settings, environment)
    print(result, flush=True)
    return 0 if result.ok else 1
