"""``otel-rl bridge``: the bridge as a service of its own."""

import argparse
import ctypes
import os
import resource
import signal

from otel_rl.bridge.config import BridgeSettings
from otel_rl.bridge.receive import exposure
from otel_rl.cli.embedded import finish, say, started
from otel_rl.cli.options import add_bridge_options, host_and_port, settings_of

__all__ = ["add_parser"]

_M_MMAP_THRESHOLD = -3  # of glibc's mallopt
_LARGE_BLOCK_BYTES = 1 << 20

_OTHER_FILES = 512  # the journal, the writers' pipes and logs, libraries


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
    _raise_file_limit(settings)
    _return_large_blocks()
    # Before the bridge begins, so that one that is told to end while it does ends in order.
    signals = _Signals(signal.SIGINT, signal.SIGTERM)
    bridge = started(settings)
    for listen in (settings.http, settings.grpc):
        danger = exposure(
            listen.host,
            wants_token=bool(settings.auth.tokens),
            has_tls=settings.tls.cert is not None,
            is_mutual=settings.tls.client_ca is not None,
        )
        if listen.enabled and danger:
            say(f"WARNING: {danger}")
    addresses = bridge.addresses
    journal = settings.data if settings.journal.url is None else "the database of journal.url"
    say(f"OTLP/HTTP on {addresses.http}, OTLP/gRPC on {addresses.grpc}, data in {journal}")
    signals.wait()
    return 0 if finish(bridge, exit_code=0, is_over=False) else 1


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


def _raise_file_limit(settings: BridgeSettings) -> None:
    """Let the process have as many files as ``receive.max_connections`` may take.

    Systems give 1,024 where nobody asks for more, which is not one connection over the default.
    """
    needed = 2 * settings.receive.max_connections + _OTHER_FILES
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    allowed = needed if hard == resource.RLIM_INFINITY else min(needed, hard)
    if soft != resource.RLIM_INFINITY and soft < allowed:
        resource.setrlimit(resource.RLIMIT_NOFILE, (allowed, hard))


def _return_large_blocks() -> None:
    """Let memory of large requests go back to the system as soon as they are answered.

    By default glibc learns from the first one to take blocks of that size from the heap of each
    thread, which keeps them: requests of 16 MiB left 350 MiB behind.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)  # other C libraries have none
    if mallopt is not None:
        mallopt(_M_MMAP_THRESHOLD, _LARGE_BLOCK_BYTES)
