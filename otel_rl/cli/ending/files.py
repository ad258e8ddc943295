"""Files beside a journal, for its owner alone: how its bridge was set up, and how it has ended.

* ``settings.json``: what the rest needs to be written to the same place, without secrets
* ``status.json``: the end, for scripts and schedulers
"""

import json
import os
import secrets
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO, Final

from otel_rl.bridge.config import BridgeSettings
from otel_rl.bridge.private_files import open_private
from otel_rl.cli.ending.report import Ending
from otel_rl.errors import ConfigError
from otel_rl.redaction import is_secret_name, redacted

SETTINGS_FILE: Final = "settings.json"
STATUS_FILE: Final = "status.json"

_KEPT: Final = {"journal", "rows", "tracker", "archive", "stop_timeout_s"}

# Variables that say where a tracker's runs are.
_VARIABLES: Final = ("WANDB_", "MLFLOW_", "TRACKIO_")

_NOT_KEPT: Final = "(a secret, which is not kept)"

_RESERVED_BYTES: Final = 16 << 10  # a status with some dozens of runs


def keep_settings(settings: BridgeSettings, environ: Mapping[str, str]) -> None:
    """Keep the settings in the data directory, and the variables that trackers read.

    Raises:
        OSError: They cannot be written.
    """
    given = settings.model_dump(
        mode="json", include=_KEPT, exclude_unset=True, exclude={"journal": {"url"}}
    )
    tracker = given.setdefault("tracker", {})
    tracker["name"] = settings.tracker.name
    tracker["options"] = _told(settings.tracker.options)
    given["team"] = [
        {
            **team.model_dump(include={"name", "experiments", "share"}, exclude_unset=True),
            # A secret that was left out would be the bridge's option instead: another account.
            "tracker": {"options": _told(team.tracker.options, otherwise=_NOT_KEPT)},
        }
        for team in settings.team
        if not team.gateway
    ]
    for section, directory in (
        (tracker, settings.tracker.directory),
        (given.get("archive", {}), settings.archive.directory),
    ):
        if directory is not None:  # the rest may be written from another working directory
            section["directory"] = str(directory.absolute())
    environment = {
        name: value
        for name, value in environ.items()
        if name.startswith(_VARIABLES) and not _secret(name, value)
    }
    path = settings.data / SETTINGS_FILE
    write_json(path, {"settings": given, "environment": environment})


def _told(options: Mapping[str, str], *, otherwise: str = "") -> dict[str, str]:
    """Return the options without secrets; a file that holds one may be named.

    Args:
        otherwise: In place of a secret; empty to leave its option out.
    """
    told: dict[str, str] = {}
    for name, value in options.items():
        if name.endswith("_file") and value:
            told[name] = str(Path(value).absolute())
        elif not _secret(name, value):
            told[name] = value
        elif otherwise:
            told[name] = otherwise
    return told


def _secret(name: str, value: str) -> bool:
    return is_secret_name(name) or redacted(value) != value


@dataclass(frozen=True, slots=True)
class KeptSettings:
    """What was kept beside a journal; empty if nothing was.

    Attributes:
        settings: Nested like the file of settings.
        environment: Variables of the command that has started the bridge.
        exit_status: Of the command that reported; None for a service, or if it is unknown.
    """

    settings: Mapping[str, Any] = field(default_factory=dict)
    environment: Mapping[str, str] = field(default_factory=dict)
    exit_status: int | None = None

    @classmethod
    def beside(cls, directory: Path) -> "KeptSettings":
        """Read them.

        Raises:
            ConfigError: They cannot be read.
        """
        kept = _read(directory / SETTINGS_FILE)
        settings = kept.get("settings", {})
        if "team" in settings:
            # Tokens are not kept, and without any a bridge lets everyone in: one that nobody has.
            teams = [{**team, "sha256": [secrets.token_hex(32)]} for team in settings["team"]]
            settings = {**settings, "team": teams}
        return cls(
            settings,
            kept.get("environment", {}),
            _read(directory / STATUS_FILE).get("exit_status"),
        )

    def directories(self, section: str) -> Sequence[Path]:
        """Return the directory that a section of the settings names, if it does."""
        directory = self.settings.get(section, {}).get("directory")
        return [] if directory is None else [Path(directory)]

    @staticmethod
    def check_secrets(settings: BridgeSettings) -> None:
        """Raise ConfigError if a team's option was not kept, and is not given again."""
        for team in settings.team:
            for name, value in team.tracker.options.items():
                if value == _NOT_KEPT:
                    raise ConfigError(
                        f"team {team.name}: tracker.options.{name} is a secret, and was not kept.",
                        hint="Give the bridge's file of settings with --config.",
                    )

    @contextmanager
    def in_environment(self) -> Iterator[None]:
        """Set the variables that this process lacks, for the length of the context."""
        missing = {name: text for name, text in self.environment.items() if name not in os.environ}
        os.environ.update(missing)
        try:
            yield
        finally:
            for name in missing:
                os.environ.pop(name, None)


class StatusFile:
    """How a command has ended. There is none while it runs.

    Its room is reserved from the start, so that it can say that the disk is full.
    """

    def __init__(self, directory: Path) -> None:
        self.path = directory / STATUS_FILE
        self._new = _new(self.path)
        with suppress(OSError):
            self.path.unlink(missing_ok=True)
            with _opened(self._new) as file:
                os.posix_fallocate(file.fileno(), 0, _RESERVED_BYTES)

    def write(self, status: Mapping[str, object]) -> bool:
        """Replace the file as a whole. Returns whether that was possible."""
        try:
            write_json(self.path, status)
        except OSError:
            return False
        return True


def amend_status(directory: Path, ending: Ending) -> None:
    """Bring the status file, if there is one, up to date after more rows were written."""
    path = directory / STATUS_FILE
    before = _read(path)
    if not before:
        return
    now = ending.as_status(0, directory)
    written = {(one["id"], one["tracker"]): one for one in (*before["runs"], *now["runs"])}
    with suppress(OSError):
        write_json(path, {**before, "runs": [*written.values()], "left": now["left"]})


def write_json(path: Path, content: Mapping[str, object]) -> None:
    """Replace a file as a whole.

    Raises:
        OSError: It cannot be written.
    """
    new = _new(path)
    with _opened(new) as file:
        file.write(json.dumps(content, indent=2).encode() + b"\n")
        file.truncate()  # what was reserved and is not needed
        file.flush()
        os.fsync(file.fileno())
    new.replace(path)


def _new(path: Path) -> Path:
    return path.with_name(f"{path.name}.new")


def _opened(path: Path) -> BinaryIO:
    return os.fdopen(open_private(os.fspath(path), os.O_WRONLY | os.O_CREAT), "wb")


def _read(path: Path) -> Mapping[str, Any]:
    try:
        content = json.loads(path.read_bytes())
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as exc:
        raise ConfigError(
            f"{path}: cannot be read: {exc}.", hint="Remove it, and give its options again."
        ) from exc
    if not isinstance(content, dict):
        raise ConfigError(f"{path}: is no JSON object.", hint="Remove it.")
    return content
