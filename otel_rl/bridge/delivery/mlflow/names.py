"""Names and texts that MLflow accepts.

MLflow refuses a whole batch with one name that it does not take: a metric, a parameter or a tag may
have letters and digits of any script, ``_ - . : /`` and spaces, at most 250 of them, and may not
read as another path (``a//b``, ``../a``).
"""

import json
import posixpath
import re
import zlib
from collections.abc import Iterator, Mapping
from functools import lru_cache
from typing import Final

from otel_rl.bridge.delivery.storable import storable_text
from otel_rl.records import Value

__all__ = ["MARK", "flat", "mlflow_name", "mlflow_text"]

MARK: Final = "otel_rl/row"
"""Metric whose value and step are the number of the row; the last one written of each row."""

_MAX_NAME: Final = 250
_FORBIDDEN: Final = re.compile(r"[^\w\-.: /]")
_AT: Final = "-at-"
_DIGEST: Final = 9  # an underscore and eight digits


@lru_cache(maxsize=16_384)
def mlflow_name(name: str) -> str:
    """Return a name that MLflow accepts.

    ``pass@1`` is ``pass-at-1``. Any other changed name, and one that reads like such a one, ends
    with a digest of the original, so that two names never become one.
    """
    is_like_at = _AT in name
    name_at = name if is_like_at else name.replace("@", _AT)
    changed = _FORBIDDEN.sub("_", name_at)
    if changed != posixpath.normpath(changed) or changed.startswith(("/", "..")) or changed == ".":
        changed = "/".join(part for part in changed.split("/") if part.strip(".")).lstrip(".")
    if changed == name_at and len(changed) <= _MAX_NAME and not is_like_at:
        return changed
    digest = zlib.crc32(name.encode("utf-8", "surrogatepass"))
    return f"{changed[: _MAX_NAME - _DIGEST]}_{digest:08x}"


def flat(config: Mapping[str, Value], prefix: str = "") -> Iterator[tuple[str, str]]:
    """Yield the leaves of a config as names and texts: ``model/layers``, ``[1, 2]``."""
    for key, value in config.items():
        name = f"{prefix}{key}"
        if isinstance(value, Mapping) and value:
            yield from flat(value, f"{name}/")
        else:
            yield mlflow_name(name), mlflow_text(value)


def mlflow_text(value: Value, limit: int = 6_000) -> str:
    """Return a value as a text that MLflow stores, cut to its limit."""
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    return storable_text(text)[:limit]
