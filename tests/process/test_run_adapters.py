"""Under ``otel-rl run`` a script of a framework reports without a line about otel_rl."""

import sys
import textwrap
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.process.commands import clean_environment, jsonl_rows, otel_rl
from tests.support.slow import slow_after

pytestmark = pytest.mark.process

INSTRUMENT = str(Path(sys.executable).with_name("opentelemetry-instrument"))

# verl's tracking, as far as a script sees it; the framework itself is in tests/frameworks.
TRACKING = """
    class Tracking:
        supported_backend = ["console"]

        def __init__(self, project_name, experiment_name, default_backend="console", config=None):
            self.logger = {}

        def log(self, data, step, backend=None):
            for logger in self.logger.values():
                logger.log(data=data, step=step)
"""

SCRIPT = """
    import os, subprocess, sys

    if len(sys.argv) == 1:
        sys.exit(subprocess.run([sys.executable, __file__, "child"]).returncode)

    from verl.utils.tracking import Tracking

    tracking = Tracking("project", "experiment", ["console"])
    for step in range(3):
        tracking.log({"x": step}, step)
    print("trained", os.environ["OTEL_RL_ADAPTERS"])
"""


@pytest.fixture
def script(tmp_path: Path) -> Path:
    (tmp_path / "verl" / "utils").mkdir(parents=True)
    for package in ("verl", "verl/utils"):
        (tmp_path / package / "__init__.py").touch()
    (tmp_path / "verl" / "utils" / "tracking.py").write_text(textwrap.dedent(TRACKING))
    path = tmp_path / "train.py"
    path.write_text(textwrap.dedent(SCRIPT))
    return path


def run(script: Path, options: Sequence[str], command: Sequence[str | Path], **env: str) -> str:
    cwd = script.parent
    done = otel_rl("run", "--experiment", "e", "--tracker", "jsonl", *options, "--", *command,
                   cwd=cwd, env=clean_environment(cwd, **env))  # fmt: skip
    assert done.status == 0, done.err
    assert "trained" in done.out
    return done.err


def steps(script: Path) -> list[int]:
    return [row.step for row in jsonl_rows(script.parent, "e") if "trainer/x" in row.values]


@pytest.mark.slow
def test_a_child_of_the_script_reports(script: Path) -> None:
    run(script, [], [sys.executable, script])
    assert steps(script) == [0, 1, 2]


def test_a_script_under_opentelemetry_instrument_reports(script: Path) -> None:
    run(script, [], [INSTRUMENT, sys.executable, script, "child"])
    assert steps(script) == [0, 1, 2]


@pytest.mark.parametrize("way", slow_after(1, ["option", "variable"]))
def test_a_script_is_left_alone_if_the_user_says_so(script: Path, way: str) -> None:
    options = ["--no-adapters"] if way == "option" else []
    env = {"OTEL_RL_ADAPTERS": "off"} if way == "variable" else {}
    err = run(script, options, [sys.executable, script], **env)
    assert "nothing was reported" in err
