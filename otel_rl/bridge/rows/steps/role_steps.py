"""Steps of one role: those that wait for samples, and those that have a row."""

from collections.abc import Iterator

from msgspec import field

from otel_rl.bridge.journal.state import Count, Int64, Stored
from otel_rl.bridge.rows.steps.open_step import Export, OpenStep, ReachedSteps
from otel_rl.bridge.rows.steps.step_passes import StepPasses
from otel_rl.bridge.rows.steps.written_steps import WrittenSteps

__all__ = ["RoleSteps"]


class RoleSteps(Stored, dict=True):
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
        export: The last export: its worker and time. Not stored.
        reached: The steps of its last series. Not stored.
    """

    open: dict[Int64, OpenStep] = field(default_factory=dict)
    closed_through: Int64 | None = None
    written: WrittenSteps = field(default_factory=WrittenSteps)
    late: dict[Int64, OpenStep] = field(default_factory=dict)
    again: dict[Int64, OpenStep] = field(default_factory=dict)
    again_closed_through: Int64 | None = None
    again_samples: dict[Int64, Count] = field(default_factory=dict)
    passes: StepPasses = field(default_factory=StepPasses)
    size: Count = 0
    begun_ns: Int64 = 0

    def __post_init__(self) -> None:
        self.export: Export | None = None
        self.reached: ReachedSteps | None = None

    @property
    def is_open(self) -> bool:
        """Return whether any step waits."""
        return bool(self.open or self.late or self.again)

    def steps(self) -> Iterator[OpenStep]:
        """Yield the steps that wait."""
        for of in (self.open, self.late, self.again):
            yield from of.values()

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
