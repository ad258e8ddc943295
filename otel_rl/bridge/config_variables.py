"""Values of settings from environment variables. Its library takes 0.1 s to import."""

from typing import Any, cast

from pydantic import BaseModel
from pydantic_settings import BaseSettings, EnvSettingsSource, SettingsError

from otel_rl.errors import ConfigError

__all__ = ["values_of_variables"]


def values_of_variables(settings: type[BaseModel], *, prefix: str) -> dict[str, Any]:
    """Read the variables with a prefix; ``__`` stands between the parts of a setting's place.

    Raises:
        ConfigError: One has to hold JSON and does not.
    """
    # The source asks for fields and configuration only, which any model has.
    of = cast(type[BaseSettings], settings)
    try:
        return EnvSettingsSource(of, env_prefix=prefix, env_nested_delimiter="__")()
    except SettingsError as exc:
        raise ConfigError(
            f"{exc}.", hint=f"Set what is in it: {prefix}SECTION__NAME. See docs/bridge.md."
        ) from exc
