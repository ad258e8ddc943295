"""Closes the steps of one role: chooses complete steps, and reduces each to its row.

A row with fewer workers than expected contains their number, so that nobody takes it for the whole
step.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from otel_rl.bridge.rows.reduce import compact, reduced
from otel_rl.bridge.rows.row_values import single_rows, statistics_of, take_earliest
from otel_rl.bridge.rows.series.key_groups import GroupIdentity
from otel_rl.bridge.rows.series.series_table import StreamTable
from otel_rl.bridge.rows.series.streams import WorkerStanding, WorkerState
from otel_rl.bridge.rows.settings import AlignSettings
from otel_rl.bridge.rows.steps.role_steps import RoleSteps
from otel_rl.bridge.rows.steps.step import OpenStep, StepRow, Steps
from otel_rl.bridge.rows.steps.step_axis import Attempts, is_integral
from otel_rl.bridge.rows.steps.step_passes import Returned
from otel_rl.bridge.rows.turn import Turn
from otel_rl.records import RoleStanding
from otel_rl.semconv import names
from otel_rl.semconv.names import RlPhaseValues
from otel_rl.semconv.spec import Reduction

_NS_PER_S = 1_000_000_000

_MOST_WAITS = 6
"""A first row is half a minute late at most: by then people look at the run."""

_MOST_WAITS_OF_COUNTED = 12
"""An import of a large framework takes most of a minute on a busy machine."""

_QUIET_NS = _NS_PER_S
"""A sample may follow the others of its step in the next export, most of which are of a second."""

_SETTLE_NS = _NS_PER_S // 4
"""Half an export may be in another request, which arrives at once."""

_APART_NS = 1_000_000
"""A row is later than the one that it replaces by at least what trackers tell apart."""

_FIRST_STEP = -(1 << 63)

# Work and transfer phases of an iteration, without waits.
_PIPELINE = frozenset(phase for phase, spec in names.PHASES.items() if spec.pipeline)


@dataclass(frozen=True, slots=True)
class ClosedStep:
    """One step of one role, reduced to a row.

    Attributes:
        time_ns: Latest event time among the samples.
        values: Tracker key to value.
        version: The policy version that was reported with the step, if any.
        late: Number of samples that turned out to be late when the step was closed.
        attempt: The attempt of the step; None for the attempt at the row's time.
        row: The row of the step, if later samples may join it.
        is_again: Whether the step had a row before, which this row replaces.
        received_ns: Arrival of the last sample; 0 for a row beside that of the step.
    """

    role: str
    step: int
    time_ns: int
    values: dict[str, float]
    version: int | None
    late: int = 0
    attempt: int | None = None
    row: StepRow | None = None
    is_again: bool = False
    received_ns: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """One check of all steps of a run.

    Attributes:
        table: Series and workers of the run.
        now_ns: The bridge's clock, without its downtime.
        standings: Standing of each role, with its expected workers.
        leader: Role and label of the worker that leads the run's axis.
        launched: Process id of the command that the bridge was started for, if any.
        everything: Whether incomplete steps are closed, too.
        only_surplus: Whether only the oldest steps above the bound are closed.
        turn: What it leaves stays open until the next check.
    """

    table: StreamTable
    settings: AlignSettings
    now_ns: int
    standings: Mapping[str, RoleStanding]
    leader: tuple[str, str]
    launched: int | None = None
    everything: bool = False
    only_surplus: bool = False
    turn: Turn = field(default_factory=Turn)


class RoleCheck:
    """One check of the steps of a role."""

    def __init__(
        self,
        name: str,
        role: RoleSteps,
        workers: Sequence[WorkerState],
        check: Check,
        attempts: Attempts,
    ) -> None:
        self._name, self._role, self._workers = name, role, workers
        self._check, self._attempts = check, attempts
        self._settings, self._now_ns = check.settings, check.now_ns
        self._table = check.table
        self._wait_ns = int(check.settings.wait_s * _NS_PER_S)
        standing = check.standings.get(name)
        self._there = None if standing is None else standing.expected
        # Label of the worker that leads the run's axis, if it is of this role.
        self._leader = check.leader[1] if name == check.leader[0] else None

    def closed(self) -> list[ClosedStep]:
        """Remove and return steps that are complete, or have waited long enough."""
        role, turn, rows = self._role, self._check.turn, list[ClosedStep]()
        is_early = self._check.only_surplus or (not self._check.everything and self._is_starting())
        waiting_for: Sequence[WorkerState] | None = None
        if not is_early:
            role.begun_ns = min(role.begun_ns or self._now_ns, self._now_ns)
            should_be = role.size if self._there is None else min(role.size, self._there)
            rows += self._turned(should_be)
            waiting_for = self._waiting_for(should_be)
        for steps, awaited, close in (
            (role.open, waiting_for, self._close_open),
            (role.late, None, self._close_late),
            (role.again, None, self._close_again),
        ):
            for step in self._surplus(steps) if is_early else self._due(steps, awaited):
                while steps[step].singles > turn.part and not turn.leaves_rest():
                    rows += self._counted([*self._first_rows(step, steps)])
                if turn.leaves_rest():
                    return rows
                rows += self._counted(close(step))
        return rows

    def _counted(self, rows: list[ClosedStep]) -> list[ClosedStep]:
        self._check.turn.made(sum(len(row.values) for row in rows))
        return rows

    def _first_rows(self, step: int, steps: Steps) -> Iterator[ClosedStep]:
        """Yield rows of the earliest measurements of an open step with many, and remove those."""
        opened, groups = steps[step], self._table.keys.groups
        attempt = self._attempt if opened.row is None else opened.row.attempt
        attempt = None if steps is self._role.late else attempt
        taken = take_earliest(opened.single, int(self._check.turn.part))
        for time_ns, values in single_rows({groups[n].key: made for n, made in taken.items()}):
            yield ClosedStep(self._name, step, time_ns, values, None, 0, attempt)

    def _surplus(self, steps: Steps) -> list[int]:
        return sorted(steps)[: max(0, len(steps) - self._settings.max_open_steps)]

    def _close_open(self, step: int, expected: int | None = None) -> list[ClosedStep]:
        role = self._role
        opened = role.open.pop(step)
        expected = self._expected(opened) if expected is None else expected
        role.closed_through = _later(step, role.closed_through)
        before = opened.row
        row = opened.row = before or StepRow(expected, self._attempt)
        if before is not None:
            opened.time_ns = max(opened.time_ns, row.time_ns + _APART_NS)
        row.time_ns = opened.time_ns
        rows = _reduce(self._name, step, opened, self._table, 0, row.attempt)
        rows[-1] = replace(rows[-1], row=row, is_again=before is not None)
        if self._mark(rows, opened, row.expected, is_marked=row.is_marked):
            row.is_marked = True
        role.size = max(role.size, len(opened.workers))
        opened.single.clear()
        bounds = self._settings
        role.written.put(
            step, opened, most=bounds.max_open_steps, most_bytes=bounds.max_written_bytes
        )
        return rows

    def _close_late(self, step: int) -> list[ClosedStep]:
        return self._alone(step, self._role.late.pop(step), attempt=None)

    def _close_again(self, step: int) -> list[ClosedStep]:
        self._role.again_closed_through = _later(step, self._role.again_closed_through)
        return self._close_repeated(step)

    def _close_repeated(self, step: int) -> list[ClosedStep]:
        opened = self._role.again.pop(step)
        return self._alone(step, opened, late=opened.repeated, attempt=self._attempt)

    def _due(self, steps: Steps, waiting_for: Sequence[WorkerState] | None) -> list[int]:
        """Return the steps that are complete or have waited long enough, ascending."""
        if not steps:
            return []
        settings, now_ns, wait_ns = self._settings, self._now_ns, self._wait_ns
        complete_below = _complete_below(waiting_for)
        newest = max(steps)
        surplus = len(steps) - settings.max_open_steps
        due: list[int] = []
        for place, step in enumerate(sorted(steps)):
            opened = steps[step]
            opened.received_ns = min(opened.received_ns, now_ns)  # the clock may be set back
            silent_ns = now_ns - opened.received_ns
            # When the last one has come, the others may have made their steps long ago.
            waited_ns = min(silent_ns, now_ns - self._role.begun_ns)
            complete = complete_below is not None and step < complete_below
            if opened.row is not None:
                opened.row.late_ns = min(opened.row.late_ns, now_ns)
                complete |= len(opened.workers) >= opened.row.expected
                complete = complete and silent_ns >= _QUIET_NS
                waited_ns = now_ns - opened.row.late_ns
            elif step == newest and not complete and waiting_for is not None:
                # The newest, with all series of the previous step, from every worker.
                before = due[-1] if due else self._role.closed_through
                complete = (
                    silent_ns >= _QUIET_NS
                    and before is not None
                    and all(worker.has_all_of(step, since=before) for worker in waiting_for)
                )
            if self._check.everything or complete or waited_ns >= wait_ns or place < surplus:
                due.append(step)
        return due

    def _turned(self, should_be: int) -> list[ClosedStep]:
        """Close the rest of the previous pass once all workers have gone back, or at the end."""
        passes, is_over = self._role.passes, self._check.everything
        if not passes.returned:
            return []
        live = [worker for worker in self._workers if self._is_live(worker)]
        passes.keep({worker.label for worker in live})
        after = passes.caught_up(self._role.closed_through)
        if after is not None:
            self._join(after)
        if passes.others or not passes.returned:
            return []
        heard_ns: dict[str, int] = {}
        for worker in live:
            heard_ns[worker.label] = max(worker.received_ns, heard_ns.get(worker.label, 0))
        if not all(
            one.is_sure and (is_over or heard_ns[label] - one.received_ns >= _SETTLE_NS)
            for label, one in passes.returned.items()
        ):
            return []
        is_overdue = is_over or self._now_ns - passes.since_ns >= self._wait_ns
        if len(passes.returned) < should_be and not is_overdue:
            return []
        return self._turn()

    def _join(self, after: int) -> None:
        """Merge the repeated steps after ``after`` into the open steps of the role."""
        role = self._role
        for step in [step for step in role.again if step > after]:
            joining = role.again.pop(step)
            if step in role.open:
                role.open[step].join(joining)
            else:
                role.open[step] = joining

    def _turn(self) -> list[ClosedStep]:
        role = self._role
        rows: list[ClosedStep] = []
        for step in sorted(role.open):
            rows += self._close_open(step, role.size)
        first = min([*role.again, *(one.first for one in role.passes.returned.values())])
        role.written.drop_from(first)
        returned = role.passes.begin(first)
        if self._leader is not None:
            self._begin_attempt(returned)
        closed_through = role.again_closed_through
        for step in sorted(role.again):
            if closed_through is not None and step <= closed_through:
                rows += self._close_repeated(step)
        role.written.leave_through(closed_through)
        role.open, role.again, role.again_closed_through = role.again, {}, None
        if role.open and min(role.open) > _FIRST_STEP:
            closed_through = _later(min(role.open) - 1, closed_through)
        role.closed_through = closed_through
        role.size = len(returned)
        for worker in self._workers:
            worker.start_again()
        for stream in self._table.streams_of(self._name):
            one = returned.get(stream.worker.label)
            if one is not None:
                step_of = one.positions.get(stream.number)
                if step_of is not None:
                    stream.reported(step_of)
        return rows

    def _begin_attempt(self, returned: Mapping[str, Returned]) -> None:
        """Begin an attempt of the run, unless its workers have only named an old step."""
        repeating = {label: one for label, one in returned.items() if one.is_attempt}
        if repeating:
            leading = repeating.get(self._leader or "")
            since_ns = min(one.since_ns for one in repeating.values())
            self._attempts.begin(
                min(one.first for one in repeating.values()),
                since_ns if leading is None else leading.since_ns,
            )

    def _is_live(self, worker: WorkerState) -> bool:
        return self._now_ns - worker.received_ns <= int(self._settings.worker_timeout_s * _NS_PER_S)

    def _is_starting(self) -> bool:
        """Return whether the first row of the role still waits for workers that may come.

        If workers announce their count, it waits for all of them, as some may still import;
        otherwise, and once all have come, it waits for some time after the last worker came or made
        its first step.
        """
        wait_ns = int(self._settings.start_wait_s * _NS_PER_S)
        living = (one for one in self._workers if one.standing <= WorkerStanding.ALIVE)
        here = [worker for worker in living if worker.first_ns]
        is_lone = len(here) == 1 and here[0].place[1] == self._check.launched is not None
        if self._role.closed_through is not None or is_lone:
            return False
        stepping = [worker for worker in here if worker.streams]
        count = self._count
        if count and len({worker.label for worker in stepping}) >= count:
            return False
        since_ns = min((worker.first_ns for worker in self._workers), default=self._now_ns)
        if self._missing_count() and self._now_ns - since_ns < _MOST_WAITS_OF_COUNTED * wait_ns:
            return True
        if not here:  # all have ended, so that nobody else comes
            return False
        newest_ns = max(max(worker.first_ns, worker.stepped_ns) for worker in here)
        begun_ns = min((one.stepped_ns or self._now_ns for one in stepping), default=self._now_ns)
        most_ns = (_MOST_WAITS_OF_COUNTED if count else _MOST_WAITS) * wait_ns
        return self._now_ns - newest_ns < wait_ns and self._now_ns - begun_ns < most_ns

    def _waiting_for(self, should_be: int) -> list[WorkerState] | None:
        """Return the live workers of the role whose steps rows wait for.

        Return None while a role is started again: for ``wait_s`` after each worker's first export,
        rows wait for as many workers as there were before.
        """
        live = [worker for worker in self._workers if self._is_live(worker)]
        stepping = [worker for worker in live if worker.streams]
        is_young = any(self._now_ns - worker.first_ns < self._wait_ns for worker in live)
        if is_young and len({worker.label for worker in stepping}) < should_be:
            return None
        return stepping

    def _expected(self, opened: OpenStep) -> int:
        """Return the number of workers expected in a row that was not closed before.

        They are as many as an earlier row had, without those that have reported their end since. If
        all workers make steps, announced workers that have not come are expected, too.
        """
        announced = self._missing_count() if all(one.streams for one in self._workers) else 0
        size = max(self._role.size, announced)
        there = size if self._there is None else self._there
        left = {worker.label for worker in self._workers if worker.standing is WorkerStanding.LEFT}
        return min(size, there + len(left & opened.workers))

    @property
    def _count(self) -> int:
        told = [worker for worker in self._workers if worker.count]
        return max(told, key=lambda one: one.first_ns).count or 0 if told else 0

    def _missing_count(self) -> int:
        """Return the number of announced workers if some of them have not come; else 0."""
        count = self._count
        return count if len({worker.label for worker in self._workers}) < count else 0

    @property
    def _attempt(self) -> int | None:
        return None if self._leader is None else self._attempts.newest

    def _alone(
        self, step: int, opened: OpenStep, *, late: int = 0, attempt: int | None
    ) -> list[ClosedStep]:
        """Return separate rows for the samples of a step that has left memory."""
        rows = _reduce(self._name, step, opened, self._table, late, attempt)
        self._mark(rows, opened, self._role.size)
        return rows

    def _mark(
        self,
        rows: Sequence[ClosedStep],
        opened: OpenStep,
        expected: int,
        *,
        is_marked: bool = False,
    ) -> bool:
        """Put the number of workers into rows that lack some, and into rows that replace such rows.

        The newest value of a key counts, so a row that lacks none any more says so.

        Returns:
            Whether the rows lack workers.
        """
        reported = len(opened.workers)
        is_partial = reported < expected and bool(rows[-1].values)
        if not is_partial and not is_marked:
            return False
        for name, value in (
            (names.RL_SERVICE_STEP_REPORTED, reported),
            (names.RL_SERVICE_STEP_EXPECTED, max(expected, reported)),
        ):
            identity = GroupIdentity(self._name, name, (), Reduction.LAST)
            if self._table.keys.has_room_for(identity, self._settings):
                group = self._table.keys.group(identity)
                for row in rows:
                    row.values[group.key] = float(value)
        return is_partial


def _complete_below(waiting_for: Sequence[WorkerState] | None) -> float | None:
    """Return the step below which all steps are complete: every worker has gone past them."""
    if waiting_for is None:
        return None
    return min((worker.passed_below() for worker in waiting_for), default=math.inf)


def _later(step: int, other: int | None) -> int:
    return step if other is None else max(step, other)


def _reduce(
    role: str,
    step: int,
    opened: OpenStep,
    table: StreamTable,
    late: int,
    attempt: int | None,
) -> list[ClosedStep]:
    """Reduce a step to its row.

    If single measurements are written and a worker made several in one step, a row for each
    measurement but the last precedes the step's row.
    """
    values: dict[str, float] = {}
    version: int | None = None
    phases: dict[str, float] = {}
    for number, cell in opened.cells.items():
        group = table.keys.groups[number]
        cell = opened.cells[number] = compact(cell)
        value = reduced(cell, group.reduction)
        if value is None:
            continue
        values[group.key] = value
        values.update(statistics_of(cell, group))
        if group.name == names.RL_POLICY_VERSION and is_integral(value):
            version = int(value)
        if group.name == names.RL_PHASE_DURATION and not group.own:
            phases[dict(group.attributes).get(names.RL_PHASE, "")] = value
    if RlPhaseValues.TRAIN in phases:
        derived = table.keys.group(
            GroupIdentity(role, names.RL_PIPELINE_DURATION, (), Reduction.MEAN)
        )
        values[derived.key] = sum(value for phase, value in phases.items() if phase in _PIPELINE)
    if opened.counts is not None:
        values.update(opened.counts.values(table))
    groups, rows = table.keys.groups, list[tuple[int, dict[str, float]]]()
    if set(map(len, opened.single.values())) == {1}:  # nearly always, and much faster
        values.update([(groups[number].key, made[0][1]) for number, made in opened.single.items()])
    elif opened.single:
        rows += single_rows({groups[number].key: made for number, made in opened.single.items()})
        values |= rows.pop()[1] if rows else {}
    return [
        *(ClosedStep(role, step, time_ns, row, version, 0, attempt) for time_ns, row in rows),
        ClosedStep(
            *(role, step, opened.time_ns, values, version, late, attempt),
            received_ns=opened.received_ns,
        ),
    ]
