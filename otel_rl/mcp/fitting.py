"""Makes an answer fit into the context of a model: clean texts, short numbers, bounded size."""

import json
import math
from collections.abc import Mapping, Sequence
from typing import Any, Final

from otel_rl.errors import ConfigError
from otel_rl.redaction import shown

__all__ = ["MAX_CHARS", "fitted"]

MAX_CHARS: Final = 40_000
"""Of one answer as JSON: about ten thousand tokens."""

_DIGITS: Final = 6

_MOST_EXACT: Final = 1 << 53
"""Whole numbers beyond it are not exact, and have more digits than they tell."""

_MOST_LISTS: Final = 5

# Most characters of a text and most parts of a list, tried one after the other.
_CUTS: Final = ((2_000, 2_000), (500, 100), (200, 30), (100, 10))


def fitted(answer: Mapping[str, Any]) -> str:
    """Return an answer as JSON of at most ``MAX_CHARS``, without secrets; NaN is null.

    What is too long is cut, and the answer then has ``cut``: what was left out, and the way to it.

    Raises:
        ConfigError: It cannot be cut enough.
    """
    for place, (chars, parts) in enumerate(_CUTS):
        clean = _clean(answer, chars, parts)
        if place:
            clean = {"cut": _left_out(answer, chars, parts), **clean}
        text = json.dumps(clean, separators=(",", ":"))
        if len(text) <= MAX_CHARS:
            return text
    raise ConfigError("The answer is too long.", hint="Ask for fewer steps, keys or points.")


def _left_out(answer: Mapping[str, Any], chars: int, parts: int) -> str:
    lists = [
        f"{name} has {len(of)}"
        for name, of in answer.items()
        if isinstance(of, Sequence) and not isinstance(of, str) and len(of) > parts
    ]
    return "; ".join(
        [
            f"of each list the first {parts}, of each text {chars} characters",
            *lists[:_MOST_LISTS],
            "ask for fewer: a limit and an offset, a range of steps, a worker or a name",
        ]
    )


def _clean(value: Any, chars: int, parts: int) -> Any:  # JSON of any shape
    if isinstance(value, str):
        text = shown(value[: 4 * chars])
        return text if len(text) <= chars else f"{text[:chars]}…"
    if isinstance(value, float):
        return _number(value)
    if isinstance(value, Mapping):
        return {str(key)[:chars]: _clean(one, chars, parts) for key, one in value.items()}
    if isinstance(value, Sequence):
        return [_clean(one, chars, parts) for one in value[:parts]]
    return value


def _number(value: float) -> float | int | None:
    """Return a number in few digits; of a large one, such as a time, the whole part stays."""
    if not math.isfinite(value):
        return None
    is_large = 10**_DIGITS <= abs(value) < _MOST_EXACT
    if not is_large:
        value = float(f"{value:.{_DIGITS}g}")
    return round(value) if is_large or (value.is_integer() and abs(value) < _MOST_EXACT) else value
