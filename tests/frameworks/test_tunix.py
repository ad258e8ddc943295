"""A Tunix trainer trains a tiny model on JAX, and all that it logs is in the run."""

from pathlib import Path

import pytest

from tests.frameworks.conftest import Runner, demand
from tests.lab.frameworks.environment import TUNIX
from tests.process.commands import jsonl_rows

STEPS = 4

KEY = "trainer/loss"

SCRIPT = f"""
    import jax, numpy as np, optax
    from flax import nnx
    {{install}}
    from tunix.sft import metrics_logger, peft_trainer

    class Model(nnx.Module):
        def __init__(self):
            self.layer = nnx.Linear(2, 1, rngs=nnx.Rngs(0))

    class Trainer(peft_trainer.PeftTrainer):
        def _prepare_inputs(self, batch):
            return {{{{"x": batch}}}}

    options = metrics_logger.MetricsLoggerOptions("logs")
    config = peft_trainer.TrainingConfig(
        eval_every_n_steps=100, max_steps={STEPS}, metrics_logging_options=options
    )
    trainer = Trainer(Model(), optax.sgd(0.1), config)
    trainer = trainer.with_loss_fn(lambda model, x: (model.layer(x) ** 2).mean())
    trainer.train([np.ones((2, 2), np.float32) * n for n in range(1, {STEPS} + 1)])
    history = trainer.metrics_logger.get_metric_history("", "loss", "train")
    print("logged", [float(value) for value in history])
"""

BY_HAND = "from otel_rl.integrations import hook; hook.record_tensorboard()"


@pytest.fixture
def tunix(metadata_of_this_checkout: Path, tmp_path: Path) -> Runner:
    demand(TUNIX, "Tunix")
    return Runner(TUNIX.python, tmp_path, metadata_of_this_checkout)


@pytest.mark.tried("Tunix", "Tunix", lock="tunix", seen="each step of a real trainer on JAX")
@pytest.mark.parametrize(
    ("options", "install"),
    [((), ""), (("--no-adapters",), BY_HAND)],
    ids=["automatically", "by hand"],
)
def test_every_loss_is_in_the_run_to_the_last(
    tunix: Runner, options: tuple[str, ...], install: str
) -> None:
    done = tunix.run(SCRIPT.format(install=install), *options)
    assert done.status == 0, done.err
    (line,) = [line for line in done.out.splitlines() if line.startswith("logged ")]
    losses = [float(text) for text in line.removeprefix("logged ").strip("[]").split(",")]
    assert len(losses) == STEPS
    rows = jsonl_rows(tunix.directory, "real")
    assert [row.values[KEY] for row in rows if KEY in row.values] == pytest.approx(losses)
