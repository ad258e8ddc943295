"""Adapters, at the real source files of frameworks that do not install on a machine without GPU."""

from collections.abc import Callable
from dataclasses import replace

import pytest

from tests.frameworks.conftest import Runner
from tests.lab.frameworks.sources import SOURCES
from tests.process.commands import Row, jsonl_rows

STEPS = 4

SLIME = f"""
    from argparse import Namespace

    {{install}}
    import slime.observability.logging_utils as logging_utils
    from slime.observability.logging_utils import finish_tracking, init_tracking

    args = Namespace(use_wandb=False, use_tensorboard=False, wandb_project="p", wandb_group="g")
    init_tracking(args, primary=False, role="actor")
    for step in range({STEPS}):
        log = {{{{"train/pg_loss": 0.5 * step, "train/custom": 7, "train/step": step}}}}
        logging_utils.log(args, log, step_key="train/step")
    logging_utils.log(args, {{{{"eval/math": 0.25, "eval/step": 3}}}}, step_key="eval/step")
    finish_tracking(args)
"""

OPENRLHF = f"""
    from argparse import Namespace

    {{install}}
    from openrlhf.utils.logging_utils import TensorboardLogger

    wandb = Namespace(key=None, project="p", run_name="r")
    logger = TensorboardLogger(Namespace(logger=Namespace(tensorboard_dir="tb", wandb=wandb)))
    for step in range(1, {STEPS} + 1):
        status = {{{{"policy_loss": 0.5 * step, "custom": 7, "generated_samples": ["text", 1.0]}}}}
        logger.log_train(step, status)
    logger.log_eval({STEPS}, {{{{"eval_math_pass1": 0.25}}}})
    logger.close()
"""

ROLL = f"""
    {{install}}
    from roll.utils.tracking import create_tracker

    tracker = create_tracker(tracker_name="{{tracker}}", config={{{{"seed": 1}}}})
    for step in range({STEPS}):
        log = {{{{"actor/pg_loss@sum": 0.5 * step, "custom@mean": 7, "n": {{{{"a@max": 2}}}}}}}}
        tracker.log(values=log, step=step)
    tracker.finish()
"""

BY_HAND = {
    "slime": "import otel_rl.integrations.slime as adapter; adapter.install()",
    "openrlhf": "import otel_rl.integrations.openrlhf as adapter; adapter.install()",
    "roll": "import otel_rl.integrations.roll as adapter; adapter.register()",
}

Run = Callable[..., list[Row]]


@pytest.fixture(params=["automatically", "by hand"])
def run(request: pytest.FixtureRequest, frameworks: Runner) -> Run:
    """Runs a script at the source of a framework, with its adapter."""

    def run(name: str, code: str) -> list[Row]:
        source = SOURCES[name]
        if not source.is_built():
            pytest.skip(f"the source of {name} could not be fetched here")
        by_hand = request.param == "by hand"
        code = code.format(
            install=BY_HAND[name] if by_hand else "", tracker="otel_rl" if by_hand else "stdout"
        )
        options = ("--no-adapters",) if by_hand else ()
        done = replace(frameworks, sources=(source.path,)).run(code, *options)
        assert done.status == 0, f"{name}: {done.err}"
        return list(jsonl_rows(frameworks.directory, "real"))

    return run


def column(rows: list[Row], key: str) -> list[tuple[int, float]]:
    return [(row.step, row.values[key]) for row in rows if key in row.values]


@pytest.mark.tried("slime", "slime", seen="each step, an evaluation, at its source file")
def test_slime_brings_every_logged_value_to_the_last(run: Run) -> None:
    rows = run("slime", SLIME)
    assert column(rows, "trainer/loss/policy") == [(step, 0.5 * step) for step in range(STEPS)]
    assert column(rows, "trainer/custom") == [(step, 7) for step in range(STEPS)]
    assert [value for _, value in column(rows, "trainer/eval/math")] == [0.25]


@pytest.mark.tried("OpenRLHF", "OpenRLHF", seen="each step, an evaluation, at its source file")
def test_openrlhf_brings_every_logged_value_to_the_last(run: Run) -> None:
    rows = run("openrlhf", OPENRLHF)
    steps = range(1, STEPS + 1)
    assert column(rows, "trainer/loss/policy") == [(step, 0.5 * step) for step in steps]
    assert column(rows, "trainer/custom") == [(step, 7) for step in steps]
    assert [value for _, value in column(rows, "trainer/eval/eval_math_pass1")] == [0.25]


@pytest.mark.tried("ROLL", "ROLL", seen="each step, at its source file")
def test_roll_brings_every_logged_value_without_its_reducer(run: Run) -> None:
    rows = run("roll", ROLL)
    assert column(rows, "trainer/loss/policy") == [(step, 0.5 * step) for step in range(STEPS)]
    assert column(rows, "trainer/custom") == [(step, 7) for step in range(STEPS)]
    assert column(rows, "trainer/n/a") == [(step, 2) for step in range(STEPS)]
