"""Exclusive time of phases: one control flow's open step and phases, innermost last.

    step 7         |-----------------------------------|
      generate        |---------------|
        reward             |-----|
      train                              |----------|
    charged to     u  g    r     g    u  t          u      (u: unaccounted)

All time between two events is charged to the innermost open frame only. Nested phases never count
twice, and the phases of a step, with ``unaccounted``, tile its wall time exactly, in integer
nanoseconds, for any order of opening and closing.

Only its own flow writes to a timeline, so there is no lock. The exporter thread reads timelines.
"""

import threading
from collections.abc import Callable, ItemsView, Iterable
from contextvars import Token
from dataclasses import dataclass
from time import monotonic_ns, time_ns
from typing import TYPE_CHECKING, Final, TypeVar
from weakref import ref

from opentelemetry.context import Context, detach
from opentelemetry.trace import Span

from otel_rl.worker.phases import UNACCOUNTED, WHOLES
from otel_rl.worker.phases.device_clock import DeviceClock, Mark, StepMarks
from otel_rl.worker.step_context import StepScope

if TYPE_CHECKING:
    import asyncio

MAX_DEPTH: Final = 64
"""Nested frames. Reached only by a loop that opens without closing."""

MAX_PHASES: Final = 128
"""Different phases of one flow's steps. Each is reported at every step, so names that contain an id
would grow without bound.
"""


_F = TypeVar("_F", bound="Frame")


class Frame:
    """Open phase, with its exclusive time so far.

    Attributes:
        opener: Context manager that opened the frame, which identifies the frame to close.
        step: Step of the phase, or None.
        begun_ns: Start of the phase, by the timeline's clock.
        has_gpus: Whether the phase uses the process's GPUs.
        marks: Boundaries of the step on the device, if a device is in use.
        begun: Start of the phase on the device.
        ended: End of the phase on the device.
        charged_ns: Exclusive time so far.
        ended_ns: End of the phase; 0 while it is open.
        is_abandoned: Whether another flow has closed the phase.
        span: Span of the phase, if there is one.
        token: Token that restores the surrounding span and step as the current ones.
    """

    __slots__ = (
        "begun",
        "begun_ns",
        "charged_ns",
        "ended",
        "ended_ns",
        "has_gpus",
        "is_abandoned",
        "marks",
        "name",
        "opener",
        "span",
        "step",
        "token",
    )

    def __init__(self, opener: object, name: str, step: "StepFrame | None", begun_ns: int) -> None:
        self.opener = opener
        self.name = name
        self.step = step
        self.begun_ns = begun_ns
        self.charged_ns = 0
        self.ended_ns = 0
        self.is_abandoned = self.has_gpus = False
        self.span: Span | None = None
        self.token: Token[Context] | None = None
        self.marks: StepMarks | None = None if step is None else step.marks
        self.begun: Mark | None = None if self.marks is None else self.marks.last
        self.ended: Mark | None = None


class StepFrame(Frame):
    """Open step. Time that is charged to the step is in none of its phases.

    Attributes:
        durations_ns: Exclusive time of each of its ended phases, parts included.
        end_counts: Ends the counting of counters in the step, at a time, and returns the counted
            tokens; None for no counts.
        scope: The step of what is recorded in the block.
    """

    __slots__ = ("durations_ns", "end_counts", "number", "scope")

    def __init__(self, opener: object, number: int, begun_ns: int) -> None:
        super().__init__(opener, UNACCOUNTED, None, begun_ns)
        self.number = number
        self.durations_ns: dict[str, int] = {}
        self.end_counts: Callable[[int], float | None] | None = None
        self.scope = StepScope(number)

    def charge(self, name: str, duration_ns: int) -> None:
        """Add the exclusive time of a phase, also to the phase that contains it."""
        durations_ns = self.durations_ns
        durations_ns[name] = durations_ns.get(name, 0) + duration_ns
        whole = WHOLES.get(name)
        if whole is not None:
            durations_ns[whole] = durations_ns.get(whole, 0) + duration_ns


class InnerStep(Frame):
    """Step within a step: its time counts in the frame around it.

    Attributes:
        scope: The step of what is recorded in the block.
    """

    __slots__ = ("scope",)

    def __init__(self, opener: object, number: int, around: Frame, begun_ns: int) -> None:
        step = around if isinstance(around, StepFrame) else around.step
        super().__init__(opener, around.name, step, begun_ns)
        self.scope = StepScope(number)


@dataclass(frozen=True, slots=True)
class TimelineView:
    """Snapshot of a timeline, for other threads.

    Attributes:
        phase: The innermost open phase, or ``unaccounted``; an earlier phase if the device is still
            in that one.
        phase_age_ns: Age of the phase; for ``unaccounted``, the time since the end of the last
            phase.
        step: The open step, or None.
    """

    phase: str
    phase_age_ns: int
    step: int | None
    step_age_ns: int


class Timeline:
    """Open frames of one flow. Only that flow opens and closes; any thread may read.

    Args:
        opened: Shared registry of timelines with open frames, by id; each timeline adds and removes
            only itself.
        clock_ns: Monotonic clock. If the clock goes back, the timeline keeps the last time.
        task: The flow's task; None if the flow is the calling thread.
    """

    __slots__ = (
        "__weakref__",
        "_clock_ns",
        "_frames",
        "_opened",
        "_phases",
        "_reporter",
        "_since_ns",
        "_task",
        "clock",
        "thread",
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
        self.thread = threading.current_thread()
        """The thread, or that in which the task began."""
        self._task = None if task is None else ref(task)
        self.clock: DeviceClock | None = None
        """Clock of the device on which the flow's steps are measured."""
        self.wall_ns = 0
        """Offset from the monotonic clock to the times of spans. Fixed while a frame is open, so
        that spans have the measured duration even if the wall clock is set.
        """
        # Phases that its steps report, each with the class that the user gave, and for whom.
        self._phases: dict[str, str | None] = {}
        self._reporter: object = None

    @property
    def task(self) -> "asyncio.Task[object] | None":
        """Return the flow's task; None for a thread, or if the task was deleted."""
        return None if self._task is None else self._task()

    @property
    def is_dead(self) -> bool:
        if not self.thread.is_alive():
            return True
        if self._task is None:
            return False
        task = self._task()
        return task is None or task.done() or task.get_loop().is_closed()

    @property
    def reported(self) -> ItemsView[str, str | None]:
        """Phases that each step reports, as 0 where they do not occur, with their classes.

        Because of the zeros, a mean over workers and steps is the cost of a phase.
        """
        return self._phases.items()

    def report_to(self, reporter: object) -> None:
        """Forget the reported phases if they belong to another worker."""
        if reporter is not self._reporter:
            self._reporter = reporter
            self._phases.clear()

    def report(self, names: Iterable[str], phase_class: str | None = None) -> bool:
        """Make steps report these phases from now on. Returns False if there would be too many."""
        phases = self._phases
        for name in names:
            for reported in (WHOLES.get(name, name), name):
                if reported not in phases and reported != UNACCOUNTED:
                    if len(phases) >= MAX_PHASES:
                        return False
                    phases[reported] = phase_class
        return True

    def open_phase(self, opener: object, name: str, phase_class: str | None = None) -> Frame | None:
        """Open a phase within the open frames.

        Returns:
            The frame. None if too many frames are nested: the time stays with the open frames. If
            the steps have too many phases, a frame with the name of the surrounding frame, in which
            the time counts.
        """
        now_ns = self._settle()
        frames = self._frames
        if len(frames) >= MAX_DEPTH:
            return None
        step = None
        if frames:
            step = self._step()
            is_new = step is not None and name not in self._phases
            if is_new and not self.report((name,), phase_class):
                name = frames[-1].name
        return self._push(Frame(opener, name, step, now_ns))

    def open_step(self, opener: object, number: int) -> StepFrame | InnerStep | None:
        """Open a step. None if too many are nested: the time then stays with the open frames."""
        now_ns = self._settle()
        frames = self._frames
        if len(frames) >= MAX_DEPTH:
            return None
        if frames and self._step() is not None:
            return self._push(InnerStep(opener, number, frames[-1], now_ns))
        return self._push(StepFrame(opener, number, now_ns))

    def close(self, opener: object) -> Frame | None:
        """Close the innermost frame of ``opener``, at any depth.

        Returns:
            The frame: a ``StepFrame`` with the durations of its phases, or a phase, whose exclusive
            time counts in its step if the phase has a step. None if ``opener`` has no frame here.
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

    def credit(self, whole: str, duration_ns: int) -> bool:
        """Add a part's time outside steps to its containing phase.

        Returns False if none is open.
        """
        for frame in reversed(self._frames):
            if frame.name == whole:
                frame.charged_ns += duration_ns
                return True
        return False

    def look(self, now_ns: int) -> TimelineView | None:
        """Return a snapshot, or None. Other threads call it: it may be slightly out of date."""
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
        """Return the open frames, innermost last, for other threads: they may be out of date."""
        return tuple(frame for frame in tuple(self._frames) if not frame.is_abandoned)

    def abandon(self, opener: object) -> Frame | None:
        """Mark a frame as closed by another flow; its own flow removes it at its next event.

        Returns:
            The frame, with its exclusive time so far, or None if ``opener`` has no frame here.
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

    def _push(self, frame: _F) -> _F:
        if not self._frames:
            # In this order: a thread that loses the processor between the two dates no end into
            # the future, where it would give a step what is recorded after it.
            self.wall_ns = time_ns() - self._clock_ns()
            self._opened[id(self)] = self
        self._frames.append(frame)
        return frame

    def _step(self) -> StepFrame | None:
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
