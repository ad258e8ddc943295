"""Process: one data-parallel trainer rank.

A step is a chain of phases that never overlap. Waiting for data, waiting for the other rank,
computing and sending weights are separate, because each has another cause:

    collector_wait   the buffer has too few groups yet
    replay_batch_wait   the transfer of reserved groups
    batch_create, h2d_copy   rectangles, and their copy to a device
    rank_barrier, reference, train (param_sync inside)   the update, in step with the other ranks
    weight_sync (weight_push inside)   rank 0 sends the new policy to the weight store
    sync_coordination   rank 0 reports to the orchestrator and waits for its answer
    rank_barrier   the other ranks get the answer from rank 0
"""

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import numpy as np
from opentelemetry import metrics, trace

import otel_rl
from otel_rl import lineage
from otel_rl.demo.faults import Kind
from otel_rl.demo.generator_metrics import observe_process
from otel_rl.demo.grpo import Batch, Learner, Ranks, pack
from otel_rl.demo.messages import (
    Fetch,
    Group,
    Groups,
    Reserve,
    Reserved,
    StepDone,
    Weights,
)
from otel_rl.demo.rpc import ControlClient, Remote, accept, connect, listen
from otel_rl.semconv import names
from otel_rl.semconv.spec import described

_RANK_0_ONLY = ("weight_sync", "weight_push", "sync_coordination")
"""Each rank reports them, 0 where they do not occur. Otherwise their mean over the ranks would be
rank 0's value, and the means of a step's phases would exceed its length."""

SIDE = 256
ROUNDS = 8


class Trainer:
    """Trainer rank."""

    def __init__(self, control: ControlClient, ranks: Ranks) -> None:
        settings = control.start.settings
        self._control = control
        self._ranks = ranks
        meter = metrics.get_meter("otel_rl.demo.processes.trainer")
        self._idle = meter.create_counter(*described(names.RL_WORKER_IDLE_TIME))
        self._updates = meter.create_counter(*described(names.RL_POLICY_UPDATES))
        self._steps = meter.create_counter(*described(names.RL_TRAIN_STEPS))
        self._tokens = meter.create_counter(*described(names.RL_TRAIN_TOKENS))
        self._retrieval = meter.create_histogram(
            *described(names.RL_REPLAY_BUFFER_RETRIEVAL_DURATION)
        )
        self._groups = settings.groups_per_rank
        self._length = settings.shape.positions
        self._learner = Learner(settings, Path(control.start.checkpoint).read_bytes())
        self._buffer = Remote(control.address("replay_buffer"), control.faults.message_travels)
        self._weight_store = Remote(control.address("weight_store"))

    def run(self) -> None:
        step = 1
        while self._iterate(step):
            step += 1

    def _iterate(self, step: int) -> bool:
        with otel_rl.step(step, phases=_RANK_0_ONLY):
            groups = self._get_groups(version=step - 1)
            batch = self._stage(groups)
            done, figures = self._train(step, groups, batch)
            going_on = self._hand_over(done)
            self._control.faults.keep_memory(max(1, self._control.start.settings.steps - step))
            # Within the step, so that the cost of reporting is visible, as unaccounted.
            otel_rl.log(figures)
            if self._control.index == 0:  # all ranks train one policy
                self._updates.add(1)
                self._steps.add(1)
            self._tokens.add(sum(map(_episode_tokens, groups)))
        return going_on

    @contextmanager
    def _waiting(self, phase: str) -> Iterator[None]:
        """Count the ``with`` block as idle time of ``phase``."""
        begun_s = time.perf_counter()
        with otel_rl.phase(phase):
            yield
        self._idle.add(time.perf_counter() - begun_s)

    def _get_groups(self, *, version: int) -> Sequence[Group]:
        with self._waiting("collector_wait"):
            reserved = self._buffer.call(Reserve(self._groups, version))
        if not isinstance(reserved, Reserved):
            raise TypeError(f"expected Reserved, got {reserved!r}")
        begun_s = time.perf_counter()
        with self._waiting("replay_batch_wait"):
            fetched = self._buffer.call(Fetch(reserved.ticket))
        self._retrieval.record(time.perf_counter() - begun_s)
        if not isinstance(fetched, Groups):
            raise TypeError(f"expected Groups, got {fetched!r}")
        return fetched.groups

    def _stage(self, groups: Sequence[Group]) -> Batch:
        with otel_rl.phase("batch_create"):
            packed = pack(groups, length=self._length)
        with otel_rl.phase("h2d_copy"):
            return packed.copied()

    def _train(
        self, step: int, groups: Sequence[Group], batch: Batch
    ) -> tuple[StepDone, dict[str, float]]:
        """Update the policy. Returns what the run and what the rank itself shows of the step.

        ``lineage.link`` records rewards, lengths and staleness of the batch.
        """
        with self._waiting("rank_barrier"):
            self._ranks.barrier()
        with otel_rl.phase("reference"):
            reference_logits = self._learner.reference_logits(batch)
        with otel_rl.phase("train"):
            _describe_training(groups, version=step - 1)
            with self._control.faults.slowed(Kind.SLOW_TRAINING, Kind.STRAGGLER):
                outcome, own_gradient = self._learner.gradient(batch, reference_logits)
            if self._control.faults.once(Kind.NAN):
                own_gradient[0] = np.nan
            rewards = np.array([reward for group in groups for reward in group.rewards])
            staleness = [step - 1 - group.completions.policy_version for group in groups]
            with otel_rl.phase("param_sync"):
                gradient = self._ranks.average(own_gradient)
                # For the console, which shows what the run shows.
                means = self._ranks.average(
                    np.array([rewards.mean(), np.mean(staleness)], np.float32)
                )
            rate, change = self._learner.update(gradient, step=step)
        advantages = batch.advantages[batch.mask > 0]
        return StepDone(step, reward=float(means[0]), staleness=float(means[1])), {
            names.RL_TRAIN_LOSS: outcome.loss,
            names.RL_TRAIN_GRAD_ABS_MAX: float(np.abs(gradient).max()),
            names.RL_TRAIN_GRAD_MEAN_SQUARE: float(np.square(gradient).mean()),
            names.RL_TRAIN_GRAD_NORM: float(np.linalg.norm(gradient)),
            names.RL_TRAIN_GRAD_NONFINITE: int(np.count_nonzero(~np.isfinite(own_gradient))),
            names.RL_TRAIN_LEARNING_RATE: rate,
            names.RL_TRAIN_UPDATE_NORM: change,
            names.RL_POLICY_ADVANTAGE_MIN: float(advantages.min()),
            names.RL_POLICY_ADVANTAGE_MAX: float(advantages.max()),
            names.RL_POLICY_ADVANTAGE_MEAN: float(advantages.mean()),
            names.RL_POLICY_KL_REFERENCE: outcome.kl,
            names.RL_POLICY_ENTROPY: outcome.entropy,
            names.RL_POLICY_CLIP_FRACTION: outcome.clipped,
            names.RL_POLICY_IMPORTANCE_RATIO: outcome.ratio,
            names.RL_POLICY_VERSION: step,
            names.RL_REWARD_SUM: float(rewards.sum()),
        }

    def _hand_over(self, done: StepDone) -> bool:
        """Send the new policy and agree on whether there is another step."""
        going_on = True
        if self._control.index == 0:
            with otel_rl.phase("weight_sync"):
                flat = self._learner.policy.to_bytes()
                with otel_rl.phase("weight_push"):
                    weights = np.frombuffer(flat, np.float32)
                    stamp = lineage.signed(lineage.stamp(policy_version=done.step), [weights])
                    self._weight_store.call(Weights(done.step, flat, stamp))
            with self._waiting("sync_coordination"):
                self._control.send(done)
                going_on = self._control.inbox.get() is not None
        with self._waiting("rank_barrier"):
            return self._ranks.agree(go_on=going_on)


def _describe_training(groups: Sequence[Group], *, version: int) -> None:
    """Link the phase's span to the spans that generated the batch; record its age and rewards."""
    trace.get_current_span().set_attribute(names.RL_POLICY_VERSION, version)
    lineage.link([group.stamps for group in groups], policy_version=version)


def _episode_tokens(group: Group) -> int:
    return sum(map(len, group.completions.tokens))


def _peak_flops_per_s() -> float:
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


def main() -> None:
    listener, address = listen()
    control = ControlClient("trainer", address)
    if control.index == 0:
        ranks = Ranks(others=[accept(listener) for _ in range(control.count - 1)])
    else:
        ranks = Ranks(first=connect(control.address("trainer")))
    flops_per_token = control.start.settings.shape.flops_per_token
    otel_rl.init(
        mfu={
            "model_flops_per_token": flops_per_token,
            "peak_flops_per_s": _peak_flops_per_s(),
        }
    )
    observe_process()
    Trainer(control, ranks).run()


if __name__ == "__main__":
    main()
