"""Texts and values that trackers can store: UTF-8 has no lone surrogates, and JSON no NaN."""

import math
from collections.abc import Mapping, Sequence

from otel_rl.records import Value

__all__ = ["storable", "storable_text"]


def storable_text(text: str) -> str:
    r"""Return a text with lone surrogates written out, as ``\udc80``."""
    return text.encode("utf-8", "backslashreplace").decode()


def storable(value: Value, *, keeps_nan: bool = False) -> Value:
    """Return a value whose texts and numbers can be stored as JSON.

    Args:
        value: At any depth.
        keeps_nan: Leave NaN and infinities to the tracker. They become texts otherwise.
    """
    match value:
        case float() if not keeps_nan and not math.isfinite(value):
            return str(value)
        case str():
            return storable_text(value)
        case Mapping():
            return {
                storable_text(str(key)): storable(item, keeps_nan=keeps_nan)
                for key, item in value.items()
            }
        case Sequence():
            return [storable(item, keeps_nan=keeps_nan) for item in value]
    return value
