"""Programs with libraries that log to W&B, without a line about otel_rl: the hook records them."""

from collections.abc import Mapping

import pytest

from tests.frameworks.conftest import Runner
from tests.process.commands import jsonl_rows

OFFLINE = {"WANDB_MODE": "offline", "WANDB_SILENT": "true", "WANDB_ERROR_REPORTING": "false"}

TRANSFORMERS = """
import torch
from transformers import Trainer, TrainingArguments
from transformers.modeling_utils import PreTrainedModel
from transformers import PretrainedConfig


class Tiny(PreTrainedModel):
    config_class = PretrainedConfig

    def __init__(self, config):
        super().__init__(config)
        self.layer = torch.nn.Linear(2, 1)
        self.post_init()

    def forward(self, x=None, labels=None):
        found = self.layer(x)
        return {"loss": ((found - labels) ** 2).mean(), "logits": found}


rows = [{"x": torch.ones(2) * i, "labels": torch.ones(1)} for i in range(12)]
trainer = Trainer(
    Tiny(PretrainedConfig()),
    TrainingArguments(
        "out", report_to="wandb", logging_steps=1, max_steps=6, use_cpu=True, save_steps=3,
        per_device_train_batch_size=2, eval_strategy="steps", eval_steps=3, disable_tqdm=True,
    ),
    train_dataset=rows,
    eval_dataset=rows[:4],
)
trainer.train()
print("trained", trainer.state.global_step, repr(trainer.state.log_history[-2]["eval_loss"]))
"""


def values(frameworks: Runner, name: str) -> Mapping[int, float]:
    """Step to value of one key of the run."""
    rows = jsonl_rows(frameworks.directory, "real")
    return {row.step: row.values[name] for row in rows if name in row.values}


def test_a_transformers_trainer_that_logs_to_wandb_reports_once(frameworks: Runner) -> None:
    done = frameworks.run(
        TRANSFORMERS,
        "--role",
        "trainer",
        env={**OFFLINE, "WANDB_WATCH": "all"},
    )
    assert done.status == 0, done.err
    assert "trained 6" in done.out, done.out
    assert sorted(values(frameworks, "trainer/loss")) == [1, 2, 3, 4, 5, 6]
    assert values(frameworks, "trainer/eval_loss")[6] == float(done.out.split()[-1])


CLEANRL = """
import random
import time

import gymnasium
from torch.utils.tensorboard import SummaryWriter

import wandb

name = f"CartPole-v1__ppo__1__{int(time.time())}"
settings = {"seed": 1, "learning_rate": 2.5e-4}
wandb.init(project="cleanRL", entity=None, sync_tensorboard=True, config=settings, name=name,
           monitor_gym=True, save_code=True)
writer = SummaryWriter(f"runs/{name}")
writer.add_text("hyperparameters", "|param|value|\\n|-|-|\\n|seed|1|")
environment = gymnasium.wrappers.RecordEpisodeStatistics(gymnasium.make("CartPole-v1"))
environment.reset(seed=1)
last = {}
for global_step in range(1, 201):
    *_, terminated, truncated, info = environment.step(random.Random(global_step).randrange(2))
    if terminated or truncated:
        last["charts/episodic_return"] = (global_step, float(info["episode"]["r"]))
        environment.reset()
    if global_step % 50 == 0:
        last["losses/value_loss"] = (global_step, 1 / global_step)
    for tag, (step, value) in last.items():
        if step == global_step:
            writer.add_scalar(tag, value, global_step)
environment.close()
writer.close()
for tag, (step, value) in last.items():
    print("last", tag, step, repr(value))
"""


@pytest.mark.tried("CleanRL", "gymnasium", "wandb", seen="the last value of each scalar")
def test_a_script_like_those_of_cleanrl_brings_the_last_value_of_each_scalar(
    frameworks: Runner,
) -> None:
    done = frameworks.run(CLEANRL, "--role", "trainer", env=OFFLINE)
    assert done.status == 0, done.err
    lasts = [line.split()[1:] for line in done.out.splitlines() if line.startswith("last ")]
    assert len(lasts) == 2
    for tag, step, value in lasts:
        found = values(frameworks, f"trainer/{tag}")
        assert max(found) == int(step)
        assert found[int(step)] == pytest.approx(float(value), rel=1e-6)


ACCELERATE = """
from accelerate import Accelerator

accelerator = Accelerator(log_with="wandb", cpu=True)
accelerator.init_trackers("project", config={"lr": 0.1}, init_kwargs={"wandb": {"name": "a"}})
for step in range(3):
    accelerator.log({"loss": 1.0 / (step + 1)}, step=step)
accelerator.get_tracker("wandb").log_table("samples", columns=["a"], data=[["b"]], step=3)
accelerator.end_training()
"""


@pytest.mark.tried("Accelerate", "accelerate", "wandb", seen="each step")
def test_what_a_tracker_of_accelerate_logs_is_recorded(frameworks: Runner) -> None:
    done = frameworks.run(ACCELERATE, "--role", "trainer", env=OFFLINE)
    assert done.status == 0, done.err
    assert values(frameworks, "trainer/loss") == {0: 1.0, 1: 0.5, 2: pytest.approx(1 / 3)}


LIGHTNING = """
import copy
import pickle

import pytorch_lightning as lightning
import torch
from pytorch_lightning.loggers import WandbLogger


class Tiny(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(2, 1)
        self.save_hyperparameters({"lr": 0.1})

    def training_step(self, batch, index):
        loss = self.layer(batch).mean() ** 2
        self.log("loss", loss)
        self.log("index", float(index))
        return loss

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), 0.1)


logger = WandbLogger(project="lightning", name="tiny", log_model="all")
logger.watch(torch.nn.Linear(1, 1))
trainer = lightning.Trainer(
    max_steps=4, log_every_n_steps=1, logger=logger, accelerator="cpu", enable_progress_bar=False,
    enable_model_summary=False,
)
model = Tiny()
trainer.fit(model, torch.utils.data.DataLoader(torch.ones(8, 2), batch_size=2))
logger.log_text("texts", columns=["a"], data=[["b"]])
logger.log_image("images", [torch.zeros(3, 2, 2)])
copied = pickle.loads(pickle.dumps(logger))
assert copied.experiment.id == logger.experiment.id
"""


RANKS = """
import csv
from pathlib import Path

import pytorch_lightning as lightning
import torch
from pytorch_lightning.loggers import CSVLogger, WandbLogger


class Tiny(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(2, 1)

    def training_step(self, batch, index):
        error = self.layer(batch).mean() ** 2
        self.log("error", error, sync_dist=True)
        self.log("of_epoch", error, on_step=False, on_epoch=True, sync_dist=True)
        return error

    def validation_step(self, batch, index):
        self.log("held_out", self.layer(batch).mean(), sync_dist=True)

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), 0.1)


def loader():
    return torch.utils.data.DataLoader(torch.randn(32, 2), batch_size=2)


trainer = lightning.Trainer(
    max_epochs=3, log_every_n_steps=3, accelerator="cpu", devices=2, strategy="ddp",
    logger=[CSVLogger(".", "csv"), WandbLogger(project="ranks")], enable_progress_bar=False,
    enable_model_summary=False,
)
trainer.fit(Tiny(), loader(), loader())
if trainer.is_global_zero:
    for line in csv.DictReader(Path("csv/version_0/metrics.csv").open()):
        for name in ("error", "of_epoch", "held_out"):
            if line[name]:
                print("logged", name, line["step"], line[name])
"""


@pytest.mark.tried("Lightning", "pytorch-lightning", "wandb", seen="each step, two ranks (DDP)")
def test_two_ranks_of_lightning_have_what_its_own_file_has(frameworks: Runner) -> None:
    done = frameworks.run(RANKS, "--role", "trainer", env=OFFLINE)
    assert done.status == 0, done.err
    logged = [line.split()[1:] for line in done.out.splitlines() if line.startswith("logged ")]
    assert len(logged) == 8 + 3 + 3, done.out
    rows = jsonl_rows(frameworks.directory, "real")
    for name in ("error", "of_epoch", "held_out"):
        key = f"trainer/{name}"
        found = sorted((row.step, row.values[key]) for row in rows if key in row.values)
        kept = [(int(step), float(value)) for of, step, value in logged if of == name]
        assert [step for step, _ in found] == [step for step, _ in kept]
        assert [value for _, value in found] == pytest.approx([value for _, value in kept])


def test_what_a_logger_of_lightning_logs_is_recorded(frameworks: Runner) -> None:
    done = frameworks.run(LIGHTNING, "--role", "trainer", env=OFFLINE)
    assert done.status == 0, done.err
    assert values(frameworks, "trainer/index") == {0: 0.0, 1: 1.0, 2: 2.0, 3: 3.0}
