"""Steps of one role: those that wait for samples, those that have a row, and how samples join."""

from collections.abc import Iterator, Sequence

from msgspec import field

from otel_rl.bridge.journal.state import Count, Int64, Stored
from otel_rl.bridge.rows.series.streams import Stream
from otel_rl.bridge.rows.steps.step import OpenStep, Steps
from otel_rl.bridge.rows.steps.step_passes import StepPasses
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
            passes.newest[worker.label] = step, time_ns
        for stream in streams:
            stream.reported(step)
        return _opened(self.open, step)

    def placed(
        self, stream: Stream, steps: Sequence[int], times_ns: Sequence[int], received_ns: int
    ) -> tuple[list[tuple[OpenStep, int]], int]:
        """Find where the samples of one series belong, given in columns of one length.

        Returns:
            The step and the index of each sample; and the number of late samples, whose steps were
            closed before.
        """
        passes, closed_through = self.passes, self.closed_through
        passes.look_back(stream, steps, times_ns, closed_through, received_ns)
        on_time, late, past, again = passes.sort(stream, steps, times_ns, closed_through)
        for places in on_time, late, past:
            for place in places:
                passes.went_on(stream.worker, steps[place], times_ns[place])
            if places:
                stream.reported(max(steps[place] for place in places))
        joining = [place for place in late if self._reopens(steps[place], received_ns)]
        alone = sorted({*late, *past}.difference(joining))
        found: list[tuple[OpenStep, int]] = []
        for of, places in (
            (self.open, sorted([*on_time, *joining])),
            (self.late, alone),
            (self.again, again),
        ):
            found += [(_opened(of, steps[place]), place) for place in places]
        for opened, _ in found[len(found) - len(again) :]:
            opened.repeated += 1
        return found, len(late) + len(past)

    def _reopens(self, step: int, received_ns: int) -> bool:
        """Let a step with a row wait again, for samples that came late.

        Returns:
            Whether the samples join ``open``; if not, values of the step were in a row that was
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
