"""``otel-rl mcp``: answers programs that ask about runs by the Model Context Protocol."""

import argparse
from contextlib import closing
from functools import partial
from typing import Final

from otel_rl.bridge.config import Readers
from otel_rl.bridge.receive.audit import Audit
from otel_rl.cli.options import add_journal_options, host_and_port, settings_of
from otel_rl.cli.reloads import Reloads
from otel_rl.cli.standard_streams import say

_MAX_HISTORY_BYTES: Final = 512 << 20  # of all threads that answer

DESCRIPTION = """\
Serve runs, diagnosis, history and spans to agents and other programs, over the Model Context
Protocol (MCP). Reads journals, also of running bridges, and changes nothing.
"""

EPILOG = """\
examples:
  otel-rl mcp --data /data/otel_rl        for a client that starts it, over stdin and stdout
  otel-rl mcp --http 127.0.0.1:8801       at http://127.0.0.1:8801/mcp
"""


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--http",
        type=host_and_port,
        metavar="HOST:PORT",
        help="serve over HTTP (default: standard input and output); on other addresses with the "
        "token that is printed, or one of a team",
    )
    add_journal_options(parser)


def command(arguments: argparse.Namespace) -> int:
    from otel_rl.bridge.diagnosis.histories import MemoryBound
    from otel_rl.mcp.answers import Answers
    from otel_rl.mcp.tools import make_server, serve_http
    from otel_rl.view.listener import Listener

    settings, listen = settings_of(arguments), arguments.http
    answers = partial(Answers, settings, MemoryBound(_MAX_HISTORY_BYTES))
    with closing(answers()):
        pass  # a database that cannot be used is told now, and not to the client
    if listen is None:
        make_server(answers).run()  # until the program that has started this one closes the pipe
        return 0
    listener = Listener(
        "--http",
        *listen,
        is_behind_proxy=settings.view.readers is Readers.BEHIND_PROXY,
        teams=settings.team,
        audit=Audit(is_on=settings.audit),
    )
    say(f"{listener.url}mcp (Ctrl-C ends it)")
    if listener.token:
        say("header: Authorization: Bearer ", token=listener.token)
    tokens = listener.tokens
    reloads = Reloads(tokens.read_again, tokens.files, "tokens")
    serve_http(make_server(answers, listener.access), listener, reloads.look)
    return 0
