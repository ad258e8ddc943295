"""The lock files: each holds what it is for, and all of them the same versions."""

import importlib.metadata
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tests.support.installations import ROOT, required

_ENTRY = re.compile(r"^([\w.-]+)==(\S+)((?:.*\\\n +--hash=\S+)+)", re.MULTILINE)
_BUILD = {"hatchling", "editables"}


def locked(name: str) -> dict[tuple[str, str], str]:
    """Hashes of each package and version of a lock file."""
    text = (ROOT / name).read_text(encoding="utf-8")
    return {
        (package, version): " ".join(sorted(re.findall(r"sha256:\w+", rest)))
        for package, version, rest in _ENTRY.findall(text)
    }


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> importlib.metadata.Distribution:
    """The metadata of this checkout, which need not be that of the installed package."""
    directory = tmp_path_factory.mktemp("metadata") / "otel_rl-0.dist-info"
    directory.mkdir()
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    lines = ["Metadata-Version: 2.4", "Name: otel-rl", "Version: 0"]
    lines += [f"Requires-Dist: {each}" for each in project["dependencies"]]
    for extra, requirements in project["optional-dependencies"].items():
        lines += [f"Requires-Dist: {each}; extra == '{extra}'" for each in requirements]
    (directory / "METADATA").write_text("\n".join(lines), encoding="utf-8")
    return importlib.metadata.Distribution.at(directory)


@pytest.mark.parametrize("lock", ["requirements-demo.lock", "requirements-image.lock"])
def test_each_lock_is_part_of_the_whole(lock: str) -> None:
    assert locked(lock).items() <= locked("requirements.lock").items()


@pytest.mark.parametrize(
    ("lock", "extra"), [("requirements-demo.lock", "demo"), ("requirements-image.lock", "all")]
)
def test_a_lock_has_what_its_extra_needs_and_no_more(
    lock: str, extra: str, wheel: importlib.metadata.Distribution
) -> None:
    needed = required(wheel, extra)
    for name in _BUILD:
        needed |= {name, *required(importlib.metadata.distribution(name), "")}
    elsewhere = {"colorama", "httpx2-jsfetch", "pywin32", "tzdata"}  # on Windows and in browsers
    assert {canonicalize_name(name) for name, _ in locked(lock)} - elsewhere == needed


def test_every_requirement_is_in_the_whole_lock() -> None:
    text = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    named = {
        canonicalize_name(Requirement(each).name)
        for each in text["dependency-groups"]["dev"]
        if isinstance(each, str)
    }
    assert named <= {canonicalize_name(name) for name, _ in locked("requirements.lock")}


@pytest.mark.process
def test_make_demo_installs_the_small_lock_and_make_test_the_whole_one(tmp_path: Path) -> None:
    for target, packages in (("demo", "demo"), ("test", "dev"), ("lint", "dev")):
        printed = subprocess.run(
            ["make", "--dry-run", f"VENV={tmp_path}", f"PYTHON={sys.executable}", target],
            cwd=ROOT,
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        assert re.findall(r"tools/install\.py (\w+)", printed) == [packages]
