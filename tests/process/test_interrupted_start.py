"""Ctrl-C while ``otel-rl`` is loading ends it as any other program: at once, without a word."""

import signal
import subprocess
from pathlib import Path

import pytest

from tests.process.commands import OTEL_RL, TIMEOUT_S, clean_environment

pytestmark = pytest.mark.process

# Presses Ctrl-C when a module is about to be loaded.
PRESS = """
import os, signal, sys

class Press:
    def find_spec(name, *_):
        if name == os.environ["PRESS_AT"]:
            os.kill(os.getpid(), signal.SIGINT)

sys.meta_path.insert(0, Press)
"""


@pytest.mark.parametrize(
    "module", ["otel_rl.cli.main", "argparse", "otel_rl.cli.commands.run", "sqlite3"]
)
def test_ctrl_c_while_it_loads_prints_nothing(tmp_path: Path, module: str) -> None:
    (tmp_path / "sitecustomize.py").write_text(PRESS)
    done = subprocess.run(
        [*OTEL_RL, "run", "--tracker", "jsonl", "--", "touch", "started"],
        cwd=tmp_path,
        env=clean_environment(tmp_path, PYTHONPATH=str(tmp_path), PRESS_AT=module),
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )
    assert (done.returncode, done.stdout, done.stderr) == (-signal.SIGINT, "", "")
    assert not (tmp_path / "started").exists()
