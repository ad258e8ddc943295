"""Steps of one role: those that wait for samples, those that have a row, and how samples join."""

from collections.abc import Iterator, Sequence

from msgspec import field

from otel_rl.bridge.journal.state import Count, Int64, Stored
from otel_rl.bridge.rows.series.streams import Stream
from otel_rl.bridge.rows.steps.step import OpenStep, Steps
from otel_rl.bridge.rows.steps.step_passes import Side, StepPasses
from otel_rl.bridge.rows.steps.written_steps import WrittenSteps


class RoleSteps(Stored):
    """Steps of a role.

    Attributes:
        open: Steps of the present pass that wait for a row, or have samples since their row.
        closed_through: Steps through this one have rows.
        written: Steps that have a row and no sample since.
        late: Samples that join no step: their step was left, or they are of the previous pass.
        again: Steps of the workers that have gone back, as long as other workers may follow.
        again_closed_through: The last step of ``again`` that has a row.
        passes: The workers that have gone back.
        size: The largest number of workers that were in a row.
        begun_ns: When the role's first row was begun, by the bridge's clock; 0 before that.
    """

    open: dict[Int64, OpenStep] = field(default_factory=dict)
    closed_through: Int64 | None = None
    written: WrittenSteps = field(default_factory=WrittenSteps)
    late: dict[Int64, OpenStep] = field(default_factory=dict)
    again: dict[Int64, OpenStep] = field(default_factory=dict)
    again_closed_through: Int64 | None = None
    passes: StepPasses = field(default_factory=StepPasses)
    size: Count = 0
    begun_ns: Int64 = 0

    @property
    def is_open(self) -> bool:
        return bool(self.open or self.late or self.again)

    def steps(self) -> Iterator[OpenStep]:
        for of in (self.open, self.late, self.again):
            yield from of.values()

    def next_of(self, streams: Sequence[Stream], step: int, time_ns: int) -> OpenStep | None:
        """Return the open step of one worker's samples if it is certain, as it nearly always is.

        It is certain if the step has no row, none of the streams has reported a later step, and no
        worker has gone back. Otherwise None is returned: ``placed`` tells where each sample
        belongs.
        """
        worker, passes = streams[0].worker, self.passes
        if worker.newest_step is None or passes.returned or passes.before:
            return None
        if self.closed_through is not None and step <= self.closed_through:
            return None
        for stream in streams:
            if stream.last_step is not None and stream.last_step > step:
                return None
        if step >= worker.newest_step:
            passes.went_on(worker, step, time_ns)
            worker.newest_step = step
        for stream in streams:
            if stream.last_step is None:
                worker.streams.append(stream)
            stream.last_step = step
        return _opened(self.open, step)

    def placed(
        self, stream: Stream, step: int, time_ns: int, received_ns: int
    ) -> tuple[OpenStep, bool]:
        """Find where a sample belongs.

        Returns:
            The step, and whether the sample is late: its step was closed before.
        """
        passes, closed_through = self.passes, self.closed_through
        passes.look_back(stream, step, time_ns, closed_through, received_ns)
        side = passes.side_of(stream, step, time_ns, closed_through)
        if side is Side.AGAIN:
            opened = _opened(self.again, step)
            opened.repeated += 1
            return opened, False
        passes.went_on(stream.worker, step, time_ns)
        stream.reported(step)
        if side is Side.ON_TIME:
            return _opened(self.open, step), False
        joins = side is Side.LATE and self._reopens(step, received_ns)
        return _opened(self.open if joins else self.late, step), True

    def _reopens(self, step: int, received_ns: int) -> bool:
        """Let a step with a row wait again, for a sample that came late.

        Returns:
            Whether the sample joins ``open``; if not, values of the step were in a row that was
            left.
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


def _opened(steps: Steps, step: int) -> OpenStep:
    opened = steps.get(step)
    if opened is None:
        opened = steps[step] = OpenStep()
    return opened
