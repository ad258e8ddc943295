"""Environments that hold the wheel, one extra of it and nothing else, made without an index.

The wheel is unpacked; what its metadata requires is linked, file by file, from the environment of
the tests. A library that no requirement names cannot be imported, as after ``pip install``.
"""

import compileall
import importlib.metadata
import subprocess
import sys
import sysconfig
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.util import cache_from_source
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[2]


@dataclass(frozen=True)
class Installation:
    """An environment with the wheel in it.

    Attributes:
        python: Its interpreter.
        distributions: Canonical names of what is installed beside the wheel.
        direct: Those of them that the extra itself requires.
    """

    python: Path
    distributions: frozenset[str]
    direct: frozenset[str]


def build_wheel(directory: Path) -> importlib.metadata.Distribution:
    """Build the wheel of this checkout, as ``pip wheel --no-deps .`` does, and unpack it."""
    subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", directory],
        cwd=ROOT,
        check=True,
        capture_output=True,
    )
    (wheel,) = directory.glob("*.whl")
    unpacked = directory / "unpacked"
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(unpacked)
    compileall.compile_dir(unpacked, quiet=1)
    (information,) = unpacked.glob("*.dist-info")
    return importlib.metadata.Distribution.at(information)


def install(wheel: importlib.metadata.Distribution, extra: str, directory: Path) -> Installation:
    """Make an environment with ``otel-rl[extra]``, or ``otel-rl`` alone."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", directory], check=True)
    paths = sysconfig.get_paths("venv", vars={"base": str(directory), "platbase": str(directory)})
    distributions = frozenset(required(wheel, extra))
    for each in (wheel, *map(importlib.metadata.distribution, distributions)):
        _link(each, Path(paths["purelib"]))
    direct = {canonicalize_name(one.name) for one in _requirements(wheel, extra)} & distributions
    return Installation(directory / "bin" / "python", distributions, frozenset(direct))


def required(distribution: importlib.metadata.Distribution, extra: str) -> set[str]:
    """Canonical names of all that a distribution with an extra needs, itself left out.

    A requirement of the distribution on an extra of its own is followed.
    """
    own = canonicalize_name(distribution.name)
    found: set[tuple[str, str]] = set()
    waiting = [(own, extra)]
    while waiting:
        name, wanted = waiting.pop()
        if (name, wanted) in found:
            continue
        found.add((name, wanted))
        source = distribution if name == own else importlib.metadata.distribution(name)
        for requirement in _requirements(source, wanted):
            needed = canonicalize_name(requirement.name)
            waiting += [(needed, each) for each in ("", *requirement.extras)]
    return {name for name, _ in found} - {own}


def _requirements(
    distribution: importlib.metadata.Distribution, extra: str
) -> Iterator[Requirement]:
    for text in distribution.requires or ():
        requirement = Requirement(text)
        if requirement.marker is None or requirement.marker.evaluate({"extra": extra}):
            yield requirement


def _link(distribution: importlib.metadata.Distribution, site: Path) -> None:
    """Link the files of a distribution, with what is already compiled of them."""
    for file in distribution.files or ():
        if file.is_absolute() or ".." in file.parts:
            continue  # a command; it would start the interpreter that the tests run with
        source = Path(str(file.locate()))
        compiled = [Path(cache_from_source(str(source)))] if file.suffix == ".py" else []
        for each in (source, *compiled):
            target = site / each.relative_to(Path(str(distribution.locate_file(""))))
            if each.is_file() and not target.exists():
                target.parent.mkdir(parents=True, exist_ok=True)
                target.symlink_to(each)
