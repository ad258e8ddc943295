"""Types of settings that people write: sizes, times, addresses, and sections of settings."""

import re
from collections.abc import Mapping
from typing import Annotated, Final, NamedTuple

from pydantic import BaseModel, BeforeValidator, ConfigDict, PlainSerializer, PlainValidator
from pydantic.fields import FieldInfo

OFF: Final = "off"
"""Stands for the address of what does not listen."""

_HOST: Final = "127.0.0.1"

_SIZE: Final = re.compile(r"(\d+(?:\.\d+)?) ?([kmgt]?)(i?)b", re.IGNORECASE)

_TIME: Final = re.compile(r"(\d+(?:\.\d+)?) ?(ms|s|min|m|h|d)", re.IGNORECASE)

_UNITS: Final = {"ms": 0.001, "s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0, "d": 86_400.0}


def _bytes_of(given: object) -> object:
    """Return the bytes of a text with a unit; other values are checked as whole numbers."""
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
    """Return the seconds of a text with a unit; other values are checked as numbers."""
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


class Address(NamedTuple):
    """Address at which a server listens.

    Attributes:
        host: Name or address, without brackets.
        port: TCP port; 0 picks a free one.
    """

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def address_of(text: str) -> Address:
    """Read ``HOST:PORT``, ``[HOST]:PORT`` or ``PORT``, which means loopback.

    Raises:
        ValueError: The text is none of these.
    """
    host, _, port = text.rpartition(":")
    if not (port.isascii() and port.isdigit()) or int(port) > 65535:
        raise ValueError("must be HOST:PORT, such as 127.0.0.1:4318; port 0 picks a free port")
    return Address(host.strip("[]") or _HOST, int(port))


def _listen_of(given: object) -> Address | None:
    if given is None or isinstance(given, Address):
        return given
    if given == OFF:
        return None
    try:
        return address_of(str(given) if isinstance(given, str | int) else "")
    except ValueError as exc:
        raise ValueError(f'{exc}; "{OFF}" listens nowhere') from exc


def _listen_as_text(address: Address | None) -> str:
    return OFF if address is None else str(address)


Listen = Annotated[
    Address | None, PlainValidator(_listen_of), PlainSerializer(_listen_as_text, return_type=str)
]
"""Address of a server, written as ``"HOST:PORT"``; None, written as ``"off"``, if it has none."""


def _as_written(name: str) -> str:
    return name.removesuffix("_s")


class Section(BaseModel):
    """Settings that belong together.

    A time is written with its unit, so its setting's name has no unit: the field ``wait_s`` is the
    setting ``wait``.
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
