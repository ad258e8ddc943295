"""What is piped into a program that has read enough."""

import subprocess
from pathlib import Path

import pytest

from tests.process.commands import OTEL_RL, clean_environment

pytestmark = pytest.mark.process


def test_a_reader_that_has_read_enough_sees_no_traceback(tmp_path: Path) -> None:
    command = subprocess.Popen(  # our own command
        [*OTEL_RL, "doctor", "--tracker", "jsonl"],
        cwd=tmp_path,
        env=clean_environment(tmp_path),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    assert command.stdout is not None
    command.stdout.close()
    _, said = command.communicate(timeout=200)
    assert said == b""
    assert command.returncode == 141
