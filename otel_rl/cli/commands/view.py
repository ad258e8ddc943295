"""``otel-rl view``: shows runs in a browser, live and ended."""

import argparse
import webbrowser

from otel_rl.bridge.config import Readers
from otel_rl.cli.find_run import Runs, add_run, take_directory
from otel_rl.cli.options import add_journal_options, host_and_port, settings_of
from otel_rl.cli.standard_streams import say
from otel_rl.setting_types import Address
from otel_rl.view.server import ViewServer

__all__ = ["DESCRIPTION", "EPILOG", "add_options", "command"]

DESCRIPTION = """\
Show runs in a browser, live and ended. Reads journals, also of running bridges, and changes
nothing; needs no account and no internet.
"""

EPILOG = """\
examples:
  otel-rl view                        the runs of `otel-rl run` and `otel-rl bridge` here
  otel-rl view /data/otel_rl          those of another data directory
  otel-rl view grpo-7b                one run, by EXPERIMENT[/TRIAL]
  otel-rl view --listen 0.0.0.0:8800  for other machines too, with a token
"""


def add_options(parser: argparse.ArgumentParser) -> None:
    add_run(parser, "all runs of --data")
    parser.add_argument(
        "--listen",
        type=host_and_port,
        default=Address("127.0.0.1", 8800),
        metavar="HOST:PORT",
        help="default: 127.0.0.1:8800; on other addresses with the token in the link",
    )
    parser.add_argument(
        "--open", action="store_true", help="open the page in a browser on this machine"
    )
    add_journal_options(parser)


def command(arguments: argparse.Namespace) -> int:
    take_directory(arguments, may_be_empty=True)
    settings, place = settings_of(arguments), ""
    if arguments.run is not None:
        with Runs(settings) as runs:
            place = f"#/run/{runs.named(arguments.run)[0].id}/overview"
    if settings.journal.url is None and not settings.data.is_dir():
        say(
            f"there is no directory {str(settings.data)!r} yet: the page is empty until a bridge "
            "makes it. Another one: otel-rl view DIR"
        )
    is_behind_proxy = settings.view.readers is Readers.BEHIND_PROXY
    server = ViewServer(settings, *arguments.listen, is_behind_proxy=is_behind_proxy)
    url = server.url + place

    def started() -> None:
        say("Ctrl-C ends the page at ", token=url)
        if arguments.open:
            webbrowser.open(url)

    server.serve(started)
    return 0
