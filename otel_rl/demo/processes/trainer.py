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
from opentelemetry import trace

import otel_rl
from otel_rl import lineage
from otel_rl.demo.faults import Kind
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
from otel_rl.demo.metrics import StepFigures, TrainerMetrics, peak_flops_per_s, report_as
from otel_rl.demo.rpc import ControlClient, Remote, listen
from otel_rl.semconv import names

__all__ = ["main"]

_RANK_0_ONLY = ("weight_sync", "weight_push", "sync_coordination")
"""Each rank reports them, 0 where they do not occur. Otherwise their mean over the ranks would be
rank 0's value, and the means of a step's phases would exceed its length."""


class Trainer:
    """Trainer rank."""

    def __init__(self, control: ControlClient, ranks: Ranks, metrics: TrainerMetrics) -> None:
        settings = control.start.settings
        self._control = control
        self._ranks = ranks
        self._metrics = metrics
        self._groups = settings.groups_per_rank
        self._length = settings.shape.positions
        self._learner = Learner(settings, Path(control.start.checkpoint).read_bytes())
        self._peak_flops_per_s = peak_flops_per_s()
        self._buffer = Remote(control.address("replay_buffer"), control.faults.message_travels)
        self._weight_store = Remote(control.address("weight_store"))

    def run(self) -> None:
        """Make steps until stopped."""
        step, going_on = 1, True
        while going_on:
            going_on = self._iterate(step)
            step += 1

    def _iterate(self, step: int) -> bool:
        begun_s = time.perf_counter()
        with otel_rl.step(step, phases=_RANK_0_ONLY):
            groups = self._get_groups(version=step - 1)
            batch = self._stage(groups)
            figures = self._train(step, groups, batch)
            going_on = self._hand_over(step, figures)
            self._control.faults.keep_memory(max(1, self._control.start.settings.steps - step))
            flops_per_s = self._learner.flops(batch) / (time.perf_counter() - begun_s)
            # Within the step, so that the cost of reporting is visible, as unaccounted.
            self._metrics.step(step, figures, mfu=flops_per_s / self._peak_flops_per_s)
        return going_on

    @contextmanager
    def _waiting(self, phase: str) -> Iterator[None]:
        """Count the ``with`` block as idle time of ``phase``."""
        begun_s = time.perf_counter()
        with otel_rl.phase(phase):
            yield
        self._metrics.idle.add(time.perf_counter() - begun_s)

    def _get_groups(self, *, version: int) -> Sequence[Group]:
        with self._waiting("collector_wait"):
            reserved = self._buffer.call(Reserve(self._groups, version))
        if not isinstance(reserved, Reserved):
            raise TypeError(f"expected Reserved, got {reserved!r}")
        begun_s = time.perf_counter()
        with self._waiting("replay_batch_wait"):
            fetched = self._buffer.call(Fetch(reserved.ticket))
        self._metrics.retrieval.record(time.perf_counter() - begun_s)
        if not isinstance(fetched, Groups):
            raise TypeError(f"expected Groups, got {fetched!r}")
        return fetched.groups

    def _stage(self, groups: Sequence[Group]) -> Batch:
        with otel_rl.phase("batch_create"):
            packed = pack(groups, length=self._length)
        with otel_rl.phase("h2d_copy"):
            return packed.copied()

    def _train(self, step: int, groups: Sequence[Group], batch: Batch) -> StepFigures:
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
            update = self._learner.update(gradient, step=step)
        lengths = [len(tokens) for group in groups for tokens in group.completions.tokens]
        return StepFigures(
            outcome=outcome,
            gradient=gradient,
            nonfinite=int(np.count_nonzero(~np.isfinite(own_gradient))),
            update_norm=update.norm,
            learning_rate=update.rate,
            advantages=batch.advantages[batch.mask > 0],
            rewards=rewards,
            episode_tokens=lengths,
            staleness=staleness,
            mean_reward=float(means[0]),
            mean_staleness=float(means[1]),
        )

    def _hand_over(self, step: int, figures: StepFigures) -> bool:
        """Send the new policy and agree on whether there is another step."""
        going_on = True
        if self._control.index == 0:
            with otel_rl.phase("weight_sync"):
                flat = self._learner.policy.to_bytes()
                with otel_rl.phase("weight_push"):
                    weights = np.frombuffer(flat, np.float32)
                    stamp = lineage.signed(lineage.stamp(policy_version=step), [weights])
                    self._weight_store.call(Weights(step, flat, stamp))
            with self._waiting("sync_coordination"):
                self._control.send(
                    StepDone(
                        step=step,
                        reward=figures.mean_reward,
                        loss=figures.outcome.loss,
                        staleness=figures.mean_staleness,
                        episode_tokens=float(np.mean(figures.episode_tokens)),
                    )
                )
                going_on = self._control.inbox.get() is not None
        with self._waiting("rank_barrier"):
            return self._ranks.agree(go_on=going_on)


def _describe_training(groups: Sequence[Group], *, version: int) -> None:
    """Link the phase's span to the spans that generated the batch; record its age and rewards."""
    trace.get_current_span().set_attribute(names.RL_POLICY_VERSION, version)
    lineage.link([group.stamps for group in groups], policy_version=version)


def main() -> None:
    """Train until stopped."""
    listener, address = listen()
    control = ControlClient("trainer", address)
    if control.index == 0:
        ranks = Ranks.gather(listener, count=control.count)
    else:
        ranks = Ranks.join(control.address("trainer"))
    report_as("trainer", index=control.index, count=control.count)
    Trainer(control, ranks, TrainerMetrics(rank=control.index)).run()


if __name__ == "__main__":
    main()
