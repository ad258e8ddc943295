"""Finds the steps that lack spans, because spans are sampled on the way or were lost."""

from bisect import bisect_left, bisect_right, insort
from collections.abc import Collection, Iterable, Mapping, Sequence
from itertools import pairwise
from math import gcd
from typing import Final, NamedTuple

from msgspec import field

from otel_rl.bridge.journal.state import Int64, Stored
from otel_rl.records import SpanRecord, Worker
from otel_rl.semconv.spec import BLOCK_STEPS, STEP_SPAN

# Highest steps of one rank that are remembered, in whatever order they come.
_STEPS_OF_RANK: Final = 16

# Workers whose steps are remembered.
_MAX_RANKS: Final = 4_096

# Steps without spans that show a rule: an export may be lost, and the spans of some steps with it.
_FEWEST: Final = 3
_SHARE: Final = 0.05


class Gaps(NamedTuple):
    """Steps that should have spans but lack some.

    Attributes:
        lacking: By step, the ranks that have spans before and after the step but not in it.
        missing: Number of steps without any span, and, if there are several gaps, of steps that
            lack a rank's.
        compared: Number of steps that were compared.
    """

    lacking: Mapping[int, Collection[str]] = {}
    missing: int = 0
    compared: int = 0

    def __str__(self) -> str:
        return f"Of {self.compared} steps {self.missing} lack spans: they are sampled, or lost"

    @property
    def is_a_rule(self) -> bool:
        """Return whether so many steps lack spans that chance does not explain the gaps."""
        return self.missing >= _FEWEST and self.missing >= _SHARE * self.compared


class MissingSpans(Stored):
    """Steps of each rank that have spans.

    Attributes:
        steps: By role and worker, the highest steps with spans, in order.
        marked_ns: By role and worker, the latest end of a span that says that other spans of its
            step may have been dropped.
    """

    steps: dict[tuple[str, str], list[Int64]] = field(default_factory=dict)
    marked_ns: dict[tuple[str, str], Int64] = field(default_factory=dict)

    def add(self, spans: Iterable[SpanRecord]) -> None:
        for span in spans:
            if span.name != STEP_SPAN or span.step is None:
                continue
            rank = span.role, span.worker
            if rank not in self.steps:
                self.steps[rank] = []
                if len(self.steps) > _MAX_RANKS:
                    del self.steps[next(iter(self.steps))]
            steps = self.steps[rank]
            if span.step not in steps:
                insort(steps, span.step)
                del steps[:-_STEPS_OF_RANK]

    def mark(self, sampled: Mapping[Worker, int]) -> None:
        """Note the workers whose spans say that other spans of their step may have been dropped."""
        for worker, end_ns in sampled.items():
            rank = worker.role, worker.instance
            # The latest come last.
            self.marked_ns[rank] = max(self.marked_ns.pop(rank, 0), end_ns)
            if len(self.marked_ns) > _MAX_RANKS:
                del self.marked_ns[next(iter(self.marked_ns))]

    def unmark_through(self, horizon_ns: int) -> None:
        """Forget marks of spans that ended by ``horizon_ns``."""
        for rank, end_ns in [*self.marked_ns.items()]:
            if end_ns <= horizon_ns:
                del self.marked_ns[rank]

    def gaps(
        self,
        role: str,
        spanned: Collection[int],
        reported: Iterable[int],
        waiting: Collection[int] = (),
    ) -> Gaps:
        """Compare the steps with spans of any rank of a role with the steps that should have spans.

        Args:
            spanned: Steps of the role that have spans.
            reported: Steps of the role that metrics report.
            waiting: Further steps with spans, some of whose spans are still to come.
        """
        if not spanned:
            return Gaps()
        lacking = self._lacking(role, spanned)
        first, last = min(spanned), max(spanned)
        blocks, every = {step // BLOCK_STEPS for step in spanned}, _interval(sorted(spanned))
        # Workers keep or drop whole blocks, see ``otel_rl/worker/tracing.py``.
        missing = {
            step
            for step in set(reported).difference(spanned, waiting)
            if first < step < last and step // BLOCK_STEPS in blocks and (step - first) % every == 0
        }
        torn = self._torn(role)
        of_ranks = sum(not torn.isdisjoint(workers) for workers in lacking.values())
        in_order = sorted(missing.union(spanned))
        gap_count = sum(
            step in missing and before not in missing for before, step in pairwise(in_order)
        )
        of_all = len(missing) if gap_count > 1 else 0  # see ``_torn``
        return Gaps(lacking, of_all + of_ranks, len(in_order))

    def _torn(self, role: str) -> set[str]:
        """Return the ranks with several gaps; a single gap may be a lost export."""
        return {
            worker
            for (of_role, worker), steps in self.steps.items()
            if of_role == role and _gap_count(steps) > 1
        }

    def _lacking(self, role: str, spanned: Collection[int]) -> dict[int, list[str]]:
        found: dict[int, list[str]] = {}
        in_order = sorted(spanned)
        for (of_role, worker), steps in self.steps.items():
            if of_role != role:
                continue
            own, first, every = set(steps), steps[0], _interval(steps)
            between = slice(bisect_right(in_order, first), bisect_left(in_order, steps[-1]))
            for step in in_order[between]:
                if step not in own and (step - first) % every == 0:
                    found.setdefault(step, []).append(worker)
        return found


def _interval(in_order: Sequence[int]) -> int:
    """Return the largest interval that divides all gaps between steps; random gaps give 1."""
    return gcd(*_distances(in_order)) or 1


def _gap_count(in_order: Sequence[int]) -> int:
    every = _interval(in_order)
    return sum(distance > every for distance in _distances(in_order))


def _distances(in_order: Sequence[int]) -> list[int]:
    return [after - before for before, after in pairwise(in_order)]
