"""One figure of a bench: a cost, beside the alternative's."""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum


class Limits(StrEnum):
    """Quantity that the goal of a figure bounds."""

    RATIO = "ratio"
    OURS = "ours"


@dataclass(frozen=True, slots=True)
class Figure:
    """One cost, ours beside theirs, measured in one run.

    Attributes:
        name: The operation.
        unit: Of ``ours`` and ``theirs``.
        ours: Cost with otel_rl.
        theirs: Cost of the alternative; None without one.
        against: The alternative.
        ratio: Ours by theirs, the median over rounds where both are measured in each; None if
            theirs is nothing, or no more than the noise.
        goal: The highest acceptable value; None without a promise.
        limits: Whether the goal is one for the ratio or for ours alone.
        spread: Lowest and highest of what the goal would limit, over rounds; None if it was
            measured once.
    """

    name: str
    unit: str
    ours: float
    theirs: float | None
    against: str
    ratio: float | None
    goal: float | None = None
    limits: Limits = Limits.RATIO
    spread: tuple[float, float] | None = None

    @property
    def met(self) -> bool | None:
        """Return whether the goal is met; None without one."""
        limited = self.ratio if self.limits is Limits.RATIO else self.ours
        if self.goal is None or limited is None:
            return None
        return limited <= self.goal

    def line(self) -> str:
        """Return the figure as a line of the table."""
        goal = ""
        if self.goal is not None:
            bound = f"{self.goal:.3g}" + (f" {self.unit}" if self.limits is Limits.OURS else "")
            goal = f"{'met' if self.met else 'MISSED'} (<= {bound})"
        theirs = "" if self.theirs is None else f"{self.theirs:.3g}"
        ratio = "" if self.ratio is None else f"{self.ratio:.3f}"
        line = f"{self.name:60}{self.ours:9.3g}{theirs:>9} {self.unit:9}{ratio:>7}  {goal:24}"
        return f"{line}{self.against}".rstrip()


HEADER = f"{'':60}{'ours':>9}{'theirs':>9} {'':9}{'ratio':>7}  {'goal':24}against"


def summary(figures: Sequence[Figure]) -> str:
    """Return the number of met goals, and the missed ones."""
    goals = [figure for figure in figures if figure.met is not None]
    missed = [figure.name for figure in goals if not figure.met]
    return f"{len(goals) - len(missed)} of {len(goals)} goals met" + (
        f"; missed: {', '.join(missed)}" if missed else ""
    )
