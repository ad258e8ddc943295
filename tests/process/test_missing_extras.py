"""Commands without the libraries of their extras: help is there, a start names the packages."""

import json
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from otel_rl.cli.main import COMMANDS
from tests.process.commands import clean_environment

pytestmark = pytest.mark.process

PACKAGES = {
    "mcp": "mcp",
    "demo": "numpy",
}

# Runs each command line of its argument in a process that has the libraries of `bridge` only.
PROGRAM = """
import contextlib, io, json, sys
for name in ("mcp", "pyarrow", "numpy", "wandb", "psycopg"):
    sys.modules[name] = None
from otel_rl.cli.main import main
told = []
for arguments in json.loads(sys.argv[1]):
    text = io.StringIO()
    with contextlib.redirect_stdout(text), contextlib.redirect_stderr(text):
        try:
            status = main(arguments)
        except SystemExit as exc:
            status = exc.code
    told.append([status, text.getvalue()])
print(json.dumps(told))
"""


def run(directory: Path, lines: list[list[str]]) -> list[list[object]]:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, json.dumps(lines)],
        env=clean_environment(directory),
        cwd=directory,
        capture_output=True,
        check=True,
        timeout=300,
    )
    found: list[list[object]] = json.loads(done.stdout)
    return found


@pytest.mark.slow
def test_help_needs_no_extra(tmp_path: Path) -> None:
    for name, (status, text) in zip(
        COMMANDS, run(tmp_path, [[name, "--help"] for name in COMMANDS]), strict=True
    ):
        assert (status, f"usage: otel-rl {name}" in str(text)) == (0, True), text


def test_a_command_names_the_package_that_it_lacks(tmp_path: Path) -> None:
    told = run(tmp_path, [[name] for name in PACKAGES])
    for package, (status, text) in zip(PACKAGES.values(), told, strict=True):
        command = str(text).partition("Install it: pip install ")[2]
        names = [re.split("[<>=]", word)[0] for word in shlex.split(command)]
        assert (status, package in names) == (2, True), text
