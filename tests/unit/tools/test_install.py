"""``tools/install.py``: which program installs what. Stand-ins write down their arguments."""

import os
import re
import stat
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.process

ROOT = Path(__file__).parents[3]

_STAND_IN = """#!/bin/sh
echo "{name} $*" >> "{log}"
case "$*" in *"pip install"*--requirement*|*"pip "*install*--requirement*)
  echo "Collecting annotated-doc==0.0.7"
  echo "Installing collected packages: annotated-doc"
  exit {status};;
esac
"""


class Machine:
    """A virtual environment and a path on which uv and python are stand-ins."""

    def __init__(self, directory: Path) -> None:
        self.venv = directory / "venv"
        self.path = directory / "path"
        self._log = directory / "log"
        for each in (self.venv / "bin", self.path):
            each.mkdir(parents=True)
        (self.venv / "bin" / "pip").touch()
        self.program(self.venv / "bin" / "python")

    def program(self, file: Path, *, status: int = 0) -> None:
        file.write_text(_STAND_IN.format(name=file.name, log=self._log, status=status))
        file.chmod(file.stat().st_mode | stat.S_IXUSR)

    def install(self, packages: str) -> "subprocess.CompletedProcess[str]":
        return subprocess.run(
            [sys.executable, ROOT / "tools" / "install.py", packages, "--venv", self.venv],
            env={"PATH": f"{self.path}{os.pathsep}/bin{os.pathsep}/usr/bin"},
            capture_output=True,
            text=True,
            check=False,
        )

    def calls(self) -> list[str]:
        return self._log.read_text().splitlines()


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


@pytest.mark.parametrize(
    ("packages", "lock"), [("demo", "requirements-demo.lock"), ("dev", "requirements.lock")]
)
def test_uv_installs_the_lock_with_its_hashes(packages: str, lock: str, machine: Machine) -> None:
    machine.program(machine.path / "uv")
    done = machine.install(packages)
    assert done.returncode == 0, done.stderr
    locked, own, compiled = machine.calls()
    assert locked.startswith("uv pip install --python")
    assert locked.endswith(f"--require-hashes --requirement {ROOT / lock}")
    assert "--no-deps --no-build-isolation --editable" in own
    assert compiled.startswith("python -c import wandb")


def test_every_part_of_the_work_is_shown(machine: Machine) -> None:
    machine.program(machine.path / "uv")
    first, *_, bytecode, last = machine.install("demo").stdout.splitlines()
    assert re.match(r"Installing \d+ packages for `make demo`", first)
    assert (bytecode, last) == ("  bytecode", f"Installed into {machine.venv}.")


def test_pip_does_all_of_it_where_uv_fails_and_counts_packages(machine: Machine) -> None:
    machine.program(machine.path / "uv", status=1)
    done = machine.install("demo")
    assert done.returncode == 0, done.stderr
    assert "uv failed; pip tries the same." in done.stdout
    assert re.search(r"^  1/\d+ annotated-doc==0\.0\.7$", done.stdout, re.MULTILINE)
    _uv, locked, own, _compiled = machine.calls()
    assert locked.startswith("python -m pip")
    assert locked.endswith(f"--require-hashes --requirement {ROOT / 'requirements-demo.lock'}")
    assert own.startswith("python -m pip")


def test_the_exit_status_is_that_of_what_failed(machine: Machine) -> None:
    machine.program(machine.path / "uv", status=1)
    machine.program(machine.venv / "bin" / "python", status=3)
    done = machine.install("demo")
    assert done.returncode == 3
    assert "Failed: " in done.stdout
