"""``otel-rl report``: writes one HTML file about a run."""

import argparse
from pathlib import Path

from otel_rl.cli.find_run import Runs, add_run, take_directory
from otel_rl.cli.options import add_journal_options, settings_of
from otel_rl.cli.terminal import progress
from otel_rl.redaction import shown
from otel_rl.view.report import write_report

__all__ = ["DESCRIPTION", "EPILOG", "add_options", "command"]

DESCRIPTION = """\
Write what `otel-rl view` shows of a run to one HTML file, to mail or to keep. It
opens in any browser, without a server and without internet.
"""

EPILOG = """\
examples:
  otel-rl report                         the most recently active run, to report.html
  otel-rl report grpo-7b -o grpo.html    one by EXPERIMENT[/TRIAL]
"""


def add_options(parser: argparse.ArgumentParser) -> None:
    add_run(parser)
    parser.add_argument(
        "-o",
        "--output",
        type=Path,
        default=Path("report.html"),
        metavar="FILE",
        help="default: %(default)s",
    )
    add_journal_options(parser)


def command(arguments: argparse.Namespace) -> int:
    take_directory(arguments)
    settings = settings_of(arguments)
    with Runs(settings) as runs:
        run, *_ = runs.named(arguments.run)
    with progress("reading the history") as news:
        size = write_report(settings, run.id, arguments.output, news=news)
    print(shown(f"{arguments.output} ({size / 1e6:.1f} MB)"))
    return 1 if runs.faults else 0
