"""The names of frameworks as names of the registry: reads ``rename.toml``, once it is asked for."""

import re
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from importlib.resources import files
from typing import Final

from otel_rl.semconv.names import METRICS, RL_STATISTIC

__all__ = ["Meaning", "Rule", "Rules", "rules_of"]

_ALIASES: Final = {"avg": "mean", "median": "p50"}

_REDUCED_ALIKE: Final = frozenset({"min", "max", "sum"})
"""The extreme of extremes is the extreme; of other statistics the mean over workers is taken."""

_MAX_KNOWN: Final = 10_000
"""Bounds the cache against names that carry an id or a step."""


@dataclass(frozen=True, slots=True)
class Meaning:
    """What a framework's metric is.

    Attributes:
        name: In the registry, or as it was.
        unit: UCUM, empty if unknown.
        scale: Factor to that unit.
        attributes: Of the measurement.
        reduce: How workers' values become one, or None for what the registry says.
        is_renamed: Whether a rule matched.
    """

    name: str
    unit: str = ""
    scale: float = 1.0
    attributes: Mapping[str, str] = field(default_factory=dict)
    reduce: str | None = None
    is_renamed: bool = False


@dataclass(frozen=True, slots=True)
class Rule:
    """See ``rename.toml``."""

    match: str
    name: str
    attributes: Mapping[str, str] = field(default_factory=dict)
    statistic: str = ""
    scale: float = 1.0


class Rules:
    """The rules of one framework, in order. Any thread may ask.

    Args:
        rules: The first that matches a whole name counts.
    """

    def __init__(self, rules: Sequence[Rule]) -> None:
        self._rules = [(re.compile(rule.match), rule) for rule in rules]
        self._known: dict[str, Meaning] = {}

    def __call__(self, name: str) -> Meaning:
        """What ``name`` is; itself if no rule says."""
        known = self._known.get(name)
        if known is None:
            known = self._found(name)
            if len(self._known) < _MAX_KNOWN:
                self._known[name] = known
        return known

    def _found(self, name: str) -> Meaning:
        for pattern, rule in self._rules:
            matched = pattern.fullmatch(name)
            if matched is not None:
                return _meaning(rule, matched.groupdict(default=""))
        return Meaning(name)


@cache
def rules_of(framework: str) -> Rules:
    """The rules for ``framework``.

    Raises:
        KeyError: There are none.
    """
    text = files(__package__).joinpath("rename.toml").read_text(encoding="utf-8")
    return Rules([Rule(**rule) for rule in tomllib.loads(text)[framework]["rules"]])


def _meaning(rule: Rule, groups: Mapping[str, str]) -> Meaning:
    name = rule.name.format(**groups)
    attributes = {key: value.format(**groups) for key, value in rule.attributes.items()}
    statistic = rule.statistic.format(**groups)
    reduce = None
    if statistic:
        statistic = attributes[RL_STATISTIC] = _ALIASES.get(statistic, statistic)
        reduce = statistic if statistic in _REDUCED_ALIKE else "mean"
    return Meaning(name, METRICS[name].unit, rule.scale, attributes, reduce, is_renamed=True)
