"""What to try against a cause, what that changes, and how to check it: ``prescriptions.toml``."""

import tomllib
from collections.abc import Iterable, Iterator, Sequence
from functools import cache
from importlib.resources import files
from typing import Final

from msgspec import Struct, convert, field

_MOST: Final = 3
"""Settings of frameworks that are told of one cause, beside what holds for any framework."""

_RAY: Final = "ray"
_ON_RAY: Final = frozenset({"areal", "nemo-rl", "openrlhf", "skyrl", "slime", "trl", "verl"})
"""Frameworks in whose environments Ray is without RLlib, whose settings are those of ``ray``."""


class Prescription(Struct, frozen=True, forbid_unknown_fields=True):
    """One thing to try.

    Attributes:
        causes: Kinds of causes and of observations, by value.
        framework: Name of the framework's package; empty for any framework.
        setting: Setting as the framework's users write it; empty for any framework.
        action: What to do.
        then: What the action changes.
        check: What shows that the action helped.
    """

    causes: frozenset[str]
    then: str
    check: str
    action: str = field(name="try")
    framework: str = ""
    setting: str = ""

    def __str__(self) -> str:
        named = f"{self.framework}, `{self.setting}`: " if self.framework else ""
        return f"{named}{self.action}. Then {self.then}. Check: {self.check}."


@cache
def prescriptions() -> Sequence[Prescription]:
    text = files("otel_rl.diagnose").joinpath("prescriptions.toml").read_text(encoding="utf-8")
    return convert(tomllib.loads(text)["prescription"], list[Prescription])


def prescribed(kind: str, packages: Iterable[str]) -> Iterator[str]:
    """Yield what to try against a cause or observation, in words: settings first.

    Prescriptions for any framework come last.

    Args:
        kind: Kind of the cause or observation, by value.
        packages: Packages of the run, as ``name==version``.
    """
    there = {package.partition("==")[0].lower().replace("_", "-") for package in packages}
    if not there.isdisjoint(_ON_RAY):
        there.discard(_RAY)
    found = [one for one in prescriptions() if kind in one.causes]
    yield from map(str, [one for one in found if one.framework in there][:_MOST])
    yield from (str(one) for one in found if not one.framework)
