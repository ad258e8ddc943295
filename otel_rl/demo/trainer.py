"""Process: one data-parallel trainer rank.

An iteration is a chain of phases that never overlap. Waiting for data, waiting for the other rank,
computing and handing weights over are told apart, because each has another cause:

    collector_wait   the buffer has too few groups yet
    replay_batch_wait   it has enough; they are on their way here
    batch_create, h2d_copy   rectangles, and their copy to the staging area
    rank_barrier, reference, train, param_sync, train   the update, in step with the other ranks
    weight_sync (weight_push inside)   rank 0 hands the new policy to the weight store
    sync_coordination   rank 0 tells the orchestrator and hears whether to go on
    rank_barrier   and the other ranks hear it from rank 0
"""

import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from opentelemetry import propagate, trace

from otel_rl.demo.grpo import Batch
from otel_rl.demo.learner import Learner
from otel_rl.demo.messages import Fetch, Group, Groups, Reserve, Reserved, StepDone, Weights
from otel_rl.demo.packing import Staging, pack
from otel_rl.demo.peak import peak_flops_per_s
from otel_rl.demo.phases import PhaseClock
from otel_rl.demo.ranks import Ranks
from otel_rl.demo.seat import Seat
from otel_rl.demo.telemetry import reporting
from otel_rl.demo.trainer_metrics import StepFigures, TrainerMetrics
from otel_rl.demo.wire import Remote, listen

__all__ = ["main"]


class Trainer:
    """One rank."""

    def __init__(self, seat: Seat, ranks: Ranks, metrics: TrainerMetrics) -> None:
        settings = seat.start.settings
        self._seat = seat
        self._ranks = ranks
        self._metrics = metrics
        self._clock = PhaseClock()
        self._tracer = trace.get_tracer("otel_rl.demo.trainer")
        self._groups = settings.groups_per_rank
        self._length = settings.shape.positions
        self._staging = Staging(rows=self._groups * settings.group_size, length=self._length)
        self._learner = Learner(settings, Path(seat.start.checkpoint).read_bytes())
        self._peak_flops_per_s = peak_flops_per_s()
        self._buffer = Remote(seat.address("replay_buffer"))
        self._weight_store = Remote(seat.address("weight_store"))
        self._begun_s = time.perf_counter()

    def run(self) -> None:
        """Make steps until told to stop."""
        step, going_on = 1, True
        self._begun_s = time.perf_counter()
        while going_on:
            going_on = self._iterate(step)
            step += 1

    def _iterate(self, step: int) -> bool:
        with self._tracer.start_as_current_span("rl.loop", attributes={"rl.loop.iteration": step}):
            groups = self._get_groups(version=step - 1)
            batch = self._stage(groups)
            with self._tracer.start_as_current_span(
                "rl.train",
                links=_links(groups),
                attributes={"rl.loop.iteration": step, "rl.policy.version": step - 1},
            ):
                figures = self._train(step, groups, batch)
            going_on = self._hand_over(step, figures)
        # The next iteration begins here, so that reporting this one is part of it.
        begun_s, self._begun_s = self._begun_s, time.perf_counter()
        duration_s = self._begun_s - begun_s
        flops_per_s = self._learner.flops(batch) / duration_s
        self._metrics.step(
            step,
            figures,
            self._clock.take(),
            duration_s=duration_s,
            mfu=flops_per_s / self._peak_flops_per_s,
        )
        return going_on

    def _get_groups(self, *, version: int) -> Sequence[Group]:
        with self._clock.phase("collector_wait"):
            reserved = self._buffer.call(Reserve(self._groups, version))
        if not isinstance(reserved, Reserved):
            raise TypeError(f"expected Reserved, got {reserved!r}")
        with self._clock.phase("replay_batch_wait"):
            fetched = self._buffer.call(Fetch(reserved.ticket))
        if not isinstance(fetched, Groups):
            raise TypeError(f"expected Groups, got {fetched!r}")
        return fetched.groups

    def _stage(self, groups: Sequence[Group]) -> Batch:
        with self._clock.phase("batch_create"):
            packed = pack(groups, length=self._length)
        with self._clock.phase("h2d_copy"):
            return self._staging.load(packed)

    def _train(self, step: int, groups: Sequence[Group], batch: Batch) -> StepFigures:
        with self._clock.phase("rank_barrier"):
            self._ranks.barrier()
        with self._clock.phase("reference"):
            reference_logits = self._learner.reference_logits(batch)
        with self._clock.phase("train"):
            outcome, own_gradient = self._learner.gradient(batch, reference_logits)
        with self._clock.phase("param_sync"):
            gradient = self._ranks.average(own_gradient)
        with self._clock.phase("train"):
            update = self._learner.update(gradient, step=step)
        rewards = np.array([reward for group in groups for reward in group.rewards])
        lengths = [len(tokens) for group in groups for tokens in group.completions.tokens]
        return StepFigures(
            outcome=outcome,
            gradient=gradient,
            update_norm=update.norm,
            learning_rate=update.rate,
            advantages=batch.advantages[batch.mask > 0],
            rewards=rewards,
            episode_tokens=lengths,
            staleness=[step - 1 - group.completions.policy_version for group in groups],
        )

    def _hand_over(self, step: int, figures: StepFigures) -> bool:
        """Give the new policy away and agree on whether there is another step."""
        going_on = True
        if self._seat.index == 0:
            with self._clock.phase("weight_sync"):
                weights = Weights(step, self._learner.policy.to_bytes())
                with self._clock.part("weight_push"):
                    self._weight_store.call(weights)
            with self._clock.phase("sync_coordination"):
                self._seat.tell(
                    StepDone(
                        step=step,
                        reward=float(figures.rewards.mean()),
                        loss=figures.outcome.loss,
                        staleness=float(np.mean(figures.staleness)),
                        episode_tokens=float(np.mean(figures.episode_tokens)),
                    )
                )
                going_on = self._seat.inbox.get() is not None
        with self._clock.phase("rank_barrier"):
            return self._ranks.agree(go_on=going_on)


def _links(groups: Sequence[Group]) -> list[trace.Link]:
    """To the spans that sampled what is trained on."""
    contexts = (
        trace.get_current_span(propagate.extract(group.completions.context)).get_span_context()
        for group in groups
    )
    return [trace.Link(context) for context in contexts if context.is_valid]


def main() -> None:
    """Train until told to stop."""
    listener, address = listen()
    seat = Seat("trainer", address)
    if seat.index == 0:
        ranks = Ranks.gather(listener, count=seat.count)
    else:
        ranks = Ranks.join(seat.address("trainer"))
    with reporting("trainer", seat):
        Trainer(seat, ranks, TrainerMetrics(rank=seat.index)).run()


if __name__ == "__main__":
    main()
