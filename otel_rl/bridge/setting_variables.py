"""Settings as people write them in files and variables: their names, and mistakes in them."""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from difflib import get_close_matches
from typing import Any, Final, get_origin

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from otel_rl.errors import ConfigError
from otel_rl.setting_types import fields_of

ENV_PREFIX: Final = "OTEL_RL_BRIDGE__"

_ONE_UNDERSCORE: Final = "OTEL_RL_BRIDGE_"

# Kubernetes adds these to each container for a Service whose name begins with otel-rl-bridge.
_SERVICE: Final = re.compile(
    r"\w+_(SERVICE_HOST|SERVICE_PORT(_\w+)?|PORT_\d+_(TCP|UDP|SCTP)(_\w+)?)"
)
_SERVICE_ADDRESS: Final = re.compile(r"(tcp|udp|sctp)://")

_ALIKE: Final = 0.7  # a gateway's OTEL_RL_BRIDGE_TOKEN and TEAM: 0.44


def variable_of(path: Sequence[str]) -> str:
    return ENV_PREFIX + "__".join(path).upper()


def as_json(path: Sequence[str], field: FieldInfo) -> str:
    """Return how to set a list or table by its variable."""
    return f"{variable_of(path)}='{json.dumps((field.examples or [field.default])[0])}'"


def given_by_variables(
    model: type[BaseModel], environment: Mapping[str, str]
) -> Mapping[str, object]:
    """Return the values of variables, nested by the names of fields.

    Raises:
        ConfigError: A variable names no setting, sets a part of one, or is a list or table without
            valid JSON.
    """
    found: dict[str, tuple[Sequence[str], object]] = {}
    for variable, value in environment.items():
        name = variable.upper()
        if name.startswith(ENV_PREFIX):
            path = name.removeprefix(ENV_PREFIX).lower().split("__")
            found[name] = path, _value(model, variable, path, value)
        elif name.startswith(_ONE_UNDERSCORE) and (meant := _meant(model, name, value)):
            raise ConfigError(
                f"{variable}: has no effect.", hint=f"Did you mean {meant}? Unset {variable}."
            )
    given: dict[str, Any] = {}
    for place, content in sorted(found.values(), key=lambda one: len(one[0])):  # a part wins
        section = given
        for part in place[:-1]:
            section = section.setdefault(part, {})
            if not isinstance(section, dict):
                raise ConfigError(
                    f"{variable_of(place)}: sets a part of what another variable sets as a whole.",
                    hint=f"Unset one of the two; the other begins with {ENV_PREFIX}"
                    f"{'__'.join(place[:1]).upper()}.",
                )
        section[place[-1]] = content
    return by_field(model, given)


def by_field(model: type[BaseModel], given: Mapping[str, object]) -> dict[str, object]:
    """Return settings by the names of fields; names of no setting are left as they are.

    Raises:
        ConfigError: A setting is given by the name of its field, which is not the setting's name.
    """
    return _by_field(model, model, given, ())


def _by_field(
    model: type[BaseModel],
    section: type[BaseModel],
    given: Mapping[str, object],
    path: tuple[str, ...],
) -> dict[str, object]:
    known = {field.alias or name: (name, field) for name, field in section.model_fields.items()}
    found: dict[str, object] = {}
    for name, value in given.items():
        if name not in known:
            if name in section.model_fields:
                raise ConfigError(unknown_setting(model, [*path, name]))
            found[name] = value
            continue
        field_name, field = known[name]
        below = _section(field)
        if below is not None and isinstance(value, Mapping):
            value = _by_field(model, below, value, (*path, name))
        found[field_name] = value
    return found


def _value(model: type[BaseModel], variable: str, path: Sequence[str], value: str) -> object:
    """Return the value of a variable: text, or what its JSON holds."""
    section: type[BaseModel] | None = model
    field: FieldInfo | None = None
    for depth, name in enumerate(path):
        if section is None:
            if field is not None and _holds(field, Mapping):
                if all(path[depth:]) and len(path) - depth < 3:
                    return value  # its name, with that of a tracker before it or without
                raise ConfigError(
                    f"{variable}: names no value of a table.",
                    hint=f"Unset it and set the whole table: {as_json(path[:depth], field)}",
                )
            if field is not None and _holds(field, tuple):
                raise ConfigError(
                    f"{variable}: a part of a list cannot be set by a variable.",
                    hint=f"Unset it and set the whole list: {as_json(path[:depth], field)}",
                )
        field = fields_of(section).get(name) if section is not None else None
        if field is None:
            raise ConfigError(unknown_setting(model, path, variable=variable))
        section = _section(field)
    if field is None or not (section is not None or _holds(field, Mapping) or _holds(field, tuple)):
        return value
    kind = list if _holds(field, tuple) else dict
    decoded: object = None
    with suppress(ValueError):
        decoded = json.loads(value)
    if isinstance(decoded, kind):
        return decoded
    what = "array" if kind is list else "object"
    first = next(iter(fields_of(section))) if section is not None else ""
    raise ConfigError(
        f"{variable}: is not a JSON {what}.",
        hint=f"Unset it and set the names of this section, such as {variable_of([*path, first])}."
        if first
        else f"Write it as JSON: {as_json(path, field)}",
    )


def _meant(model: type[BaseModel], name: str, value: str) -> str:
    """Return the variable that ``name``, with one underscore, was meant to be; empty if none."""
    if _SERVICE.fullmatch(name) or _SERVICE_ADDRESS.match(value):
        return ""
    known = {path.replace(".", "_"): path for path in _paths(model)}
    written = name.removeprefix(_ONE_UNDERSCORE).lower().replace("__", "_")
    near = get_close_matches(written, known, 1, _ALIKE)
    return variable_of(known[near[0]].split(".")) if near else ""


def unknown_setting(model: type[BaseModel], path: Sequence[str], *, variable: str = "") -> str:
    """Return a message about a setting that does not exist, with what may have been meant.

    Args:
        path: Sections and name of the setting.
        variable: The setting's variable, as it was written; empty for a setting of a file.
    """
    dotted = ".".join(path)
    known = list(_paths(model))
    section, dot, name = dotted.rpartition(".")
    # A section that both names have makes them no more alike.
    beside = [one.rpartition(".")[2] for one in known if one.rpartition(".")[0] == section]
    near = [f"{section}{dot}{one}" for one in get_close_matches(name, beside, 1, _ALIKE)]
    near = near or [one for one in known if one.rpartition(".")[2] == name]
    near = near or get_close_matches(dotted, known, 1, _ALIKE)
    near = near or [one for one in known if one.rpartition(".")[2] == path[0] != one]
    written, meant = dotted, near[0] if near else ""
    if variable:
        written, meant = variable, variable_of(meant.split(".")) if meant else ""
    perhaps = f"Did you mean {meant}? " if meant else ""
    return f"{written}: unknown setting. {perhaps}See `otel-rl help bridge`."


def _paths(model: type[BaseModel], section: str = "") -> Iterator[str]:
    for name, field in fields_of(model).items():
        yield f"{section}{name}"
        below = _section(field)
        if below is not None:
            yield from _paths(below, f"{section}{name}.")


def _section(field: FieldInfo) -> type[BaseModel] | None:
    of = field.annotation
    return of if isinstance(of, type) and issubclass(of, BaseModel) else None


def _holds(field: FieldInfo, kind: type[Any]) -> bool:
    origin = get_origin(field.annotation)
    return isinstance(origin, type) and issubclass(origin, kind)
