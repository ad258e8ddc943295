"""The environment of real frameworks: named by what it is made of, and complete or not there."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.lab.frameworks.environment import FRAMEWORKS, Frameworks
from tests.lab.programs import CannotBuild, lab_directory
from tests.slow import slow_after

pytestmark = pytest.mark.process


ROOT = Path(__file__).parents[3]


@pytest.fixture(autouse=True)
def empty_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def stand_in(frameworks: Frameworks) -> None:
    """An environment that looks complete."""
    frameworks.python.parent.mkdir(parents=True)
    frameworks.python.symlink_to(sys.executable)
    (frameworks.path / "complete").touch()


def test_another_lock_is_another_environment(tmp_path: Path) -> None:
    lock = tmp_path / "requirements.lock"
    lock.write_text("six==1.17.0")
    other = Frameworks("frameworks", lock, "")
    assert other.path != FRAMEWORKS.path
    assert other.path.parent == lab_directory()


def test_an_interrupted_installation_is_not_complete() -> None:
    stand_in(FRAMEWORKS)
    assert FRAMEWORKS.is_built()
    (FRAMEWORKS.path / "complete").unlink()
    assert not FRAMEWORKS.is_built()


def test_one_whose_python_is_gone_is_not_complete() -> None:
    stand_in(FRAMEWORKS)
    FRAMEWORKS.python.unlink()
    FRAMEWORKS.python.symlink_to("/nowhere/python")
    assert not FRAMEWORKS.is_built()


@pytest.mark.skipif(bool(FRAMEWORKS.refusal()), reason=FRAMEWORKS.refusal())
def test_without_a_registry_it_shows_what_the_installer_wrote(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name in ("PIP_NO_INDEX", "PIP_ISOLATED"):
        monkeypatch.setenv(name, "1")
    monkeypatch.setenv("PIP_FIND_LINKS", "")
    with pytest.raises(CannotBuild, match="No matching distribution found for uv"):
        FRAMEWORKS.build()
    assert not FRAMEWORKS.is_built()


@pytest.mark.skipif(bool(FRAMEWORKS.refusal()), reason=FRAMEWORKS.refusal())
@pytest.mark.parametrize(
    ("required", "status", "word"),
    slow_after(1, [("", 0, "skipped"), ("required", 1, "OTEL_RL_LAB=required")]),
    ids=["skipped", "required"],
)
def test_tests_that_need_them_say_how_to_get_them(required: str, status: int, word: str) -> None:
    done = subprocess.run(
        [
            sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-q",
            "tests/frameworks/test_environment.py", "-k", "checkout",
        ],
        cwd=ROOT,
        env=os.environ | {"OTEL_RL_LAB": required},
        capture_output=True,
        text=True,
        timeout=60,
    )  # fmt: skip
    assert done.returncode == status, done.stdout
    assert word in done.stdout
    assert "make lab" in done.stdout
