"""``otel-rl bridge``: the bridge as a service of its own."""

import argparse
import ipaddress
import os
import signal

from otel_rl.cli.embedded import finish, say, started
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
    signals = _Signals(signal.SIGINT, signal.SIGTERM)
    for listen in (settings.http, settings.grpc):
        if listen.enabled and not _is_loopback(listen.host):
            say(
                f"WARNING: {listen.host}:{listen.port} is open to every host that reaches it, and "
                "each of them can write runs. Put a collector with authentication in front."
            )
    addresses = bridge.addresses
    say(f"OTLP/HTTP on {addresses.http}, OTLP/gRPC on {addresses.grpc}, data in {settings.data}")
    signals.wait()
    return 0 if finish(bridge, exit_code=0) else 1


class _Signals:
    """Waits for one of ``numbers``, however early it comes.

    By a byte in a pipe: a handler that sets a ``threading.Event`` waits for itself for ever if the
    signal comes while ``Event.wait`` holds the event's lock.
    """

    def __init__(self, *numbers: signal.Signals) -> None:
        self._reading, writing = os.pipe()
        os.set_blocking(writing, False)
        signal.set_wakeup_fd(writing)
        for number in numbers:
            signal.signal(number, lambda *_: None)  # what does the work is the byte

    def wait(self) -> None:
        os.read(self._reading, 1)


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
