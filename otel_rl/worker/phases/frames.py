"""Open frames of a timeline: phases and their step, as data."""

from contextvars import Token
from typing import Protocol

from opentelemetry.context import Context
from opentelemetry.trace import Span

from otel_rl.worker.phases.device_clock import Mark, StepMarks
from otel_rl.worker.phases.phase_names import UNACCOUNTED, WHOLES
from otel_rl.worker.step_context import StepScope

__all__ = ["EndCounts", "Frame", "StepFrame"]


class Frame:
    """Open phase, with its exclusive time so far.

    Attributes:
        opener: The context manager that opened it; identifies the frame to close.
        name: The phase.
        step: Its step, or None.
        begun_ns: Start, by the timeline's clock.
        has_gpus: True if the phase uses the process's GPUs. The timeline does not use it.
        marks: Of its step, if a device is in use.
        begun: Its start on the device.
        ended: Its end there.
        charged_ns: Exclusive time so far.
        ended_ns: End; 0 while open.
        is_abandoned: True after another flow closed it.
        span: Its span, if any. The timeline does not use it.
        show_at_ns: Age at which the exporter reports it next while it is open.
        token: Restores the surrounding span and step as the current ones.
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
        "show_at_ns",
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
        self.show_at_ns = 0
        self.token: Token[Context] | None = None
        self.marks: StepMarks | None = None if step is None else step.marks
        self.begun: Mark | None = None if self.marks is None else self.marks.last
        self.ended: Mark | None = None


class EndCounts(Protocol):
    """Ends what counters count in a step."""

    def __call__(self, ended_ns: int, counter: str | None = None) -> float | None:
        """End the step at a time of the wall clock.

        Args:
            ended_ns: The time.
            counter: Name of a counter.

        Returns:
            What ``counter`` has counted in the step; None if it has not.
        """


class StepFrame(Frame):
    """Open step. Time charged to it is in none of its phases.

    Attributes:
        number: The training step.
        durations_ns: Exclusive time of each of its ended phases, parts included.
        end_counts: Ends what counters count in the step. The timeline does not use it.
        scope: The step of what is recorded in the block. The timeline does not use it.
    """

    __slots__ = ("durations_ns", "end_counts", "number", "scope")

    def __init__(self, opener: object, number: int, begun_ns: int) -> None:
        super().__init__(opener, UNACCOUNTED, None, begun_ns)
        self.number = number
        self.durations_ns: dict[str, int] = {}
        self.end_counts: EndCounts | None = None
        self.scope = StepScope(number)

    def charge(self, name: str, duration_ns: int) -> None:
        """Add the exclusive time of a phase, also to the phase that contains it."""
        durations_ns = self.durations_ns
        durations_ns[name] = durations_ns.get(name, 0) + duration_ns
        whole = WHOLES.get(name)
        if whole is not None:
            durations_ns[whole] = durations_ns.get(whole, 0) + duration_ns
