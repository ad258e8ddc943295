"""Processes that start one after another, as a person starts them: one right row a step."""

import sys
import textwrap
from collections import Counter
from pathlib import Path

import pytest

from tests.process.commands import OPEN_FOR_LONG, clean_environment, jsonl_rows, otel_rl

pytestmark = pytest.mark.process

STEPS, PROCESSES = 150, 4

LAUNCHER = """
import pathlib, subprocess, sys, time

here = pathlib.Path(sys.argv[1])

def work(number, steps, processes):
    import otel_rl
    otel_rl.init(role="trainer", export_interval_s=0.2)
    for step in range(steps):
        otel_rl.mlogger.log({"loss": float(number)}, step=step)
        if step == steps // 3:
            (here / f"reached-{number}").touch()
        time.sleep(0.01)  # a step takes some time
    (here / f"done-{number}").touch()
    while len([*here.glob("done-*")]) < processes:
        time.sleep(0.02)

if len(sys.argv) > 4:
    work(*map(int, sys.argv[2:]))
else:
    steps, processes = map(int, sys.argv[2:])
    begun = []
    for number in range(processes):
        while number and not (here / f"reached-{number - 1}").exists():
            time.sleep(0.02)
        command = [sys.executable, __file__, str(here), str(number), *sys.argv[2:]]
        begun.append(subprocess.Popen(command))
    sys.exit(max(process.wait() for process in begun))
"""


@pytest.mark.slow
def test_processes_without_an_index_that_start_one_after_another_have_one_right_row_a_step(
    tmp_path: Path,
) -> None:
    """Each begins when the one before is in the middle of its steps."""
    program = tmp_path / "launch.py"
    program.write_text(textwrap.dedent(LAUNCHER))
    command = [sys.executable, str(program), str(tmp_path), str(STEPS), str(PROCESSES)]
    done = otel_rl(
        *("run", "--tracker", "jsonl", "--experiment", "late", "--", *command),
        cwd=tmp_path,
        env=clean_environment(tmp_path, **OPEN_FOR_LONG),
    )
    assert done.status == 0, done.err
    losses = [
        (row.step, row.values["trainer/loss"])
        for row in jsonl_rows(tmp_path, "late")
        if "trainer/loss" in row.values
    ]
    assert dict(losses) == dict.fromkeys(range(STEPS), (PROCESSES - 1) / 2)
    assert max(Counter(step for step, _ in losses).values()) == 1
