"""Settings of a simulated deployment, drawn for each world."""

import random
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from otel_rl.bridge.delivery.manager import DeliverySettings
from otel_rl.bridge.rows.settings import AlignSettings


@dataclass(frozen=True, slots=True)
class Knobs:
    """What a user, or a deployment, may have chosen.

    Attributes:
        bridges: How many share the journal; with one, it has no lease.
        lease_s: Of a bridge on a run.
        align: How samples become rows.
        delivery: How rows are delivered. Bounds small enough to be met.
        part: Points of which a batch is taken at a time.
        slice_s: Of an experiment in its turn, in which a look at the clock takes a millisecond.
        commit_every_s: For how long batches without a row stay uncommitted.
    """

    bridges: int
    lease_s: float
    align: AlignSettings
    delivery: DeliverySettings
    part: int
    slice_s: float
    commit_every_s: float

    @classmethod
    def draw(cls, chance: random.Random) -> Self:
        """Choose them."""
        align = AlignSettings(
            window_s=chance.choice([0.5, 1, 1, 5]),
            wait_s=chance.choice([1, 3, 3, 10]),
            worker_timeout_s=chance.choice([2, 5, 5, 15]),
            start_wait_s=chance.choice([0, 0.5, 2]),
            forget_s=chance.choice([20, 40, 3600]),
            max_open_steps=chance.choice([2, 50, 1_000]),
            per_worker=True,
        )
        batch_rows = chance.choice([1, 8, 8, 50])
        delivery = DeliverySettings(
            tracker="wandb",
            directory=Path(),
            attributes={"stall_timeout_s": "20"},
            batch_rows=batch_rows,
            max_unconfirmed_rows=max(batch_rows, chance.choice([10, 30])),
            confirm_interval_s=chance.choice([0.3, 1.0, 3.0]),
            keep_confirmed_s=chance.choice([2.0, 2.0, 10.0]),
        )
        bridges, lease_s = chance.choice([1, 1, 2, 3]), chance.choice([6.0, 12.0, 30.0])
        part, slice_s = {1: (1, 0.001), 8: (2, 0.003), 50: (1_000, 0.032)}[batch_rows]
        commit_every_s = chance.choice([0.0, 1.0, 3.0])
        return cls(bridges, lease_s, align, delivery, part, slice_s, commit_every_s)
