"""Keeps what counters and histograms count during each step, beside the SDK's totals. See ADR 0015.

    counter.add ---> cell of the step in progress        training threads: one append
    step ends -----> the step waits for the exporter     a few microseconds
    export --------> its cells become shares             exporter thread

The step of a count is that of its attribute ``rl.loop.iteration``; else the ``otel_rl.step`` block
around the call, else the block opened last in the process. In a process without such blocks, a
count belongs to the step of the next gauge. Counts outside of any step are in the totals only.
"""

import threading
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from contextvars import ContextVar
from functools import partial
from sys import getrefcount
from time import time_ns
from typing import Final
from weakref import ref

from opentelemetry.util.types import Attributes

from otel_rl.semconv.names import RL_LOOP_ITERATION
from otel_rl.worker.drops import DropReason
from otel_rl.worker.guard import Guard
from otel_rl.worker.metrics.exponential import ExponentialBuckets
from otel_rl.worker.otlp.step_shares import (
    Buckets,
    Share,
    ShareStream,
    encoded_attributes,
)
from otel_rl.worker.phases.timeline import EndCounts
from otel_rl.worker.tensors import as_step

__all__ = ["StepShares"]

_FOLD_AT: Final = 4096
"""Amounts of a cell that are kept as they are: a counting thread adds them up beyond that, the
exporter thread at each export."""

_STEP_BITS: Final = 64
"""A 64-bit step has fewer bits besides its sign; the smallest one takes the slower way."""

_MAX_SETS: Final = 2000
"""Sets of attributes of an instrument in one step, as in the SDK; the rest is counted as one."""

_OVERFLOW: Final = {"otel.metric.overflow": True}

_MAX_OPEN: Final = 64
"""Step blocks that are open at a time."""

_MAX_ENDED: Final = 1024
"""Ended steps between two exports."""

_MAX_PARTS: Final = 64
"""Pieces of a step, cut at its gauges, before they are merged."""

_MAX_CELLS: Final = 20_000
"""Series in the merged pieces of a step; the rest is counted as one for each instrument."""

_MAX_KNOWN: Final = 1000
"""Series of counters that are reported as 0 in steps in which they do not grow; and series that
are announced."""


class _Cell:
    """Amounts of one series in one step. Any thread appends to ``values``, which is atomic."""

    __slots__ = ("attributes", "buckets", "key", "stream", "total", "values")

    def __init__(self, key: object, stream: ShareStream, attributes: Mapping[str, object]) -> None:
        self.key = key
        self.stream = stream
        self.attributes = attributes
        self.values: list[float] = []
        self.total: float = 0
        self.buckets: ExponentialBuckets | None = None

    def take(self) -> list[float]:
        """Remove and return the amounts so far; later ones stay."""
        taken = self.values[:]
        del self.values[: len(taken)]
        return taken

    def fold(self) -> None:
        """Add up the amounts so far. The caller holds the lock."""
        taken = self.take()
        if not self.stream.is_histogram:
            self.total += sum(taken)
        elif taken:
            if self.buckets is None:
                self.buckets = ExponentialBuckets()
            self.buckets.extend(taken)

    def merge(self, other: "_Cell") -> None:
        """Move the amounts of another cell of the series to this one."""
        self.values += other.take()
        self.total += other.total
        other.total = 0
        if self.buckets is None:
            self.buckets = other.buckets
        elif other.buckets is not None:
            self.buckets.merge(other.buckets)
        other.buckets = None

    def amount(self) -> float | Buckets | None:
        """Return the folded amounts; None for a histogram without any."""
        if not self.stream.is_histogram:
            return self.total
        return None if self.buckets is None else self.buckets.taken()


_Cells = dict[object, _Cell]

_ALONE: Final = next(getrefcount(one) for one in {object(): None})
"""References to a key of a dict that is gone through, if there is no other one."""


class _Step:
    """One step, or a piece of it.

    Attributes:
        number: None while no gauge has reported it.
        begun_ns: 0 if unknown.
        ended_ns: End so far.
        is_closed: Whether later counts belong to another step.
        is_first: Whether it is the first piece of a step that all counts of a time belong to.
        cells: By instrument and attributes.
        parts: Cells of earlier pieces.
        sets: Number of cells of each instrument.
    """

    __slots__ = (
        "begun_ns",
        "cells",
        "ended_ns",
        "is_closed",
        "is_first",
        "number",
        "parts",
        "sets",
    )

    def __init__(self, number: int | None, begun_ns: int) -> None:
        self.number = number
        self.begun_ns = begun_ns
        self.ended_ns = begun_ns
        self.is_closed = False
        self.is_first = True
        self.cells: _Cells = {}
        self.parts: list[_Cells] = []
        self.sets: dict[ShareStream, int] = {}

    def all_cells(self) -> Iterator[_Cell]:
        """Yield all cells. Copies of the dicts, because a late thread may still add one."""
        for cells in (*self.parts, self.cells):
            yield from list(cells.values())

    def total(self, counter: str) -> float | None:
        """Return what the counter of a name has counted so far; None if it has not."""
        counts = [
            cell.total + sum(cell.values)
            for cell in self.all_cells()
            if cell.stream.name == counter and not cell.stream.is_histogram
        ]
        return sum(counts) if counts else None

    def absorb(self, cells: _Cells) -> None:
        """Take over the cells of a piece."""
        self.parts.append(cells)
        if len(self.parts) > _MAX_PARTS:
            whole, *others = self.parts
            held = [cell for other in others for cell in _merge(whole, other)]
            for key in list(whole)[_MAX_CELLS:]:
                stream = whole[key].stream
                rest = (stream, "overflow")
                if key != rest:
                    whole.setdefault(rest, _Cell(rest, stream, _OVERFLOW))
                    held += _merge(whole, {key: whole.pop(key)}, into=rest)
            self.parts = [whole, *({cell.key: cell} for cell in held)]


def _merge(whole: _Cells, other: _Cells, *, into: object = None) -> Iterator[_Cell]:
    """Move the cells of a piece to others; yield those that a thread still holds, unchanged.

    Args:
        whole: Cells that stay.
        other: The piece, which is left empty: no thread finds a cell there any more.
        into: Key of the cell in ``whole`` for all of them; default: their own.
    """
    for key in list(other):
        cell = other.pop(key)
        if getrefcount(cell) >= _ALONE:  # the piece refers to it no more
            yield cell
            continue
        known = whole.setdefault(key if into is None else into, cell)
        if known is not cell:
            known.merge(cell)


class StepShares:
    """Steps of the process. Any thread counts; only the exporter thread takes.

    Args:
        guard: Counts losses.

    Attributes:
        current: Step of counts that have no step of their own and are in no block; None outside of
            steps.
        follows_gauges: Whether the steps are those of gauges, because there was no block yet.
    """

    def __init__(self, guard: Guard) -> None:
        self._guard = guard
        # Block around the call. It may have ended: a task can outlive the block it was made in.
        self._around: ContextVar[_Step | None] = ContextVar("otel_rl_step", default=None)
        self.forget()

    def forget(self) -> None:
        """Start over. In a forked child the parent reports its steps."""
        for step in (*getattr(self, "_open", {}), getattr(self, "current", None)):
            if step is not None:
                step.is_closed = True
        # _lock guards everything below; ``count`` reads ``current`` without it.
        self._lock = threading.RLock()
        self.current: _Step | None = None
        self.follows_gauges = True
        self._open: dict[_Step, ref[object]] = {}
        self._ended: deque[_Step] = deque()
        # The newest step of a gauge, the time of the newest gauge, and the counts since.
        self._gauge_step: _Step | None = None
        self._gauge_step_number: int | None = None
        self._gauge_step_ns = 0
        self._pending: _Cells = {}
        self._has_counted = False  # or is about to
        self._explicit: dict[int, _Step] = {}
        self._explicit_ns = 0
        self._sent: dict[_Cell, None] = {}  # a thread may have appended to them since, or will
        self._known: dict[tuple[ShareStream, bytes], None] = {}
        self._announced: set[tuple[ShareStream, bytes]] = set()

    def open(self, number: int, begun_ns: int, owner: object) -> EndCounts:
        """Begin the step of a block.

        Args:
            number: The step.
            begun_ns: Its begin.
            owner: The block; if it is deleted first, the step is forgotten.

        Returns:
            Ends the step.
        """
        step = _Step(number, begun_ns)
        with self._lock:
            if self.follows_gauges:
                self.follows_gauges = False
                if self.current is not None:
                    self.current.is_closed = True
                if self._gauge_step is not None:
                    self._end_gauge_step(self._gauge_step)
                    self._gauge_step = None
            self._open[step] = ref(owner)
            if len(self._open) > _MAX_OPEN:
                self._leave(next(iter(self._open)))
            self.current = step
        self._around.set(step)
        return partial(self._close, step)

    def _close(self, step: _Step, ended_ns: int, counter: str | None = None) -> float | None:
        with self._lock:
            if step not in self._open:
                return None
            self._leave(step)
            step.ended_ns = max(step.begun_ns, ended_ns)
            counted = None if counter is None else step.total(counter)
            self._end(step)
            return counted

    def reached(self, step: object, now_ns: int) -> None:
        """Record that a gauge was measured with a step. Only if ``follows_gauges``."""
        if type(step) is int:
            if step == self._gauge_step_number and not self._pending:
                self._gauge_step_ns = now_ns  # nearly always
                return
            if not self._has_counted and step.bit_length() < _STEP_BITS:
                # Steps before the first count have no shares, not even zeros, so none of them is
                # kept: the gauges' step gets the next number. Without a call of its own, which
                # would be a fifth of the cost.
                with self._lock:
                    marked = self._gauge_step
                    if marked is not None and not self._has_counted:
                        marked.number = self._gauge_step_number = step
                        marked.begun_ns, self._gauge_step_ns = self._gauge_step_ns, now_ns
                        return
        elif getattr(step, "is_cuda", False):
            return  # reading it would wait for the device
        number = as_step(step)
        if number is None:
            return
        with self._lock:
            if not self.follows_gauges:
                return
            marked = self._gauge_step
            if marked is None or marked.number != number:
                begun_ns = 0
                if marked is not None:
                    begun_ns = self._gauge_step_ns
                    self._end_gauge_step(marked)
                marked = self._gauge_step = _Step(number, begun_ns)
                self._gauge_step_number = number
            pending = self.current
            if pending is None or pending.cells:
                self.current = _Step(None, 0)
                self._pending = self.current.cells
            if pending is not None and pending.cells:
                marked.absorb(pending.cells)
                pending.is_closed = True
            self._gauge_step_ns = now_ns

    def count(self, stream: ShareStream, amount: float, attributes: Attributes) -> None:
        """Add an amount to the step that it belongs to, if any."""
        step = self._around.get()
        if step is None or step.is_closed:
            step = self.current
        key: object = stream
        if attributes:
            if RL_LOOP_ITERATION in attributes:
                step = self._explicit_step(attributes[RL_LOOP_ITERATION])
                attributes = {
                    name: value for name, value in attributes.items() if name != RL_LOOP_ITERATION
                }
            if attributes:
                key = (stream, *attributes.items())
        if step is None:
            return
        try:
            cell = step.cells.get(key)
        except TypeError:  # a list as a value
            key = (stream, encoded_attributes(stream, attributes or {}))
            cell = step.cells.get(key)
        if cell is None:
            cell = self._new_cell(step, key, stream, attributes or {})
        values = cell.values
        values.append(amount)
        if len(values) >= _FOLD_AT:
            with self._lock:
                cell.fold()

    def take(self) -> list[Share]:
        """Remove and return the shares of ended steps, and of the gauges' step so far.

        A series that counts in a step for the first time is announced before its first share, so
        that a receiver need not show it by time meanwhile.
        """
        with self._lock:
            for step in [step for step, owner in self._open.items() if owner() is None]:
                self._leave(step)  # its thread or task has ended within the block
            self._carry_over()
            taken = [*self._ended, *self._explicit.values()]
            for step in self._explicit.values():
                step.is_closed = True
            self._ended.clear()
            self._explicit.clear()
            marked = self._gauge_step
            if marked is not None and (marked.parts or marked.cells):
                marked.is_closed = True
                marked.ended_ns = self._gauge_step_ns
                taken.append(marked)
                self._gauge_step = _Step(marked.number, self._gauge_step_ns)
                self._gauge_step.is_first = False
            # Shares of a series tile time in this order.
            taken.sort(key=lambda step: step.ended_ns)
            going_on = [*self._open, *(() if self.current is None else (self.current,))]
        shares = [share for step in taken for share in self._shares(step)]
        for step in going_on:
            for cell in step.all_cells():
                with self._guard, self._lock:
                    cell.fold()
                    shares += self._announcement(step, cell)
        return shares

    def _announcement(self, step: _Step, cell: _Cell) -> Iterator[Share]:
        if len(self._announced) < _MAX_KNOWN:
            series = cell.stream, encoded_attributes(cell.stream, cell.attributes)
            if series not in self._announced:
                self._announced.add(series)
                yield Share(*series, None, step.begun_ns, time_ns(), 0)

    def _shares(self, step: _Step) -> Iterator[Share]:
        whole: dict[tuple[ShareStream, bytes], _Cell] = {}
        for cell in step.all_cells():
            with self._guard:
                key = cell.stream, encoded_attributes(cell.stream, cell.attributes)
                self._sent[cell] = None
                known = whole.setdefault(key, cell)
                with self._lock:
                    if known is not cell:
                        known.merge(cell)
                    known.fold()
        step.cells, step.parts = {}, []  # a task that outlives its step keeps it
        if step.is_first:
            self._note(whole)
        if len(self._announced) < _MAX_KNOWN:
            self._announced.update(whole)
        amounts = dict.fromkeys(self._known, 0) if step.is_first else {}
        number = step.number
        assert number is not None
        for stream, attributes in {**amounts, **whole}:
            found = whole.get((stream, attributes))
            amount = 0 if found is None else found.amount()
            if amount is not None:
                yield Share(stream, attributes, number, step.begun_ns, step.ended_ns, amount)

    def _note(self, series: Iterable[tuple[ShareStream, bytes]]) -> None:
        """Record the counters that grow, to report it when they do not."""
        for one in series:
            if not one[0].is_histogram:
                self._known.pop(one, None)
                self._known[one] = None
        while len(self._known) > _MAX_KNOWN:
            del self._known[next(iter(self._known))]

    def _carry_over(self) -> None:
        """Count in the present step what a thread added to one while it was taken, or after."""
        sent, self._sent = self._sent, {}
        for cell in sent:
            is_held = getrefcount(cell) > _ALONE  # asked first: who lets go has added its amount
            if cell.values and self.current is not None:
                present = self.current.cells.get(cell.key)
                if present is None:
                    present = self._new_cell(self.current, cell.key, cell.stream, cell.attributes)
                present.values += cell.take()
            if is_held or cell.values:
                self._sent[cell] = None

    def _explicit_step(self, given: object) -> _Step | None:
        """Return the step in a count's own attribute; None if it is not an integer."""
        number = as_step(given)
        if number is None:
            return None
        with self._lock:
            self._has_counted = True  # what is returned keeps its number
            if self._gauge_step is not None and self._gauge_step.number == number:
                return self._gauge_step
            for step in self._open:
                if step.number == number:
                    return step
            now_ns = time_ns()
            found = self._explicit.get(number)
            if found is None:
                # Beside blocks its begin is unknown.
                found = _Step(number, self._explicit_ns if self.follows_gauges else 0)
                found.is_first = False
                self._explicit[number] = found
            found.ended_ns = self._explicit_ns = now_ns
            return found

    def _new_cell(
        self, step: _Step, key: object, stream: ShareStream, attributes: Mapping[str, object]
    ) -> _Cell:
        with self._lock:
            self._has_counted = True
            sets = step.sets.get(stream, 0)
            if sets >= _MAX_SETS:
                key, attributes = (stream, "overflow"), _OVERFLOW
            else:
                step.sets[stream] = sets + 1
            cell = step.cells.setdefault(key, _Cell(key, stream, {**attributes}))
            if step.is_closed:  # its cells may have been taken
                self._sent[cell] = None
            return cell

    def _leave(self, step: _Step) -> None:
        """Make a block's step no longer the current one."""
        del self._open[step]
        step.is_closed = True
        self.current = next(reversed(self._open), None)

    def _end_gauge_step(self, marked: _Step) -> None:
        marked.ended_ns = self._gauge_step_ns
        self._end(marked)

    def _end(self, step: _Step) -> None:
        step.is_closed = True
        self._ended.append(step)
        if len(self._ended) > _MAX_ENDED:
            lost = sum(1 for _ in self._ended.popleft().all_cells())
            self._guard.drop(
                DropReason.BUFFER_FULL,
                f"More than {_MAX_ENDED} steps ended between two exports; the counts of the oldest "
                "are in the totals only.",
                lost,
            )
