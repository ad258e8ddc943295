"""Processes, spans and attributes of other programs, by sections of the tables of ``aliases.py``.

The section ``processes`` tells the identity of a program's processes:

    marked_by   attribute of the resource that only this program sets
    experiment  of processes that name none
    trial       attributes, the first one present counts; so for the next three
    role        e.g. its group of workers, or its service
    index       number in the group
    count       size of the group
    roles       role of each value of those attributes; another value is the role itself

The section ``spans``:

    steps       regular expressions of the names of spans that are one training step
    step        attributes with the number of the step
    phases      the first one whose pattern matches the whole name of a span counts
        match   regular expression
        phase   of the registry, or with a class one of its own
        class   of a phase that is not in the registry
    classes     attribute, and the class of phase of each of its values; for spans without a phase
    kinds       attribute, and the phase of each of its values

The section ``folds``, of attributes that make too many keys of one metric:

    prefixes    of the names of its metrics
    kept        attributes that are part of a key
    classes     those whose numbers are kept as their class: 204 is 2xx

All others, such as a peer and its port, only distinguish series. Or, instead of the two:

    apart       attributes that only distinguish series; all others are part of a key
"""

import re
from collections.abc import Mapping, Sequence
from functools import cache, lru_cache
from typing import Any, Final, NamedTuple

from otel_rl.semconv.aliases import sections
from otel_rl.semconv.names import (
    RL_EXPERIMENT_NAME,
    RL_TRIAL_NAME,
    RL_WORKER_COUNT,
    RL_WORKER_INDEX,
    RL_WORKER_ROLE,
)

APART: Final = "otel_rl.apart."
"""Begins the name of an attribute that only tells series apart, see ``identities.py``."""

Attributes = tuple[tuple[str, str], ...]

_FIELDS: Final = {
    "trial": RL_TRIAL_NAME,
    "role": RL_WORKER_ROLE,
    "index": RL_WORKER_INDEX,
    "count": RL_WORKER_COUNT,
}

_MAX_KNOWN: Final = 10_000
"""Bounds the caches against names that contain an id."""

_STATUS_DIGITS: Final = 3


def own_identity(attributes: Mapping[str, str]) -> Mapping[str, str]:
    """Return registry attributes that a resource lacks, derived from its program's own.

    Empty for a resource of no known program.

    Args:
        attributes: Of the resource, as text.
    """
    for program in _sections("processes"):
        if attributes.get(program["marked_by"]):
            return {
                name: value
                for name, value in _identity(program, attributes)
                if value and not attributes.get(name)
            }
    return {}


def _identity(
    program: Mapping[str, Any], attributes: Mapping[str, str]
) -> Sequence[tuple[str, str]]:
    found = [(RL_EXPERIMENT_NAME, program["experiment"])]
    for field_name, name in _FIELDS.items():
        candidates: Sequence[str] = program.get(field_name, ())
        value = next((attributes[key] for key in candidates if attributes.get(key)), "")
        roles = program.get("roles", {}) if field_name == "role" else {}
        found.append((name, roles.get(value, value)))
    return found


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


_NO_MEANING: Final = SpanMeaning()


@lru_cache(maxsize=_MAX_KNOWN)
def meaning_of(name: str) -> SpanMeaning:
    """Return the meaning of a span of this name in any of the programs."""
    for pattern, meaning in _patterns():
        if pattern.fullmatch(name):
            return meaning
    return _NO_MEANING


def kind_of(key: str, value: str) -> tuple[str, str]:
    """Return the phase and the class that an attribute gives a span; empty texts for none."""
    return _kinds().get((key, value), ("", ""))


@cache
def step_keys() -> frozenset[str]:
    """Return the attributes that hold the step of a span in some program."""
    return frozenset(key for spans in _sections("spans") for key in spans.get("step", ()))


@cache
def _patterns() -> Sequence[tuple[re.Pattern[str], SpanMeaning]]:
    known = _sections("spans")
    steps = [
        (re.compile(match), SpanMeaning(is_step=True))
        for spans in known
        for match in spans.get("steps", ())
    ]
    phases = [
        (re.compile(rule["match"]), SpanMeaning(rule["phase"], phase_class=rule.get("class", "")))
        for spans in known
        for rule in spans.get("phases", ())
    ]
    return [*steps, *phases]


@cache
def _kinds() -> Mapping[tuple[str, str], tuple[str, str]]:
    found: dict[tuple[str, str], tuple[str, str]] = {}
    for spans in _sections("spans"):
        for key, classes in spans.get("classes", {}).items():
            found |= {(key, value): ("", one) for value, one in classes.items()}
        for key, phases in spans.get("kinds", {}).items():
            found |= {(key, value): (one, "") for value, one in phases.items()}
    return found


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


class _Fold(NamedTuple):
    kept: frozenset[str]
    classes: frozenset[str]
    apart: frozenset[str]

    def keeps(self, key: str) -> bool:
        return key not in self.apart if self.apart else key in self.kept or key in self.classes


@lru_cache(maxsize=_MAX_KNOWN)
def _fold_of(name: str) -> _Fold | None:
    return next((found for prefix, found in _by_prefix() if name.startswith(prefix)), None)


@cache
def _by_prefix() -> Sequence[tuple[str, _Fold]]:
    return [
        (prefix, _Fold(*(frozenset(section.get(field, ())) for field in _Fold._fields)))
        for section in _sections("folds")
        for prefix in section["prefixes"]
    ]


@cache
def _sections(name: str) -> Sequence[Mapping[str, Any]]:
    return [*sections(name)]
