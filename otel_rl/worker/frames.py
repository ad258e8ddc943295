"""What is open on a timeline: phases, and the step around them, each with the time of its own."""

from collections.abc import Mapping
from contextvars import Token
from typing import Final

from opentelemetry.context import Context
from opentelemetry.trace import Span

from otel_rl.semconv.names import PHASES, RlPhaseValues

__all__ = ["UNACCOUNTED", "WHOLES", "Frame", "StepFrame"]

UNACCOUNTED: Final = RlPhaseValues.UNACCOUNTED.value

WHOLES: Final[Mapping[str, str]] = {
    str(name): str(spec.part_of) for name, spec in PHASES.items() if spec.part_of is not None
}
"""The phase that a phase is a part of: a part's time is its whole's time, too."""


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
        show_at_ns: The age at which it is shown next while it is open. The exporter's own.
        token: What makes the span around it the current one again.
    """

    __slots__ = (
        "begun_ns",
        "charged_ns",
        "ended_ns",
        "is_abandoned",
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
        self.is_abandoned = False
        self.span: Span | None = None
        self.show_at_ns = 0
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
