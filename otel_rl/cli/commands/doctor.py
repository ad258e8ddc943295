"""``otel-rl doctor``: one check, one function, each with a hint."""

import argparse
import contextlib
import http.client
import importlib.metadata
import os
import socket
import ssl
import sys
import threading
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from urllib.parse import urlsplit

from otel_rl.bridge.config import BridgeSettings
from otel_rl.bridge.delivery.tracker import CheckResult, backend, check_writable
from otel_rl.bridge.journal.reader import RunOverview
from otel_rl.bridge.journal.sqlite import JOURNAL_FILE, SqliteJournal
from otel_rl.bridge.receive.tls import load_tls
from otel_rl.bridge.receive.tokens import Tokens
from otel_rl.cli.environment import misspelt
from otel_rl.cli.find_run import Runs
from otel_rl.cli.options import (
    add_bridge_options,
    add_listen_options,
    listen_settings,
    settings_of,
)
from otel_rl.cli.standard_streams import say
from otel_rl.errors import ConfigError, JournalLocked, OtelRLError
from otel_rl.plurals import many
from otel_rl.redaction import shown
from otel_rl.setting_types import OFF, Address
from otel_rl.worker.guard import GUARD
from otel_rl.worker.settings import read_settings
from otel_rl.worker.system.nvml import Driver, NoDriver

DESCRIPTION = "Check this machine as a worker and as a bridge. Exits 1 if a check fails."

_PLUGINS = (
    "opentelemetry_meter_provider",
    "opentelemetry_tracer_provider",
    "opentelemetry_resource_detector",
    "opentelemetry_distro",
    "opentelemetry_configurator",
)

_TIMEOUT_S = 3.0

_NO_GPU_HINT = (
    "`nvidia-smi` should list them here. Set OTEL_RL_GPU_ROLES to the roles that have GPUs, or "
    "OTEL_RL_GPU=off."
)

# Settings that somebody makes who starts a bridge of its own.
_OF_A_SERVICE = frozenset({"listen", "data", "journal", "tls", "team"})


def add_options(parser: argparse.ArgumentParser) -> None:
    add_listen_options(parser)
    add_bridge_options(parser)


def command(arguments: argparse.Namespace) -> int:
    settings = settings_of(arguments, overrides=listen_settings(arguments))
    failed = 0
    for check in CHECKS:
        for result in check(settings):
            failed += not result.ok
            verdict = "ok  " if result.ok else "FAIL"
            print(shown(f"{verdict} {result.name}: {result.message}"))
            if result.hint and not result.ok:
                print(shown(f"     {result.hint}"))
    say("all checks passed" if not failed else f"{many(failed, 'check')} failed")
    return 1 if failed else 0


def check_python(_settings: BridgeSettings) -> Iterator[CheckResult]:
    version = ".".join(str(part) for part in sys.version_info[:3])
    yield CheckResult(
        "python", version, ok=sys.version_info >= (3, 11), hint="otel_rl needs Python 3.11."
    )


def check_plugins(_settings: BridgeSettings) -> Iterator[CheckResult]:
    for group in _PLUGINS:
        found = importlib.metadata.entry_points(group=group, name="otel_rl")
        yield CheckResult(
            group,
            "otel_rl is registered" if found else "otel_rl is not registered",
            ok=bool(found),
            hint="Install the package, by `pip install .` in a clone or from a wheel; a source "
            "folder on the path is not enough.",
        )


def check_variables(_settings: BridgeSettings) -> Iterator[CheckResult]:
    for note in misspelt(os.environ):
        yield CheckResult("variables", note, ok=False, hint="Correct or unset it.")
    try:
        read_settings(os.environ)
    except ConfigError as exc:
        yield CheckResult("variables", exc.args[0], ok=False, hint=exc.hint)


def check_gpus(_settings: BridgeSettings) -> Iterator[CheckResult]:
    try:
        if not read_settings(os.environ).gpu.enabled:
            return
    except ConfigError:  # check_variables tells it
        return
    found: list[CheckResult] = []

    def look() -> None:
        try:
            with contextlib.closing(Driver(GUARD)) as driver:
                devices, _ = driver.devices(os.environ.get("CUDA_VISIBLE_DEVICES"))
            why = "none is visible to this process"
        except NoDriver as reason:
            devices, why = [], str(reason)
        names = ", ".join(device.name for device in devices)
        found.append(CheckResult("gpus", names or why, ok=bool(names), hint=_NO_GPU_HINT))

    thread = threading.Thread(target=look, name="otel-rl-gpus", daemon=True)
    thread.start()
    thread.join(_TIMEOUT_S)
    silent = CheckResult("gpus", "the NVIDIA driver does not answer", ok=False, hint=_NO_GPU_HINT)
    yield found[0] if found else silent


def check_endpoint(_settings: BridgeSettings) -> Iterator[CheckResult]:
    endpoint = os.environ.get("OTEL_EXPORTER_OTLP_ENDPOINT")
    if not endpoint:
        yield CheckResult("endpoint", "OTEL_EXPORTER_OTLP_ENDPOINT is not set; `otel-rl run` does")
        return
    url = urlsplit(endpoint)
    try:
        port = url.port or 4318
        with socket.create_connection((url.hostname or "localhost", port), timeout=_TIMEOUT_S):
            yield CheckResult("endpoint", f"{endpoint} accepts connections")
    except (OSError, ValueError) as exc:
        yield CheckResult(
            "endpoint",
            f"{endpoint}: {exc}",
            ok=False,
            hint="Start `otel-rl bridge` or a collector there, or correct the variable.",
        )


def check_listen(settings: BridgeSettings) -> Iterator[CheckResult]:
    there = _is_bridge_there(settings)
    listen = settings.listen
    for name, where in (("http", listen.http), ("grpc", listen.grpc), ("health", listen.health)):
        if where is None:
            if name != "health":  # which few want
                yield CheckResult(f"listen {name}", OFF)
            continue
        free = _free(name, where)
        # A bridge that answers over HTTP serves all; gRPC has no check that identifies a bridge.
        if there and not free.ok:
            yield CheckResult(f"listen {name}", f"a bridge is on {where}")
        elif not free.ok and not _is_service(settings):
            yield CheckResult(
                free.name,
                f"{free.message}. `otel-rl run` takes a free port; `otel-rl bridge` needs another "
                f"address with --{name} HOST:PORT",
            )
        else:
            yield free


def _is_service(settings: BridgeSettings) -> bool:
    return bool(settings.model_fields_set & _OF_A_SERVICE) or (
        (settings.data / JOURNAL_FILE).exists()
    )


def check_security(settings: BridgeSettings) -> Iterator[CheckResult]:
    if settings.tls.cert is None and not settings.team:
        return
    try:
        load_tls(settings.tls)
        Tokens(settings.team)
    except ConfigError as exc:
        yield CheckResult("security", exc.args[0], ok=False, hint=exc.hint)
    else:
        yield CheckResult("security", "certificates and tokens can be used")


def check_data(settings: BridgeSettings) -> Iterator[CheckResult]:
    if settings.journal.url is not None:
        try:
            with contextlib.closing(settings.journal_place.open()) as journal:
                size = journal.size()
        except OtelRLError as exc:
            yield CheckResult("journal.url", exc.args[0], ok=False, hint=exc.hint)
        else:
            yield CheckResult("journal.url", f"the database answers and keeps {many(size, 'byte')}")
    if not (settings.data / JOURNAL_FILE).exists():
        yield check_writable("data", settings.data)
        return
    try:
        SqliteJournal(settings.data, max_bytes=settings.journal.max_bytes).close()
    except JournalLocked as exc:
        yield CheckResult("data", f"{exc.args[0]} That process should be a bridge.")
    except OtelRLError as exc:
        yield CheckResult("data", exc.args[0], ok=False, hint=exc.hint)
    else:
        yield check_writable("data", settings.data)


def check_runs(settings: BridgeSettings) -> Iterator[CheckResult]:
    """Check that the rows of every run reach their tracker. A bridge may be writing them."""
    try:
        with Runs(settings) as runs:
            found = runs.look()
    except OtelRLError:
        return  # check_data reports it
    for fault in runs.faults:
        yield CheckResult("runs", fault, ok=False)
    overviews = [one for run in found for one in run.overviews]
    settled = [one for one in overviews if not (one.error or one.lag_rows or one.waiting_bytes)]
    if settled:
        yield CheckResult("runs", f"{len(settled)} with all rows written to their tracker")
    for one in overviews:
        if one not in settled:
            yield _run_result(one)


def _run_result(run: RunOverview) -> CheckResult:
    waiting = (
        f", and {many(run.waiting_bytes, 'byte')} not made into rows yet"
        if run.waiting_bytes
        else ""
    )
    message = (
        f"{run.lag_rows} of {many(run.rows, 'row')} not confirmed by "
        f"{run.tracker or 'a tracker'}{waiting}{f', owned by {run.owner}' if run.owner else ''}"
    )
    if run.error:
        since = datetime.fromtimestamp(run.error_ns / 1e9, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
        message = f"{run.state} since {since}: {message}. {run.error}"
    return CheckResult(
        f"run {run.key}",
        message,
        ok=not run.error,
        hint="The rows are kept. A running bridge retries by itself; else call `otel-rl finish`.",
    )


def check_tracker(settings: BridgeSettings) -> Iterator[CheckResult]:
    for team, tracker in settings.tracker_of_teams.items():
        tracker.check_options()
        for name in tracker.trackers:
            directory = tracker.directory or settings.data
            for result in backend(name).check(tracker.options_of(name), directory):
                yield replace(result, name=f"team {team}: {result.name}" if team else result.name)


def _free(name: str, where: Address) -> CheckResult:
    with socket.socket(socket.AF_INET6 if ":" in where.host else socket.AF_INET) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(where)
        except OSError as exc:
            return CheckResult(
                f"listen {name}",
                f"{where}: {exc.strerror}",
                ok=False,
                hint=f"Stop the program that uses it, or give another address with --{name} "
                "HOST:PORT.",
            )
    return CheckResult(f"listen {name}", f"{where} is free")


def _is_bridge_there(settings: BridgeSettings) -> bool:
    listen, tls = settings.listen, settings.tls
    if listen.health is not None and _is_healthy("http", listen.health):
        return True
    if listen.http is None:
        return False
    if _is_healthy("http" if tls.cert is None else "https", listen.http):
        return True
    # It may want a certificate from whoever asks; its own shows which bridge it is.
    return tls.cert is not None and _shows_certificate(tls.cert, listen.http)


def _is_healthy(scheme: str, where: Address) -> bool:
    # Only its kind is asked for, and nothing is sent: any certificate will do, and no proxy.
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    opener = urllib.request.build_opener(
        urllib.request.ProxyHandler({}), urllib.request.HTTPSHandler(context=context)
    )
    try:
        with opener.open(f"{scheme}://{where}/healthz", timeout=_TIMEOUT_S) as answer:
            return bool(answer.status == 200)
    except urllib.error.HTTPError as exc:
        return exc.code == 503  # its answer holds the reason
    except (OSError, ValueError, http.client.HTTPException):
        return False


def _shows_certificate(cert: Path, where: Address) -> bool:
    try:
        shown = ssl.get_server_certificate(where, timeout=_TIMEOUT_S)
        return shown.strip() in cert.read_text(encoding="utf-8", errors="replace")
    except (OSError, ValueError):
        return False


CHECKS: tuple[Callable[[BridgeSettings], Iterator[CheckResult]], ...] = (
    check_python,
    check_plugins,
    check_variables,
    check_gpus,
    check_endpoint,
    check_listen,
    check_security,
    check_data,
    check_runs,
    check_tracker,
)
"""All checks, in the order of the output."""
