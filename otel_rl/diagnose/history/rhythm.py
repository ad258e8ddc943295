"""Rhythm of a run: the time that its steps take, as far as its snapshots show.

Snapshots are about a second apart, and exports may be a minute apart: one export may contain many
short steps. So the time between two snapshots is divided equally among the steps that came in it.
"""

from bisect import bisect_right
from collections.abc import Sequence
from itertools import pairwise
from statistics import median
from typing import NamedTuple, Self

from otel_rl.diagnose.history.run_history import RunHistory
from otel_rl.diagnose.thresholds import SIDE

BEGINNING = SIDE
"""Steps that may be odd because the run begins."""


class Rhythm(NamedTuple):
    """Rhythm of a run, without the time in which no worker was heard.

    Attributes:
        steps: Number of known steps.
        usual_s: Median duration of a step.
        longest_s: Bound of the longest duration after the start, such as of a step with a
            checkpoint.
        stands_s: Time from the first news of the last step to the last record.
    """

    steps: int
    usual_s: float
    longest_s: float
    stands_s: float

    @classmethod
    def of(cls, history: RunHistory) -> "Rhythm | None":
        """Return the rhythm; None if the steps came at once, which shows no time."""

        def found() -> Rhythm | None:
            begun = sorted(history.begun_s.items())
            told = [(step, history.age_s(0.0, at_s)) for step, at_s in begun]
            return cls.between(sorted(history.known_steps), told, history.age_s(0.0))

        return history.once("rhythm", history.ends_s, found)

    @classmethod
    def between(
        cls, known: Sequence[int], told: Sequence[tuple[int, float]], ends_s: float
    ) -> Self | None:
        """Return the rhythm of steps that are given in order.

        Args:
            told: Steps that were the newest of a snapshot, with its time.
            ends_s: Time of the last snapshot.
        """
        if len(told) < 2:
            return None
        usual_s: list[float] = []
        longest_s: list[float] = []
        for (step, begun_s), (later, next_s) in pairwise(told):
            before = bisect_right(known, step)
            steps = bisect_right(known, later) - before
            usual_s.append((next_s - begun_s) / steps)
            if before > BEGINNING:
                longest_s.append(next_s - begun_s)
        # A run with a single snapshot after its start has no other bound.
        bounds_s = longest_s or [next_s - begun_s for (_, begun_s), (_, next_s) in pairwise(told)]
        return cls(len(known), median(usual_s), max(bounds_s), ends_s - told[-1][1])
