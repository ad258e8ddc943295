"""Bridge inside a command."""

import importlib.util
import os
from pathlib import Path

from otel_rl.bridge.bridge import Bridge
from otel_rl.bridge.config import BridgeSettings
from otel_rl.bridge.delivery.trackers import backend
from otel_rl.bridge.delivery.wandb.account import Account, WandbSettings, find_account
from otel_rl.bridge.journal.sqlite_files import DATA_DIRECTORY
from otel_rl.bridge.page import Page
from otel_rl.cli.standard_streams import say
from otel_rl.errors import ConfigError
from otel_rl.records import ExperimentKey
from otel_rl.run_id import run_id

__all__ = ["embedded", "embedded_defaults", "page_link", "started", "wandb_account"]


def embedded_defaults(key: ExperimentKey) -> dict[str, object]:
    """Return the defaults of an embedded bridge.

    Free loopback ports, so that many fit on one machine, and a journal for each run, so that runs
    do not wait for each other.
    """
    return {
        "http": {"host": "127.0.0.1", "port": 0},
        "grpc": {"host": "127.0.0.1", "port": 0},
        "data": Path(DATA_DIRECTORY) / run_id(key.experiment, key.trial),
    }


def started(settings: BridgeSettings, key: ExperimentKey | None = None) -> Bridge:
    """Start a bridge.

    Args:
        settings: Its settings.
        key: The expected run, whose page the command names; None for a bridge of any runs.

    Raises:
        ConfigError: A setting is wrong.
        JournalLocked: Another process writes the same run.
    """
    named = {key}

    def opened(run: ExperimentKey, location: str) -> None:
        say(f"run {run}: {location}")
        if key is not None and run not in named and (link := page_link(bridge, run)):
            named.add(run)
            say(f"page of run {run}: {link}")

    bridge = Bridge(settings, opened=opened, page=_page(settings))
    bridge.start()
    for name in settings.tracker.trackers:
        if lacks := backend(name).lacks:
            say(f"{name} does not store: {lacks}")
    return bridge


def _page(settings: BridgeSettings) -> Page | None:
    """Return the page with the runs, where its extra is installed."""
    if not settings.view.enabled or importlib.util.find_spec("plotly") is None:
        return None
    from otel_rl.view.page_process import BridgePage  # of no use to a bridge without it

    return BridgePage(settings)


def page_link(bridge: Bridge, key: ExperimentKey) -> str:
    """Return the link to the page of a run; empty if the bridge serves none."""
    if not bridge.has_page:
        return ""
    return f"http://{bridge.http}/#/run/{run_id(key.experiment, key.trial)}/overview"


def embedded(settings: BridgeSettings, key: ExperimentKey) -> Bridge:
    """Start a bridge inside a command; the tracker's files are where its users expect them.

    Args:
        settings: Its settings.
        key: See ``started``.

    Raises:
        ConfigError: A setting is wrong, or the bridge would not listen on HTTP.
        JournalLocked: Another process writes the same run.
    """
    if not settings.http.enabled:
        raise ConfigError(
            "http.enabled: an embedded bridge listens on HTTP (got false).",
            hint="Remove the setting.",
        )
    if settings.journal.url is not None:
        raise ConfigError(
            "journal.url: an embedded bridge has a journal of its own, which ends with it.",
            hint="Remove the setting, or start `otel-rl bridge` and set "
            "OTEL_EXPORTER_OTLP_ENDPOINT.",
        )
    if settings.tls.cert is not None:
        raise ConfigError(
            f"tls.cert: an embedded bridge is on loopback, without TLS (got {settings.tls.cert}).",
            hint="Remove the setting, or start `otel-rl bridge`.",
        )
    homes = (backend(name).home(os.environ) for name in settings.tracker.trackers)
    home = next((home for home in homes if home is not None), None)
    if home is not None and settings.tracker.directory is None:
        tracker = settings.tracker.model_copy(update={"directory": home})
        settings = settings.model_copy(update={"tracker": tracker})
    return started(settings, key)


def wandb_account(settings: BridgeSettings, key: ExperimentKey | None = None) -> Account | None:
    """Return the bridge's W&B account, for one run or any; None without this tracker."""
    if "wandb" not in settings.tracker.trackers:
        return None
    options = settings.tracker.options_of("wandb")
    return find_account(WandbSettings.parse(options), os.environ, key)
