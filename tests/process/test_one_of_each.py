"""A run of one step: commands say ``1 step`` and ``1 row``."""

import re
import sys
from pathlib import Path

import pytest

from tests.process.commands import otel_rl

pytestmark = pytest.mark.process

TRAIN = """
import otel_rl
with otel_rl.step(1):
    otel_rl.log({"loss": 1.0})
"""

ONE_OF_SEVERAL = re.compile(r"\b1 (?!s\b|is\b|has\b|was\b)[a-z]+s\b")


@pytest.mark.slow
def test_nothing_is_said_of_one_as_of_several(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(TRAIN)
    commands = (
        ["run", "--experiment", "one", "--tracker", "jsonl", "--", sys.executable, "train.py"],
        ["diagnose"],
        ["export", "-o", "trace.json"],
        ["runs", "one"],
        ["replay", "one", "--tracker", "jsonl", "--name", "two"],
    )
    said = [otel_rl(*command, cwd=tmp_path) for command in commands]
    assert [one.status for one in said] == [0] * len(commands)
    lines = [line for one in said for line in (one.out + one.err).splitlines()]
    assert any("1 step" in line for line in lines), lines
    assert [line for line in lines if ONE_OF_SEVERAL.search(line)] == []
