"""The table of mutants: single changes of the source that some fast test has to notice.

It stands in TOML beside this module, a file for each part of the source:

    file = "otel_rl/bridge/rows/reduce.py"           # of the mutants that name no other
    tests = ["tests/unit/bridge/rows/test_reduce.py"]

    [name_of_the_mutant]
    old = 'if value != value:'                  # exactly once in the file
    new = 'if False:'
    breaks = "NaN is lost"
    survives = "why no test can tell"           # of those that change nothing one could see

``old`` and ``new`` may be lists of one length: several changes of one mutant.
"""

import hashlib
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

__all__ = ["ROOT", "Mutant", "load", "mutated"]

ROOT = Path(__file__).parents[2]

_DIRECTORY = Path(__file__).parent


@dataclass(frozen=True, slots=True)
class Mutant:
    """A change of one file.

    Attributes:
        name: No other mutant has it; begins with its part of the table.
        file: Relative to the root of the repository.
        changes: (old, new) texts.
        breaks: Consequence, for a person.
        tests: Arguments of pytest: those that are fast and should fail.
        survives: Argument why no test fails; empty if one should.
    """

    name: str
    file: str
    changes: tuple[tuple[str, str], ...]
    breaks: str
    tests: tuple[str, ...]
    survives: str = ""

    @property
    def digest(self) -> str:
        """Tells this definition from an earlier one of the same name."""
        return hashlib.sha256(repr((self.file, self.changes, self.tests)).encode()).hexdigest()[:16]


@cache
def load() -> Mapping[str, Mutant]:
    """All mutants by name."""
    found: dict[str, Mutant] = {}
    for path in sorted(_DIRECTORY.glob("*.toml")):
        part = tomllib.loads(path.read_text())
        file, tests = part.pop("file"), part.pop("tests")
        for name, entry in part.items():
            mutant = _mutant(f"{path.stem}.{name}", {"file": file, "tests": tests, **entry})
            found[mutant.name] = mutant
    return found


def mutated(source: str, mutant: Mutant) -> str:
    """The source with the mutant's changes.

    Raises:
        ValueError: An old text does not occur exactly once, or the result is no Python.
    """
    for old, new in mutant.changes:
        if (n := source.count(old)) != 1:
            raise ValueError(f"{mutant.name}: {old!r} occurs {n} times in {mutant.file}")
        source = source.replace(old, new)
    try:
        # No tree: some 3.11 interpreters fail if two threads build one (python/cpython#106905).
        compile(source, mutant.file, "exec", dont_inherit=True)
    except SyntaxError as exc:
        raise ValueError(f"{mutant.name}: {exc}") from exc
    return source


def _mutant(name: str, entry: Mapping[str, object]) -> Mutant:
    unknown = entry.keys() - {"file", "tests", "old", "new", "breaks", "survives"}
    if unknown:
        raise ValueError(f"{name}: unknown keys {sorted(unknown)}")
    old, new = _texts(entry["old"]), _texts(entry["new"])
    return Mutant(
        name,
        str(entry["file"]),
        tuple(zip(old, new, strict=True)),
        str(entry["breaks"]),
        _texts(entry["tests"]),
        str(entry.get("survives", "")),
    )


def _texts(value: object) -> tuple[str, ...]:
    return tuple(map(str, value)) if isinstance(value, list) else (str(value),)
