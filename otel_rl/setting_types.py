"""Types of settings that people write: sizes and times with a unit, and the sections of them."""

import re
from collections.abc import Mapping
from typing import Annotated, Final

from pydantic import BaseModel, BeforeValidator, ConfigDict
from pydantic.fields import FieldInfo

__all__ = ["Seconds", "Section", "Size", "fields_of"]

_SIZE: Final = re.compile(r"(\d+(?:\.\d+)?) ?([kmgt]?)(i?)b", re.IGNORECASE)

_TIME: Final = re.compile(r"(\d+(?:\.\d+)?) ?(ms|s|min|m|h|d)", re.IGNORECASE)

_UNITS: Final = {"ms": 0.001, "s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0, "d": 86_400.0}


def _bytes_of(given: object) -> object:
    """Return the bytes of a text with a unit; anything else is checked as a whole number."""
    if not isinstance(given, str) or given.strip().isdecimal():
        return given
    found = _SIZE.fullmatch(given.strip())
    if found is None:
        raise ValueError(
            'must be a size: bytes, or a number with a unit such as "500MB" or "10GiB"'
        )
    number, scale, is_binary = found.groups()
    step = 1024 if is_binary else 1000
    return int(float(number) * step ** " kmgt".index(scale.lower() or " "))


def _seconds_of(given: object) -> object:
    """Return the seconds of a text with a unit; anything else is checked as a number."""
    if not isinstance(given, str) or _is_number(given):
        return given
    found = _TIME.fullmatch(given.strip())
    if found is None:
        raise ValueError(
            'must be a time: seconds, or a number with a unit such as "500ms", "5s" or "30d"'
        )
    number, unit = found.groups()
    return float(number) * _UNITS[unit.lower()]


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


Size = Annotated[int, BeforeValidator(_bytes_of)]
"""Bytes; may be written as ``"10GiB"`` or ``"500MB"``."""

Seconds = Annotated[float, BeforeValidator(_seconds_of)]
"""Seconds; may be written as ``"5s"``, ``"500ms"`` or ``"30d"``."""


def _as_written(name: str) -> str:
    return name.removesuffix("_s")


class Section(BaseModel):
    """Settings that belong together.

    A time is written with its unit, so its name in files and variables has none: the field
    ``wait_s`` is the setting ``wait``.
    """

    model_config = ConfigDict(
        extra="forbid",
        frozen=True,
        allow_inf_nan=False,
        alias_generator=_as_written,
        populate_by_name=True,
    )


def fields_of(section: type[BaseModel]) -> Mapping[str, FieldInfo]:
    """Return the fields of a section by the names under which people set them."""
    return {field.alias or name: field for name, field in section.model_fields.items()}
