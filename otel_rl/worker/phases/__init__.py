"""Open steps and phases of each thread and task, with their exclusive times."""

from collections.abc import Mapping
from typing import Final

from otel_rl.semconv.names import PHASES, RlPhaseValues

__all__ = ["UNACCOUNTED", "WHOLES"]

UNACCOUNTED: Final = RlPhaseValues.UNACCOUNTED.value

WHOLES: Final[Mapping[str, str]] = {
    str(name): str(spec.part_of) for name, spec in PHASES.items() if spec.part_of is not None
}
"""Maps a phase to the phase that contains it, in which its time counts, too."""
