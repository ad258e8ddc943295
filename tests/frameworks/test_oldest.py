"""The oldest versions that are supported: every value of a real program is in the run, once."""

import json
import re
from pathlib import Path

import pytest

from tests.frameworks.conftest import Runner, demand
from tests.frameworks.test_ray_endings import ACTORS, LOSSES, RESTARTED
from tests.frameworks.test_stable_baselines3 import AUTOMATICALLY
from tests.frameworks.test_stable_baselines3 import SCRIPT as SB3
from tests.frameworks.test_trl import GRPO
from tests.frameworks.test_trl import STEPS as GRPO_STEPS
from tests.frameworks.test_wandb_loggers import ACCELERATE, LIGHTNING, OFFLINE, values
from tests.lab.frameworks.environment import OLDEST, OLDEST_SDK
from tests.process.commands import jsonl_rows, wandb_run

STEPS = 40

STOCK = f"""
    import os

    from opentelemetry import metrics, trace
    from opentelemetry.exporter.otlp.proto.grpc.metric_exporter import OTLPMetricExporter as Grpc
    from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter as Http
    from opentelemetry.sdk.metrics import MeterProvider
    from opentelemetry.sdk.metrics.export import PeriodicExportingMetricReader

    exporter = (Grpc if os.environ["OTEL_EXPORTER_OTLP_PROTOCOL"] == "grpc" else Http)()
    provider = MeterProvider([PeriodicExportingMetricReader(exporter, export_interval_millis=200)])
    gauge = provider.get_meter("stock").create_gauge("stock")
    for step in range({STEPS}):
        gauge.set(1000.5 + step, {{"rl.loop.iteration": step}})
    assert provider.force_flush(60_000)
    provider.shutdown()
"""

WORKER = f"""
    import otel_rl
    from opentelemetry import metrics

    otel_rl.init(role="trainer")
    gauge = metrics.get_meter("mine").create_gauge("gauge")
    for step in range({STEPS}):
        with otel_rl.step(step), otel_rl.phase("train"):
            gauge.set(2000.5 + step, {{"rl.loop.iteration": step}})
            otel_rl.log({{"logged": 3000.5 + step}}, step=step)
    assert otel_rl.finish(timeout_s=60)
"""


@pytest.fixture
def oldest(metadata_of_this_checkout: Path, tmp_path: Path) -> Runner:
    """Runs scripts with the oldest versions; fails where the lab is required and has none."""
    demand(OLDEST, "the oldest versions")
    return Runner(OLDEST.python, tmp_path, metadata_of_this_checkout)


@pytest.fixture
def oldest_sdk(metadata_of_this_checkout: Path, tmp_path: Path) -> Runner:
    """Runs scripts with the oldest OpenTelemetry."""
    demand(OLDEST_SDK, "the oldest OpenTelemetry")
    return Runner(OLDEST_SDK.python, tmp_path, metadata_of_this_checkout)


FIRSTS = {"trainer/stock": 1000.5, "trainer/gauge": 2000.5, "trainer/logged": 3000.5}
EVERY_VALUE = {
    (name, step, first + step) for name, first in FIRSTS.items() for step in range(STEPS)
}
"""Key, step and value: no step has two values of a key.

Where the second program begins long after the first, each step is written again as a whole.
"""


@pytest.mark.parametrize("protocol", ["http/protobuf", "grpc"])
def test_a_stock_sdk_and_a_worker_have_every_value_in_a_wandb_run(
    oldest: Runner, protocol: str
) -> None:
    command: list[str | Path] = [
        oldest.python, "-m", "otel_rl", "run", "--experiment", "real", "--role", "trainer",
        "--tracker", "wandb", "--", "sh", "-c", "$PYTHON stock.py && $PYTHON worker.py",
    ]  # fmt: skip
    oldest.script(STOCK, "stock.py")
    oldest.script(WORKER, "worker.py")
    environment = {
        "OTEL_EXPORTER_OTLP_PROTOCOL": protocol,
        "PYTHON": str(oldest.python),
        "WANDB_MODE": "offline",
    }
    done = oldest.start(*command, env=environment)
    assert done.status == 0, done.err
    history = wandb_run(oldest.directory, "real").history
    assert {
        (name, int(row["step"]), row[name]) for row in history for name in FIRSTS if name in row
    } == EVERY_VALUE


@pytest.mark.parametrize("protocol", ["http/protobuf", "grpc"])
def test_with_the_oldest_opentelemetry_a_stock_sdk_and_a_worker_have_every_value(
    oldest_sdk: Runner, protocol: str
) -> None:
    command: list[str | Path] = [
        oldest_sdk.python, "-m", "otel_rl", "run", "--experiment", "real", "--role", "trainer",
        "--tracker", "jsonl", "--", "sh", "-c", "$PYTHON stock.py && $PYTHON worker.py",
    ]  # fmt: skip
    oldest_sdk.script(STOCK, "stock.py")
    oldest_sdk.script(WORKER, "worker.py")
    environment = {"OTEL_EXPORTER_OTLP_PROTOCOL": protocol, "PYTHON": str(oldest_sdk.python)}
    done = oldest_sdk.start(*command, env=environment)
    assert done.status == 0, done.err
    assert {
        (name, row.step, row.values[name])
        for row in jsonl_rows(oldest_sdk.directory, "real")
        for name in FIRSTS
        if name in row.values
    } == EVERY_VALUE


def test_trl_has_every_loss_in_the_run(oldest: Runner) -> None:
    done = oldest.run(GRPO)
    assert done.status == 0, done.err
    (line,) = re.findall(r"^logged \[(.*)\]$", done.out, re.MULTILINE)
    losses = [float(text) for text in line.split(",")]
    assert values(oldest, "trainer/loss") == pytest.approx(dict(enumerate(losses, 1)))
    assert len(losses) == GRPO_STEPS


def test_an_actor_of_ray_that_is_killed_and_restarted_has_every_value(
    oldest: Runner,
) -> None:
    done = oldest.run(ACTORS + RESTARTED)
    assert done.status == 0, done.err
    assert values(oldest, "actor/loss") == LOSSES


def test_stable_baselines3_has_each_dump_in_the_run(oldest: Runner) -> None:
    done = oldest.run(SB3.format(kind="PPO", **AUTOMATICALLY), "--role", "trainer")
    assert done.status == 0, done.err
    dumped = [
        (step, of) for step, of in json.loads(done.out.splitlines()[-1]) if "train/loss" in of
    ]
    assert len(dumped) >= 3
    expected = {step: pytest.approx(of["train/loss"]) for step, of in dumped}
    assert values(oldest, "trainer/loss") == expected


def test_accelerate_and_lightning_have_each_step_in_the_run(oldest: Runner) -> None:
    done = oldest.run(ACCELERATE, "--role", "trainer", env=OFFLINE)
    assert done.status == 0, done.err
    assert values(oldest, "trainer/loss") == {0: 1.0, 1: 0.5, 2: pytest.approx(1 / 3)}
    done = oldest.run(LIGHTNING, "--role", "lightning", env=OFFLINE)
    assert done.status == 0, done.err
    assert values(oldest, "lightning/index") == {0: 0.0, 1: 1.0, 2: 2.0, 3: 3.0}


def test_the_drop_in_takes_the_calls_of_the_oldest_wandb(oldest: Runner) -> None:
    done = oldest.run(
        "from tests.support.wandb_signatures import differences; print(differences())"
    )
    assert done.status == 0, done.err
    assert done.out == "[]\n"
