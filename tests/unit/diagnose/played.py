"""Runs played by the simulator of the exam, through the bridge's intake, with effects of choice."""

import random
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cached_property

from exams.first import programs, styles
from exams.first.effects import Effect, Effects
from exams.first.events import Recording
from exams.first.intake import Intake
from exams.first.play import play
from exams.first.programs import Program, Topology
from exams.first.requests import arrivals
from exams.first.styles import Style
from otel_rl.diagnose.history.run_history import RunHistory


class Played:
    """A run.

    Attributes:
        program: As it was drawn, with the steps and the noise asked for.
        made: What happened, as nobody but the simulator knows it.
    """

    def __init__(
        self,
        seed: int,
        topology: Topology,
        style: Style,
        effects: Callable[[Program], Sequence[Effect]] = lambda program: (),
        *,
        noise: float = 0.03,
        stock: bool | None = None,
        later_s: float = 30.0,
    ) -> None:
        chance = random.Random(seed)
        drawn = programs.drawn(chance, topology)
        while max(drawn.sizes.values()) > 8 or drawn.sizes[drawn.maker] < 2:
            drawn = programs.drawn(chance, topology)
        self.program = replace(drawn, steps=60, noise=noise, drift=0.0)
        how = styles.drawn(chance, self.program)
        while how.style is not style or stock is how.is_ours:
            how = styles.drawn(chance, self.program)
        self._how, self._every = how, Effects(effects(self.program))
        self._later_s = later_s
        self.made: Recording = play(self.program, self._every, has_end_reports=how.is_ours)

    @cached_property
    def history(self) -> RunHistory:
        """As a diagnosis reads it. The way through the intake takes most of the time."""
        intake = Intake()
        at_ns = 0
        for at_ns, arrived in arrivals(self.program, self._how, self._every, self.made):
            intake.take(at_ns, arrived)
        if self.made.is_over:
            intake.take(at_ns + int(self._later_s * 1e9), ())
        return RunHistory(intake.records)
