"""Reads deploy/alerts.yaml."""

import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import yaml

from otel_rl.bridge.counters import Counter, Delay, Gauge

ALERTS: Final = Path(__file__).parents[2] / "deploy" / "alerts.yaml"
CASES: Final = Path(__file__).with_name("alerts_test.yaml")

_OF_SEVERAL: Final = re.compile(r'__name__=~"(\w+)\(([\w|]+)\)(\w*)"')
_UNITS: Final = {"By": "_bytes"}


def _rules() -> Sequence[Mapping[str, Any]]:
    groups = yaml.safe_load(ALERTS.read_text(encoding="utf-8"))["groups"]
    return [rule for group in groups for rule in group["rules"]]


def alerts() -> Mapping[str, Mapping[str, Any]]:
    """Every alert, by its name."""
    return {rule["alert"]: rule for rule in _rules() if "alert" in rule}


def metrics_in(expression: str) -> Iterator[str]:
    """Yield the names of metrics in an expression of Prometheus, as often as they are there."""
    for before, words, after in _OF_SEVERAL.findall(expression):
        yield from (f"{before}{word}{after}" for word in words.split("|"))
    bare = re.sub(r'"[^"]*"|\bby \([^)]*\)', " ", expression)
    words = re.findall(r"[a-zA-Z_:][\w:]*", re.sub(r"\{[^}]*\}|\[\w+\]|\boffset \w+", " ", bare))
    functions = set(re.findall(r"([a-z_]+)\s*\(", bare)) | {"sum", "by", "or", "unless"}
    yield from (word for word in words if word not in functions)


def recorded() -> frozenset[str]:
    """Every metric that the rules record."""
    return frozenset(rule["record"] for rule in _rules() if "record" in rule)


def named() -> frozenset[str]:
    """Every metric that the rules ask for, but those that they record themselves."""
    return frozenset(name for rule in _rules() for name in metrics_in(rule["expr"])) - recorded()


def metrics_of_collectors() -> frozenset[str]:
    """Those of them that are a collector's own."""
    return frozenset(name for name in named() if name.startswith("otelcol_"))


def metrics_of_bridges() -> frozenset[str]:
    """All that a bridge has, as Prometheus calls them when it gets them by OTLP.

    Dots become underscores, a unit of bytes or seconds is spelled out, one in braces is left out,
    and a counter ends in ``_total``.
    """
    counters = {f"{counter.replace('.', '_')}_total" for counter in Counter}
    gauges = {f"{gauge.replace('.', '_')}{_UNITS.get(gauge.unit, '')}" for gauge in Gauge}
    return frozenset(counters | gauges | {f"{delay.replace('.', '_')}_seconds" for delay in Delay})
