"""Programs that log with W&B's API, in processes of their own under ``otel-rl run``."""

import subprocess
import sys
import textwrap
from collections import Counter
from pathlib import Path

import pytest

from tests.process.commands import clean_environment, jsonl_rows, otel_rl
from tests.support.wandb_offline import read_offline_run

pytestmark = pytest.mark.process

ACTORS = """
    import subprocess
    import sys

    import otel_rl.integrations.wandb as wandb

    if len(sys.argv) == 1:
        roles = ["trainer", "generator", "reward"]
        actors = [subprocess.Popen([sys.executable, __file__, role]) for role in roles]
        sys.exit(max(actor.wait() for actor in actors))

    role = sys.argv[1]
    wandb.init(project="grpo", name="experiment-123", job_type=role, config={"lr": 3e-6})
    for step in range(20):
        wandb.log({"value": step / 2, "sampling": {"temperature": 0.7}, "note": role}, step=step)
    if role == "generator":
        wandb.finish()
"""


@pytest.mark.slow
def test_each_actor_logs_as_before_and_all_land_in_one_run(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(textwrap.dedent(ACTORS))
    done = otel_rl("run", "--experiment", "grpo", "--tracker", "jsonl", "--", sys.executable,
                   script, cwd=tmp_path)  # fmt: skip
    assert done.status == 0, done.err
    rows = jsonl_rows(tmp_path, "grpo", "experiment-123")
    for role in ("trainer", "generator", "reward"):
        found = [(row.step, row.values[f"{role}/value"]) for row in rows
                 if f"{role}/value" in row.values]  # fmt: skip
        assert found == [(step, step / 2) for step in range(20)]
        temperature = f"{role}/sampling/temperature"
        assert Counter(row.values.get(temperature) for row in rows)[0.7] == 20
    lost = [row.values.get("otel_rl/trainer/measurements/dropped/not_a_number") for row in rows]
    assert 20 in lost, "the text that a run cannot take is counted"


# The same program for W&B itself and for the drop-in: 300 calls in every form that there is.
CALLS = """
    import random

    import {module} as wandb

    random.seed(7)
    run = wandb.init(project="p", name="n")
    step = 0
    for number in range(300):
        values = {{random.choice("abc"): number, "n": {{random.choice("xy"): number / 4}}}}
        given = random.choice([None, None, step, step + random.randrange(3), step - 1])
        run.log(values, step=given, commit=random.choice([None, None, True, False]))
        step = run.step
    print(run.step)
    wandb.finish()
"""


@pytest.mark.slow
def test_rows_are_those_that_wandb_itself_makes(tmp_path: Path) -> None:
    scripts = {}
    for name, module in (("theirs", "wandb"), ("ours", "otel_rl.integrations.wandb")):
        scripts[name] = tmp_path / f"{name}.py"
        scripts[name].write_text(textwrap.dedent(CALLS).format(module=module))
    environment = clean_environment(
        tmp_path, WANDB_MODE="offline", WANDB_SILENT="true", WANDB_ERROR_REPORTING="false"
    )
    theirs = subprocess.run(
        [sys.executable, scripts["theirs"]], cwd=tmp_path, env=environment, capture_output=True,
        text=True, check=True, timeout=90,
    )  # fmt: skip
    ours = otel_rl("run", "--experiment", "ours", "--role", "env", "--tracker", "jsonl", "--",
                   sys.executable, scripts["ours"], cwd=tmp_path)  # fmt: skip
    assert ours.status == 0, ours.err
    (run,) = (tmp_path / "wandb").glob("offline-run-*")
    expected = {
        int(row["_step"]): {key: value for key, value in row.items() if key[0] != "_"}
        for row in read_offline_run(run).history
    }
    found = {
        row.step: {
            key.removeprefix("env/"): value
            for key, value in row.values.items()
            if key.startswith("env/")
        }
        for row in jsonl_rows(tmp_path, "ours", "n")
        if any(key.startswith("env/") for key in row.values)
    }
    assert len(expected) > 50
    assert found == expected
    assert ours.out.splitlines()[:1] == theirs.stdout.splitlines()[-1:]


FORKS = """
    import multiprocessing, threading

    import otel_rl.integrations.wandb as wandb


    def work(number):
        # A row with an explicit step is pending until the process ends.
        wandb.log({"x": number}, step=100 + number)
        threading.Thread(target=outlive, args=(number,)).start()


    def outlive(number):
        threading.main_thread().join()
        wandb.log({"x": number}, step=200 + number)


    if __name__ == "__main__":
        wandb.init(job_type="env")
        wandb.log({"x": -1.0}, step=0)
        context = multiprocessing.get_context("fork")
        processes = [context.Process(target=work, args=(n,)) for n in range(3)]
        for process in processes:
            process.start()
        for process in processes:
            process.join()
"""


def test_a_forked_child_completes_its_last_row_when_all_its_threads_have_ended(
    tmp_path: Path,
) -> None:
    script = tmp_path / "forks.py"
    script.write_text(textwrap.dedent(FORKS))
    done = otel_rl("run", "--experiment", "forks", "--tracker", "jsonl", "--", sys.executable,
                   script, cwd=tmp_path)  # fmt: skip
    assert done.status == 0, done.err
    found = {row.step: row.values["env/x"] for row in jsonl_rows(tmp_path, "forks")
             if "env/x" in row.values}  # fmt: skip
    assert found == {0: -1.0} | {step + n: float(n) for step in (100, 200) for n in range(3)}
