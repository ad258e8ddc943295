"""A process that ends without a goodbye in a command that ends well: said, and in the run."""

import json
import sys
import textwrap
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from otel_rl.run_id import run_id
from tests.process.commands import Finished, clean_environment, otel_rl

pytestmark = pytest.mark.process

# As Ray does, the child is ended without its exit handlers.
PROGRAM = """
    import os
    import otel_rl

    def roll_out(role):
        otel_rl.init(role=role)
        otel_rl.log({"tokens": 1.0})
        with otel_rl.phase("generate"):
            pass
        assert otel_rl.flush(timeout_s=60)

    otel_rl.init(role="trainer")
    for number in range(2):
        with otel_rl.step(number), otel_rl.phase("train"):
            otel_rl.log({"loss": number}, step=number)
    with otel_rl.step(2), otel_rl.phase("collector_wait"):
        pid = os.fork()
        if pid == 0:
            roll_out("generator")
            os._exit(0)
        os.waitpid(pid, 0)
        otel_rl.log({"loss": 2}, step=2)
"""


@pytest.fixture(scope="module")
def ended(tmp_path_factory: pytest.TempPathFactory) -> tuple[Finished, Sequence[Mapping[str, Any]]]:
    """The command, and the rows of its run."""
    directory = tmp_path_factory.mktemp("run")
    script = directory / "train.py"
    script.write_text(textwrap.dedent(PROGRAM))
    done = otel_rl(
        "run", "--experiment", "e", "--tracker", "jsonl", "--", sys.executable, script,
        cwd=directory,
    )  # fmt: skip
    assert done.status == 0, done.err
    return done, [json.loads(line) for line in _file(directory).read_text().splitlines()]


def _file(directory: Path) -> Path:
    (path,) = directory.rglob(f"{run_id('e', 'default')}.jsonl")
    return path


def test_the_last_lines_say_who_ended_without_a_goodbye(
    ended: tuple[Finished, Sequence[Mapping[str, Any]]],
) -> None:
    assert (
        "otel-rl:   generator: 1 ended without an exit report, or outlived the command; up to an "
        "export interval (1 s unless set) of metrics, or what followed the command, is missing\n"
    ) in ended[0].err
    assert "trainer:" not in ended[0].err


def test_the_run_counts_who_ended_without_a_goodbye(
    ended: tuple[Finished, Sequence[Mapping[str, Any]]],
) -> None:
    values: dict[str, float] = {}
    for row in ended[1]:
        values |= row["values"]
    assert values["service/generator/silent"] == 1
    assert values["service/generator/failures"] == 0
    assert "service/trainer/silent" not in values


def test_the_step_that_may_lack_its_spans_is_partial(
    ended: tuple[Finished, Sequence[Mapping[str, Any]]],
) -> None:
    texts = "labels"
    explained = {
        row["step"]: row for row in ended[1] if "critical_path/worker" in row.get(texts, ())
    }
    missed = {step: row[texts].get("critical_path/missed") for step, row in explained.items()}
    assert missed == {0: None, 1: None, 2: "generator/0"}
    assert explained[2]["values"]["critical_path/partial"] == 1


@pytest.mark.slow
def test_a_journal_that_is_removed_while_the_command_runs_does_not_change_its_status(
    tmp_path: Path,
) -> None:
    program = """
        import shutil
        import otel_rl

        otel_rl.init(role="trainer")
        otel_rl.log({"loss": 1.0}, step=0)
        assert otel_rl.flush(timeout_s=60)
        shutil.rmtree(".otel_rl")
        otel_rl.log({"loss": 1.0}, step=1)
    """
    (tmp_path / "train.py").write_text(textwrap.dedent(program))
    done = otel_rl(
        *("run", "--experiment", "e", "--tracker", "jsonl", "--", sys.executable, "train.py"),
        cwd=tmp_path,
        env=clean_environment(tmp_path, OTEL_RL_EXIT_TIMEOUT="2", OTEL_RL_BRIDGE__STOP_TIMEOUT="5"),
    )
    assert done.status == 0, done.err
    assert "Traceback" not in done.err
    assert "was removed or replaced" in done.err
    assert done.err.splitlines()[-1].startswith("otel-rl: DATA WAS LOST")
