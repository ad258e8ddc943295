"""Keeps of one experiment what a diagnosis goes by: who measured what, not only what came of it.

What is not in the state is lost with a crash, for about a second of time: it is detail of rows that
are there. What is given out is kept in the transaction of the rows.
"""

import math
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import pairwise
from typing import Final, NamedTuple

from otel_rl.bridge.align.series import Standing, Stream, WorkerState
from otel_rl.diagnose.facts import Facts, RowFacts, SpanFacts, StepFacts, WorkerFacts
from otel_rl.records import SpanRecord, Worker

__all__ = ["Chronicle", "History"]

_NS_PER_S: Final = 1_000_000_000
_EVERY_NS: Final = _NS_PER_S

# Of one key, or of one phase of a role: more are told by those that stand out.
_MAX_WORKERS: Final = 32
_MAX_VALUES: Final = 4_096
_MAX_PHASES: Final = 256
_MAX_PARENTS: Final = 10_000

# Sizes of what was given out are remembered in so many parts.
_MAX_PARTS: Final = 64


# In which one worker measured something, in one message: told apart up to so many.
_MAX_STEPS: Final = 8

# Of what was measured between two facts, so many are told apart by their steps.
_MAX_CELLS: Final = 4_096

_Cell = tuple[WorkerState, int | None]


class History(NamedTuple):
    """Facts, to be kept beside the state until they are forgotten.

    Attributes:
        newest_ns: When they were made.
        body: ``Facts.encode``.
    """

    newest_ns: int
    body: bytes


class Chronicle:
    """Takes note of what comes in, and gives out facts. Can be pickled, without what is open."""

    def __init__(self) -> None:
        # (newest time, bytes) of what was given out and is not forgotten.
        self._kept: deque[tuple[int, int]] = deque()
        self._forgotten_ns = 0
        self._begin()
        self._lost: set[Worker] | None = set()

    def _begin(self) -> None:
        self._made_ns = 0
        self._cells = 0
        self._measured: dict[str, dict[_Cell, list[float]]] = {}
        self._spans: dict[tuple[int, str, str, str], list[float]] = {}
        # Time of the spans within one that has not come yet; oldest first.
        self._within: dict[tuple[bytes, str], int] = {}
        self._lags: dict[WorkerState, float] = {}
        self._rows: list[RowFacts] = []
        self._steps: list[StepFacts] = []

    @property
    def forgotten_ns(self) -> int:
        """No history with a ``newest_ns`` up to this time is needed any more."""
        return self._forgotten_ns

    def measured(
        self, stream: Stream, values: Sequence[float], steps: Sequence[int | None] = ()
    ) -> None:
        """A worker has measured these, or counted them.

        Args:
            stream: Whose.
            values: At least one.
            steps: Of each value; empty if they belong to none.
        """
        of = self._measured.get(stream.group.key)
        if of is None:
            if len(self._measured) >= _MAX_VALUES:
                return
            of = self._measured[stream.group.key] = {}
        worker, before = stream.worker, len(of)
        if steps and len(steps) <= _MAX_STEPS and self._cells < _MAX_CELLS:
            for value, step in zip(values, steps, strict=True):
                cell = of.get((worker, step))
                if cell is None:
                    cell = of[worker, step] = [0, 0.0, 0]
                if value - value == 0:  # finite
                    cell[0] += 1
                    cell[1] += value
                else:
                    cell[2] += 1
        else:  # too many to tell apart, or in no step
            place = worker, steps[-1] if steps else None
            cell = of.get(place)
            if cell is None:
                cell = of[place] = [0, 0.0, 0]
            _put(cell, values)
        self._cells += len(of) - before

    def spanned(self, spans: Iterable[SpanRecord], step_at: Callable[[int], int]) -> None:
        """These spans have ended.

        Args:
            spans: Of one message, those that did not come before. Scopes come one after another
                there, not spans by their ends.
            step_at: The step in progress at a time in ns.
        """
        # What is within another is to come before it, also if both end together.
        for span in sorted(spans, key=lambda span: (span.end_ns, -span.start_ns)):
            inside_ns = self._within.pop((span.span_id, span.worker), 0)
            took_ns = span.end_ns - span.start_ns
            if span.parent_id is not None:
                parent = span.parent_id, span.worker
                self._within[parent] = self._within.get(parent, 0) + took_ns
                if len(self._within) > _MAX_PARENTS:
                    del self._within[next(iter(self._within))]
            step = step_at(span.end_ns) if span.step is None else span.step
            place = step, span.role, span.phase or span.name, span.worker
            cell = self._spans.get(place)
            if cell is None:
                if len(self._spans) >= _MAX_PHASES * _MAX_WORKERS:
                    continue
                cell = self._spans[place] = [span.is_wait, 0, 0.0, 0.0, 0]
            own_s = max(0, took_ns - inside_ns) / _NS_PER_S
            cell[1] += 1
            cell[2] += own_s
            cell[3] = max(cell[3], own_s)
            cell[4] += span.failed

    def exported(self, worker: WorkerState, event_ns: int, received_ns: int) -> None:
        """A worker has reported, at a time by its clock and at one by the bridge's."""
        if event_ns:
            lag_s = (received_ns - event_ns) / _NS_PER_S
            self._lags[worker] = min(lag_s, self._lags.get(worker, lag_s))

    def closed(self, step: int, time_ns: int, values: Mapping[str, float]) -> None:
        """A row was closed."""
        kept = {key: value for key, value in values.items() if not key.startswith("workers/")}
        if kept and len(kept) <= _MAX_VALUES:
            self._rows.append(RowFacts(step, time_ns, kept))

    def explained(self, step: StepFacts) -> None:
        """A step was explained."""
        self._steps.append(step)

    def take(
        self,
        now_ns: int,
        step: int,
        workers: Mapping[Worker, WorkerState],
        names: Mapping[str, str],
        max_bytes: int,
        *,
        everything: bool,
    ) -> History | None:
        """Take out what became known since the last time, if that was a while ago.

        Args:
            now_ns: The bridge's clock.
            step: In progress.
            workers: All that are known.
            names: Theirs, by what they call themselves.
            max_bytes: Bound of what is to be kept; the oldest is forgotten.
            everything: Whether or not it was a while ago.
        """
        new = self._rows or self._steps or self._measured or self._spans
        is_time = everything or self._rows or self._steps or now_ns - self._made_ns >= _EVERY_NS
        if not max_bytes:
            self._begin()
        if not new or not is_time or not max_bytes:
            return None
        now_ns = max(now_ns, self._kept[-1][0] + 1 if self._kept else 0)
        facts = Facts(
            now_ns,
            step,
            self._rows,
            self._steps,
            dict(_by_worker(self._measured)),
            list(_by_phase(self._spans, names)),
            [(f"{of.role}/{of.label}", lag_s) for of, lag_s in self._lags.items()][:_MAX_VALUES],
            self._newly_lost(workers),
        )
        within = self._within
        self._begin()
        self._made_ns, self._within = now_ns, within
        body = facts.encode()
        self._keep(now_ns, len(body), max_bytes)
        return History(now_ns, body)

    def _newly_lost(self, workers: Mapping[Worker, WorkerState]) -> list[str]:
        lost = {of for of, state in workers.items() if state.standing is Standing.FAILED}
        new = set() if self._lost is None else lost - self._lost
        self._lost = lost
        return sorted(f"{workers[of].role}/{workers[of].label}" for of in new)

    def _keep(self, now_ns: int, size: int, max_bytes: int) -> None:
        kept = self._kept
        kept.append((now_ns, size))
        if len(kept) > _MAX_PARTS:
            # The two neighbours that are smallest together become one.
            sizes = [one[1] + other[1] for one, other in pairwise(kept)]
            place = sizes.index(min(sizes))
            kept[place + 1] = kept[place + 1][0], sizes[place]
            del kept[place]
        total = sum(size for _, size in kept)
        while total > max_bytes and len(kept) > 1:
            self._forgotten_ns, freed = kept.popleft()
            total -= freed

    def __getstate__(self) -> tuple[deque[tuple[int, int]], int]:
        return self._kept, self._forgotten_ns

    def __setstate__(self, state: tuple[deque[tuple[int, int]], int]) -> None:
        self._kept, self._forgotten_ns = state
        self._begin()
        self._lost = None  # those before a restart were told


def _put(cell: list[float], values: Sequence[float]) -> None:
    total = sum(values)
    if math.isfinite(total):
        cell[0] += len(values)
        cell[1] += total
        return
    finite = [value for value in values if math.isfinite(value)]
    cell[0] += len(finite)
    cell[1] += sum(finite)
    cell[2] += len(values) - len(finite)


def _by_worker(
    measured: Mapping[str, Mapping[_Cell, Sequence[float]]],
) -> Iterable[tuple[str, list[WorkerFacts]]]:
    names: dict[WorkerState, str] = {}
    for key, cells in measured.items():
        of_step: dict[int | None, list[WorkerFacts]] = {}
        for (of, step), (count, total, oddities) in cells.items():
            name = names.get(of) or names.setdefault(of, f"{of.role}/{of.label}")
            facts = WorkerFacts(name, step, int(count), total, int(oddities))
            of_step.setdefault(step, []).append(facts)
        yield key, [one for some in of_step.values() for one in _outstanding(some)]


def _outstanding(facts: list[WorkerFacts]) -> list[WorkerFacts]:
    """Those with the lowest and the highest values, where there are many."""
    if len(facts) <= _MAX_WORKERS:
        return facts
    facts.sort(key=lambda one: (one.oddities, one.total / (one.measurements or 1)))
    return facts[: _MAX_WORKERS // 2] + facts[-_MAX_WORKERS // 2 :]


def _by_phase(
    spans: Mapping[tuple[int, str, str, str], Sequence[float]], names: Mapping[str, str]
) -> Iterable[SpanFacts]:
    of_phase: dict[tuple[int, str, str], list[SpanFacts]] = {}
    for place, (is_wait, count, total_s, longest_s, failed) in spans.items():
        step, role, phase, worker = place
        name = names.get(worker, worker)
        facts = SpanFacts(
            step, role, phase, name, bool(is_wait), int(count), total_s, longest_s, int(failed)
        )
        of_phase.setdefault((step, role, phase), []).append(facts)
    for some in of_phase.values():
        some.sort(key=lambda one: one.total_s / one.spans)
        yield from (
            some
            if len(some) <= _MAX_WORKERS
            else (some[: _MAX_WORKERS // 2] + some[-_MAX_WORKERS // 2 :])
        )
