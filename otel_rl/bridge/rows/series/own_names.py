"""Names that frameworks give their metrics, as their adapters report them. Pure."""

import math
from typing import Final, NamedTuple

from otel_rl.records import Series
from otel_rl.semconv import names

__all__ = ["OwnName", "own_name_of", "without_own_name"]

_ADAPTERS: Final = "otel_rl.integrations."
"""Begins the instrumentation scopes of the adapters."""

_KEYS: Final = frozenset({names.OTEL_RL_FRAMEWORK_METRIC, names.OTEL_RL_FRAMEWORK_SCALE})

_Attributes = tuple[tuple[str, str], ...]


class OwnName(NamedTuple):
    """A metric in its framework.

    Attributes:
        name: Empty without one.
        scale: Factor from the framework's value to the reported one.
    """

    name: str = ""
    scale: float = 1.0


def own_name_of(series: Series) -> OwnName:
    """Return the framework's name of a series: given by its adapter, or the unchanged one."""
    said = dict(series.attributes) if series.attributes else {}
    name = said.get(names.OTEL_RL_FRAMEWORK_METRIC, "")
    if name:
        return OwnName(name, _scale(said.get(names.OTEL_RL_FRAMEWORK_SCALE, "1")))
    if series.scope.startswith(_ADAPTERS) and series.name not in names.METRICS:
        return OwnName(series.name)
    return OwnName()


def without_own_name(attributes: _Attributes) -> _Attributes:
    """Return the attributes that are part of a key."""
    if not attributes or not any(key in _KEYS for key, _ in attributes):
        return attributes
    return tuple(pair for pair in attributes if pair[0] not in _KEYS)


def _scale(text: str) -> float:
    try:
        scale = float(text)
    except ValueError:
        return 1.0
    return scale if scale and math.isfinite(scale) else 1.0
