"""What programs say of their run stands in it, by whichever way they say it."""

import json
import sys
import textwrap
from pathlib import Path

import pytest

from otel_rl.run_id import run_id
from tests.process.commands import otel_rl
from tests.support.slow import slow_after

pytestmark = pytest.mark.process

DIRECTLY = """
    import multiprocessing
    import otel_rl

    def generate():
        otel_rl.init(role="generator", config={"temperature": 0.7}, tags=["sampler"])
        for step in range(3):
            otel_rl.log({"tokens": step}, step=step)
            otel_rl.log_samples([{"prompt": f"p{step}", "reward": step / 2}], step=step)

    if __name__ == "__main__":
        otel_rl.init(
            role="trainer",
            config={"lr": 0.1, "model": {"name": "q"}},
            notes="why",
            tags=["grpo"],
            group="sweep",
            job_type="train",
        )
        generator = multiprocessing.get_context("spawn").Process(target=generate)
        generator.start()
        for step in range(3):
            otel_rl.log({"loss": step}, step=step)
        generator.join()
        otel_rl.log_config({"lr": 0.2})
"""

BY_WANDB = """
    import subprocess
    import sys
    import otel_rl.integrations.wandb as wandb

    if len(sys.argv) == 1:
        wandb.init(
            config={"lr": 0.1, "model": {"name": "q"}},
            notes="why",
            tags=["grpo"],
            group="sweep",
            job_type="train",
        )
        subprocess.run([sys.executable, __file__, "generator"], check=True)
        for step in range(3):
            wandb.log({"loss": step})
        wandb.config.lr = 0.2
    else:
        wandb.init(config={"temperature": 0.7}, tags=["sampler"])
        for step in range(3):
            table = wandb.Table(columns=["prompt", "reward"], data=[[f"p{step}", step / 2]])
            wandb.log({"tokens": step, "samples": table})
"""

WAYS = {"directly": DIRECTLY, "by wandb": BY_WANDB}


def about(directory: Path) -> dict[str, object]:
    """What is known of the run of the experiment ``e``."""
    (path,) = directory.rglob(f"{run_id('e', 'default')}.run.json")
    found: dict[str, object] = json.loads(path.read_text())
    return found


def run(directory: Path, program: str) -> int:
    script = directory / "train.py"
    script.write_text(textwrap.dedent(program))
    done = otel_rl(
        "run", "--experiment", "e", "--tracker", "jsonl", "--", sys.executable, script,
        cwd=directory,
    )  # fmt: skip
    return done.status


@pytest.fixture(scope="module", params=slow_after(1, WAYS.values()), ids=list(WAYS))
def written(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the run is of which several processes said something, in one of the ways."""
    directory = tmp_path_factory.mktemp("run")
    assert run(directory, request.param) == 0
    return directory


@pytest.mark.slow
def test_what_several_processes_say_is_one_description(written: Path) -> None:
    found = about(written)
    assert found["config"] == {"lr": 0.2, "model": {"name": "q"}, "temperature": 0.7}
    assert sorted(map(str, found["tags"])) == ["grpo", "sampler"]  # type: ignore[call-overload]  # a list
    assert (found["notes"], found["group"], found["job_type"]) == ("why", "sweep", "train")
    assert found["status"] == "complete"


def test_samples_stand_in_a_table_at_their_steps(written: Path) -> None:
    (path,) = written.rglob(f"{run_id('e', 'default')}.jsonl")
    tables = [table for line in path.read_text().splitlines()
              for table in json.loads(line).get("tables", {}).values()]  # fmt: skip
    assert {tuple(table["columns"]) for table in tables} == {("step", "prompt", "reward", "worker")}
    rows = [row[:3] for table in tables for row in table["data"]]
    assert rows == [[step, f"p{step}", step / 2] for step in range(3)]


@pytest.mark.slow  # of a run in W&B: test_crashes.py
def test_an_exception_that_nobody_caught_is_a_crash(tmp_path: Path) -> None:
    program = """
        import otel_rl

        otel_rl.init(role="trainer")
        otel_rl.log({"loss": 1.0}, step=1)
        1 / 0
    """
    assert run(tmp_path, program) == 1
    assert about(tmp_path)["status"] == "crashed"


@pytest.mark.parametrize(
    ("end", "exit_status", "status", "failures"),
    slow_after(
        1,
        [
            ("os.kill(os.getpid(), signal.SIGKILL)", 137, "crashed", 1),
            ("os._exit(3)", 3, "crashed", 1),
            ("os._exit(0)", 0, "complete", 0),
        ],
    ),
)
def test_a_command_that_ends_without_a_goodbye_ends_the_run(
    tmp_path: Path, end: str, exit_status: int, status: str, failures: int
) -> None:
    program = f"""
        import os, signal
        import otel_rl

        otel_rl.init(role="trainer")
        otel_rl.log({{"loss": 1.0}}, step=1)
        assert otel_rl.flush(timeout_s=60)
        {end}
    """
    assert run(tmp_path, program) == exit_status
    assert about(tmp_path)["status"] == status
    (path,) = tmp_path.rglob(f"{run_id('e', 'default')}.jsonl")
    rows = [json.loads(line)["values"] for line in path.read_text().splitlines()]
    key = "service/trainer/failures"
    assert [row[key] for row in rows if key in row][-1] == failures


def test_an_explicit_end_is_the_run_s_status(tmp_path: Path) -> None:
    program = """
        import otel_rl

        otel_rl.init(role="trainer")
        otel_rl.log({"loss": 1.0}, step=1)
        otel_rl.finish("aborted")
    """
    assert run(tmp_path, program) == 0
    assert about(tmp_path)["status"] == "aborted"
