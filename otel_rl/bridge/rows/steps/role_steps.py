"""Steps of one role: those that wait for samples, and those that have a row."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field

from otel_rl.bridge.journal.formats import state_format as wire
from otel_rl.bridge.rows.steps.open_step import Export, OpenStep, ReachedSteps, Steps
from otel_rl.bridge.rows.steps.step_passes import StepPasses
from otel_rl.bridge.rows.steps.written_steps import WrittenSteps

__all__ = ["RoleSteps"]


@dataclass(slots=True)
class RoleSteps:
    """Steps of a role.

    Attributes:
        open: Steps of the present pass that wait: without a row, or with samples since it.
        closed_through: Steps through this one have rows.
        written: Steps with a row and no sample since.
        late: Samples that join no step: it was left, or they are of the previous pass.
        again: Steps of the workers that have gone back, as long as others may follow.
        again_closed_through: Of those, the last that has a row.
        again_samples: Number of samples in ``again``.
        passes: Workers that have gone back.
        size: The most workers that were in a row.
        begun_ns: When its rows began to be made, by the bridge's clock; 0 before that.
        export: The last export: its worker and time.
        reached: The steps of its last series.
    """

    open: Steps = field(default_factory=dict)
    closed_through: int | None = None
    written: WrittenSteps = field(default_factory=WrittenSteps)
    late: Steps = field(default_factory=dict)
    again: Steps = field(default_factory=dict)
    again_closed_through: int | None = None
    again_samples: Counter[int] = field(default_factory=Counter)
    passes: StepPasses = field(default_factory=StepPasses)
    size: int = 0
    begun_ns: int = 0
    export: Export | None = None
    reached: ReachedSteps | None = None

    @property
    def is_open(self) -> bool:
        """Return whether any step waits."""
        return bool(self.open or self.late or self.again)

    def reopen(self, step: int, received_ns: int) -> bool:
        """Let a step with a row wait again, for samples that came late.

        Args:
            step: Its number.
            received_ns: Arrival of the first of them, by the bridge's clock.

        Returns:
            Whether they join ``open``; if not, values of the step were in a row and are left.
        """
        if step in self.open:
            return True
        written = self.written.take(step)
        if written is None:
            return not self.written.has_left(step)
        if written.row is not None:
            written.row.late_ns = received_ns
        self.open[step] = written
        return True

    def to_wire(self) -> wire.StepsOfRole:
        """Return the steps for the journal, without the written ones."""
        return wire.StepsOfRole(
            _to_wire(self.open),
            self.closed_through,
            _to_wire(self.late),
            _to_wire(self.again),
            self.again_closed_through,
            self.again_samples,
            self.passes.to_wire(),
            self.size,
            len(self.written),
            self.written.left_through,
            self.begun_ns,
        )

    @classmethod
    def from_wire(cls, kept: wire.StepsOfRole, groups: int) -> "RoleSteps":
        """Undo ``to_wire``, with so many groups."""
        return cls(
            _from_wire(kept.open, groups),
            kept.closed_through,
            WrittenSteps(kept.left_through),
            _from_wire(kept.late, groups),
            _from_wire(kept.again, groups),
            kept.again_closed_through,
            Counter(kept.again_samples),
            StepPasses.from_wire(kept.passes),
            kept.size,
            kept.begun_ns,
        )


def _to_wire(steps: Steps) -> dict[int, wire.OpenStep]:
    return {number: step.to_wire() for number, step in steps.items()}


def _from_wire(kept: Mapping[int, wire.OpenStep], groups: int) -> Steps:
    return {number: OpenStep.from_wire(step, groups) for number, step in kept.items()}
