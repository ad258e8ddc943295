"""Metrics of the processes that use otel_rl. Remaining telemetry is delivered at exit."""

import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from opentelemetry import metrics

import otel_rl
from otel_rl.demo import task
from otel_rl.demo.generator_metrics import observe_process
from otel_rl.demo.grpo import Outcome
from otel_rl.demo.messages import Group
from otel_rl.demo.transformer import Floats
from otel_rl.semconv import names
from otel_rl.semconv.spec import described

__all__ = ["TABLE", "Rollouts", "StepFigures", "TrainerMetrics", "peak_flops_per_s", "report_as"]


def report_as(
    role: str,
    *,
    index: int,
    count: int,
    config: Mapping[str, object] | None = None,
    tags: Sequence[str] = (),
) -> None:
    """Report from now on.

    There is no ``shutdown``: at exit the worker reports whether an error ended the process.

    Args:
        role: Of the process.
        index: Index among the processes of the role.
        count: Number of processes of the role.
        config: Hyper-parameters of the run; one process reports them.
        tags: Of the run.
    """
    otel_rl.init(role=role, index=index, count=count, config=config, tags=tags)
    observe_process()


SIDE = 256
ROUNDS = 8


def peak_flops_per_s() -> float:
    """Return the best of a few float32 matrix products, in floating-point operations per second.

    The best round is the one least disturbed by other processes.
    """
    left = np.ones((SIDE, SIDE), np.float32)
    best_s = float("inf")
    for _ in range(ROUNDS):
        begun_s = time.perf_counter()
        left @ left
        best_s = min(best_s, time.perf_counter() - begun_s)
    return 2 * SIDE**3 / best_s


@dataclass(frozen=True, slots=True)
class StepFigures:
    """Figures of one rank's step.

    Attributes:
        outcome: Loss, KL, entropy of the rank's own batch.
        gradient: Averaged over the ranks, before clipping.
        nonfinite: Elements of the rank's own gradient that are not finite.
        update_norm: Euclidean norm of the parameters' change.
        learning_rate: Of the update.
        advantages: One per trained token.
        rewards: One per sample.
        episode_tokens: Completion length of each sample.
        staleness: Of each group, in policy versions.
        mean_reward: Of the samples of all ranks.
        mean_staleness: Of the groups of all ranks.
    """

    outcome: Outcome
    gradient: Floats
    nonfinite: int
    update_norm: float
    learning_rate: float
    advantages: Floats
    rewards: npt.NDArray[np.float64]
    episode_tokens: Sequence[int]
    staleness: Sequence[int]
    mean_reward: float
    mean_staleness: float


class TrainerMetrics:
    """Records single values by ``log``, everything else by OpenTelemetry instruments.

    ``lineage.link`` has recorded rewards, lengths and staleness of the batch.

    Attributes:
        idle: Seconds in which the rank had no work.
        retrieval: Seconds to fetch a reserved batch.
    """

    def __init__(self, *, rank: int) -> None:
        # All ranks train one policy; counts of each rank would add up to several.
        self._counts_policies = rank == 0
        meter = metrics.get_meter("otel_rl.demo.processes.trainer")
        self.idle = meter.create_counter(*described(names.RL_WORKER_IDLE_TIME))
        self._updates = meter.create_counter(*described(names.RL_POLICY_UPDATES))
        self._steps = meter.create_counter(*described(names.RL_TRAIN_STEPS))
        self._tokens = meter.create_counter(*described(names.RL_TRAIN_TOKENS))
        self.retrieval = meter.create_histogram(
            *described(names.RL_REPLAY_BUFFER_RETRIEVAL_DURATION)
        )

    def step(self, step: int, figures: StepFigures, *, mfu: float) -> None:
        """Report the results of a step.

        Args:
            step: From 1.
            figures: Computed by the step.
            mfu: Model FLOPs utilisation over the step.
        """
        outcome, gradient = figures.outcome, figures.gradient
        otel_rl.log(
            {
                names.RL_TRAIN_LOSS: outcome.loss,
                names.RL_TRAIN_GRAD_ABS_MAX: float(np.abs(gradient).max()),
                names.RL_TRAIN_GRAD_MEAN_SQUARE: float(np.square(gradient).mean()),
                names.RL_TRAIN_GRAD_NORM: float(np.linalg.norm(gradient)),
                names.RL_TRAIN_GRAD_NONFINITE: figures.nonfinite,
                names.RL_TRAIN_LEARNING_RATE: figures.learning_rate,
                names.RL_TRAIN_UPDATE_NORM: figures.update_norm,
                names.RL_TRAIN_MFU: mfu,
                names.RL_POLICY_ADVANTAGE_MIN: float(figures.advantages.min()),
                names.RL_POLICY_ADVANTAGE_MAX: float(figures.advantages.max()),
                names.RL_POLICY_ADVANTAGE_MEAN: float(figures.advantages.mean()),
                names.RL_POLICY_KL_REFERENCE: outcome.kl,
                names.RL_POLICY_ENTROPY: outcome.entropy,
                names.RL_POLICY_CLIP_FRACTION: outcome.clipped,
                names.RL_POLICY_IMPORTANCE_RATIO: outcome.ratio,
                names.RL_POLICY_VERSION: step,
                names.RL_REWARD_SUM: float(figures.rewards.sum()),
            }
        )
        if self._counts_policies:
            self._updates.add(1)
            self._steps.add(1)
        self._tokens.add(sum(figures.episode_tokens))


TABLE = "rollouts"
"""The run has it as ``reward/rollouts``."""


class Rollouts:
    """Logs the best and the worst sample of each policy version's first group. Thread-safe."""

    def __init__(self) -> None:
        # _lock guards _shown, which holds versions: they arrive in any order.
        self._lock = threading.Lock()
        self._shown: set[int] = set()

    def show(self, group: Group) -> None:
        """Log the group's best and worst sample, once per version."""
        version = group.completions.policy_version
        with self._lock:
            if version in self._shown:
                return
            self._shown.add(version)
        scored = sorted(zip(group.rewards, group.completions.tokens, strict=True))
        otel_rl.log_samples(
            [
                {
                    "prompt": group.completions.prompt,
                    "completion": task.decode(tokens),
                    "reward": reward,
                }
                for reward, tokens in (scored[-1], scored[0])
            ],
            step=version,  # the step that produced the policy
            name=TABLE,
        )
