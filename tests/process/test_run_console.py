"""What the workers of a command print is in the run, and on the terminal as before."""

import sys
import textwrap
from pathlib import Path

import pytest

from otel_rl.run_id import run_id
from tests.process.commands import clean_environment, jsonl_rows, otel_rl
from tests.support.slow import slow_after

pytestmark = pytest.mark.process

PROGRAM = """
import logging
import multiprocessing
import sys

import otel_rl


def generate():
    otel_rl.init(role="generator", index=0)
    otel_rl.log({{"tokens": 1.0}}, step=0)
    print("from a child")


if __name__ == "__main__":
    otel_rl.init(role="trainer", index=0)
    logging.basicConfig()
    for step in range(3):
        otel_rl.log({{"loss": 1.0}}, step=step)
        print("step", step)
    for percent in (0, 50, 100):
        sys.stderr.write(f"\\r{{percent}}%")
    sys.stderr.write("\\n")
    logging.warning("password: hunter2")
    child = multiprocessing.get_context("{method}").Process(target=generate)
    child.start()
    child.join()
    raise SystemExit(str(1 / 0))
"""


@pytest.mark.parametrize("method", slow_after(1, ["fork", "spawn"]))
def test_the_consoles_of_all_workers_are_in_the_run(tmp_path: Path, method: str) -> None:
    program = tmp_path / "train.py"
    program.write_text(textwrap.dedent(PROGRAM.format(method=method)))
    options = ("--experiment", "e", "--tracker", "jsonl")
    env = clean_environment(tmp_path, OTEL_RL_CONSOLE="")
    done = otel_rl("run", *options, "--", sys.executable, program, cwd=tmp_path, env=env)
    assert done.status == 1
    assert done.out == "step 0\nstep 1\nstep 2\nfrom a child\n"
    (path,) = tmp_path.rglob(f"{run_id('e', 'default')}.console.log")
    lines = path.read_text().splitlines()
    of_trainer = [line.removeprefix("[trainer/0] ") for line in lines if "[trainer/0]" in line]
    assert of_trainer[:5] == ["step 0", "step 1", "step 2", "100%", "WARNING:root:password: ***"]
    assert of_trainer[5] == "Traceback (most recent call last):"
    assert of_trainer[-1] == "ZeroDivisionError: division by zero"
    assert [line for line in lines if "trainer" not in line] == ["[generator/0] from a child"]
    rows = jsonl_rows(tmp_path, "e")
    assert [row.step for row in rows if "trainer/loss" in row.values] == [0, 1, 2]
    assert [row.number for row in rows] == [*range(len(rows))]
