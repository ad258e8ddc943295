"""Spans of other programs, by the tables of ``aliases.py``.

The section ``spans`` of a table:

    steps       regular expressions of the names of spans that are one training step
    step        attributes with the number of the step
    phases      the first one whose pattern matches the whole name of a span counts
        match   regular expression
        phase   of the registry, or with a class one of its own
        class   of a phase that is not in the registry
    classes     attribute, and the class of phase of each of its values; for spans without a phase
    kinds       attribute, and the phase of each of its values
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, lru_cache
from typing import Final, NamedTuple

from otel_rl.semconv.aliases import sections

__all__ = ["SpanMeaning", "kind_of", "meaning_of", "step_keys"]

_MAX_KNOWN: Final = 10_000
"""Bounds the cache against names that contain an id."""


class SpanMeaning(NamedTuple):
    """Meaning of a span's name.

    Attributes:
        phase: Empty for none.
        is_step: Whether it is one training step.
        phase_class: Empty for that of the phase in the registry.
    """

    phase: str = ""
    is_step: bool = False
    phase_class: str = ""


class _Kind(NamedTuple):
    """Meaning of an attribute's value.

    Attributes:
        phase: Empty for none.
        phase_class: Empty for that of the phase.
    """

    phase: str = ""
    phase_class: str = ""


@dataclass(frozen=True, slots=True)
class _Spans:
    """Section of a TOML file about spans, as the module describes it."""

    steps: Sequence[str] = ()
    step: Sequence[str] = ()
    phases: Sequence[Mapping[str, str]] = ()
    classes: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    kinds: Mapping[str, Mapping[str, str]] = field(default_factory=dict)


_NONE: Final = SpanMeaning()


@lru_cache(maxsize=_MAX_KNOWN)
def meaning_of(name: str) -> SpanMeaning:
    """Return the meaning of a span of this name in any of the programs."""
    for pattern, meaning in _patterns():
        if pattern.fullmatch(name):
            return meaning
    return _NONE


def kind_of(key: str, value: str) -> tuple[str, str]:
    """Return the phase and the class that an attribute gives a span; empty texts for none."""
    values = _kinds().get(key)
    return ("", "") if values is None else values.get(value, _Kind())


@cache
def step_keys() -> frozenset[str]:
    """Return the attributes that hold the step of a span in some program."""
    return frozenset(key for spans in _known() for key in spans.step)


@cache
def _known() -> Sequence[_Spans]:
    return [_Spans(**section) for section in sections("spans")]


@cache
def _patterns() -> Sequence[tuple[re.Pattern[str], SpanMeaning]]:
    steps = [(re.compile(m), SpanMeaning(is_step=True)) for s in _known() for m in s.steps]
    phases = [
        (re.compile(rule["match"]), SpanMeaning(rule["phase"], phase_class=rule.get("class", "")))
        for spans in _known()
        for rule in spans.phases
    ]
    return [*steps, *phases]


@cache
def _kinds() -> Mapping[str, Mapping[str, _Kind]]:
    found: dict[str, dict[str, _Kind]] = {}
    for spans in _known():
        for key, classes in spans.classes.items():
            found[key] = {value: _Kind(phase_class=one) for value, one in classes.items()}
        for key, phases in spans.kinds.items():
            found[key] = {value: _Kind(phase=one) for value, one in phases.items()}
    return found
