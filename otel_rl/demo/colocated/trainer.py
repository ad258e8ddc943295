"""Trainer: one GRPO update on the samples of the previous turn."""

import json
from pathlib import Path
from time import monotonic

import numpy as np

import otel_rl
from otel_rl.demo.colocated.host import Host
from otel_rl.demo.learning.learner import Learner
from otel_rl.demo.learning.packing import pack
from otel_rl.demo.metrics.telemetry import report_as
from otel_rl.demo.settings import DemoSettings

__all__ = ["REWARDS_FILE", "train"]

REWARDS_FILE = "rewards.json"


def train(host: Host, settings: DemoSettings, work_dir: Path) -> None:
    """Take every other turn until the run is over."""
    report_as("trainer", index=0, count=1, config=settings.hyper_parameters, tags=["colocated"])
    learner = Learner(settings, host.onload().tobytes())
    rewards: list[float] = []
    begun_s = monotonic()
    for step in range(1, settings.steps + 1):
        with host.turn("trainer", then="generator"), otel_rl.step(step):
            groups = host.taken_over()
            with otel_rl.phase("batch_create"):
                batch = pack(groups, length=settings.shape.positions)
            with otel_rl.phase("h2d_copy", gpu=True):
                np.copyto(learner.policy.flat, host.onload())
            with otel_rl.phase("reference", gpu=True):
                reference = learner.reference_logits(batch)
            with otel_rl.phase("train", gpu=True):
                outcome, gradient = learner.gradient(batch, reference)
                update = learner.update(gradient, step=step)
            rewards.append(float(np.mean([r for group in groups for r in group.rewards])))
            figures = {
                "rl.train.loss": outcome.loss,
                "rl.policy.kl.reference": outcome.kl,
                "rl.policy.entropy": outcome.entropy,
                "rl.reward.mean": rewards[-1],
                "rl.train.learning_rate": update.rate,
                "rl.policy.version": step,
            }
            # Before the hand-over: the step is reported whatever the other process does.
            otel_rl.log(figures)
            with otel_rl.phase("weight_push", gpu=True):
                host.offload(learner.policy.flat)
        print(f"step {step:3d}  reward {rewards[-1]:.2f}  loss {outcome.loss:+.3f}", flush=True)
    totals = {"rewards": rewards, "duration_s": monotonic() - begun_s}
    (work_dir / REWARDS_FILE).write_text(json.dumps(totals))
