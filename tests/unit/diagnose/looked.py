"""Drawn runs of a few workers at which a diagnosis looks as they go on, as the bridge's does."""

import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

from exams.first import programs, styles
from exams.first.effects import Effect, Effects
from exams.first.intake import Intake
from exams.first.play import play
from exams.first.programs import Program, Topology
from exams.first.requests import arrivals
from otel_rl.diagnose.engine import diagnose
from otel_rl.diagnose.history.run_history import GrowingHistory
from otel_rl.diagnose.result import Diagnosis

_NS = 1_000_000_000
_EVERY_S = 4.0
_MOST = 6  # workers of a role
STEPS = 50


def looks(
    seed: int,
    effects: Callable[[Program], Sequence[Effect]] = lambda program: (),
    *,
    but: Sequence[Topology] = (),
) -> Iterator[Diagnosis]:
    """Yield what is said of a run at each look, and at last after its end.

    Args:
        seed: Draws program, sizes, noise and instrumentation.
        effects: What happens in it.
        but: Topologies that are not drawn.
    """
    chance = random.Random(seed)
    program = programs.drawn(chance)
    while max(program.sizes.values()) > _MOST or program.topology in but:
        program = programs.drawn(chance)
    program = replace(program, steps=STEPS, noise=min(program.noise, 0.1))
    how = styles.drawn(chance, program)
    every = Effects(effects(program))
    made = play(program, every, has_end_reports=how.is_ours)
    intake, history, begin_ns, looked_s, now_ns = Intake(), GrowingHistory(), 0, 0.0, 0
    read = 0
    for now_ns, arrived in arrivals(program, how, every, made):
        begin_ns = begin_ns or now_ns
        told_s = (now_ns - begin_ns) / _NS
        intake.take(now_ns, arrived)
        if told_s < looked_s + _EVERY_S:
            continue
        looked_s = told_s
        for one in intake.records[read:]:
            history.add(one)
        read = len(intake.records)
        yield diagnose(history.history())
    intake.take(now_ns + 30 * _NS, ())
    for one in intake.records[read:]:
        history.add(one)
    yield diagnose(history.history(), passed=True, silent_s=30.0)
