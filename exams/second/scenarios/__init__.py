"""All scenarios: what goes wrong or changes, each written down before it was run."""

from collections.abc import Sequence
from typing import Final

from exams.second.scenario import Scenario
from exams.second.scenarios import agents, asynchronous, further, healthy, lockstep

__all__ = ["SCENARIOS"]

SCENARIOS: Final[Sequence[Scenario]] = (
    *lockstep.SCENARIOS,
    *asynchronous.SCENARIOS,
    *agents.SCENARIOS,
    *healthy.SCENARIOS,
    *further.SCENARIOS,
)
