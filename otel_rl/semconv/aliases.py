"""Maps metric names of other programs to the registry, by tables that are read on first use.

A table ``dialects/<program>.toml`` holds what one program calls its metrics:

    prefixes        of the names in OTLP or a Collector's scrape; none if an adapter passes them on
    lower_case      true: names are matched in lower case
    rules           the first one whose pattern matches the whole name, without a prefix, counts
        match       regular expression; its named groups stand in the other fields as {group}
        name        metric, one of the registry, or a name of its own without unit
        attributes  of the measurement
        statistic   the value is one already, over samples or tokens within one process
        scale       factor to the metric's unit; negative where the sign is the opposite
    labels          attribute of each label: name, and value with {} for the label's value
    dropped_labels  repeat another label
    series_labels   only tell series apart, such as the engines of a process: no part of a key
    processes       see ``foreign.py``
    spans           see ``foreign.py``
    folds           see ``foreign.py``

A name without a rule stays, and so do its labels but those of series. A rule exists only if the
program means the same as the registry: a timer that holds other timers is no phase, a running total
is no counter's increment, and a KL of other things is another KL. The registry defines how values
of several workers are reduced, so that ratios are never summed.
"""

import re
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache, lru_cache
from importlib.resources import files
from typing import Any, Final

from otel_rl.semconv.names import METRICS, RL_STATISTIC

_STATISTICS: Final = {"avg": "mean", "median": "p50"}

_REDUCED_ALIKE: Final = frozenset({"min", "max", "sum"})
"""The extreme of extremes is the extreme; other statistics are averaged over the workers."""

_MAX_KNOWN: Final = 10_000
"""Bounds the caches against names that contain an id or a step."""

_SECTIONS: Final = frozenset({"folds", "processes", "spans"})

_TABLES: Final = files(__package__).joinpath("dialects")


@dataclass(frozen=True, slots=True)
class Label:
    """Attribute that a label becomes, ``{}`` in ``value`` standing for the label's value."""

    name: str
    value: str = "{}"


@dataclass(frozen=True, slots=True)
class Rule:
    """Rule of a table, see the module."""

    match: str
    name: str
    attributes: Mapping[str, str] = field(default_factory=dict)
    statistic: str = ""
    scale: float = 1.0


@dataclass(frozen=True, slots=True)
class Alias:
    """Metric of another program in terms of the registry.

    Attributes:
        name: In the registry, or a name of its own.
        unit: UCUM, empty if unknown.
        scale: Factor to that unit.
        attributes: Of the measurement.
        reduce: Reduction over the workers, or None for the registry's.
    """

    name: str
    unit: str = ""
    scale: float = 1.0
    attributes: Mapping[str, str] = field(default_factory=dict)
    reduce: str | None = None


class Dialect:
    """Table of one program, see the module. The first rule that matches counts. Thread-safe."""

    def __init__(
        self,
        rules: Iterable[Rule],
        prefixes: Iterable[str] = (),
        labels: Mapping[str, Label] | None = None,
        dropped_labels: Iterable[str] = (),
        series_labels: Iterable[str] = (),
        *,
        lower_case: bool = False,
    ) -> None:
        self.prefixes = tuple(prefixes)
        self.labels = labels or {}
        self.dropped_labels = frozenset(dropped_labels)
        self.series_labels = frozenset(series_labels)
        self.rules = tuple(rules)
        self._patterns = [(re.compile(rule.match), rule) for rule in self.rules]
        self._lower_case = lower_case
        self._known = lru_cache(maxsize=_MAX_KNOWN)(self._found)

    def alias(self, name: str) -> Alias | None:
        """Return the meaning of ``name``, without its prefix; None without a rule."""
        return self._known(name)

    def _found(self, name: str) -> Alias | None:
        matched_name = name.lower() if self._lower_case else name
        for pattern, rule in self._patterns:
            matched = pattern.fullmatch(matched_name)
            if matched is not None:
                return _alias(rule, matched.groupdict(default=""))
        return None


@cache
def dialect(program: str) -> Dialect:
    """Return the table of ``program``.

    Raises:
        KeyError: There is none.
    """
    table = _table(program)
    rules = [Rule(**rule) for rule in table.get("rules", ())]
    labels = {name: Label(**label) for name, label in table.get("labels", {}).items()}
    own = {key: value for key, value in table.items() if key not in _SECTIONS}
    return Dialect(**{**own, "rules": rules, "labels": labels})


def sections(name: str) -> Iterator[Mapping[str, Any]]:
    """Yield a section of this name, see the module, of each table that has one."""
    for program in programs():
        section = _table(program).get(name)
        if section is not None:
            yield section


def programs() -> list[str]:
    """Return the programs that have a table."""
    return sorted(file.name.removesuffix(".toml") for file in _TABLES.iterdir())


@cache
def _table(program: str) -> Mapping[str, Any]:
    file = _TABLES.joinpath(f"{program}.toml")
    if not file.is_file():
        raise KeyError(program)
    return tomllib.loads(file.read_text(encoding="utf-8"))


@lru_cache(maxsize=_MAX_KNOWN)
def scraped_alias(name: str) -> tuple[Dialect, Alias | None] | None:
    """Return the table and the meaning of a metric that no adapter translates, if it has them."""
    for prefix, found in _by_prefix():
        if name.startswith(prefix):
            return found, found.alias(name[len(prefix) :])
    return None


@cache
def _by_prefix() -> list[tuple[str, Dialect]]:
    found = map(dialect, programs())
    return [(prefix, each) for each in found for prefix in each.prefixes]


def _alias(rule: Rule, groups: Mapping[str, str]) -> Alias:
    name = rule.name.format(**groups)
    attributes = {key: value.format(**groups) for key, value in rule.attributes.items()}
    statistic = rule.statistic.format(**groups)
    reduce = None
    if statistic:
        statistic = attributes[RL_STATISTIC] = _STATISTICS.get(statistic, statistic)
        reduce = statistic if statistic in _REDUCED_ALIKE else "mean"
    spec = METRICS.get(name)
    return Alias(name, "" if spec is None else spec.unit, rule.scale, attributes, reduce)
