"""The bridge's settings: defaults < TOML file < environment < command line.

Every setting has a place in the file (``[rows] window = "2s"``) and a variable
(``OTEL_RL_BRIDGE__ROWS__WINDOW=2s``). A mistake is a ``ConfigError`` at start that names the
place.
"""

import os
import tomllib
from collections.abc import Mapping, Sequence
from enum import StrEnum
from pathlib import Path
from typing import Final, Self

from pydantic import (
    Field,
    SecretStr,
    ValidationError,
    field_validator,
)

from otel_rl.bridge.journal.places import JournalPlace
from otel_rl.bridge.keys import KeyNames
from otel_rl.bridge.notifier import NotifySettings
from otel_rl.bridge.receive.limits import ReceiveSettings
from otel_rl.bridge.receive.tls import TlsSettings
from otel_rl.bridge.receive.tokens import TEAM_EXAMPLE, Teams, TokenShares
from otel_rl.bridge.rows.settings import RowSettings
from otel_rl.bridge.setting_faults import faults_in_words
from otel_rl.bridge.setting_variables import ENV_PREFIX, by_field, given_by_variables
from otel_rl.errors import ConfigError, NoTeam
from otel_rl.inbox import DATA_DIRECTORY
from otel_rl.records import ExperimentKey
from otel_rl.semconv.spec import Tier
from otel_rl.setting_types import Address, Listen, Seconds, Section, Size

__all__ = [
    "ENV_PREFIX",
    "RUN_SHARE",
    "ArchiveSettings",
    "BridgeSettings",
    "JournalSettings",
    "ListenSettings",
    "Readers",
    "TelemetrySettings",
    "TrackerSettings",
    "load_settings",
]


RUN_SHARE: Final = 0.5
"""Part of ``journal.max_bytes`` for one experiment: one that no tracker takes stops no other."""


class ListenSettings(Section):
    """Addresses of the bridge: ``HOST:PORT``, or ``off``. Port 0 picks a free one."""

    http: Listen = Address("127.0.0.1", 4318)
    """Address of OTLP over HTTP, and of the page with the runs."""

    grpc: Listen = Address("127.0.0.1", 4317)
    """Address of OTLP over gRPC."""

    health: Listen = None
    """Address that answers only ``GET /healthz`` and Prometheus's ``GET /metrics``, without TLS and
    tokens."""


class JournalSettings(Section):
    """Settings of the journal: the database of batches and rows until the trackers have them."""

    url: SecretStr | None = None
    """``postgresql://user:password@host/database``, which several bridges share. Unset: an SQLite
    file in ``data``."""

    lease_s: Seconds = Field(15.0, ge=1)
    """Time until another bridge takes the runs of one that was killed."""

    max_bytes: Size = Field(10 << 30, ge=1 << 20)
    """Room for batches that wait, half of it for one experiment. Beyond it senders get 503. Rows
    may use as much again."""

    keep_ended_s: Seconds = Field(30 * 86_400.0, gt=0)
    """Time that an ended run stays in the journal, and on the page."""


class TrackerSettings(Section):
    """Settings of the trackers, and of the delivery of runs."""

    name: str = "wandb"
    """``wandb``, ``mlflow``, ``trackio``, ``tensorboard``, ``jsonl`` or the name of a plugin;
    several with commas between."""

    directory: Path | None = None
    """Directory of the tracker's files. Unset: ``data``."""

    detail: Tier = Tier.BASIC
    """Which keys the tracker gets: ``basic``, ``full`` or ``everything``."""

    names: KeyNames = KeyNames.FRAMEWORK
    """Names of the keys in the tracker: the program's own (``framework``), shared ones
    (``otel_rl``), or ``both``. The page, the terminal and MCP always show the program's own."""

    options: Mapping[str, str] = Field(default_factory=dict, examples=[{"project": "grpo"}])
    """The tracker's options. Of several trackers, an option has its tracker's name in front:
    ``trackio.project``."""

    max_live_runs: int | None = Field(None, ge=1)
    """Runs that are written at once; others wait in the journal. Unset: 32, or 256 of JSON lines
    and TensorBoard."""

    confirm_interval_s: Seconds = Field(30.0, gt=0)
    """Interval at which the tracker is asked which rows it has."""

    keep_confirmed_s: Seconds = Field(600.0, ge=0)
    """Time that rows stay in the journal after the tracker has confirmed them, for the page and for
    ``otel-rl replay``."""

    max_retry_s: Seconds = Field(60.0, gt=0)
    """Longest pause between two attempts to write, and the pause after a refusal."""

    @property
    def trackers(self) -> Sequence[str]:
        """Return the names of the trackers, each once; there is at least one."""
        return [*dict.fromkeys(filter(None, (name.strip() for name in self.name.split(","))))]

    def check_options(self) -> None:
        """Raise ConfigError if an option belongs to no tracker of this bridge."""
        for name in self.options:
            owner = name.rpartition(".")[0]
            if owner and owner not in self.trackers:
                raise ConfigError(
                    f"tracker.options.{name}: {owner} is not a tracker of this bridge.",
                    hint=f"Its trackers are {', '.join(self.trackers)}.",
                )

    def with_options(self, own: Mapping[str, str]) -> Self:
        """Return these settings with the options of a team in place of the bridge's."""
        return self.model_copy(update={"options": {**self.options, **own}})

    def options_of(self, tracker: str) -> Mapping[str, str]:
        """Return the options of one tracker; options without a tracker's name are the first's."""
        is_first = tracker == self.trackers[0]
        found: dict[str, str] = {}
        for name, value in self.options.items():
            owner, _, rest = name.rpartition(".")
            if owner == tracker or (not owner and is_first):
                found[rest] = value
        return found

    @field_validator("name")
    @classmethod
    def _names_a_tracker(cls, value: str) -> str:
        if not any(name.strip() for name in value.split(",")):
            raise ValueError("must name a tracker")
        return value

    @field_validator("name", mode="before")
    @classmethod
    def _joined(cls, given: object) -> object:
        return ",".join(map(str, given)) if isinstance(given, list) else given

    @field_validator("options", mode="before")
    @classmethod
    def _as_texts(cls, given: object) -> object:
        if not isinstance(given, dict):
            return given
        texts: dict[str, str] = {}
        for name, value in given.items():
            if isinstance(value, dict):
                texts |= {f"{name}.{of}": _option(f"{name}.{of}", one) for of, one in value.items()}
            else:
                texts[name] = _option(name, value)
        return texts


def _option(name: str, value: object) -> str:
    if isinstance(value, dict | list):
        raise ConfigError(
            f"tracker.options.{name}: must be a text or a number"
            f" (got a {'list' if isinstance(value, list) else 'table'}).",
            hint="Write one value; options of one of several trackers are in a table of its name, "
            "such as [tracker.options.trackio].",
        )
    return str(value)


class ArchiveSettings(Section):
    """Settings of the archive of every value."""

    enabled: bool | None = None
    """Whether the archive is written. Unset: if pyarrow is installed."""

    directory: Path | None = None
    """Directory of the Parquet files. Unset: ``archive`` in ``data``."""

    every_s: Seconds = Field(300.0, gt=0)
    """Longest time until values are in a file of the archive."""


class DiagnoseSettings(Section):
    """Settings of the schedule of diagnosis."""

    every_s: Seconds = Field(2.0, ge=0)
    """Shortest time between two diagnoses of a run. All diagnoses together take 2 % of a core. 0:
    none."""


class Readers(StrEnum):
    """Who may read the page with the runs."""

    KNOWN = "known"
    BEHIND_PROXY = "behind_proxy"
    NOBODY = "nobody"


class ViewSettings(Section):
    """Settings of the page with the runs at the bridge's HTTP address."""

    readers: Readers = Readers.KNOWN
    """Who may read the page. ``known``: those on loopback, or with a token of a ``team``.
    ``behind_proxy``: everybody whom an authenticating proxy lets through. ``nobody``: there is no
    page."""


class TelemetrySettings(Section):
    """Settings of the export of the bridge's own metrics."""

    endpoint: str | None = None
    """Base URL to which the bridge sends its own metrics by OTLP/HTTP. Unset: they are not sent."""

    interval_s: Seconds = Field(10.0, gt=0)
    """Interval at which the bridge's own metrics are sent, and written into each run."""

    @field_validator("endpoint")
    @classmethod
    def _is_a_url(cls, value: str | None) -> str | None:
        if value is not None and not value.startswith(("http://", "https://")):
            raise ValueError("must begin with http:// or https://")
        return value


class BridgeSettings(Section):
    """All settings of a bridge."""

    data: Path = Path(DATA_DIRECTORY)
    """Data directory, with the journal. One bridge at a time uses it."""

    listen: ListenSettings = ListenSettings()
    """Addresses of the bridge."""

    journal: JournalSettings = JournalSettings()
    """Durability and its bounds."""

    tls: TlsSettings = TlsSettings()
    """Encryption of both protocols."""

    team: Teams = Field((), examples=[TEAM_EXAMPLE])
    """Tables ``[[team]]``: tokens, experiments and tracker of each team. Empty: no token is
    required."""

    audit: bool = False
    """Whether the log tells who writes and who reads which run, see docs/security.md."""

    receive: ReceiveSettings = ReceiveSettings()
    """Limits on requests."""

    rows: RowSettings = RowSettings()
    """Rules that make rows of samples."""

    tracker: TrackerSettings = TrackerSettings()
    """Tracker and delivery."""

    archive: ArchiveSettings = ArchiveSettings()
    """Archive of every value."""

    diagnose: DiagnoseSettings = DiagnoseSettings()
    """Schedule of diagnosis."""

    notify: NotifySettings = NotifySettings()
    """Messages to a webhook about what a diagnosis has found, and about crashes."""

    view: ViewSettings = ViewSettings()
    """Page with the runs."""

    telemetry: TelemetrySettings = TelemetrySettings()
    """Export of the bridge's own metrics."""

    stop_timeout_s: Seconds = Field(300.0, gt=0)
    """Time that a stopping bridge has to write its rows; what is left stays in ``data``."""

    @property
    def tracker_of_teams(self) -> Mapping[str, TrackerSettings]:
        """Return the tracker's settings of each team; without teams, the bridge's under ``""``."""
        teams = {
            team.name: self.tracker.with_options(team.tracker.options)
            for team in self.team
            if not team.gateway
        }
        return teams or {"": self.tracker}

    def tracker_of(self, key: ExperimentKey) -> TrackerSettings:
        """Return the tracker's settings of a run; with teams, those of the run's team.

        Raises:
            NoTeam: There are teams, and the experiment belongs to none.
        """
        found = self.tracker_of_teams.get(TokenShares(self.team).owner_of(key))
        if found is None:
            raise NoTeam(key.experiment)
        return found

    @property
    def journal_place(self) -> JournalPlace:
        url = None if self.journal.url is None else self.journal.url.get_secret_value()
        return JournalPlace(self.data, url, self.journal.max_bytes)


def load_settings(
    file: Path | None = None,
    overrides: Mapping[str, object] | None = None,
    *,
    defaults: Mapping[str, object] | None = None,
) -> BridgeSettings:
    """Read the settings.

    Args:
        file: Path of a TOML file, or None for none.
        overrides: Values from the command line, nested like the file; they win over everything.
        defaults: Defaults of the calling command, where they differ from a bridge's.

    Raises:
        ConfigError: A setting is wrong. The error names the place, the fault, and the value.
    """
    given = given_by_variables(BridgeSettings, os.environ)
    content: dict[str, object] = {}
    if file is not None:
        try:
            content = tomllib.loads(file.read_text(encoding="utf-8"))
        except OSError as exc:
            raise ConfigError(
                f"{file}: cannot be read: {exc.strerror}.",
                hint="Check the path after --config.",
            ) from exc
        except (tomllib.TOMLDecodeError, UnicodeDecodeError) as exc:
            raise ConfigError(f"{file}: is not TOML: {exc}.") from exc
    content = by_field(BridgeSettings, content)
    settings = _validated(_merged(_merged(defaults or {}, content), given))
    merged = _merged(settings.model_dump(exclude_unset=True), overrides or {})
    return _validated(merged, is_of_command_line=True)


def _validated(given: Mapping[str, object], *, is_of_command_line: bool = False) -> BridgeSettings:
    try:
        return BridgeSettings.model_validate(given)
    except ValidationError as exc:
        words = faults_in_words(BridgeSettings, exc, is_of_command_line=is_of_command_line)
        raise ConfigError(words) from exc


def _merged(base: Mapping[str, object], over: Mapping[str, object]) -> dict[str, object]:
    merged = dict(base)
    for key, value in over.items():
        below = merged.get(key)
        if isinstance(below, Mapping) and isinstance(value, Mapping):
            merged[key] = _merged(below, value)
        else:
            merged[key] = value
    return merged
