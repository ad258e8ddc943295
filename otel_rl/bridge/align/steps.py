"""Step rows: samples that carry a step, keyed by (role, step).

A step is complete when every live worker of the role has gone past it. It is closed then, or when
``allowed_lateness_s`` has passed since its newest sample arrived. What comes later still makes a
row, of its own, at its own step.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field

from otel_rl.bridge.align.settings import AlignSettings
from otel_rl.bridge.align.streams import Group, Stream, StreamTable, WorkerState
from otel_rl.bridge.reduce import Moments
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
    """The samples of one step so far."""

    time_ns: int = 0
    received_ns: int = 0
    cells: dict[Group, Moments] = field(default_factory=dict)

    def add(self, group: Group, value: float, time_ns: int) -> None:
        cell = self.cells.get(group)
        if cell is None:
            cell = self.cells[group] = Moments()
        cell.add(value, time_ns)
        self.time_ns = max(self.time_ns, time_ns)


class OpenSteps:
    """The steps of one experiment that still wait for samples."""

    def __init__(self) -> None:
        self._open: dict[str, dict[int, _OpenStep]] = {}
        self._closed_through: dict[str, int] = {}

    def add(self, stream: Stream, step: int, value: float, time_ns: int, received_ns: int) -> bool:
        """Fold in one sample.

        Returns:
            Whether it is late: its step was closed before.
        """
        role = stream.worker.role
        steps = self._open.setdefault(role, {})
        opened = steps.get(step)
        late = False
        if opened is None:
            opened = steps[step] = _OpenStep()
            late = step <= self._closed_through.get(role, step - 1)
        opened.add(stream.group, value, time_ns)
        if stream.own is not None:
            opened.add(stream.own, value, time_ns)
        opened.received_ns = max(opened.received_ns, received_ns)
        if stream.last_step is None:
            stream.worker.streams.append(stream)
        if stream.last_step is None or step > stream.last_step:
            stream.last_step = step
        worker = stream.worker
        if worker.newest_step is None or step > worker.newest_step:
            worker.newest_step = step
        return late

    def close(
        self, table: StreamTable, settings: AlignSettings, now_ns: int, *, everything: bool
    ) -> list[ClosedStep]:
        """Take out every step that is complete, or has waited long enough, in ascending order."""
        closed: list[ClosedStep] = []
        for role, steps in self._open.items():
            live = _live(table.workers.values(), role, settings, now_ns)
            missing = _missing(table.workers.values(), role)
            surplus = len(steps) - settings.max_open_steps
            for place, step in enumerate(sorted(steps)):
                opened = steps[step]
                waited_s = (now_ns - opened.received_ns) / _NS_PER_S
                complete = not missing and all(worker.passed(step) for worker in live)
                overdue = waited_s >= settings.allowed_lateness_s
                if not (everything or complete or overdue or place < surplus):
                    continue
                closed.append(_reduce(role, step, opened, table))
                del steps[step]
                self._closed_through[role] = max(step, self._closed_through.get(role, step))
        return closed


def _live(
    workers: Iterable[WorkerState], role: str, settings: AlignSettings, now_ns: int
) -> list[WorkerState]:
    horizon_ns = now_ns - int(settings.lease_s * _NS_PER_S)
    return [w for w in workers if w.role == role and w.received_ns >= horizon_ns and w.streams]


def _missing(workers: Iterable[WorkerState], role: str) -> bool:
    """Whether fewer workers of the role have been seen than each of them says there are."""
    seen = [worker for worker in workers if worker.role == role]
    expected = max((worker.count or 0 for worker in seen), default=0)
    return len({worker.label for worker in seen}) < expected


def _reduce(role: str, step: int, opened: _OpenStep, table: StreamTable) -> ClosedStep:
    values: dict[str, float] = {}
    version: int | None = None
    phases: dict[str, float] = {}
    for group, cell in opened.cells.items():
        value = cell.result(group.reduction)
        if value is None:
            continue
        values[group.key] = value
        for suffix in group.statistics:
            statistic = cell.statistic(suffix)
            if statistic is not None:
                values[f"{group.key}/{suffix}"] = statistic
        if group.name == names.RL_POLICY_VERSION and value == value:
            version = int(value)
        if group.name == names.RL_PHASE_DURATION and not group.own:
            phases[dict(group.attributes).get(names.RL_PHASE, "")] = value
    if RlPhaseValues.TRAIN in phases:
        derived = table.group(role, names.RL_PIPELINE_DURATION, (), Reduction.MEAN)
        values[derived.key] = sum(value for phase, value in phases.items() if phase in _PIPELINE)
    return ClosedStep(role, step, opened.time_ns, values, version)
