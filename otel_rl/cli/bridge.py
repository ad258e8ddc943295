"""``otel-rl bridge``: the bridge as a service of its own."""

import argparse
import ipaddress
import os
import signal
import threading
from types import FrameType

from otel_rl.cli.embedded import report, say, started
from otel_rl.cli.options import add_bridge_options, host_and_port, settings_of

__all__ = ["add_parser"]


def add_parser(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Add the command to the parser of ``otel-rl``."""
    parser = commands.add_parser(
        "bridge",
        help="take OTLP from anywhere and write one tracker run per experiment",
        description="Take OTLP over HTTP and gRPC, group it by experiment, and write one tracker "
        "run for each. SIGTERM or Ctrl-C takes nothing more, writes what was taken, and finishes.",
    )
    parser.add_argument(
        "--http", metavar="HOST:PORT", type=host_and_port, help="default: 127.0.0.1:4318"
    )
    parser.add_argument(
        "--grpc", metavar="HOST:PORT", type=host_and_port, help="default: 127.0.0.1:4317"
    )
    add_bridge_options(parser)
    parser.set_defaults(command=_command)


def _command(arguments: argparse.Namespace) -> int:
    extra: dict[str, object] = {}
    if arguments.http:
        extra["http"] = arguments.http
    if arguments.grpc:
        extra["grpc"] = arguments.grpc
    settings = settings_of(arguments, overrides=extra)
    bridge = started(settings)
    stop = threading.Event()

    def ask_to_stop(number: int, _frame: FrameType | None) -> None:
        if stop.is_set():
            say("left; the rows that were not written yet are in the journal")
            os._exit(128 + number)
        stop.set()

    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, ask_to_stop)
    for listen in (settings.http, settings.grpc):
        if listen.enabled and not _is_loopback(listen.host):
            say(
                f"WARNING: {listen.host}:{listen.port} is open to every host that reaches it, and "
                "each of them can write runs. Put a collector with authentication in front."
            )
    addresses = bridge.addresses
    say(f"OTLP/HTTP on {addresses.http}, OTLP/gRPC on {addresses.grpc}, data in {settings.data}")
    stop.wait()
    say("stopping: writing what was taken (once more leaves it in the journal)")
    complete = report(bridge, bridge.stop())
    return 0 if complete else 1


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
