"""Phases that the steps of a flow report, with 0 where they do not occur."""

from collections.abc import Iterable
from typing import Final

from otel_rl.worker.phases.phase_names import UNACCOUNTED, WHOLES

__all__ = ["MAX_PHASES", "ReportedPhases"]

MAX_PHASES: Final = 128
"""Different phases of one flow's steps. Each is reported at every step, so names that contain an id
would grow without bound.
"""


class ReportedPhases:
    """Phases of one flow's steps, bounded in number.

    Attributes:
        classes: Each phase with the class that its user gave, if any.
    """

    __slots__ = ("_reporter", "classes")

    def __init__(self) -> None:
        self.classes: dict[str, str | None] = {}
        self._reporter: object = None

    def begin(self, reporter: object) -> None:
        """Forget the phases if another worker reports them now."""
        if reporter is not self._reporter:
            self._reporter = reporter
            self.classes.clear()

    def add(self, names: Iterable[str], phase_class: str | None = None) -> bool:
        """Make steps report these phases from now on.

        So a mean over workers and steps is the cost of a phase.

        Returns:
            False if there would be too many.
        """
        for name in names:
            for reported in (WHOLES.get(name, name), name):
                if reported not in self.classes and reported != UNACCOUNTED:
                    if len(self.classes) >= MAX_PHASES:
                        return False
                    self.classes[reported] = phase_class
        return True
