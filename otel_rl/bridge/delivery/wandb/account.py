"""Resolves the W&B server, project and credentials from settings, environment and netrc.

Nothing here loads ``wandb``, which takes most of a second, so settings are checked before any
writer process starts.
"""

import configparser
import netrc
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlsplit

from otel_rl.bridge.delivery.tracker import parse_options
from otel_rl.bridge.private_files import read_secret
from otel_rl.errors import ConfigError
from otel_rl.records import ExperimentKey
from otel_rl.redaction import redacted

OWN_RUN = "{init}"
"""Value of the setting ``attach``: the run that the program's own ``wandb.init`` begins."""

_DEFAULT_BASE_URL = "https://api.wandb.ai"
# `wandb login` of 0.31 stores the key for the public service under this second name of it.
_OTHER_NAMES = {"api.wandb.ai": "api.forge.coreweave.com"}

_OFFLINE = frozenset({"offline", "dryrun"})  # dryrun is W&B's former name
_SHARED = "shared"
_KEYED = "keyed"
_DISABLED = "disabled"
_AUTO = frozenset({"auto", "{mode}"})

_TRUE = frozenset({"1", "true", "t", "yes", "y", "on"})

_KEY_HINT = "Set WANDB_API_KEY, or run `wandb login`."

_DEFAULT_PROJECT = "otel_rl"
_MAX_PROJECT_LENGTH = 128  # the server's limit
_FORBIDDEN_IN_PROJECT = frozenset("/\\#?%:")
_FORBIDDEN_IN_RUN_ID = frozenset(":;,#?/'{}")  # the braces are placeholders of ``attach``
_MAX_PATH_PARTS = 3

# Variables of the bridge's environment that a writer keeps. All others that start with WANDB_
# belong to a run of the user: WANDB_RUN_ID would name our run, WANDB_SERVICE would tie the writer
# to another wandb-core.
_KEPT = frozenset(
    {
        "WANDB_API_KEY",
        "WANDB_BASE_URL",
        "WANDB_CACHE_DIR",
        "WANDB_CONFIG_DIR",
        "WANDB_DATA_DIR",
        "WANDB_ENTITY",
        "WANDB_INSECURE_DISABLE_SSL",
        "WANDB_MODE",
        "WANDB_NOTES",
        "WANDB_PROJECT",
        "WANDB_TAGS",
    }
)


@dataclass(frozen=True, slots=True)
class WandbSettings:
    """Options of the W&B tracker.

    Attributes:
        mode: ``online``, ``offline``, ``keyed`` (online with a key), or ``auto``: ``WANDB_MODE``,
            else online with a key. ``{mode}`` stands for what the program names, else ``auto``.
        project: Project of the runs. Empty for ``WANDB_PROJECT``, else ``otel_rl``. In it,
            ``{project}`` stands for what the program names, else for these defaults;
            ``{experiment}`` stands for the experiment, with ``-`` for characters that a project's
            name may not have.
        entity: Account or team of the runs. Empty for ``WANDB_ENTITY``, else the key's default
            entity. In it, ``{entity}`` stands for what the program names, else for these defaults.
        name: Name of each run. Empty for the program's name of the run, else experiment and trial.
        attach: Run to join, ``[[ENTITY/]PROJECT/]RUN_ID``, which may hold ``{experiment}`` and
            ``{trial}``. ``{init}`` stands for the run that the program's ``wandb.init`` begins:
            rows wait for it. Empty for ``WANDB_RUN_ID`` if ``WANDB_MODE`` is ``shared``.
        key_file: File with the API key, readable by its owner and group only; it is read at each
            opening. Empty for ``WANDB_API_KEY``, else the key of ``wandb login``.
        base_url: Address of the server. Empty for ``WANDB_BASE_URL``, else the address of ``wandb
            login``, else the public server.
        init_timeout_s: Seconds to create or resume the run.
        finish_timeout_s: Seconds to upload the rest when the run ends.
        stall_timeout_s: Seconds without a new row after which the run is reopened.
        transmit_interval_s: Whole seconds between uploads; 0 for W&B's 15 s.
        settle_s: Seconds without a change after which an attached run is joined, after a crash.
        system_panels: Whether GPUs and hosts are in System panels.
        attempt_axes: Whether charts of a run that went back have the axis ``step/attempt_<n>``
            instead of ``step``.
    """

    mode: str = "auto"
    project: str = ""
    entity: str = ""
    name: str = ""
    attach: str = ""
    key_file: str = ""
    base_url: str = ""
    init_timeout_s: float = 60.0
    finish_timeout_s: float = 120.0
    stall_timeout_s: float = 120.0
    transmit_interval_s: int = 0
    settle_s: float = 10.0
    system_panels: bool = True
    attempt_axes: bool = True

    @classmethod
    def parse(cls, attributes: Mapping[str, str]) -> "WandbSettings":
        """Read the attributes of a run.

        Raises:
            ConfigError: An option's name is unknown, or its value has the wrong type.
        """
        return parse_options("wandb", cls, attributes, secret_hint=_KEY_HINT)


@dataclass(frozen=True, slots=True)
class Account:
    """Destination and credentials. ``api_key`` is empty offline and never shown.

    Attributes:
        online: Whether rows go to the server; otherwise they go into a file for ``wandb sync``.
        base_url: URL of the server's API, without a slash at the end.
        entity: The W&B team or user, or empty for the key's default.
        verify_tls: Whether the server's certificate must be trusted.
        attached_run: The run of another process to join; empty for a run of the bridge's own,
            ``{init}`` where the run is not known yet.
    """

    online: bool
    base_url: str
    project: str
    entity: str
    api_key: str = field(default="", repr=False)
    verify_tls: bool = True
    attached_run: str = ""

    @property
    def attached_path(self) -> str:
        return "/".join(filter(None, (self.entity, self.project, self.attached_run)))


def find_account(
    settings: WandbSettings,
    environ: Mapping[str, str],
    key: ExperimentKey | None = None,
    own_run: str | None = None,
) -> Account:
    """Resolve settings, environment and the files of ``wandb login`` into an account.

    Args:
        key: The run, or None for any: ``attached_run`` may then have placeholders.
        own_run: Path of the run that the program has made, for ``attach={init}``; empty if that run
            cannot be joined, None as long as it is unknown.

    Raises:
        ConfigError: The settings contradict each other or cannot work.
    """
    login = _login_file(environ)
    base_url = (
        settings.base_url
        or environ.get("WANDB_BASE_URL", "")
        or login.get("base_url", "")
        or _DEFAULT_BASE_URL
    ).rstrip("/")
    if urlsplit(base_url).scheme not in {"http", "https"}:
        raise ConfigError(
            f'wandb.base_url: must start with http:// or https:// (got "{redacted(base_url)}").'
        )
    api_key = _api_key(settings, base_url, environ)
    mode = environ.get("WANDB_MODE", "")
    if settings.attach == OWN_RUN:
        variable = "" if mode == _SHARED else mode
        online = _is_online(settings.mode, variable, bool(api_key), attached=False)
        # Offline there is nothing to join: the bridge writes a run beside the program's.
        path = (OWN_RUN if own_run is None else own_run) if online else ""
        entity, project, attached_run = _split("wandb.init", path)
    else:
        entity, project, attached_run = _attached(settings.attach, environ, key)
        online = _is_online(settings.mode, mode, bool(api_key), attached=bool(attached_run))
    if online and not api_key:
        raise ConfigError(
            f"wandb.mode: is online, but there is no API key for {redacted(base_url)}.",
            hint="Set WANDB_API_KEY, run `wandb login`, or set the mode to offline.",
        )
    return Account(
        online=online,
        base_url=base_url,
        project=_checked(
            "project",
            project
            or _chosen(
                _of_experiment(settings.project, key),
                "{project}",
                environ.get("WANDB_PROJECT", "") or _DEFAULT_PROJECT,
            ),
        ),
        entity=_checked(
            "entity",
            entity
            or _chosen(
                settings.entity,
                "{entity}",
                environ.get("WANDB_ENTITY", "") or login.get("entity", ""),
            ),
        ),
        api_key=api_key if online else "",
        # As the SDK reads it.
        verify_tls=environ.get("WANDB_INSECURE_DISABLE_SSL", "").lower() not in _TRUE,
        attached_run=attached_run,
    )


def is_disabled(mode: str, environ: Mapping[str, str]) -> bool:
    return (environ.get("WANDB_MODE", "") if mode in _AUTO else mode) == _DISABLED


def without_key(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the environment without the API key, for a process that writes nothing to W&B."""
    return {name: value for name, value in environ.items() if name != "WANDB_API_KEY"}


def writer_environment(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the environment of a writer process, without the settings of a user's own run."""
    kept = {
        name: value
        for name, value in environ.items()
        if not name.startswith("WANDB_") or name in _KEPT
    }
    # In shared mode WANDB_RUN_ID names a run that several processes write, one of them the
    # bridge's.
    if environ.get("WANDB_MODE") == _SHARED and "WANDB_RUN_ID" in environ:
        kept["WANDB_RUN_ID"] = environ["WANDB_RUN_ID"]
    # Otherwise the SDK sends its own telemetry, with our OTEL_* headers, and an offline run may
    # hang for 10 s at exit.
    kept |= {"WANDB_ERROR_REPORTING": "false", "WANDB_SILENT": "true"}
    # wandb-core passes each record through a chain of threads: on one CPU they need a fifth less,
    # and 400 MB of files are uploaded as fast.
    return {"GOMAXPROCS": "1"} | kept


def _is_online(setting: str, variable: str, has_key: bool, *, attached: bool) -> bool:  # noqa: FBT001  # private
    source, mode = ("WANDB_MODE", variable) if setting in _AUTO else ("wandb.mode", setting)
    if attached:
        if mode in _OFFLINE:
            raise ConfigError(
                f"{source}: a run of another process can only be joined online (got {mode!r}).",
                hint="Set WANDB_MODE=shared, or let the bridge write a run of its own.",
            )
        return True
    if mode in {"online", *_OFFLINE}:
        return mode == "online"
    if mode == (_KEYED if source == "wandb.mode" else ""):
        return has_key
    if mode == _SHARED:
        raise ConfigError(
            f"{source}: is shared, but no run to join is named.",
            hint="Set WANDB_RUN_ID for your process and the bridge, or the option attach.",
        )
    raise ConfigError(
        f'{source}: must be online, offline or shared for this tracker (got "{mode}").',
        hint="Choose the tracker jsonl to write no W&B run.",
    )


def _attached(
    setting: str, environ: Mapping[str, str], key: ExperimentKey | None
) -> tuple[str, str, str]:
    """Return entity, project and id of the run to join; empty without one."""
    source, path = "wandb.attach", setting
    if not path and environ.get("WANDB_MODE") == _SHARED:
        source, path = "WANDB_RUN_ID", environ.get("WANDB_RUN_ID", "")
    return _split(source, path, key)


def _split(source: str, path: str, key: ExperimentKey | None = None) -> tuple[str, str, str]:
    if path == OWN_RUN:
        return "", "", OWN_RUN
    parts = path.split("/")
    if parts[-2:-1] == ["runs"]:  # as in the run's URL
        del parts[-2]
    if key is not None:
        parts = [_filled(part, key.experiment, key.trial) for part in parts]
    is_path = len(parts) <= _MAX_PATH_PARTS and all(parts)
    if path and (not is_path or _FORBIDDEN_IN_RUN_ID & set(_filled(parts[-1], "", ""))):
        raise ConfigError(
            f'{source}: must be [[ENTITY/]PROJECT/]RUN_ID (got "{"/".join(parts)}").',
            hint="It is the end of the run's URL. An id may have none of "
            f"{' '.join(sorted(_FORBIDDEN_IN_RUN_ID))}",
        )
    entity, project, run_id = ["", "", *parts][-3:]
    return entity, project, run_id


def _filled(part: str, experiment: str, trial: str) -> str:
    # In one pass: a name may contain braces, and is no pattern itself.
    names = {"{experiment}": experiment, "{trial}": trial}
    return re.sub("|".join(map(re.escape, names)), lambda found: names[found[0]], part)


def _chosen(setting: str, placeholder: str, otherwise: str) -> str:
    """Return a setting, with ``otherwise`` in place of a placeholder that no program has filled."""
    return setting.replace(placeholder, otherwise) or otherwise


def _of_experiment(project: str, key: ExperimentKey | None) -> str:
    if key is None:
        return project
    name = "".join("-" if char in _FORBIDDEN_IN_PROJECT else char for char in key.experiment)
    return project.replace("{experiment}", name)[:_MAX_PROJECT_LENGTH]


def _checked(name: str, text: str) -> str:
    if len(text) > _MAX_PROJECT_LENGTH or _FORBIDDEN_IN_PROJECT & set(text):
        raise ConfigError(
            f"wandb.{name}: must have at most {_MAX_PROJECT_LENGTH} characters and none of "
            f'{"".join(sorted(_FORBIDDEN_IN_PROJECT))} (got "{text}").'
        )
    return text


def _login_file(environ: Mapping[str, str]) -> Mapping[str, str]:
    home = environ.get("HOME") or "~"
    directory = environ.get("WANDB_CONFIG_DIR") or f"{home}/.config/wandb"
    parser = configparser.ConfigParser(interpolation=None)
    try:
        parser.read(Path(directory).expanduser() / "settings", encoding="utf-8")
    except (configparser.Error, UnicodeDecodeError, OSError):
        return {}
    return dict(parser["default"]) if parser.has_section("default") else {}


def _api_key(settings: WandbSettings, base_url: str, environ: Mapping[str, str]) -> str:
    if settings.key_file:
        content = read_secret("wandb.key_file", Path(settings.key_file))
        key = content.decode(errors="replace").strip()
        if not key:  # else the run would be offline, and nobody would be told
            raise ConfigError(
                f"wandb.key_file: {settings.key_file} is empty.", hint="Write W&B's key into it."
            )
        return key
    if key := environ.get("WANDB_API_KEY", ""):
        return key
    home = Path(environ.get("HOME") or "~").expanduser()
    named = environ.get("NETRC")
    for path in [Path(named).expanduser()] if named else [home / ".netrc", home / "_netrc"]:
        try:
            entries = netrc.netrc(path)
        except (netrc.NetrcParseError, OSError):
            continue
        host = urlsplit(base_url).netloc
        for name in (host, _OTHER_NAMES.get(host, "")):
            entry = entries.hosts.get(name)
            if entry and entry[2]:
                return entry[2]
    return ""
