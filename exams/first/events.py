"""Events of a simulated run, before anything is encoded. Times are seconds of the run."""

from dataclasses import dataclass, field
from typing import NamedTuple


@dataclass(frozen=True, order=True, slots=True)
class Who:
    """Worker."""

    role: str
    index: int

    def __str__(self) -> str:
        return f"{self.role}/{self.index}"


@dataclass(slots=True)
class Timed:
    """Work, or a wait, of a worker.

    Attributes:
        number: From 1; ids of spans are made from it.
        who: The worker.
        phase: Its name in this program.
        begin_s: Beginning.
        end_s: End.
        step: The step that it belongs to, if the worker knows it.
        parent: Number of the parent, which may be of another worker.
        links: Numbers of the work whose samples are used.
        is_step: Whether it is the whole step.
        is_wait: Whether the worker only waits.
    """

    number: int
    who: Who
    phase: str
    begin_s: float
    end_s: float
    step: int | None
    parent: int | None = None
    links: list[int] = field(default_factory=list)
    is_step: bool = False
    is_wait: bool = False


class Value(NamedTuple):
    """Measurement of a gauge."""

    who: Who
    at_s: float
    name: str
    value: float
    step: int | None


class Count(NamedTuple):
    """Increase of a counter."""

    who: Who
    at_s: float
    name: str
    increase: float


class Call(NamedTuple):
    """Call as one side has measured it."""

    who: Who
    at_s: float
    is_server: bool
    took_s: float


class Open(NamedTuple):
    """Phase in which a worker stays until the end of the run."""

    who: Who
    phase: str
    since_s: float


class End(NamedTuple):
    """End of a worker.

    Attributes:
        who: The worker.
        at_s: When.
        has_report: Whether it reports its end.
        error: Type of the error; empty for success.
        step: The step that the error has left.
    """

    who: Who
    at_s: float
    has_report: bool
    error: str = ""
    step: int | None = None


@dataclass
class Recording:
    """Run as it happened.

    Attributes:
        begins: When each worker began, again after a restart.
        ends: In order.
        ends_s: End of the run, or of the observation of one that hangs.
        step_ends_s: When each step ended.
        is_over: Whether workers have ended, and report so if they can.
    """

    begins: dict[Who, list[float]] = field(default_factory=dict)
    ends: list[End] = field(default_factory=list)
    timed: list[Timed] = field(default_factory=list)
    values: list[Value] = field(default_factory=list)
    counts: list[Count] = field(default_factory=list)
    calls: list[Call] = field(default_factory=list)
    open: list[Open] = field(default_factory=list)
    ends_s: float = 0.0
    step_ends_s: list[float] = field(default_factory=list)
    is_over: bool = True

    def add(
        self,
        who: Who,
        phase: str,
        begin_s: float,
        end_s: float,
        step: int | None,
        *,
        parent: Timed | None = None,
        is_step: bool = False,
        is_wait: bool = False,
    ) -> Timed:
        number = None if parent is None else parent.number
        one = Timed(
            len(self.timed) + 1, who, phase, begin_s, end_s, step, number, [], is_step, is_wait
        )
        self.timed.append(one)
        return one
