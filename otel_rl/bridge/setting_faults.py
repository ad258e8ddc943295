"""Mistakes in settings in words, each with a remedy that works as it is printed."""

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Final

from pydantic import BaseModel, ValidationError

from otel_rl.bridge.setting_variables import as_json, unknown_setting, variable_of
from otel_rl.redaction import is_secret_name, redacted
from otel_rl.setting_types import fields_of

if TYPE_CHECKING:
    from pydantic.fields import FieldInfo
    from pydantic_core import ErrorDetails

_MAX_SHOWN: Final = 200

_MAY_HOLD_A_URL: Final = {("journal",), ("journal", "url"), ("notify",), ("notify", "url")}

_WHOLE, _NUMBER, _TEXT = "must be a whole number", "must be a number", "must be text"
_LIST, _TABLE = "must be a list", "must be a table"

# By the validator's name of the error.
_WORDS: Final[Mapping[str, str]] = {
    "missing": "is missing",
    "bool_parsing": "must be true or false",
    "bool_type": "must be true or false",
    "dict_type": _TABLE,
    "enum": "must be {expected}",
    "finite_number": "must be a finite number",
    "float_parsing": _NUMBER,
    "float_type": _NUMBER,
    "greater_than": "must be more than {gt}",
    "greater_than_equal": "must be at least {ge}",
    "int_from_float": _WHOLE,
    "int_parsing": _WHOLE,
    "int_parsing_size": "must be a smaller number",
    "int_type": _WHOLE,
    "less_than_equal": "must be at most {le}",
    "mapping_type": _TABLE,
    "model_attributes_type": _TABLE,
    "model_type": _TABLE,
    "path_type": "must be a path",
    "string_too_short": "must not be empty",
    "string_type": _TEXT,
    "too_short": "must name at least {min_length}",
    "tuple_type": _LIST,
    "value_error": "{error}",
}


def faults_in_words(
    model: type[BaseModel], exc: ValidationError, *, is_of_command_line: bool
) -> str:
    """Return a line for each mistake: its place, the fault, the value, and what to do."""
    return "\n".join(_lines(model, exc, is_of_command_line=is_of_command_line))


def _lines(
    model: type[BaseModel], exc: ValidationError, *, is_of_command_line: bool
) -> Iterator[str]:
    for error in exc.errors(include_url=False):
        path = _as_written(model, error["loc"])
        if error["type"] == "extra_forbidden":
            yield unknown_setting(model, path)
            continue
        # A new kind of error has the validator's own words.
        words = _WORDS.get(error["type"], error["msg"]).format_map(error.get("ctx", {}))
        got = "" if _may_be_secret(error["loc"], error["input"]) else _got(error["input"])
        way = (
            "Correct it on the command line."
            if is_of_command_line
            else _way_out(model, path, error, words)
        )
        yield f"{'.'.join(path)}: {words}{got}. {way}"


def _as_written(model: type[BaseModel], location: tuple[int | str, ...]) -> Sequence[str]:
    """Return the place of a mistake by the names of settings instead of fields."""
    path: list[str] = []
    section: type[BaseModel] | None = model
    for one in location:
        field = None if section is None else section.model_fields.get(str(one))
        path.append(str(one) if field is None else field.alias or str(one))
        below = None if field is None else field.annotation
        section = below if isinstance(below, type) and issubclass(below, BaseModel) else None
    return path


def _way_out(
    model: type[BaseModel], place: Sequence[str], error: "ErrorDetails", words: str
) -> str:
    """Return how to correct a setting. A variable wins over the file and wider variables."""
    path: list[str] = []
    field: FieldInfo | None = None
    section: type[BaseModel] | None = model
    for name in place:
        if section is None:  # within a list or table, which a variable sets as a whole
            break
        field = fields_of(section)[name]
        path.append(name)
        below = field.annotation
        section = below if isinstance(below, type) and issubclass(below, BaseModel) else None
    fields = [] if field is None else [(path, field)]
    if section is not None:
        names = _named_in(words, section) or [*fields_of(section)]
        if error["type"] != "value_error":
            names = names[:1]
        fields = [([*path, name], fields_of(section)[name]) for name in names]
    dotted = _listed([".".join(one) for one, _ in fields])
    variables = [as_json(one, of) if of.examples else variable_of(one) for one, of in fields]
    return f"Set {dotted} in the file or by {_listed(variables)}."


def _listed(words: Sequence[str]) -> str:
    return f"{', '.join(words[:-1])} and {words[-1]}" if len(words) > 1 else words[0]


def _named_in(words: str, section: type[BaseModel]) -> Sequence[str]:
    return [name for name in dict.fromkeys(re.findall(r"\w+", words)) if name in fields_of(section)]


def _may_be_secret(location: tuple[int | str, ...], value: object) -> bool:
    """Return whether a value may be secret: tables may hold secrets, too."""
    return (
        isinstance(value, Mapping | list | tuple)
        # A digest's place may hold the token itself; a URL has a password.
        or location[:1] in {("team",), ("tls",)}
        or location in _MAY_HOLD_A_URL
        or location[:2] == ("tracker", "options")
        or any(is_secret_name(str(part)) for part in location)
    )


def _got(value: object) -> str:
    text = redacted(repr(value))
    return f" (got {text if len(text) <= _MAX_SHOWN else text[:_MAX_SHOWN] + '...'})"
