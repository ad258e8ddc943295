"""Variables that hold settings of a bridge: their names, and mistakes in them."""

import json
import re
from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from typing import Any, Final, get_origin

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from otel_rl.errors import ConfigError
from otel_rl.setting_names import setting_paths, unknown_setting

__all__ = ["ENV_PREFIX", "as_json", "check_variables", "variable_of"]

ENV_PREFIX: Final = "OTEL_RL_BRIDGE__"

_ONE_UNDERSCORE: Final = "OTEL_RL_BRIDGE_"

# Kubernetes adds these to each container for a Service whose name begins with otel-rl-bridge.
_SERVICE: Final = re.compile(
    r"\w+_(SERVICE_HOST|SERVICE_PORT(_\w+)?|PORT_\d+_(TCP|UDP|SCTP)(_\w+)?)"
)
_SERVICE_ADDRESS: Final = re.compile(r"(tcp|udp|sctp)://")

_ALIKE: Final = 0.75  # a gateway's OTEL_RL_BRIDGE_TOKEN and AUTH__TOKENS: 0.63


def variable_of(path: Sequence[str]) -> str:
    """Return the variable of a setting."""
    return ENV_PREFIX + "__".join(path).upper()


def as_json(path: Sequence[str], field: FieldInfo) -> str:
    """Return how a list or table is set by its variable."""
    return f"{variable_of(path)}='{json.dumps((field.examples or [field.default])[0])}'"


def check_variables(model: type[BaseModel], environment: Mapping[str, str]) -> None:
    """Check the names of all variables, and that lists and tables are JSON.

    Args:
        model: All settings.
        environment: Variables of the process.

    Raises:
        ConfigError: A variable is no setting, or sets a part of one.
    """
    for variable, value in environment.items():
        name = variable.upper()
        if name.startswith(ENV_PREFIX):
            _check(model, variable, name.removeprefix(ENV_PREFIX).lower().split("__"), value)
        elif name.startswith(_ONE_UNDERSCORE) and (meant := _meant(model, name, value)):
            raise ConfigError(
                f"{variable}: has no effect.", hint=f"Did you mean {meant}? Unset {variable}."
            )


def _check(model: type[BaseModel], variable: str, path: Sequence[str], value: str) -> None:
    section: type[BaseModel] | None = model
    field: FieldInfo | None = None
    for depth, name in enumerate(path):
        if section is None:
            if field is not None and _holds(field, Mapping):
                return  # a name of the table
            if field is not None and _holds(field, tuple):
                raise ConfigError(
                    f"{variable}: a part of a list cannot be set by a variable.",
                    hint=f"Unset it and set the whole list: {as_json(path[:depth], field)}",
                )
        field = section.model_fields.get(name) if section is not None else None
        if field is None:
            raise ConfigError(unknown_setting(model, path, variable=(variable, variable_of)))
        section = _section(field)
    if field is None or not (section is not None or _holds(field, Mapping) or _holds(field, tuple)):
        return
    kind = list if _holds(field, tuple) else dict
    try:
        is_sound = isinstance(json.loads(value), kind)
    except ValueError:
        is_sound = False
    if is_sound:
        return
    what = "array" if kind is list else "object"
    first = next(iter(section.model_fields)) if section is not None else ""
    raise ConfigError(
        f"{variable}: is not a JSON {what}.",
        hint=f"Unset it and set the names of this section, such as {variable_of([*path, first])}."
        if first
        else f"Write it as JSON: {as_json(path, field)}",
    )


def _meant(model: type[BaseModel], name: str, value: str) -> str:
    """Return the variable for which ``name``, with one underscore, was meant; empty if none."""
    if _SERVICE.fullmatch(name) or _SERVICE_ADDRESS.match(value):
        return ""
    known = {path.replace(".", "_"): path for path in setting_paths(model)}
    written = name.removeprefix(_ONE_UNDERSCORE).lower().replace("__", "_")
    near = get_close_matches(written, known, 1, _ALIKE)
    return variable_of(known[near[0]].split(".")) if near else ""


def _section(field: FieldInfo) -> type[BaseModel] | None:
    of = field.annotation
    return of if isinstance(of, type) and issubclass(of, BaseModel) else None


def _holds(field: FieldInfo, kind: type[Any]) -> bool:
    origin = get_origin(field.annotation)
    return isinstance(origin, type) and issubclass(origin, kind)
