"""What to try against a cause: settings of the framework that runs, from ``prescriptions.toml``."""

import tomllib
from collections.abc import Iterable, Iterator, Sequence
from functools import cache
from importlib.resources import files
from typing import Final

from msgspec import Struct, convert, field

from otel_rl.diagnose.result import Kind

__all__ = ["Prescription", "prescribed", "prescriptions"]

_MOST: Final = 3


class Prescription(Struct, frozen=True, forbid_unknown_fields=True):
    """Setting to try.

    Attributes:
        causes: Kinds of causes.
        framework: Name of its package.
        setting: As its users write it.
        action: What to do with the setting.
        then: What changes, and which key shows it.
    """

    causes: frozenset[Kind]
    framework: str
    setting: str
    then: str
    action: str = field(name="try")

    def __str__(self) -> str:
        return f"{self.framework}, `{self.setting}`: {self.action}. Then {self.then}."


@cache
def prescriptions() -> Sequence[Prescription]:
    """Return all prescriptions, in the order in which they are told."""
    text = files("otel_rl.diagnose").joinpath("prescriptions.toml").read_text(encoding="utf-8")
    return convert(tomllib.loads(text)["prescription"], list[Prescription])


def prescribed(kind: Kind, packages: Iterable[str]) -> Iterator[str]:
    """Yield what to try against a cause, in words.

    Args:
        kind: Of the cause.
        packages: Those of the run, as ``name==version``.
    """
    there = {package.partition("==")[0].lower().replace("_", "-") for package in packages}
    found = [one for one in prescriptions() if kind in one.causes and one.framework in there]
    yield from map(str, found[:_MOST])
