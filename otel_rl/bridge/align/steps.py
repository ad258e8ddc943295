"""Step rows: samples that carry a step, keyed by (role, step).

A step is complete when every live worker of the role has gone past it. The newest step is complete,
too, when every series that reported the step before has reported it and nothing came for
``quiet_s``: a step that takes minutes is not shown minutes late. Otherwise a step is closed when
``allowed_lateness_s`` has passed since its newest sample arrived. What comes later still makes a
row, of its own, at its own step.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

from otel_rl.bridge.align.axis import is_integral
from otel_rl.bridge.align.series import Stream, WorkerState
from otel_rl.bridge.align.settings import AlignSettings
from otel_rl.bridge.align.single import single_rows
from otel_rl.bridge.align.streams import StreamTable
from otel_rl.bridge.reduce import Cell, put, reduced, statistic
from otel_rl.semconv import names
from otel_rl.semconv.names import RlPhaseValues
from otel_rl.semconv.spec import Reduction

__all__ = ["ClosedStep", "OpenSteps"]

_NS_PER_S = 1_000_000_000

# The part of an iteration that is work and transfer, not waiting.
_PIPELINE = frozenset(phase for phase, spec in names.PHASES.items() if spec.pipeline)


@dataclass(frozen=True, slots=True)
class ClosedStep:
    """One step of one role, reduced.

    Attributes:
        role: Whose step.
        step: Its number.
        time_ns: Latest event time among its samples.
        values: Tracker key to value.
        version: The policy version that was reported with the step, if any.
    """

    role: str
    step: int
    time_ns: int
    values: dict[str, float]
    version: int | None


@dataclass(slots=True)
class _OpenStep:
    """The samples of one step so far, by the number of their group.

    Late if the step was closed before.
    """

    late: bool
    time_ns: int = 0
    received_ns: int = 0
    cells: dict[int, Cell] = field(default_factory=dict)
    single: dict[int, list[tuple[int, float]]] = field(default_factory=dict)


class OpenSteps:
    """The steps of one experiment that still wait for samples."""

    def __init__(self) -> None:
        self._open: dict[str, dict[int, _OpenStep]] = {}
        self._closed_through: dict[str, int] = {}

    def add(
        self,
        stream: Stream,
        steps: Sequence[int],
        values: Sequence[float],
        times_ns: Sequence[int],
        received_ns: int,
        settings: AlignSettings,
    ) -> int:
        """Fold in samples of one series, in columns of one length, at least one.

        Returns:
            How many are late: their step was closed before.
        """
        role = stream.worker.role
        opened_steps = self._open.setdefault(role, {})
        closed_through = self._closed_through.get(role)
        group, own, reduction = stream.group.number, stream.own, stream.group.reduction
        late = 0
        # This loop is what the bridge does for every measurement of a run: few calls, local names.
        for step, value, time_ns in zip(steps, values, times_ns, strict=True):
            opened = opened_steps.get(step)
            if opened is None:
                is_late = closed_through is not None and step <= closed_through
                opened = opened_steps[step] = _OpenStep(is_late)
            late += opened.late
            if opened.time_ns < time_ns:
                opened.time_ns = time_ns
            if opened.received_ns < received_ns:
                opened.received_ns = received_ns
            put(opened.cells, group, value, time_ns, reduction)
            if own is None:
                continue
            if settings.per_worker:
                opened.single.setdefault(own.number, []).append((time_ns, value))
            else:
                put(opened.cells, own.number, value, time_ns, reduction)
        stream.reported(max(steps))
        return late

    @property
    def is_open(self) -> bool:
        """Whether any sample waits."""
        return any(self._open.values())

    def close(
        self, table: StreamTable, settings: AlignSettings, now_ns: int, *, everything: bool
    ) -> list[ClosedStep]:
        """Take out every step that is complete, or has waited long enough, in ascending order."""
        closed: list[ClosedStep] = []
        lateness_ns = int(settings.allowed_lateness_s * _NS_PER_S)
        quiet_ns = int(settings.quiet_s * _NS_PER_S)
        for role, steps in self._open.items():
            if not steps:
                continue
            waiting_for = _waiting_for(table, role, settings, now_ns)
            complete_below = _complete_below(waiting_for)
            newest = max(steps)
            surplus = len(steps) - settings.max_open_steps
            for place, step in enumerate(sorted(steps)):
                opened = steps[step]
                opened.received_ns = min(opened.received_ns, now_ns)  # the clock may be set back
                complete = complete_below is not None and step < complete_below
                if step == newest and not complete:
                    quiet = now_ns - opened.received_ns >= quiet_ns
                    complete = quiet and self._has_all(role, step, waiting_for)
                overdue = now_ns - opened.received_ns >= lateness_ns
                if not (everything or complete or overdue or place < surplus):
                    continue
                closed += _reduce(role, step, opened, table)
                del steps[step]
                self._closed_through[role] = max(step, self._closed_through.get(role, step))
        return closed

    def _has_all(self, role: str, step: int, waiting_for: Sequence[WorkerState] | None) -> bool:
        """Whether the newest step has all that the step before had, from every worker."""
        before = self._closed_through.get(role)
        if waiting_for is None or before is None:
            return False
        return all(worker.has_all_of(step, since=before) for worker in waiting_for)


def _waiting_for(
    table: StreamTable, role: str, settings: AlignSettings, now_ns: int
) -> list[WorkerState] | None:
    """The live workers of the role whose steps are waited for.

    None while a worker may still be on its way to its first step. For ``allowed_lateness_s`` after
    the role was first heard of, that is one that was announced and has not come; and for as long
    after each worker was first heard of, one that has reported other things but no step yet.
    """
    lateness_ns = int(settings.allowed_lateness_s * _NS_PER_S)
    lease_ns = int(settings.lease_s * _NS_PER_S)
    workers = [worker for worker in table.workers.values() if worker.role == role]
    begun_ns = min((worker.first_ns for worker in workers), default=0)
    if now_ns - begun_ns < lateness_ns and table.is_missing_workers(role):
        return None
    live = [worker for worker in workers if now_ns - worker.received_ns <= lease_ns]
    if any(not worker.streams and now_ns - worker.first_ns < lateness_ns for worker in live):
        return None
    return [worker for worker in live if worker.streams]


def _complete_below(waiting_for: Sequence[WorkerState] | None) -> float | None:
    """Steps below this one are complete: every worker has gone past them."""
    if waiting_for is None:
        return None
    return min((worker.passed_below() for worker in waiting_for), default=math.inf)


def _reduce(role: str, step: int, opened: _OpenStep, table: StreamTable) -> list[ClosedStep]:
    """The row of a step.

    Before it, where single measurements are wanted and a worker made several in one step, a row for
    each but the last.
    """
    values: dict[str, float] = {}
    version: int | None = None
    phases: dict[str, float] = {}
    for number, cell in opened.cells.items():
        group = table.groups[number]
        value = reduced(cell, group.reduction)
        if value is None:
            continue
        values[group.key] = value
        for suffix in group.statistics:
            found = statistic(cell, suffix)
            if found is not None:
                values[f"{group.key}/{suffix}"] = found
        if group.name == names.RL_POLICY_VERSION and is_integral(value):
            version = int(value)
        if group.name == names.RL_PHASE_DURATION and not group.own:
            phases[dict(group.attributes).get(names.RL_PHASE, "")] = value
    if RlPhaseValues.TRAIN in phases:
        derived = table.group(role, names.RL_PIPELINE_DURATION, (), Reduction.MEAN)
        values[derived.key] = sum(value for phase, value in phases.items() if phase in _PIPELINE)
    single = {table.groups[number].key: made for number, made in opened.single.items()}
    rows = list(single_rows(single))
    if rows:
        values |= rows.pop()[1]
    return [
        *(ClosedStep(role, step, time_ns, row, version) for time_ns, row in rows),
        ClosedStep(role, step, opened.time_ns, values, version),
    ]
