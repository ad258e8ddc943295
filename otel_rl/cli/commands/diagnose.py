"""``otel-rl diagnose``: finds the causes of a run's symptoms."""

import argparse
import json
import time
from collections.abc import Sequence
from pathlib import Path

from otel_rl import goodput
from otel_rl.bridge.config import BridgeSettings
from otel_rl.bridge.journal.reader import whole_history
from otel_rl.cli.find_run import Runs, add_run, steps, take_directory
from otel_rl.cli.options import FOUND, add_journal_options, kinds, settings_of
from otel_rl.cli.terminal import counted, progress
from otel_rl.diagnose.coverage import steps_of
from otel_rl.diagnose.engine import diagnose
from otel_rl.diagnose.history.goodput import goodput_of
from otel_rl.diagnose.history.records import Facts
from otel_rl.diagnose.history.run_history import RunHistory
from otel_rl.diagnose.render import in_words
from otel_rl.diagnose.report_json import json_schema, run_as_json
from otel_rl.diagnose.result import Diagnosis
from otel_rl.errors import ConfigError
from otel_rl.plurals import many
from otel_rl.redaction import printable, redacted, shown
from otel_rl.view.found import Found
from otel_rl.view.report import CAUSES, write_report
from otel_rl.view.worker_places import completed

DESCRIPTION = """\
Name the worker and phase behind a slower or worse run, live or ended: ranked causes with evidence.
The exit status is 0 also if it finds faults, but for those of --fail-on: then it is 3.
"""

EPILOG = """\
examples:
  otel-rl diagnose                          the most recently active run
  otel-rl diagnose grpo-7b/trial-3          one by name
  otel-rl diagnose --steps 412              why was step 412 slow?
  otel-rl diagnose --steps 400:500 --json   what changed in these steps, as JSON
  otel-rl diagnose --fail-on cause          for CI: exit with 3 if there is a cause
  otel-rl diagnose --html causes.html       with charts and timeline, as a page to mail
  otel-rl diagnose wandb/offline-run-1      a run that was logged without otel_rl
"""


def add_options(parser: argparse.ArgumentParser) -> None:
    add_run(parser)
    parser.add_argument(
        "--steps", type=steps, metavar="FIRST[:LAST]", help="steps to analyse (all)"
    )
    parser.add_argument(
        "--now",
        action="store_true",
        help="only problems that last until now",
    )
    parser.add_argument(
        "--fail-on",
        metavar="KIND,...",
        type=kinds,
        default=frozenset(),
        help="exit with 3 if a cause of such a kind is found, e.g. straggler,nan; `cause` is any",
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
    add_journal_options(parser)


def command(arguments: argparse.Namespace) -> int:
    if arguments.json_schema:
        print(json.dumps(json_schema(), indent=1))
        return 0
    take_directory(arguments)
    settings = settings_of(arguments)
    if arguments.html is not None:
        _check_html(arguments)
    with progress("reading the journal") as news, Runs(settings) as runs:
        run, *_ = runs.named(arguments.run)
        bodies = _history(run)
        told = counted(bodies, "reading the history", news)
        history = RunHistory(Facts.decode(body) for body in told)
        if arguments.steps is not None and arguments.steps[0] > history.last:
            raise ConfigError(
                f"--steps: {run.key} has come to step {history.last} (got {arguments.steps[0]}).",
                hint="Steps are those of rl.loop.iteration.",
            )
        news(f"looking for causes in {many(history.last, 'step')}")
        report = _diagnosed(arguments, run, history)
    status = 1 if runs.faults else 0
    if not arguments.fail_on.isdisjoint({str(cause.kind) for cause in report.causes}):
        status = FOUND
    if arguments.json:
        print(json.dumps(run_as_json(run.key, history, report), indent=1, allow_nan=False))
        return status
    attempt = f", attempt {history.attempt}" if history.attempt > 1 else ""
    steps = max(history.last, steps_of(history))  # of a long run the first are forgotten
    size = f"{many(steps, 'step')}{attempt}, {many(len(bodies), 'snapshot')}"
    print(shown(f"{run.key}, {size}"))
    for line in in_words(report, trace_url=redacted(settings.rows.trace_url)):
        print(printable(line))
    words = goodput.in_words(goodput_of(history))
    if words:
        print(printable(words))
    if arguments.html is not None:
        _write_html(arguments, settings, run)
    return status


def _diagnosed(arguments: argparse.Namespace, run: Found, history: RunHistory) -> Diagnosis:
    report = diagnose(
        history,
        arguments.steps,
        passed=not arguments.now,
        silent_s=max(0.0, time.time() - history.newest_ns / 1e9),
        is_interrupted=run.run.is_interrupted,
    )
    return completed(run, report)


def _write_html(arguments: argparse.Namespace, settings: BridgeSettings, run: Found) -> None:
    contents = CAUSES._replace(steps=arguments.steps)
    with progress("reading the history") as news:
        size = write_report(settings, run.id, arguments.html, contents, news=news)
    print(shown(f"{arguments.html} ({size / 1e6:.1f} MB)"))


def _check_html(arguments: argparse.Namespace) -> None:
    if arguments.now:
        raise ConfigError("--html also shows past problems.", hint="Leave out --now.")


def _history(run: Found) -> Sequence[bytes]:
    """Return the encoded history of a run, without what is damaged.

    Raises:
        ConfigError: The journal has none.
    """
    with run.open() as connection:
        bodies = [*whole_history(connection, run.id)]
    if not bodies:
        raise ConfigError(
            f"The journal has no history of {run.key}.",
            hint="The bridge writes it with the first step; wait for one, or name another run.",
        )
    return bodies
