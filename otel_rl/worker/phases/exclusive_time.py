"""Exclusive time of phases: one control flow's open step and phases, innermost last.

    step 7         |-----------------------------------|
      generate        |---------------|
        reward             |-----|
      train                              |----------|
    charged to     u  g    r     g    u  t          u      (u: unaccounted)

All time between two events is charged to the innermost open frame only. Nested phases never count
twice, and the phases of a step, with ``unaccounted``, tile its wall time exactly, in integer
nanoseconds, for any order of opening and closing.

Only its own flow writes to a timeline, so there is no lock. The exporter thread reads it.
"""

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum, auto
from time import monotonic_ns, time_ns
from typing import TYPE_CHECKING, Final

from opentelemetry.context import detach

from otel_rl.worker.phases.control_flow import ControlFlow
from otel_rl.worker.phases.frames import Frame, StepFrame
from otel_rl.worker.phases.phase_names import UNACCOUNTED
from otel_rl.worker.phases.refused_blocks import RefusedBlocks
from otel_rl.worker.phases.reported_phases import ReportedPhases

if TYPE_CHECKING:
    import asyncio

    from otel_rl.worker.phases.device_clock import DeviceClock

__all__ = [
    "MAX_DEPTH",
    "Refused",
    "Timeline",
    "TimelineView",
]

MAX_DEPTH: Final = 64
"""Nested frames. Reached only by a loop that opens without closing."""


class Refused(Enum):
    """Reason why nothing was opened. The time stays with the open frames."""

    TOO_DEEP = auto()
    TOO_MANY_PHASES = auto()
    WITHIN_A_STEP = auto()


@dataclass(frozen=True, slots=True)
class TimelineView:
    """Snapshot of a timeline, for other threads.

    Attributes:
        phase: The innermost open phase, or ``unaccounted``; an earlier one if the device is still
            in it.
        phase_age_ns: Age of the phase; of ``unaccounted``, since the end of the last phase.
        step: The open step, or None.
        step_age_ns: Age of the step.
    """

    phase: str
    phase_age_ns: int
    step: int | None
    step_age_ns: int


class Timeline:
    """Open frames of one flow. Only that flow opens and closes; any thread may read.

    Args:
        opened: Registry of timelines with open frames, by id. Shared; each adds and removes only
            itself.
        clock_ns: Monotonic. If it goes back, the timeline keeps the last time.
        task: The flow, if it is a task and not the calling thread.
    """

    __slots__ = (
        "__weakref__",
        "_clock_ns",
        "_frames",
        "_opened",
        "_phases",
        "_since_ns",
        "clock",
        "flow",
        "refused",
        "reported",
        "wall_ns",
    )

    def __init__(
        self,
        opened: "dict[int, Timeline]",
        clock_ns: Callable[[], int] = monotonic_ns,
        task: "asyncio.Task[object] | None" = None,
    ) -> None:
        self._opened = opened
        self._clock_ns = clock_ns
        self._frames: list[Frame] = []
        self._since_ns = 0
        self.flow = ControlFlow(task)
        self.clock: DeviceClock | None = None
        """Of the device on which its steps are measured."""
        self.wall_ns = 0
        """Offset from its clock to the times of spans. Fixed while a frame is open, so that spans
        have the measured duration even if the wall clock is set.
        """
        self.reported = ReportedPhases()
        """Phases that its steps report."""
        self._phases = self.reported.classes  # looked up at each phase
        self.refused: RefusedBlocks | None = None
        """Refused blocks that have not ended; None if there never was one."""

    def open_phase(
        self, opener: object, name: str, phase_class: str | None = None
    ) -> Frame | Refused:
        """Open a phase within the open frames."""
        now_ns = self._settle()
        frames = self._frames
        if len(frames) >= MAX_DEPTH:
            return Refused.TOO_DEEP
        step = None
        if frames:
            top = frames[-1]
            step = top if isinstance(top, StepFrame) else top.step
            is_new = step is not None and name not in self._phases
            if is_new and not self.reported.add((name,), phase_class):
                return Refused.TOO_MANY_PHASES
        frame = Frame(opener, name, step, now_ns)
        if not frames:
            self._begin(now_ns)
        frames.append(frame)
        return frame

    def open_step(self, opener: object, number: int) -> StepFrame | Refused:
        """Open a step, unless one is open: then later phases belong to the open one."""
        now_ns = self._settle()
        frames = self._frames
        if len(frames) >= MAX_DEPTH:
            return Refused.TOO_DEEP
        if frames and self._step() is not None:
            return Refused.WITHIN_A_STEP
        frame = StepFrame(opener, number, now_ns)
        if not frames:
            self._begin(now_ns)
        frames.append(frame)
        return frame

    def close(self, opener: object) -> Frame | None:
        """Close the innermost frame of ``opener``, at any depth.

        Returns:
            The frame: a ``StepFrame`` with the durations of its phases, or a phase, whose exclusive
            time counts in its step if it has one. None if it is not here.
        """
        frames = self._frames
        if not frames:
            return None
        now_ns = self._settle()
        if frames and frames[-1].opener is opener:
            frame = frames.pop()
        else:
            found = self._take(opener)
            if found is None:
                return None
            frame = found
        if not frames:
            self._opened.pop(id(self), None)
        frame.ended_ns = now_ns
        if frame.marks is not None:
            frame.ended = frame.marks.last
        step = frame.step
        if step is not None:
            step.charge(frame.name, frame.charged_ns)
        elif isinstance(frame, StepFrame):
            self._end(frame)
        return frame

    def refuse(self, opener: object, leave: Callable[[], None] | None = None) -> None:
        """Record that a block of ``opener`` was refused. See ``RefusedBlocks.add``."""
        if self.refused is None:
            self.refused = RefusedBlocks()
        self.refused.add(opener, leave)

    def credit(self, whole: str, duration_ns: int) -> bool:
        """Add a part's time outside steps to its containing phase. False if that is not open."""
        for frame in reversed(self._frames):
            if frame.name == whole:
                frame.charged_ns += duration_ns
                return True
        return False

    def look(self, now_ns: int) -> TimelineView | None:
        """Return a snapshot, or None. For other threads: may be slightly out of date."""
        frames = self.frames()
        if not frames:
            return None
        top = frames[-1]
        begun_ns = self._since_ns if isinstance(top, StepFrame) else top.begun_ns
        busy = None if top.marks is None else top.marks.clock.busy_with()
        name, begun_ns = busy or (top.name, begun_ns)
        step = next((frame for frame in frames if isinstance(frame, StepFrame)), None)
        return TimelineView(
            name,
            max(0, now_ns - begun_ns),
            None if step is None else step.number,
            0 if step is None else max(0, now_ns - step.begun_ns),
        )

    def frames(self) -> tuple[Frame, ...]:
        """Return the open frames, innermost last. For other threads: may be out of date."""
        return tuple(frame for frame in tuple(self._frames) if not frame.is_abandoned)

    def abandon(self, opener: object) -> Frame | None:
        """Mark a frame as closed by another flow; its own flow removes it at its next event.

        Returns:
            The frame, with its exclusive time so far, or None if it is not here.
        """
        now_ns = self._clock_ns()
        frames = tuple(self._frames)
        for frame in reversed(frames):
            if frame.opener is opener and not frame.is_abandoned:
                if frame is frames[-1] and frame.step is None:
                    frame.charged_ns += max(0, now_ns - self._since_ns)
                frame.ended_ns = now_ns
                frame.is_abandoned = True
                return frame
        return None

    def clear(self) -> int:
        """Clear the open frames. Returns their number."""
        open_frames = len(self.frames())
        self._frames.clear()
        return open_frames

    def _settle(self) -> int:
        """Charge the time since the last event to the innermost frame. Returns the time."""
        now_ns = self._clock_ns()
        frames = self._frames
        if frames:
            since_ns = self._since_ns
            if now_ns < since_ns:
                now_ns = since_ns
            top = frames[-1]
            top.charged_ns += now_ns - since_ns
            if top.marks is not None:
                top.marks.passed(top.name, now_ns)
            if top.is_abandoned:
                self._let_go()
        self._since_ns = now_ns
        return now_ns

    def _take(self, opener: object) -> Frame | None:
        """Remove a frame that is not the innermost one."""
        frames = self._frames
        for place in range(len(frames) - 2, -1, -1):
            frame = frames[place]
            if frame.opener is opener:
                del frames[place]
                if frame.token is not None:
                    # Closed before its inner frames, as a generator may be. Used in this order, the
                    # last token would restore this frame's span.
                    frames[place].token = frame.token
                    frame.token = None
                return frame
        return None

    def _let_go(self) -> None:
        """Remove the frames that another flow has closed."""
        frames = self._frames
        while frames and frames[-1].is_abandoned:
            frame = frames.pop()
            if frame.token is not None:
                detach(frame.token)  # not valid in the context of the closing flow
            if frame.step is not None:
                frame.step.charge(frame.name, frame.charged_ns)
            elif isinstance(frame, StepFrame):
                self._end(frame)
        if not frames:
            self._opened.pop(id(self), None)

    def _begin(self, now_ns: int) -> None:
        self.wall_ns = time_ns() - now_ns
        self._opened[id(self)] = self

    def _step(self) -> StepFrame | None:
        """Return the open step. A frame must be open."""
        top = self._frames[-1]
        return top if isinstance(top, StepFrame) else top.step

    def _end(self, step: StepFrame) -> None:
        """Charge a removed step with the time of its open frames."""
        for frame in self._frames:
            # Its time until now belongs to this step, later time to none.
            if frame.step is step:
                step.charge(frame.name, frame.charged_ns)
                frame.charged_ns = 0
                frame.marks = None
                frame.step = None
        step.charge(UNACCOUNTED, step.charged_ns)
