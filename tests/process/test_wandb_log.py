"""A library that logs to the real W&B by itself, and the hook of it."""

import json
import sys
import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.process.commands import Row, clean_environment, jsonl_rows, otel_rl
from tests.support.wandb_offline import read_offline_run, run_directories

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


@pytest.mark.slow
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
    """Step and value of a key; late samples write a row again, and the newest of a step counts."""
    return [*{row.step: row.values[key] for row in rows if key in row.values}.items()]


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


# Frameworks in the table of ``otel_rl.integrations.hook``, by what each passes to W&B. Their real
# loggers are in ``tests/frameworks/test_sources.py``.

FRAMEWORKS: dict[str, tuple[Any, Any, list[tuple[int, str, float]]]] = {
    "prime_rl": (
        {"*": "step"},
        [({"optim/grad_norm": 0.5, "step": 4}, None), ({"own": 7, "step": 5}, None)],
        [(4, "orchestrator/train/grad/norm", 0.5), (5, "orchestrator/own", 7)],
    ),
    "slime": (
        {"train/*": "train/step", "rollout/*": "rollout/step", "eval/*": "eval/step"},
        [
            ({"rollout/raw_reward": 0.25, "rollout/step": 3}, None),
            ({"train/pg_loss": 0.5, "train/step": 4}, None),
            ({"eval/math": 1.0, "eval/step": 400}, None),
        ],
        [(3, "trainer/reward/mean", 0.25), (4, "trainer/loss/policy", 0.5)],
    ),
    "json": ({}, [({"loss": 0.5}, 4)], [(4, "trainer/loss", 0.5)]),  # one that is not known
}

FRAMEWORK = """
    import os, sys
    import {package}, wandb

    run = wandb.init(project="p", name="n", mode="offline", config={{"lr": 0.1}})
    for name, axis in {axes}.items():
        wandb.define_metric(axis)
        wandb.define_metric(name, step_metric=axis)
    for metrics, step in {logs}:
        run.log(metrics, step=step)
    run.finish()
    os._exit(0)  # as Ray ends its processes
"""


@pytest.mark.slow
@pytest.mark.parametrize("package", FRAMEWORKS)
def test_what_a_framework_logs_to_wandb_is_in_the_run_without_a_line_of_code(
    tmp_path: Path, package: str
) -> None:
    axes, logs, expected = FRAMEWORKS[package]
    if package != "json":
        (tmp_path / f"{package}.py").touch()
    script = tmp_path / ("orchestrator.py" if package == "prime_rl" else "train.py")
    script.write_text(textwrap.dedent(FRAMEWORK.format(package=package, axes=axes, logs=logs)))
    done = otel_rl(
        "run", "--experiment", "e", "--tracker", "jsonl", "--", sys.executable, script,
        cwd=tmp_path, env=clean_environment(tmp_path),
    )  # fmt: skip
    assert done.status == 0, done.err
    rows = jsonl_rows(tmp_path, "e")
    found = [(row.step, key, value) for row in rows for key, value in row.values.items()]
    assert {*expected} <= {*found}
    assert 400 not in {step for step, _, _ in found}
    (path,) = tmp_path.glob(".otel_rl/*/*.run.json")
    assert json.loads(path.read_text())["config"] == {"lr": 0.1}


INSTRUMENTED = """
    import otel_rl, wandb

    otel_rl.init(role="trainer")
    run = wandb.init(project="p", name="n", mode="offline")
    for step in range(3):
        otel_rl.log({"loss": 0.5}, step=step)
        run.log({"theirs": 0.5}, step=step)
"""


@pytest.mark.slow
def test_what_a_program_logs_that_reports_by_itself_stays_with_wandb(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(textwrap.dedent(INSTRUMENTED))
    done = otel_rl(
        "run", "--experiment", "e", "--tracker", "jsonl", "--", sys.executable, "train.py",
        cwd=tmp_path, env=clean_environment(tmp_path),
    )  # fmt: skip
    assert done.status == 0, done.err
    rows = jsonl_rows(tmp_path, "e")
    assert by_step(rows, "trainer/loss") == [(0, 0.5), (1, 0.5), (2, 0.5)]
    assert by_step(rows, "trainer/theirs") == []
