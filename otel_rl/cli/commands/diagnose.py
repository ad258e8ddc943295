"""``otel-rl diagnose``: finds the causes of a run's symptoms."""

import argparse
import importlib.util
import json
import math
import time
from collections.abc import Mapping, Sequence
from contextlib import closing
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from otel_rl import goodput
from otel_rl.bridge.config import BridgeSettings
from otel_rl.bridge.journal.reader import read_history
from otel_rl.cli.find_run import (
    FoundRun,
    WantedRun,
    add_run,
    add_run_names,
    find_run,
    opened,
    steps,
    take_directory,
    wanted_run,
)
from otel_rl.cli.options import add_journal_options, settings_of
from otel_rl.cli.terminal import counted, progress
from otel_rl.diagnose.engine import diagnose
from otel_rl.diagnose.history.goodput import goodput_of
from otel_rl.diagnose.history.records import Facts
from otel_rl.diagnose.history.run_history import RunHistory
from otel_rl.diagnose.places import with_places
from otel_rl.diagnose.render import in_words
from otel_rl.diagnose.report_json import json_schema, run_as_json
from otel_rl.diagnose.result import Diagnosis
from otel_rl.errors import ConfigError, MissingExtra
from otel_rl.plurals import many
from otel_rl.records import ExperimentKey
from otel_rl.redaction import printable, redacted, shown
from otel_rl.run_id import run_id
from otel_rl.view.journals import Journals
from otel_rl.view.report import CAUSES, write_report
from otel_rl.view.worker_places import places_of

if TYPE_CHECKING:
    from otel_rl.cli.jaeger import Jaeger

__all__ = ["add_parser"]

_DESCRIPTION = """\
Name the worker and phase behind a slower or worse run, live or ended: ranked causes with evidence.
The exit status is 0 also if it finds faults.
"""

_EPILOG = """\
examples:
  otel-rl diagnose                          the most recently active run
  otel-rl diagnose grpo-7b/trial-3          one by name
  otel-rl diagnose --experiment a/b --trial c     names that contain slashes
  otel-rl diagnose --steps 412              why was step 412 slow?
  otel-rl diagnose --steps 400:500 --json   what changed in these steps, as JSON
  otel-rl diagnose --html causes.html       with charts and timeline, as a page to mail
  otel-rl diagnose --jaeger http://localhost:16686 grpo-7b     from traces, without a journal
"""


def add_parser(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Add the command to the parser of ``otel-rl``."""
    parser = commands.add_parser(
        "diagnose",
        description=_DESCRIPTION,
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add_run(parser)
    add_run_names(parser)
    parser.add_argument(
        "--steps", type=steps, metavar="FIRST[:LAST]", help="steps to analyse (all)"
    )
    parser.add_argument(
        "--now",
        action="store_true",
        help="only problems that last until now",
    )
    output = parser.add_mutually_exclusive_group()
    output.add_argument("--json", action="store_true", help="as JSON")
    output.add_argument(
        "--json-schema", action="store_true", help="print the JSON Schema of --json, no run"
    )
    output.add_argument(
        "--html",
        type=Path,
        metavar="FILE",
        help="also write a page, with charts",
    )
    parser.add_argument(
        "--jaeger", metavar="URL", help="read the traces of this Jaeger instead of a journal"
    )
    parser.add_argument(
        "--lookback",
        type=_hours,
        default=timedelta(hours=24),
        metavar="HOURS",
        help="greatest age of those traces (24)",
    )
    add_journal_options(parser)
    parser.set_defaults(command=_command)


def _hours(text: str) -> timedelta:
    try:
        hours = float(text)
        if 0 < hours < math.inf:
            return timedelta(hours=hours)
    except (ValueError, OverflowError):
        pass
    raise argparse.ArgumentTypeError(f"write a number of hours (got {text!r})")


def _command(arguments: argparse.Namespace) -> int:
    if arguments.json_schema:
        print(json.dumps(json_schema(), indent=1))
        return 0
    if arguments.jaeger is None:
        take_directory(arguments)
    settings = settings_of(arguments)
    if arguments.html is not None:
        _check_html(arguments)
    found = _stored(arguments, settings)
    key, bodies = found.key, found.bodies
    with progress("reading the history") as news:
        told = counted(bodies, "reading the history", news)
        history = RunHistory(Facts.decode(body) for body in told)
    if arguments.steps is not None and arguments.steps[0] > history.last:
        raise ConfigError(
            f"--steps: {key} has come to step {history.last} (got {arguments.steps[0]}).",
            hint="Steps are those of rl.loop.iteration.",
        )
    with progress(f"looking for causes in {many(history.last, 'step')}"):
        report = _diagnosed(arguments, settings, key, history)
    if arguments.json:
        answer = run_as_json(key, history, report)
        print(json.dumps(answer, indent=1, allow_nan=False))
        return found.status
    attempt = f", attempt {history.attempt}" if history.attempt > 1 else ""
    size = f"{many(history.last, 'step')}{attempt}, {many(len(bodies), 'snapshot')}"
    print(shown(f"{key}, {size}"))
    for line in in_words(report, trace_url=redacted(found.trace_url)):
        print(printable(line))
    words = goodput.in_words(goodput_of(history))
    if words:
        print(printable(words))
    if arguments.html is not None:
        _write_html(arguments, settings, key)
    return found.status


class _Stored(NamedTuple):
    """A run that is diagnosed.

    Attributes:
        key: The run.
        bodies: Its encoded history.
        trace_url: Where a person sees its traces.
        status: See ``FoundRun``.
    """

    key: ExperimentKey
    bodies: Sequence[bytes]
    trace_url: str
    status: int = 0


def _stored(arguments: argparse.Namespace, settings: BridgeSettings) -> _Stored:
    wanted, trace_url = wanted_run(arguments), settings.rows.trace_url
    if arguments.jaeger is not None:
        jaeger = _jaeger(arguments.jaeger, arguments.lookback)
        with progress("reading traces of the Jaeger"):
            traced = _traced(jaeger, wanted)
        if keys := wanted.of(traced):
            return _Stored(keys[-1], traced[keys[-1]], trace_url or jaeger.trace_url)
        if traced:
            raise wanted.not_found(traced, "in that Jaeger")
        raise ConfigError(
            "That Jaeger has no span of any run.",
            hint="Look further back with --lookback HOURS; spans need the resource attribute "
            "rl.experiment.name.",
        )
    with progress("reading the journal"):
        run = find_run(settings, wanted)
        return _Stored(run.key, _history(settings, run), trace_url, run.status)


def _diagnosed(
    arguments: argparse.Namespace,
    settings: BridgeSettings,
    key: ExperimentKey,
    history: RunHistory,
) -> Diagnosis:
    if arguments.jaeger:
        return diagnose(history, arguments.steps, passed=not arguments.now)
    with closing(Journals(settings.journal_place)) as journals:
        found = journals.run(run_id(key.experiment, key.trial))
        report = diagnose(
            history,
            arguments.steps,
            passed=not arguments.now,
            silent_s=max(0.0, time.time() - history.newest_ns / 1e9),
            is_interrupted=found is not None and found.run.is_interrupted,
        )
        return report if found is None else with_places(report, places_of(found, report))


def _write_html(
    arguments: argparse.Namespace, settings: BridgeSettings, key: ExperimentKey
) -> None:
    contents = CAUSES._replace(steps=arguments.steps)
    wanted_id = run_id(key.experiment, key.trial)
    with progress("reading the history") as news:
        size = write_report(settings, wanted_id, arguments.html, contents, news=news)
    print(shown(f"{arguments.html} ({size / 1e6:.1f} MB)"))


def _check_html(arguments: argparse.Namespace) -> None:
    if arguments.jaeger is not None:
        raise ConfigError(
            "--html shows what a journal has, and --jaeger reads traces.",
            hint="Leave out one of them.",
        )
    if arguments.now:
        raise ConfigError("--html also shows past problems.", hint="Leave out --now.")
    if importlib.util.find_spec("plotly") is None:
        raise MissingExtra("`otel-rl diagnose --html`", "plotly", "view")


def _history(settings: BridgeSettings, run: FoundRun) -> Sequence[bytes]:
    """Return the encoded history of a run, without what is damaged.

    Raises:
        ConfigError: The journal has none.
    """
    bodies: list[bytes] = []
    after = 0
    with opened(settings, run) as connection:
        while some := read_history(connection, run_id(*run.key), after=after):
            after = some[-1][0]
            bodies += [body for _, body in some if body is not None]
    if not bodies:
        raise ConfigError(
            f"The journal has no history of {run.key}.",
            hint="The bridge writes it with the first step; wait for one, or name another run.",
        )
    return bodies


def _jaeger(url: str, lookback: timedelta) -> "Jaeger":
    from otel_rl.cli.jaeger import Jaeger  # with an HTTP client, which a journal does not need

    return Jaeger(url, lookback)


def _traced(jaeger: "Jaeger", wanted: WantedRun) -> Mapping[ExperimentKey, Sequence[bytes]]:
    """Return the most recent run, or those whose experiment is a prefix of the name.

    If there are none, every run: it may be the name of a trial.
    """
    if wanted.experiment is not None:
        return jaeger.histories(wanted.experiment)
    if wanted.is_exact:
        return jaeger.histories(None)
    if wanted.text is None:
        newest = jaeger.newest_run()
        found = {} if newest is None else jaeger.histories(newest.experiment)
        return {key: bodies for key, bodies in found.items() if key == newest}
    named: dict[ExperimentKey, Sequence[bytes]] = {}
    parts = wanted.text.split("/")
    for end in range(1, len(parts) + 1):  # any slash may separate the two names
        named |= jaeger.histories("/".join(parts[:end]))
    return named or jaeger.histories(None)
