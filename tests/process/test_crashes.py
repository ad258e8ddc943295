"""A run that an exception ends says which, of whom and when: in tracker, console, diagnosis."""

import json
import sys
import textwrap
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.process.commands import Finished, otel_rl, otel_rl_here, wandb_run
from tests.support.wandb_offline import OfflineRun

pytestmark = pytest.mark.process

WORDS = "crashed: trainer/0, RuntimeError at step 3"
MESSAGE = "no memory left for https://***@store/model, api_key=***"

CRASHES = """
    import otel_rl

    otel_rl.init(role="trainer", index=0, count=1)
    for step in range(10):
        with otel_rl.step(step), otel_rl.phase("train"):
            otel_rl.log({"loss": 1.0}, step=step)
            if step == 3:
                raise RuntimeError(
                    "no memory left for https://me:s3cret@store/model, api_key=s3cret"
                )
"""


class Crashed(NamedTuple):
    directory: Path
    console: Finished
    run: OfflineRun


@pytest.fixture(scope="module")
def crashed(tmp_path_factory: pytest.TempPathFactory) -> Crashed:
    directory = tmp_path_factory.mktemp("run")
    script = directory / "train.py"
    script.write_text(textwrap.dedent(CRASHES))
    done = otel_rl("run", "--experiment", "e", "--", sys.executable, script, cwd=directory)
    return Crashed(directory, done, wandb_run(directory, "e"))


def test_the_console_says_what_ended_the_run(crashed: Crashed) -> None:
    assert crashed.console.status == 1
    said = crashed.console.err.splitlines()
    place = said.index(f"otel-rl:   {WORDS}")
    assert said[place + 1] == f"otel-rl:     {MESSAGE}"


def test_the_trackers_run_says_it(crashed: Crashed) -> None:
    run = crashed.run
    assert run.exit_code == 1  # W&B shows the run as failed
    assert run.summary["status"] == "crashed"
    assert run.summary["crash"] == f"{WORDS}: {MESSAGE}"
    assert ("crash at step 3", WORDS) in run.alerts


def test_the_diagnosis_says_it(crashed: Crashed) -> None:
    data = next((crashed.directory / ".otel_rl").iterdir())
    words = ("diagnose", "--data", data)
    done = otel_rl_here(*words, cwd=crashed.directory)
    lines = done.out.splitlines()
    assert f"1. crash: {WORDS}" in lines, done
    assert f"     {MESSAGE}" in lines
    told = json.loads(otel_rl_here(*words, "--json", cwd=crashed.directory).out)
    (cause,) = told["causes"]
    assert (cause["kind"], cause["worker"], cause["since_step"]) == ("crash", "trainer/0", 3)


def test_no_secret_of_the_message_leaves_the_process(crashed: Crashed) -> None:
    for path in crashed.directory.rglob("*"):
        if path.is_file() and path.name != "train.py":
            assert b"s3cret" not in path.read_bytes(), path
