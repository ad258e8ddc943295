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

# Most characters of a text and most parts of a list, tried one after the other.
_CUTS: Final = ((2_000, 2_000), (500, 100), (200, 30), (100, 10))


def fitted(answer: Mapping[str, Any]) -> str:
    """Return an answer as JSON of at most ``MAX_CHARS``, without secrets; NaN is null.

    What is too long is cut, and the answer then has ``"cut": true``.

    Raises:
        ConfigError: It cannot be cut enough.
    """
    for place, (chars, parts) in enumerate(_CUTS):
        clean = _clean(answer, chars, parts)
        text = json.dumps(clean if place == 0 else {"cut": True, **clean}, separators=(",", ":"))
        if len(text) <= MAX_CHARS:
            return text
    raise ConfigError("The answer is too long.", hint="Ask for fewer steps, keys or points.")


def _clean(value: Any, chars: int, parts: int) -> Any:  # JSON of any shape
    if isinstance(value, str):
        text = shown(value[: 4 * chars])
        return text if len(text) <= chars else f"{text[:chars]}…"
    if isinstance(value, float):
        return float(f"{value:.{_DIGITS}g}") if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {str(key)[:chars]: _clean(one, chars, parts) for key, one in value.items()}
    if isinstance(value, Sequence):
        return [_clean(one, chars, parts) for one in value[:parts]]
    return value
