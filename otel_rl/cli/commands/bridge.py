"""``otel-rl bridge``: the bridge as a service."""

import argparse
import logging
import os
import resource
import signal
import socket
from pathlib import Path

from otel_rl.bridge.bridge import Bridge
from otel_rl.bridge.config import BridgeSettings, Readers
from otel_rl.bridge.receive.tls import listens_on_loopback
from otel_rl.cli.embedded_bridge import started, without_disabled
from otel_rl.cli.ending.end import finish, leave
from otel_rl.cli.inbox_bridge import serve_inbox
from otel_rl.cli.options import (
    add_bridge_options,
    add_listen_options,
    listen_settings,
    settings_of,
)
from otel_rl.cli.reloads import Reloads
from otel_rl.cli.signal_handlers import end_requests
from otel_rl.cli.standard_streams import say
from otel_rl.errors import ConfigError

DESCRIPTION = (
    "Receive OTLP over HTTP and gRPC and write one tracker run per experiment. On "
    "SIGTERM or Ctrl-C: stop receiving, write what was accepted, finish the runs. On SIGHUP, and "
    "when they change: read the files of tokens and certificates again."
)

_log = logging.getLogger(__name__)

_LOOK_S = 0.5  # a signal that another thread gets is handled when the main one wakes up
_OTHER_FILES = 512  # the journal, the writers' pipes and logs, libraries


def add_options(parser: argparse.ArgumentParser) -> None:
    # Workers start it so.
    parser.add_argument("--inbox", type=Path, metavar="DIR", help=argparse.SUPPRESS)
    add_listen_options(parser)
    add_bridge_options(parser)


def command(arguments: argparse.Namespace) -> int:
    if arguments.inbox is not None:
        return serve_inbox(arguments)
    settings = _enabled(settings_of(arguments, overrides=listen_settings(arguments)))
    _raise_file_limit(settings)
    # From the start on, so that a signal while the bridge starts ends it in order.
    with end_requests(signal.SIGINT, signal.SIGTERM, signal.SIGHUP) as requests:
        bridge = started(settings)
        _say_where(bridge)
        # A terminal that closes sends SIGHUP, too: the bridge goes on.
        reloads, is_alive_told = Reloads(bridge.reload, bridge.reloadable), _is_watched()
        _notify("READY=1")
        while (number := requests.wait(_LOOK_S)) in (0, signal.SIGHUP):
            if is_alive_told:
                _notify("WATCHDOG=1")
            if number:
                reloads.read("SIGHUP")
            else:
                reloads.look()
        _notify("STOPPING=1")
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
        ending = finish(bridge, exit_code=0, is_over=False, requests=requests)
    if ending.lost:
        say(f"not in any run: {ending.lost_in_words}; see `otel-rl help operations`")
    if ending.interrupted:
        leave(128 + ending.interrupted)
    return 0 if ending.is_complete else 1


def _say_where(bridge: Bridge) -> None:
    settings, addresses = bridge.settings, bridge.addresses
    journal = settings.data if settings.journal.url is None else "the database of journal.url"
    places = (("OTLP/HTTP", addresses.http), ("OTLP/gRPC", addresses.grpc))
    told = [f"{name} on {address}" for name, address in places if address]
    say(", ".join([*told, f"data in {journal}"]))
    if addresses.health:
        say(f"health on http://{addresses.health}/healthz, metrics on /metrics")
    if bridge.has_page and _shows_runs(settings):
        say(f"page with the runs: http{'s' * (settings.tls.cert is not None)}://{addresses.http}/")


def _enabled(settings: BridgeSettings) -> BridgeSettings:
    enabled = without_disabled(settings)
    if enabled is None:
        raise ConfigError(
            "W&B is disabled (WANDB_MODE), and is the only tracker: no run would be written.",
            hint="Name another tracker, e.g. --tracker jsonl, or unset WANDB_MODE.",
        )
    return enabled


def _shows_runs(settings: BridgeSettings) -> bool:
    if settings.view.readers is Readers.BEHIND_PROXY or settings.team:
        return True
    http = settings.listen.http
    return http is not None and listens_on_loopback(http.host)


def _raise_file_limit(settings: BridgeSettings) -> None:
    """Raise the file limit of the process to the needs of ``receive.max_connections``.

    The usual default of 1,024 is not one connection more than ``receive.max_connections``.
    """
    needed = 2 * settings.receive.max_connections + _OTHER_FILES
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    allowed = needed if hard == resource.RLIM_INFINITY else min(needed, hard)
    if soft != resource.RLIM_INFINITY and soft < allowed:
        resource.setrlimit(resource.RLIMIT_NOFILE, (allowed, hard))


def _notify(state: str) -> None:
    """Tell systemd a state, if systemd has started this process as ``Type=notify``.

    The protocol is a datagram of ``KEY=VALUE`` to the socket that ``NOTIFY_SOCKET`` names.
    """
    address = os.environ.get("NOTIFY_SOCKET", "")
    if not address:
        return
    if address.startswith("@"):  # a name without a file
        address = f"\0{address[1:]}"
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
            sender.settimeout(0)  # a manager that hangs stops no bridge
            sender.sendto(state.encode(), address)
    except OSError as exc:
        _log.warning("systemd is not told %s: %s.", state, exc.strerror or exc)


def _is_watched() -> bool:
    """Return whether systemd restarts this process if it hears no sign of life for a while."""
    of = os.environ.get("WATCHDOG_PID", "")
    return "WATCHDOG_USEC" in os.environ and of in {"", str(os.getpid())}
