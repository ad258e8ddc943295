"""All scenarios: what goes wrong or changes, each written down before it was run."""

from collections.abc import Sequence
from typing import Final

from bench.second_exam.scenario import Scenario
from bench.second_exam.scenarios import agents, asynchronous, further, healthy, lockstep

__all__ = ["SCENARIOS"]

SCENARIOS: Final[Sequence[Scenario]] = (
    *lockstep.SCENARIOS,
    *asynchronous.SCENARIOS,
    *agents.SCENARIOS,
    *healthy.SCENARIOS,
    *further.SCENARIOS,
)
