"""``otel-rl view``: shows runs in a browser, live and ended, or writes one to a file."""

import argparse
import asyncio
import contextlib
import socket
import webbrowser
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from pathlib import Path

import uvicorn
from starlette.applications import Starlette

from otel_rl.bridge.config import BridgeSettings, Readers
from otel_rl.bridge.receive.audit import Audit
from otel_rl.cli.find_run import Runs, add_run, take_directory
from otel_rl.cli.options import add_journal_options, host_and_port, settings_of
from otel_rl.cli.standard_streams import say, with_token
from otel_rl.cli.terminal import progress
from otel_rl.redaction import shown
from otel_rl.setting_types import Address
from otel_rl.view.app import PageRoutes, again
from otel_rl.view.listener import Listener
from otel_rl.view.pages import Pages
from otel_rl.view.questions import Answer, Question
from otel_rl.view.report import write_report

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
  otel-rl view grpo-7b --html run.html   one run as a file, to mail or to keep
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
    parser.add_argument(
        "--html",
        type=Path,
        metavar="FILE",
        help="write a run, by default the most recently active one, to a file instead, which opens "
        "without a server and without internet",
    )
    add_journal_options(parser)


def command(arguments: argparse.Namespace) -> int:
    take_directory(arguments, may_be_empty=arguments.html is None)
    settings, place = settings_of(arguments), ""
    if arguments.html is not None:
        return _write(settings, arguments)
    if arguments.run is not None:
        with Runs(settings) as runs:
            place = f"#/run/{runs.named(arguments.run)[0].id}/overview"
    if settings.journal.url is None and not settings.data.is_dir():
        say(
            f"there is no directory {str(settings.data)!r} yet: the page is empty until a bridge "
            "makes it. Another one: otel-rl view DIR"
        )

    def started(listener: Listener) -> None:
        say("Ctrl-C ends the page at ", link=listener.url + place, token=listener.token)
        if arguments.open:
            webbrowser.open(with_token(listener.url + place, listener.token))

    _serve(settings, arguments.listen, started)
    return 0


def _write(settings: BridgeSettings, arguments: argparse.Namespace) -> int:
    with Runs(settings) as runs:
        run, *_ = runs.named(arguments.run)
    with progress("reading the history") as news:
        size = write_report(settings, run.id, arguments.html, news=news)
    print(shown(f"{arguments.html} ({size / 1e6:.1f} MB)"))
    return 1 if runs.faults else 0


def _serve(settings: BridgeSettings, address: Address, started: Callable[[Listener], None]) -> None:
    """Show the journals of a directory or database until SIGINT or SIGTERM.

    Args:
        settings: Of the bridge that writes, or wrote, the journals.
        address: To listen on; port 0 picks a free one.
        started: Called once requests are answered.

    Raises:
        ConfigError: The address cannot be used.
    """
    listener = Listener(
        "--listen",
        *address,
        is_behind_proxy=settings.view.readers is Readers.BEHIND_PROXY,
        audit=Audit(is_on=settings.audit),
    )
    pages = Pages(settings)
    # One thread: what was read is shared between questions.
    thread = ThreadPoolExecutor(1, thread_name_prefix="otel-rl-view")

    async def answer(question: Question) -> Answer:
        return await asyncio.get_running_loop().run_in_executor(thread, pages.answer, question)

    routes = PageRoutes(answer, listener.access, again(settings))

    @asynccontextmanager
    async def lifespan(_app: Starlette) -> AsyncIterator[None]:
        started(listener)
        yield
        routes.stop()
        thread.shutdown()
        pages.close()

    app = Starlette(routes=[*routes.routes()], lifespan=lifespan)
    config = uvicorn.Config(app, access_log=False, log_config=None, server_header=False, ws="none")
    with contextlib.suppress(KeyboardInterrupt):  # it has ended in order by then
        _Uvicorn(config, routes.stop).run(sockets=[listener.socket])


class _Uvicorn(uvicorn.Server):
    """Ends open streams first."""

    def __init__(self, config: uvicorn.Config, stop: Callable[[], None]) -> None:
        super().__init__(config)
        self._stop = stop

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        self._stop()
        await super().shutdown(sockets)
