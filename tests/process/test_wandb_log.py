"""A library that logs to the real W&B by itself, and the hook of it."""

import sys
import textwrap
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.process.commands import Row, clean_environment, jsonl_rows, otel_rl
from tests.wandb_offline import read_offline_run, run_directories

pytestmark = pytest.mark.process

LIBRARY = """
    import wandb
    from otel_rl.integrations import hook

    hook.record_wandb(step_keys=["train/step"])
    hook.record_wandb()  # once is enough
    with wandb.init(project="p", name="n", id="theirs", mode="offline") as run:
        for step in (10, 20):
            wandb.log({"train/step": step, "loss": 1 / step, "perf": {"tokens": step}})
        wandb.log({"loss": 0.5, "text": "no number"}, commit=False)
        run.log({"accuracy": 0.75}, step=30)
"""


AXES = """
    import wandb
    from otel_rl.integrations import hook

    hook.record_wandb()
    with wandb.init(project="p", name="n", mode="offline") as run:
        wandb.define_metric("training/step")
        run.define_metric("*", step_metric="training/step")
        run.define_metric("eval/*", step_metric=run.define_metric("eval/step"))
        run.define_metric("seen", step_metric="samples")
        for step in (10, 20):
            wandb.log({"training/step": step, "loss": 1 / step})
        wandb.log({"eval/step": 10, "eval/accuracy": 0.75})
        wandb.log({"samples": 4096, "seen": 2.0}, step=9)
"""


def test_axes_that_a_library_declares_are_its_steps(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(textwrap.dedent(AXES))
    done = otel_rl(
        "run", "--experiment", "e", "--tracker", "jsonl", "--", sys.executable, "train.py",
        cwd=tmp_path, env=clean_environment(tmp_path),
    )  # fmt: skip
    assert done.status == 0, done.err
    rows = jsonl_rows(tmp_path, "e")
    assert sorted(by_step(rows, "trainer/loss")) == [(10, 0.1), (20, 0.05)]
    assert by_step(rows, "trainer/eval/accuracy") == [(10, 0.75)]
    assert by_step(rows, "trainer/seen") == [(9, 2.0)]


@pytest.fixture(scope="module")
def logged(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("library")
    (directory / "train.py").write_text(textwrap.dedent(LIBRARY))
    done = otel_rl(
        "run", "--experiment", "e", "--tracker", "jsonl", "--", sys.executable, "train.py",
        cwd=directory, env=clean_environment(directory),
    )  # fmt: skip
    assert done.status == 0, done.err
    return directory


def by_step(rows: Sequence[Row], key: str) -> list[tuple[int, float]]:
    return [(row.step, row.values[key]) for row in rows if key in row.values]


def test_each_number_is_in_the_run_once_at_its_step(logged: Path) -> None:
    rows = jsonl_rows(logged, "e")
    assert by_step(rows, "trainer/perf/tokens") == [(10, 10.0), (20, 20.0)]
    assert [one for one in by_step(rows, "trainer/loss") if one[0] >= 10] == [(10, 0.1), (20, 0.05)]
    assert 0.5 in {value for _, value in by_step(rows, "trainer/loss")}
    assert by_step(rows, "trainer/accuracy") == [(30, 0.75)]


def test_the_run_of_the_library_is_what_it_was(logged: Path) -> None:
    (path,) = run_directories(logged, "theirs")
    history = read_offline_run(path).history
    assert [row["loss"] for row in history if "loss" in row] == [0.1, 0.05, 0.5]
    assert [row["_step"] for row in history if "accuracy" in row] == [30]
