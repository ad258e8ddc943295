"""Runs that are killed: what was there before comes first, and who was asked to end is no fault."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

import pytest

from tests.process.commands import OTEL_RL, clean_environment, otel_rl_here
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.process, pytest.mark.slow]

STEPS: Final = 12
DEADLINE_S: Final = 120.0

PROGRAM = """
import os, sys, time
from pathlib import Path
import otel_rl

Path("pid").write_text(str(os.getpid()))
otel_rl.init(role="trainer", index=0, count=1)
hangs = sys.argv[1] == "hangs"
for step in range(12 if hangs else 100_000):
    with otel_rl.step(step), otel_rl.phase("train"):
        otel_rl.log({"loss": 1.0}, step=step)
        time.sleep(0.3)
    Path("step").write_text(str(step))
with otel_rl.step(12), otel_rl.phase("train"):
    time.sleep(3_600)
"""


class Killed:
    """A command under ``otel-rl run``."""

    def __init__(self, directory: Path, how: str) -> None:
        self._directory = directory
        (directory / "train.py").write_text(PROGRAM)
        command = ["run", "--experiment", "e", "--tracker", "jsonl", "--data", "data"]
        self.process = subprocess.Popen(
            [*OTEL_RL, *command, "--", sys.executable, "train.py", how],
            cwd=directory,
            env=clean_environment(directory),
        )

    def diagnosis(self) -> Mapping[str, Any]:
        """The diagnosis; empty while there is no run."""
        done = otel_rl_here("diagnose", "--json", "--data", "data", cwd=self._directory)
        return json.loads(done.out) if done.status == 0 else {}

    def kinds(self) -> list[str]:
        return [cause["kind"] for cause in self.diagnosis().get("causes", ())]

    def has_made_steps(self) -> bool:
        path = self._directory / "step"
        return path.exists() and int(path.read_text() or 0) >= STEPS - 1

    def hangs(self) -> bool:
        return self.has_made_steps() and "stall" in self.kinds()

    def end(self, by: signal.Signals) -> None:
        os.kill(int((self._directory / "pid").read_text()), by)
        self.process.wait(DEADLINE_S)


@pytest.fixture
def killed(tmp_path: Path, request: pytest.FixtureRequest) -> Killed:
    running = Killed(tmp_path, request.param[0])
    try:
        is_ready: Callable[[], bool] = {
            "hangs": running.hangs,
            "runs": running.has_made_steps,
        }[request.param[0]]
        wait_until(is_ready, timeout_s=DEADLINE_S)
        running.end(request.param[1])
    finally:
        running.process.kill()
    return running


@pytest.mark.parametrize("killed", [("hangs", signal.SIGKILL)], indirect=True)
def test_a_run_that_hung_before_it_was_killed_has_hung_first(killed: Killed) -> None:
    stall, crash = killed.diagnosis()["causes"]
    assert (stall["kind"], stall["worker"], stall["phase"]) == ("stall", "trainer/0", "train")
    assert (crash["kind"], crash["worker"], crash["since_step"]) == ("crash", "trainer/0", 12)


@pytest.mark.parametrize("killed", [("hangs", signal.SIGTERM)], indirect=True)
def test_a_run_that_hung_before_it_was_asked_to_end_has_hung(killed: Killed) -> None:
    told = killed.diagnosis()
    assert [cause["kind"] for cause in told["causes"]] == ["stall"]
    assert told["failures"] == ["trainer/0, ended by SIGTERM after step 11"]


@pytest.mark.parametrize("killed", [("runs", signal.SIGTERM)], indirect=True)
def test_a_healthy_run_that_was_asked_to_end_is_healthy(killed: Killed) -> None:
    told = killed.diagnosis()
    assert (told["verdict"], told["causes"]) == ("healthy", [])
    (failure,) = told["failures"]
    assert failure.startswith("trainer/0, ended by SIGTERM after step ")


@pytest.mark.parametrize("killed", [("runs", signal.SIGKILL)], indirect=True)
def test_a_healthy_run_that_was_killed_has_crashed(killed: Killed) -> None:
    assert killed.kinds() == ["crash"]
