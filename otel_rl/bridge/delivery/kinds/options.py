"""Options of a tracker: a frozen dataclass, read from the texts of the settings."""

import dataclasses
import typing
from collections.abc import Mapping
from typing import Any, TypeVar

from otel_rl.errors import ConfigError
from otel_rl.redaction import is_secret_name

__all__ = ["parse_options"]

_OptionsT = TypeVar("_OptionsT")


def parse_options(
    kind: str, options: type[_OptionsT], attributes: Mapping[str, str], *, secret_hint: str = ""
) -> _OptionsT:
    """Return the options of a run.

    Args:
        kind: Name of the tracker, for errors.
        options: A dataclass; its fields are texts, numbers of seconds (``float``) or switches.
        attributes: Of the run.
        secret_hint: Where a secret belongs that was given as an option.

    Raises:
        ConfigError: An unknown name or a value of the wrong type.
    """
    fields: tuple[dataclasses.Field[Any], ...] = dataclasses.fields(options)  # type: ignore[arg-type]  # a dataclass
    known = [field.name for field in fields]
    types = typing.get_type_hints(options)
    for name in attributes:
        if name not in known:
            hint = f"Known settings: {', '.join(known)}." if known else "There are none."
            if is_secret_name(name) and secret_hint:
                hint = secret_hint
            # Without the value: it may be a secret.
            raise ConfigError(f"{kind}.{name}: unknown setting.", hint=hint)
    return options(
        **{name: _parsed(f"{kind}.{name}", types[name], text) for name, text in attributes.items()}
    )


def _parsed(name: str, wanted: object, text: str) -> object:
    if wanted is bool:
        if text.lower() not in ("true", "false"):
            raise ConfigError(f'{name}: must be true or false (got "{text}").')
        return text.lower() == "true"
    if wanted is float:
        try:
            number = float(text)
        except ValueError:
            number = -1.0
        if not 0 <= number < float("inf"):
            raise ConfigError(f'{name}: must be a number of seconds (got "{text}").')
        return number
    return text
