"""Sizes in settings: bytes, or a number with a unit."""

import re
from typing import Annotated, Final

from pydantic import BeforeValidator

__all__ = ["Size"]

_SIZE: Final = re.compile(r"(\d+(?:\.\d+)?) ?([kmgt]?)(i?)b", re.IGNORECASE)


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


Size = Annotated[int, BeforeValidator(_bytes_of)]
"""Bytes; may be written as ``"10GiB"`` or ``"500MB"``."""
