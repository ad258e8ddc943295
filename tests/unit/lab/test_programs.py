"""`make lab` says what is missing, builds once, and tests say when it was not run."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.lab.programs import COLLECTOR, JAEGER, CannotBuild, build, lab_directory
from tests.slow import slow_after

pytestmark = pytest.mark.process


ROOT = Path(__file__).parents[3]


@pytest.fixture(autouse=True)
def empty_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def fake_go(directory: Path, monkeypatch: pytest.MonkeyPatch, script: str) -> None:
    """The only program on the PATH."""
    bin_ = directory / "bin"
    bin_.mkdir()
    if script:
        program(bin_ / "go", script)
    monkeypatch.setenv("PATH", str(bin_))


def program(path: Path, script: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)


def test_without_go_it_says_which_is_needed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake_go(tmp_path, monkeypatch, "")
    with pytest.raises(CannotBuild, match=r"Go 1\.\d+ or newer is needed .* no `go` on the PATH"):
        build(COLLECTOR)


def test_an_old_go_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake_go(tmp_path, monkeypatch, "echo go1.19.4; echo auto")
    with pytest.raises(CannotBuild, match=r"this is go1\.19\.4\. Install a newer one\.$"):
        build(COLLECTOR)


def test_a_go_that_could_fetch_a_newer_one_is_told_how(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake_go(tmp_path, monkeypatch, "echo go1.22.1; echo local")
    with pytest.raises(CannotBuild, match="GOTOOLCHAIN=auto make lab"):
        build(COLLECTOR)


def test_what_go_says_when_it_fails_is_shown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script = 'if [ "$1" = env ]; then echo go1.99.0; echo local; else echo no route >&2; exit 1; fi'
    fake_go(tmp_path, monkeypatch, script)
    with pytest.raises(CannotBuild, match="no route"):
        build(JAEGER)


def test_what_is_there_is_not_built_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program(JAEGER.path, f"echo v{JAEGER.version}")
    monkeypatch.setenv("PATH", "")
    assert build(JAEGER) is False


@pytest.mark.parametrize("script", ["echo v0.0.1", "exit 1"])
def test_what_is_of_another_version_or_broken_is_not_taken_for_built(script: str) -> None:
    program(JAEGER.path, script)
    assert not JAEGER.is_built()


def test_programs_are_kept_apart_where_xdg_says(tmp_path: Path) -> None:
    assert COLLECTOR.path.parent.parent == lab_directory() == tmp_path / "cache" / "otel_rl" / "lab"
    assert COLLECTOR.path.parent != JAEGER.path.parent
    assert COLLECTOR.version in COLLECTOR.path.parent.name


@pytest.mark.parametrize(
    ("required", "status", "word"),
    slow_after(1, [("", 0, "skipped"), ("required", 1, "OTEL_RL_LAB=required")]),
    ids=["skipped", "required"],
)
def test_tests_that_need_the_lab_say_how_to_get_it(required: str, status: int, word: str) -> None:
    done = subprocess.run(
        [
            sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-q",
            "tests/lab/test_configurations.py", "-k", "forgotten",
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
