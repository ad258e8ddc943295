"""Rhythm of a run: the time that its steps take, as far as its snapshots tell.

Snapshots are about a second apart, and exports may be a minute apart: of short steps, many come in
one. So a step takes the part of the time between two snapshots that is left to each of theirs.
"""

from bisect import bisect_right
from itertools import pairwise
from statistics import median
from typing import NamedTuple, Self

from otel_rl.diagnose.history.run_history import RunHistory

__all__ = ["Rhythm"]

_START = 3  # steps that may take long because the run begins


class Rhythm(NamedTuple):
    """Rhythm of a run.

    Attributes:
        steps: Number of known steps.
        usual_s: Median duration of a step.
        longest_s: Bound of the longest one after the start, such as one with a checkpoint.
        stands_s: Time from the first news of the last step to the last record.
    """

    steps: int
    usual_s: float
    longest_s: float
    stands_s: float

    @classmethod
    def of(cls, history: RunHistory) -> Self | None:
        """Return the rhythm; None if the steps came at once, which tells of no time."""
        known = sorted(history.known_steps)
        told = sorted(history.begun_s.items())
        if len(told) < 2:
            return None
        usual_s: list[float] = []
        longest_s: list[float] = []
        for (step, begun_s), (later, next_s) in pairwise(told):
            before = bisect_right(known, step)
            steps = bisect_right(known, later) - before
            usual_s.append((next_s - begun_s) / steps)
            if before > _START:
                longest_s.append(next_s - begun_s)
        return cls(
            len(known),
            median(usual_s),
            # A run with a single snapshot after its start has no other bound.
            max(longest_s or [next_s - begun_s for (_, begun_s), (_, next_s) in pairwise(told)]),
            history.ends_s - told[-1][1],
        )
