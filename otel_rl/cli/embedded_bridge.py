"""Bridge inside a command."""

import os
import secrets
import shlex
from collections.abc import Callable, Sequence
from pathlib import Path

from otel_rl.bridge.bridge import Bridge
from otel_rl.bridge.config import BridgeSettings, Readers
from otel_rl.bridge.delivery.tracker import backend, nearly_full
from otel_rl.bridge.delivery.wandb.account import is_disabled
from otel_rl.bridge.journal.places import Beside, home_of
from otel_rl.bridge.receive.tls import listens_on_loopback
from otel_rl.bridge.receive.tokens import TeamSettings, TeamTracker, own_team
from otel_rl.bridge.rows.messages import News
from otel_rl.bridge.stages import Page
from otel_rl.cli.ending.files import keep_settings
from otel_rl.cli.own_run import wandb_account
from otel_rl.cli.run_names import RunNames
from otel_rl.cli.standard_streams import is_json, say
from otel_rl.errors import ConfigError, JournalLocked
from otel_rl.inbox import DATA_DIRECTORY
from otel_rl.records import ExperimentKey
from otel_rl.run_id import run_id
from otel_rl.setting_types import OFF


def embedded_defaults(names: RunNames) -> dict[str, object]:
    return {
        "listen": {"http": "127.0.0.1:0", "grpc": "127.0.0.1:0"},
        "data": Path(DATA_DIRECTORY) / names.directory,
    }


def without_disabled(settings: BridgeSettings) -> BridgeSettings | None:
    """Return the settings without W&B where that is disabled, and say so.

    Returns:
        None if W&B is the only tracker.
    """
    tracker = settings.tracker
    names = tracker.trackers
    mode = tracker.options_of("wandb").get("mode", "auto")
    if "wandb" not in names or not is_disabled(mode, os.environ):
        return settings
    others = [name for name in names if name != "wandb"]
    if not others:
        return None
    options = {
        f"{name}.{option}": value
        for name in others
        for option, value in tracker.options_of(name).items()
    }
    say("W&B is disabled (WANDB_MODE): it gets no run")
    update = {"name": ",".join(others), "options": options}
    return settings.model_copy(update={"tracker": tracker.model_copy(update=update)})


def started(
    settings: BridgeSettings,
    *,
    is_one_launch: bool = False,
    named: ExperimentKey | None = None,
    news: Callable[[ExperimentKey, News], None] = lambda *_: None,
    beside: Beside | None = None,
    inboxes: Sequence[Path] = (),
    token: str = "",
) -> Bridge:
    """Start a bridge.

    Args:
        is_one_launch: See ``Bridge``; it names the page of each run as it is opened.
        named: A run whose page was named before.
        news: See ``told`` of ``Bridge``.
        beside: See ``Bridge``.
        inboxes: See ``Bridge``.
        token: Of its page, for the links to it.

    Raises:
        ConfigError: A setting is wrong.
        JournalLocked: Another process writes the same run.
    """
    have_page = {named}

    def opened(run: ExperimentKey, location: str) -> None:
        if bridge.is_stopping:
            return  # the report of the end says it
        say(f"run {run}: {location}")
        if is_one_launch and run not in have_page:
            have_page.add(run)
            say_page(f"page of run {run}", bridge, run, token)

    bridge = Bridge(
        settings,
        opened=opened,
        told=news,
        page=_page(settings),
        is_one_launch=is_one_launch,
        beside=beside,
        inboxes=inboxes,
    )
    _check_room(settings)
    if settings.journal.url is None:
        _keep(settings)
    bridge.start()
    for name in settings.tracker.trackers:
        if lacks := backend(name).lacks:
            say(f"{name} does not store: {lacks}")
    return bridge


def _keep(settings: BridgeSettings) -> None:
    """Keep what `otel-rl finish` needs: a run that was to be online must not end in files."""
    accounts = {of: wandb_account(tracker) for of, tracker in settings.tracker_of_teams.items()}
    online = {of: account.online for of, account in accounts.items() if account}
    environment = dict(os.environ)
    if online and not environment.get("WANDB_MODE"):
        environment["WANDB_MODE"] = "online" if any(online.values()) else "offline"
    if any(online.values()):  # but the other teams have no key
        teams = [team if online.get(team.name, True) else _offline(team) for team in settings.team]
        settings = settings.model_copy(update={"team": tuple(teams)})
    try:
        keep_settings(settings, environment)
    except OSError as exc:
        say(f"{exc.filename}: {exc.strerror}, so `otel-rl finish` will not know these settings")


def _offline(team: TeamSettings) -> TeamSettings:
    options = {**team.tracker.options, "wandb.mode": "offline"}
    return team.model_copy(update={"tracker": TeamTracker(options=options)})


def _check_room(settings: BridgeSettings) -> None:
    # with a shared journal nothing may be kept here, so that the directories need not exist
    directories = (settings.data, settings.tracker.directory)
    existing = [path for path in directories if path is not None and path.exists()]
    for directory in {path.stat().st_dev: path for path in existing}.values():
        if words := nearly_full(directory):
            say(f"WARNING: {words} Data may be lost. Free some, or choose another directory.")


def _page(settings: BridgeSettings) -> Page | None:
    if settings.view.readers is Readers.NOBODY:
        return None
    from otel_rl.view.page_process import BridgePage  # of no use to a bridge without it

    return BridgePage(settings)


def say_page(text: str, bridge: Bridge, key: ExperimentKey | None, token: str) -> None:
    """Say where the page of a run is, or of all runs, if the bridge serves one.

    JSON has no token: a log goes to many readers, and who has this token may send, too.
    """
    if bridge.has_page:
        place = f"#/run/{run_id(*key)}/overview" if key is not None else ""
        say(f"{text}: ", link=f"http://{bridge.http}/{place}", token="" if is_json() else token)


class Embedded:
    """Bridge inside a command; the tracker's files are where its users expect them. One thread.

    A run that another process writes gets the next free name, at the start and later.

    Args:
        names: Of the run that is expected.
        news: See ``told`` of ``Bridge``.

    Attributes:
        names: Of the run that is expected, with the next free one of its trial.
        token: Which senders, and readers of the page, need; empty without one. A port of loopback
            is open to all users of the host.

    Raises:
        ConfigError: A setting is wrong, or the bridge would not listen on HTTP.
        JournalLocked: Another process uses the journal that the user has named.
    """

    def __init__(
        self,
        settings: BridgeSettings,
        names: RunNames,
        *,
        news: Callable[[ExperimentKey, News], None] = lambda *_: None,
    ) -> None:
        check_embedded(settings)
        self._news = news
        self.names = names
        self.token = ""
        listen = settings.listen
        # Who is to send to a port that the user has chosen, or from another host, is not started
        # from here, and gets a token from the user.
        if not settings.team and all(
            listens_on_loopback(one.host) and not one.port
            for one in (listen.http, listen.grpc)
            if one is not None
        ):
            self.token = secrets.token_urlsafe(24)
            settings = settings.model_copy(update={"team": (own_team(self.token),)})
        settings = of_a_program(settings, names.typed.get("name"))
        # Above the journals of all commands; None where the user has named the journal.
        is_named = settings.data != Path(DATA_DIRECTORY) / names.directory
        self._root = None if is_named else settings.data.parent
        self.bridge = (
            self._start(settings) if is_named else self._start_in_own_directory(settings, names)
        )

    def _start_in_own_directory(self, settings: BridgeSettings, names: RunNames) -> Bridge:
        for free in names.alternatives():
            directory = settings.data.parent / free.directory
            if free.of("trial"):
                directory = home_of(free.key, settings.data.parent) or directory
            if directory == settings.data.parent:  # that of a bridge for any runs
                continue
            self.names = free
            try:
                bridge = self._start(settings.model_copy(update={"data": directory}))
            except JournalLocked:
                continue
            if free != names:
                say(f"{names.key} is in use by another process: this run is {free.key}")
            return bridge
        raise AssertionError  # numbers do not end

    def _start(self, settings: BridgeSettings) -> Bridge:
        beside = None
        if self._root is not None:
            beside = Beside(self._root, settings.data, renamed)
        return started(
            settings,
            is_one_launch=True,
            named=self.names.key if self.names.are_certain else None,
            news=self._news,
            beside=beside,
            token=self.token,
        )


def renamed(key: ExperimentKey, name: ExperimentKey) -> None:
    names = shlex.join(["--experiment", key.experiment, "--trial", key.trial])
    say(f"there is a run {key} already, so this one is {name}. To continue that: {names}")


def check_embedded(settings: BridgeSettings) -> None:
    """Raise ConfigError if a bridge inside of a command cannot have these settings."""
    if settings.listen.http is None:
        raise ConfigError(
            f'listen.http: an embedded bridge listens on HTTP (got "{OFF}").',
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


def of_a_program(settings: BridgeSettings, name: str | None = None) -> BridgeSettings:
    """Return the settings with the trackers' places where the runs of one program are written.

    Args:
        settings: Of the bridge.
        name: Typed name of the run in the tracker.
    """
    tracker = settings.tracker
    options: dict[str, str] = {}
    for one in tracker.trackers:
        taken = backend(one).of_the_program
        options |= {f"{one}.{option}": f"{{{option}}}" for option in taken}
    options |= tracker.options
    if name and "wandb" in tracker.trackers:
        options["wandb.name"] = name
    update: dict[str, object] = {"options": options}
    homes = (backend(one).home(os.environ) for one in tracker.trackers)
    home = next((home for home in homes if home is not None), None)
    if home is not None and tracker.directory is None:
        update["directory"] = home
    return settings.model_copy(update={"tracker": tracker.model_copy(update=update)})
