"""Whose time it is: the open step and phases of one flow of control, innermost last.

    step 7         |-----------------------------------|
      generate        |---------------|
        reward             |-----|
      train                              |----------|
    charged to     u  g    r     g    u  t          u      (u: unaccounted)

Between two events all time is charged to the innermost frame that is open, and to nothing else. So
phases within each other never count twice, and the phases of a step, with ``unaccounted``, tile its
wall time exactly, in integer nanoseconds, whatever is opened and closed in whatever order.

A flow is a thread, or within a running event loop an asyncio task. Each has a timeline of its own
that nobody else writes to, so there is no lock. The exporter's thread looks on.
"""

import asyncio
import os
import threading
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from contextvars import Token
from dataclasses import dataclass
from enum import Enum, auto
from time import monotonic_ns, time_ns
from typing import Final
from weakref import WeakKeyDictionary

from opentelemetry.context import Context, detach
from opentelemetry.trace import Span

from otel_rl.semconv.names import PHASES, RlPhaseValues

__all__ = [
    "MAX_DEPTH",
    "MAX_PHASES",
    "UNACCOUNTED",
    "WHOLES",
    "Frame",
    "Refused",
    "Sight",
    "StepFrame",
    "Timeline",
    "abandon_elsewhere",
    "current",
    "forget_all",
    "forget_dead",
    "sights",
]

UNACCOUNTED: Final = RlPhaseValues.UNACCOUNTED.value

MAX_DEPTH: Final = 64
"""Frames open within each other. Nobody nests so deep; a loop that opens and never closes does."""

MAX_PHASES: Final = 128
"""Different phases of one flow's steps. Each is reported at every step, so names with an id in them
would grow without end."""

WHOLES: Final[Mapping[str, str]] = {
    name: spec.part_of for name, spec in PHASES.items() if spec.part_of is not None
}
"""The phase that a phase is a part of: a part's time is its whole's time, too."""


class Refused(Enum):
    """Why nothing was opened. The time stays with what is open."""

    TOO_DEEP = auto()
    TOO_MANY_PHASES = auto()
    WITHIN_A_STEP = auto()


class Frame:
    """One open phase, and the time that was its own so far.

    Attributes:
        opener: The context manager that opened it; by this it is found when it is closed.
        name: The phase.
        step: The step it belongs to, or None.
        begun_ns: When it was opened, by the timeline's clock.
        charged_ns: Its own time so far, that of frames within it left out.
        ended_ns: When it was closed; 0 before.
        is_abandoned: Whether another flow has closed it.
        span: Its span, if any. The timeline never looks at it.
        token: What makes the span around it the current one again.
    """

    __slots__ = (
        "begun_ns",
        "charged_ns",
        "ended_ns",
        "is_abandoned",
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
        self.is_abandoned = False
        self.span: Span | None = None
        self.token: Token[Context] | None = None


class StepFrame(Frame):
    """One open step. What is charged to it is in none of its phases.

    Attributes:
        number: The training step.
        durations_ns: Own time of each of its phases that has ended, parts included.
    """

    __slots__ = ("durations_ns", "number")

    def __init__(self, opener: object, number: int, begun_ns: int) -> None:
        super().__init__(opener, UNACCOUNTED, None, begun_ns)
        self.number = number
        self.durations_ns: dict[str, int] = {}

    def charge(self, name: str, duration_ns: int) -> None:
        """Add the own time of a phase, to what it is a part of as well."""
        durations_ns = self.durations_ns
        durations_ns[name] = durations_ns.get(name, 0) + duration_ns
        whole = WHOLES.get(name)
        if whole is not None:
            durations_ns[whole] = durations_ns.get(whole, 0) + duration_ns


@dataclass(frozen=True, slots=True)
class Sight:
    """What can be seen of a timeline from outside at one moment.

    Attributes:
        phase: The innermost open phase, or ``unaccounted``.
        phase_age_ns: Since when; of ``unaccounted``, since the last phase ended.
        step: The open step, or None.
        step_age_ns: Since when.
    """

    phase: str
    phase_age_ns: int
    step: int | None
    step_age_ns: int


class Timeline:
    """The open frames of one flow. Only that flow opens and closes; any thread may look on.

    Args:
        clock_ns: Monotonic. Should it go back all the same, it is taken to stand still.
    """

    __slots__ = (
        "__weakref__",
        "_clock_ns",
        "_frames",
        "_reporter",
        "_since_ns",
        "_thread",
        "phases",
        "wall_ns",
    )

    def __init__(self, clock_ns: Callable[[], int] = monotonic_ns) -> None:
        self._clock_ns = clock_ns
        self._frames: list[Frame] = []
        self._since_ns = 0
        self._thread = threading.current_thread()
        self._reporter: object = None
        self.wall_ns = 0
        """What makes its times those of spans. Fixed while anything is open, so that spans last as
        long as is measured, even if the wall clock is set."""
        self.phases: dict[str, str | None] = {}
        """The phases that its steps report, each with the class that its user gave, if any."""

    def open_phase(
        self, opener: object, name: str, phase_class: str | None = None
    ) -> Frame | Refused:
        """Open a phase within what is open."""
        now_ns = self._settle()
        frames = self._frames
        if len(frames) >= MAX_DEPTH:
            return Refused.TOO_DEEP
        step = None
        if frames:
            top = frames[-1]
            step = top if isinstance(top, StepFrame) else top.step
            is_new = step is not None and name not in self.phases
            if is_new and not self.report((name,), phase_class):
                return Refused.TOO_MANY_PHASES
        frame = Frame(opener, name, step, now_ns)
        if not frames:
            self._begin(now_ns)
        frames.append(frame)
        return frame

    def open_step(self, opener: object, number: int) -> StepFrame | Refused:
        """Open a step, unless one is open: then the phases to come are those of that one."""
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

    def report_as(self, reporter: object) -> None:
        """Forget which phases steps report if it is another worker now that reports them."""
        if reporter is not self._reporter:
            self._reporter = reporter
            self.phases.clear()

    def report(self, names: Iterable[str], phase_class: str | None = None) -> bool:
        """Let steps report these phases from now on, with 0 where they do not happen.

        So a mean over workers and steps is what a phase costs.

        Returns:
            False if there would be too many.
        """
        for name in names:
            for reported in (WHOLES.get(name, name), name):
                if reported not in self.phases and reported != UNACCOUNTED:
                    if len(self.phases) >= MAX_PHASES:
                        return False
                    self.phases[reported] = phase_class
        return True

    def close(self, opener: object) -> Frame | None:
        """Close the innermost frame that ``opener`` has opened, wherever it stands.

        Returns:
            The frame: a ``StepFrame`` with the durations of its phases, or a phase, whose own time
            is counted in its step if it has one. None if it is not here.
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
            _open.pop(id(self), None)
        frame.ended_ns = now_ns
        step = frame.step
        if step is not None:
            step.charge(frame.name, frame.charged_ns)
        else:
            self._count(frame)
        return frame

    def is_open(self, name: str) -> bool:
        """Whether a phase of this name is open."""
        return any(frame.name == name for frame in self._frames)

    def look(self, now_ns: int) -> Sight | None:
        """What the flow is in, or None. For other threads: may be a moment old."""
        frames = tuple(self._frames)
        if not frames:
            return None
        top = frames[-1]
        begun_ns = self._since_ns if isinstance(top, StepFrame) else top.begun_ns
        step = next((frame for frame in frames if isinstance(frame, StepFrame)), None)
        return Sight(
            top.name,
            max(0, now_ns - begun_ns),
            None if step is None else step.number,
            0 if step is None else max(0, now_ns - step.begun_ns),
        )

    def abandon(self, opener: object) -> Frame | None:
        """Note that another flow has closed a frame; its own lets go of it at its next event.

        Returns:
            The frame, with its own time as of now, or None if it is not here.
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

    @property
    def is_dead(self) -> bool:
        """Whether its thread has ended, so that nobody will close what is open."""
        return not self._thread.is_alive()

    def clear(self) -> int:
        """Forget what is open. Returns how many frames that were."""
        open_frames = len(self._frames)
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
            if top.is_abandoned:
                self._let_go()
        self._since_ns = now_ns
        return now_ns

    def _take(self, opener: object) -> Frame | None:
        """Take out a frame that is not the innermost one."""
        frames = self._frames
        for place in range(len(frames) - 2, -1, -1):
            frame = frames[place]
            if frame.opener is opener:
                del frames[place]
                if frame.token is not None:
                    # Closed before what is within it, as a generator may. Were the tokens used in
                    # this order, the last of them would bring this frame's span back.
                    frames[place].token = frame.token
                    frame.token = None
                return frame
        return None

    def _let_go(self) -> None:
        """Take out what another flow has closed."""
        frames = self._frames
        while frames and frames[-1].is_abandoned:
            frame = frames.pop()
            if frame.token is not None:
                detach(frame.token)  # it means nothing in the context of the flow that closed it
            if frame.step is not None:
                frame.step.charge(frame.name, frame.charged_ns)
            else:
                self._count(frame)
        if not frames:
            _open.pop(id(self), None)

    def _begin(self, now_ns: int) -> None:
        self.wall_ns = time_ns() - now_ns
        _open[id(self)] = self

    def _step(self) -> StepFrame | None:
        """The open step. Something must be open."""
        top = self._frames[-1]
        return top if isinstance(top, StepFrame) else top.step

    def _count(self, frame: Frame) -> None:
        """Count the own time of a frame of no step, that was taken out."""
        if isinstance(frame, StepFrame):
            for inner in self._frames:
                # Its time until now is this step's, and what it takes from now on is no step's.
                if inner.step is frame:
                    frame.charge(inner.name, inner.charged_ns)
                    inner.charged_ns = 0
                    inner.step = None
            frame.charge(UNACCOUNTED, frame.charged_ns)
        elif frame.name in WHOLES:
            for outer in reversed(self._frames):
                if outer.name == WHOLES[frame.name]:
                    outer.charged_ns += frame.charged_ns
                    break


class _Here(threading.local):
    """The timelines of one thread: its own, and those of its asyncio tasks."""

    def __init__(self) -> None:
        self.thread = Timeline()
        self.tasks: WeakKeyDictionary[asyncio.Task[object], Timeline] = WeakKeyDictionary()


_here = _Here()

_open: dict[int, Timeline] = {}
"""The timelines with open frames, by id. Each is put in and taken out by its own flow."""

# None where no loop runs. The function without an underscore raises there, which would cost as much
# as all the rest of a phase.
_running_loop: Callable[[], asyncio.AbstractEventLoop | None] = asyncio._get_running_loop  # noqa: SLF001


def current() -> Timeline:
    """The timeline of the flow that calls."""
    loop = _running_loop()
    if loop is None:
        return _here.thread
    task: asyncio.Task[object] | None = asyncio.current_task(loop)
    if task is None:
        return _here.thread  # a callback of the loop, which nothing interrupts
    tasks = _here.tasks
    timeline = tasks.get(task)
    if timeline is None:
        timeline = tasks[task] = Timeline()
    return timeline


def abandon_elsewhere(opener: object) -> tuple[Timeline, Frame] | None:
    """Find the frame of ``opener`` in another flow, and note that it is closed."""
    for timeline in tuple(_open.values()):
        frame = timeline.abandon(opener)
        if frame is not None:
            return timeline, frame
    return None


def sights() -> list[Sight]:
    """What every flow is in now. Any thread may ask."""
    now_ns = monotonic_ns()
    seen = (timeline.look(now_ns) for timeline in tuple(_open.values()))
    return [sight for sight in seen if sight is not None]


def forget_dead() -> int:
    """Forget what threads that have ended left open. Returns how many frames that were."""
    return _forget(timeline for timeline in tuple(_open.values()) if timeline.is_dead)


def forget_all() -> int:
    """Forget what is open in all flows. Returns how many frames that were."""
    return _forget(tuple(_open.values()))


def _forget(timelines: Iterable[Timeline]) -> int:
    # Two threads may be here at the end of a process. Who takes a timeline out counts it.
    taken = (_open.pop(id(timeline), None) for timeline in timelines)
    return sum(timeline.clear() for timeline in taken if timeline is not None)


def _after_fork_in_child() -> None:
    """What was open is the parent's to close and to report."""
    global _here  # of the one thread that lives on
    _here = _Here()
    _open.clear()


with suppress(AttributeError):  # there is no fork on Windows
    os.register_at_fork(after_in_child=_after_fork_in_child)
