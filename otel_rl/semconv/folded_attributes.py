"""Attributes that make too many keys of one metric, by the tables of ``aliases.py``.

The section ``folds`` of a table:

    prefixes  of the names of its metrics
    kept      attributes that are part of a key
    classes   those whose numbers are kept as their class: 204 is 2xx

All others, such as a peer and its port, only distinguish series. Or, instead of the two:

    apart     attributes that only distinguish series; all others are part of a key
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache, lru_cache
from typing import Any, Final

from otel_rl.semconv.aliases import sections

__all__ = ["APART", "fold"]

APART: Final = "otel_rl.apart."
"""Begins the name of an attribute that only tells series apart, see ``identities.py``."""

Attributes = tuple[tuple[str, str], ...]

_MAX_KNOWN: Final = 10_000
"""Bounds the cache of names."""

_STATUS_DIGITS: Final = 3


@dataclass(frozen=True, slots=True)
class _Fold:
    """Section of a TOML file that folds attributes, as the module describes it."""

    kept: frozenset[str]
    classes: frozenset[str]
    apart: frozenset[str]

    def keeps(self, key: str) -> bool:
        """Return whether an attribute is part of a key."""
        return key not in self.apart if self.apart else key in self.kept or key in self.classes


def fold(name: str, attributes: Attributes) -> tuple[Attributes, Attributes]:
    """Return the attributes that are part of a key, and those that only distinguish series.

    Args:
        name: Of the metric.
        attributes: Sorted.
    """
    apart = tuple(pair for pair in attributes if pair[0].startswith(APART))
    if apart:
        attributes = tuple(pair for pair in attributes if pair not in apart)
    found = _fold_of(name) if attributes else None
    if found is None:
        return attributes, apart
    kept = [
        (key, _class(value) if key in found.classes else value)
        for key, value in attributes
        if found.keeps(key)
    ]
    return tuple(kept), (*(pair for pair in attributes if pair not in kept), *apart)


def _class(status: str) -> str:
    return f"{status[0]}xx" if len(status) == _STATUS_DIGITS and status.isdigit() else status


@lru_cache(maxsize=_MAX_KNOWN)
def _fold_of(name: str) -> _Fold | None:
    return next((found for prefix, found in _by_prefix() if name.startswith(prefix)), None)


@cache
def _by_prefix() -> Sequence[tuple[str, _Fold]]:
    return [
        (prefix, _read(section)) for section in sections("folds") for prefix in section["prefixes"]
    ]


def _read(section: Mapping[str, Any]) -> _Fold:
    return _Fold(*(frozenset(section.get(field, ())) for field in ("kept", "classes", "apart")))
