"""Adapters, at the real source files of frameworks that do not install on a machine without GPU."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from tests.frameworks import source_scripts as scripts
from tests.frameworks.conftest import Runner
from tests.frameworks.source_scripts import STEPS
from tests.lab.frameworks.sources import SOURCES
from tests.process.commands import Row, jsonl_rows

_WANDB = "from otel_rl.integrations import hook; hook.record_wandb()"
_TENSORBOARD = "from otel_rl.integrations import hook; hook.record_tensorboard()"

BY_HAND = {
    "areal": ("import otel_rl.integrations.areal as adapter", "adapter.attach(trainer)"),
    "nemo-rl": (_TENSORBOARD, ""),
    "openrlhf": (_TENSORBOARD, ""),
    "prime-rl": (_WANDB, ""),
    "roll": (_WANDB, ""),
    "skyrl": (_TENSORBOARD, ""),
    "slime": (_WANDB, ""),
    "torchforge": (
        "import otel_rl.integrations.forge as adapter; adapter.register()",
        "['otel_rl']",
    ),
    "vllm": ("", ""),
}
"""Statement that switches an adapter on, and what stands for an object of the framework."""

AUTOMATICALLY = {"torchforge": "[]"}

Run = Callable[..., list[Row]]


@pytest.fixture(params=["automatically", "by hand"])
def run(request: pytest.FixtureRequest, frameworks: Runner) -> Run:
    """Runs a script at the source of a framework, with its adapter."""

    def run(name: str, code: str) -> list[Row]:
        source = SOURCES[name]
        if not source.is_built():
            pytest.skip(source.not_verified())
        by_hand = request.param == "by hand"
        install, wrap = BY_HAND[name] if by_hand else ("", AUTOMATICALLY.get(name, ""))
        options = ("--no-adapters",) if by_hand else ()
        runner = replace(frameworks, sources=(source.path, Path(__file__).parent))
        env = {"WANDB_MODE": "offline"}
        done = runner.run(code.format(install=install, wrap=wrap), *options, env=env)
        assert done.status == 0, f"{name}: {done.err}"
        return list(jsonl_rows(frameworks.directory, "real"))

    return run


def column(rows: list[Row], key: str) -> list[tuple[int, float]]:
    return [(row.step, row.values[key]) for row in rows if key in row.values]


@pytest.mark.tried("slime", "slime", seen="each step, an evaluation, source")
def test_slime_brings_every_logged_value_to_the_last(run: Run) -> None:
    rows = run("slime", scripts.SLIME)
    steps = range(STEPS)
    assert sorted(column(rows, "trainer/loss/policy")) == [(step, 0.5 * step) for step in steps]
    assert sorted(column(rows, "trainer/rollout/custom")) == [(step, 7) for step in steps]
    assert [value for _, value in column(rows, "trainer/eval/math")] == [0.25]


@pytest.mark.tried("OpenRLHF", "OpenRLHF", seen="each step, an evaluation, source")
def test_openrlhf_brings_every_logged_value_to_the_last(run: Run) -> None:
    rows = run("openrlhf", scripts.OPENRLHF)
    steps = range(1, STEPS + 1)
    assert column(rows, "trainer/loss/policy") == [(step, 0.5 * step) for step in steps]
    assert column(rows, "trainer/custom") == [(step, 7) for step in steps]
    assert [value for _, value in column(rows, "trainer/eval/eval_math_pass1")] == [0.25]


@pytest.mark.tried("ROLL", "ROLL", seen="each step, source")
def test_roll_brings_every_logged_value_without_its_reducer(run: Run) -> None:
    rows = run("roll", scripts.ROLL)
    assert column(rows, "trainer/loss/policy") == [(step, 0.5 * step) for step in range(STEPS)]
    assert column(rows, "trainer/custom") == [(step, 7) for step in range(STEPS)]
    assert column(rows, "trainer/n/a") == [(step, 2) for step in range(STEPS)]


@pytest.mark.tried("AReaL", "AReaL", seen="each step, source")
def test_areal_brings_every_committed_value_without_counts(run: Run) -> None:
    rows = run("areal", scripts.AREAL)
    assert column(rows, "trainer/grad/norm") == [(step, 0.5 * step) for step in range(STEPS)]
    assert column(rows, "trainer/custom") == [(step, 7) for step in range(STEPS)]
    assert not column(rows, "trainer/custom__count")


@pytest.mark.tried("NeMo-RL", "NeMo-RL", seen="each step, source")
def test_nemo_rl_brings_every_logged_value_to_the_last(run: Run) -> None:
    rows = run("nemo-rl", scripts.NEMO_RL)
    assert column(rows, "trainer/grad/norm") == [(step, 0.5 * step) for step in range(STEPS)]
    assert column(rows, "trainer/custom") == [(step, 7) for step in range(STEPS)]
    assert column(rows, "trainer/validation/accuracy") == [(3, 0.25)]
    last = {key: value for row in rows for key, value in row.values.items()}
    assert 0.5 in last.values()  # of a GPU, by its time


@pytest.mark.tried("prime-rl", "prime-rl", seen="each step, source")
def test_prime_rl_brings_every_logged_value_to_the_last(run: Run) -> None:
    rows = run("prime-rl", scripts.PRIME_RL)
    assert column(rows, "trainer/grad/norm") == [(step, 0.5 * step) for step in range(STEPS)]
    assert column(rows, "trainer/custom") == [(step, 7) for step in range(STEPS)]


@pytest.mark.tried("SkyRL", "SkyRL", seen="each step, source")
def test_skyrl_brings_every_logged_value_to_the_last(run: Run) -> None:
    rows = run("skyrl", scripts.SKYRL)
    assert column(rows, "trainer/grad/norm") == [(step, 0.5 * step) for step in range(STEPS)]
    assert column(rows, "trainer/custom") == [(step, 7) for step in range(STEPS)]


@pytest.mark.tried("torchforge", "torchforge", seen="each step, source")
def test_torchforge_brings_every_recorded_value_to_the_last(run: Run) -> None:
    rows = run("torchforge", scripts.FORGE)
    assert column(rows, "trainer/rl_trainer/grad_norm") == [(n, 0.5 * n) for n in range(STEPS)]
    assert column(rows, "trainer/custom") == [(step, 7) for step in range(STEPS)]


@pytest.fixture
def run_beside_wandb(frameworks: Runner) -> Run:
    """Runs a script at the source of a framework that logs to W&B by itself."""

    def run(name: str, code: str, wrap: str = "") -> list[Row]:
        source = SOURCES[name]
        if not source.is_built():
            pytest.skip(source.not_verified())
        runner = replace(frameworks, sources=(source.path, Path(__file__).parent))
        code = code.format(install=_WANDB, wrap=wrap)
        done = runner.run(code, "--role", "trainer", env={"WANDB_MODE": "offline"})
        assert done.status == 0, done.err
        return list(jsonl_rows(frameworks.directory, "real"))

    return run


def assert_every_value(rows: list[Row]) -> None:
    assert sorted(column(rows, "trainer/custom")) == [(step, 7) for step in range(STEPS)]
    assert sorted(column(rows, "trainer/optim/lr")) == [(n, 0.5 * n) for n in range(STEPS)]
    assert column(rows, "trainer/test/reward") == [(STEPS - 1, 0.25)]


@pytest.mark.tried("rLLM", "rLLM", "wandb", seen="each step, source")
def test_the_tracking_of_rllm_brings_every_value(run_beside_wandb: Run) -> None:
    assert_every_value(run_beside_wandb("rllm", scripts.RLLM))


@pytest.mark.tried(
    "Tinker cookbook",
    "tinker-cookbook",
    "wandb",
    seen="each step, an evaluation, source",
)
@pytest.mark.parametrize("axes", ["", "logger.enable_event_steps()"], ids=["steps", "events"])
def test_the_logger_of_the_tinker_cookbook_brings_every_value(
    run_beside_wandb: Run, axes: str
) -> None:
    assert_every_value(run_beside_wandb("tinker-cookbook", scripts.TINKER, axes))


@pytest.mark.tried("Trinity-RFT", "trinity-rft", "wandb", seen="each step, an evaluation, source")
def test_the_monitor_of_trinity_brings_every_value_though_it_commits_none(
    run_beside_wandb: Run,
) -> None:
    assert_every_value(run_beside_wandb("trinity-rft", scripts.TRINITY))


def test_vllm_brings_the_statistics_of_its_engines(run: Run) -> None:
    rows = run("vllm", scripts.VLLM)
    last = {key: value for row in rows for key, value in row.values.items()}
    sums = ("tokens", "requests/success", "kv_cache/queries", "kv_cache/hits")
    assert [last[f"generator/{name}"] for name in sums] == [192, 3, 30, 12]
    assert last["generator/queue/depth"] == 2
    assert last["generator/kv_cache/utilization"] == 0.5
    assert last["generator/response/tokens"] == 21
