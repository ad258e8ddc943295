"""The bridge's settings: defaults < TOML file < environment < command line.

Every setting has a place in the file (``[align] window_s = 2``) and a variable
(``OTEL_RL_BRIDGE__ALIGN__WINDOW_S=2``). A mistake is a ``ConfigError`` at start that names the
place.
"""

import os
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from pydantic import BaseModel, ConfigDict, Field, SecretStr, ValidationError, model_validator
from pydantic_settings import (
    BaseSettings,
    PydanticBaseSettingsSource,
    SettingsConfigDict,
    SettingsError,
)

from otel_rl.bridge.align.settings import AlignSettings
from otel_rl.bridge.receive.limits import ReceiveLimits
from otel_rl.bridge.receive.tls import TlsSettings
from otel_rl.bridge.receive.tokens import AuthSettings
from otel_rl.errors import ConfigError
from otel_rl.shown import is_secret_name, redacted

__all__ = [
    "ENV_PREFIX",
    "BridgeSettings",
    "GrpcSettings",
    "HttpSettings",
    "JournalSettings",
    "TelemetrySettings",
    "TrackerSettings",
    "load_settings",
]

ENV_PREFIX: Final = "OTEL_RL_BRIDGE__"

_MAX_SHOWN: Final = 200

_MAY_HOLD_A_URL: Final = {("journal",), ("journal", "url")}

_MODEL = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True, allow_inf_nan=False)


class ListenSettings(BaseModel):
    """One listening socket."""

    model_config = _MODEL

    host: str = "127.0.0.1"
    """Address to listen on. Anything but loopback lets every host that reaches it write runs."""

    enabled: bool = True
    """Whether to listen at all."""


class HttpSettings(ListenSettings):
    """OTLP over HTTP."""

    port: int = Field(4318, ge=0, le=65535)
    """TCP port; 0 takes a free one. The default is OTLP's own."""


class GrpcSettings(ListenSettings):
    """OTLP over gRPC."""

    port: int = Field(4317, ge=0, le=65535)
    """TCP port; 0 takes a free one. The default is OTLP's own."""


class JournalSettings(BaseModel):
    """The database that holds batches and rows until trackers have them."""

    model_config = _MODEL

    url: SecretStr | None = None
    """``postgresql://user:password@host/database``: a database that several bridges share. None for
    a file in the data directory, for one bridge. See docs/scale.md."""

    lease_s: float = Field(15.0, ge=1)
    """How long a run waits for another bridge when its own was killed. A bridge that cannot reach
    the database for two thirds of it leaves its runs. Alike for all bridges of a database."""

    max_bytes: int = Field(10 << 30, ge=1 << 20)
    """Beyond it senders get 503 and retry. Rows may take as much again, so that batches that wait
    can always be made into rows."""

    max_share: float = Field(0.5, gt=0, le=1)
    """Part of ``max_bytes`` that one experiment may take, batches and rows. Beyond it its senders
    get 503, so that a flood, or a run that the tracker refuses, leaves room for others."""


class TrackerSettings(BaseModel):
    """Where runs are written."""

    model_config = _MODEL

    name: str = "wandb"
    """``wandb`` or ``jsonl``."""

    directory: Path | None = None
    """Where the tracker keeps its files; the data directory if not given."""

    options: Mapping[str, str] = Field(default_factory=dict)
    """Settings of the tracker itself, e.g. ``project``, ``entity`` and ``mode`` of W&B."""

    max_live_runs: int = Field(32, ge=1)
    """Runs that are written at the same time, each by a process of its own. Rows of further ones
    wait in the journal."""

    confirm_interval_s: float = Field(30.0, gt=0)
    """Between two questions to the tracker about what it has."""

    keep_confirmed_s: float = Field(600.0, ge=0)
    """How long a row stays in the journal after the tracker has confirmed it, unless the run has
    used up its share of the journal. A tracker that is restored from a backup may ask for it
    again."""

    max_retry_s: float = Field(60.0, gt=0)
    """Longest pause before a tracker that is away is tried again. The first one is half a second,
    and each is up to twice as long as the one before."""

    rejected_retry_s: float = Field(60.0, gt=0)
    """Pause before a tracker that refused the settings or the credentials is asked again."""

    @model_validator(mode="before")
    @classmethod
    def _options_are_text(cls, data: Any) -> Any:  # raw input, of any shape
        if isinstance(data, dict) and isinstance(data.get("options"), dict):
            texts = {key: str(value) for key, value in data["options"].items()}
            return {**data, "options": texts}
        return data


class DiagnoseSettings(BaseModel):
    """When runs are told what is wrong with them."""

    model_config = _MODEL

    every_s: float = Field(60.0, ge=0)
    """Between two looks at a run that goes on, and shortly after its end. What is found stands in
    the run under ``diagnosis/``, when it is news; with W&B it is an alert. 0 for never."""


class TelemetrySettings(BaseModel):
    """What the bridge says of itself."""

    model_config = _MODEL

    endpoint: str | None = Field(None, pattern="^https?://")
    """Base URL of an OTLP/HTTP endpoint that takes the bridge's own metrics, usually that of a
    collector. None exports none. Every run has its part under ``otel_rl/bridge/`` in any case."""

    interval_s: float = Field(15.0, gt=0)
    """Between two exports."""

    run_interval_s: float = Field(10.0, gt=0)
    """Between two reports to a run."""


class BridgeSettings(BaseSettings):
    """Everything that a bridge can be told."""

    model_config = SettingsConfigDict(
        env_prefix=ENV_PREFIX,
        env_nested_delimiter="__",
        extra="forbid",
        frozen=True,
        use_attribute_docstrings=True,
        allow_inf_nan=False,
    )

    data: Path = Path(".otel_rl")
    """Directory of the journal. One bridge at a time; it survives restarts."""

    http: HttpSettings = HttpSettings()
    """OTLP over HTTP."""

    grpc: GrpcSettings = GrpcSettings()
    """OTLP over gRPC."""

    journal: JournalSettings = JournalSettings()
    """Durability and its bounds."""

    tls: TlsSettings = TlsSettings()
    """Encryption of both."""

    auth: AuthSettings = AuthSettings()
    """Who may write what."""

    receive: ReceiveLimits = ReceiveLimits()
    """What a request may hold."""

    align: AlignSettings = AlignSettings()
    """How samples become rows."""

    tracker: TrackerSettings = TrackerSettings()
    """Where rows go."""

    diagnose: DiagnoseSettings = DiagnoseSettings()
    """When runs are told what is wrong with them."""

    telemetry: TelemetrySettings = TelemetrySettings()
    """What the bridge says of itself."""

    stop_timeout_s: float = Field(300.0, gt=0)
    """How long a stopping bridge waits for the tracker to take what is left. Rows that it does not
    take stay in the journal and are written by the next start."""

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],  # noqa: ARG003  # pydantic's signature
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,  # noqa: ARG003
        file_secret_settings: PydanticBaseSettingsSource,  # noqa: ARG003
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """The environment over the file, which ``load_settings`` passes as arguments."""
        return env_settings, init_settings


def load_settings(
    file: Path | None = None,
    overrides: Mapping[str, object] | None = None,
    *,
    defaults: Mapping[str, object] | None = None,
) -> BridgeSettings:
    """Read the settings.

    Args:
        file: A TOML file, or None for none.
        overrides: From the command line, nested like the file; they win over everything.
        defaults: Of the command that asks, where they are not those of a bridge.

    Raises:
        ConfigError: Names the place, what is wrong, and the value.
    """
    _check_variables(os.environ)
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
    try:
        # The constructor reads the environment, `model_validate` does not: the command line wins.
        settings = BridgeSettings(**_merged(defaults or {}, content))  # type: ignore[arg-type]  # pydantic checks it
        merged = _merged(settings.model_dump(exclude_unset=True), overrides or {})
        return BridgeSettings.model_validate(merged)
    except ValidationError as exc:
        raise ConfigError(_explained(exc)) from exc
    except SettingsError as exc:
        raise ConfigError(
            f"{exc}.", hint=f"Set what is in it: {ENV_PREFIX}SECTION__NAME. See docs/bridge.md."
        ) from exc


def _check_variables(environment: Mapping[str, str]) -> None:
    """pydantic-settings ignores a variable whose first part is no setting; a person would not."""
    for variable in environment:
        if variable.startswith(ENV_PREFIX):
            section = variable.removeprefix(ENV_PREFIX).partition("__")[0].lower()
            if section not in BridgeSettings.model_fields:
                raise ConfigError(
                    f"{variable}: there is no such setting.", hint="See docs/bridge.md."
                )


def _merged(base: Mapping[str, object], over: Mapping[str, object]) -> dict[str, object]:
    merged = dict(base)
    for key, value in over.items():
        below = merged.get(key)
        if isinstance(below, Mapping) and isinstance(value, Mapping):
            merged[key] = _merged(below, value)
        else:
            merged[key] = value
    return merged


def _explained(exc: ValidationError) -> str:
    lines = []
    for error in exc.errors(include_url=False):
        path = ".".join(str(part) for part in error["loc"]) or "settings"
        variable = ENV_PREFIX + "__".join(str(part).upper() for part in error["loc"])
        if error["type"] == "extra_forbidden":
            lines.append(f"{path}: there is no such setting. See docs/bridge.md.")
        else:
            got = "" if _may_be_secret(error["loc"], error["input"]) else _got(error["input"])
            lines.append(f"{path}: {error['msg']}{got}. Set it in the file or by {variable}.")
    return "\n".join(lines)


def _may_be_secret(location: tuple[int | str, ...], value: object) -> bool:
    """Whether a value is better not shown: tables, too, hold whatever was put into them."""
    return (
        isinstance(value, Mapping | list | tuple)
        # What stands where a token's digest should may be the token; a URL has a password.
        or location[:1] in {("auth",), ("tls",)}
        or location in _MAY_HOLD_A_URL
        or location[:2] == ("tracker", "options")
        or any(is_secret_name(str(part)) for part in location)
    )


def _got(value: object) -> str:
    text = redacted(repr(value))
    return f" (got {text if len(text) <= _MAX_SHOWN else text[:_MAX_SHOWN] + '...'})"
