"""docs/phases.md has every field of the registry, under the key that it has in the run."""

from pathlib import Path

import pytest

from otel_rl.bridge.keys import tracker_key
from otel_rl.semconv.names import PHASES, RL_PHASE, RL_PHASE_DURATION

PAGE = (Path(__file__).parents[3] / "docs" / "phases.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("name", PHASES)
def test_every_phase_is_documented_field_by_field(name: str) -> None:
    key = tracker_key("ROLE", RL_PHASE_DURATION, [(RL_PHASE, name)]).replace("ROLE", "<role>")
    (row,) = [line for line in PAGE.splitlines() if line.startswith(f"| `{name}` | `{key}` |")]
    cells = [cell.strip() for cell in row.strip("|").split("|")]
    assert len(cells) == 6
    assert all(cells)


def test_the_summands_of_the_pipeline_are_those_of_the_registry() -> None:
    (row,) = [line for line in PAGE.splitlines() if line.startswith("| pipeline |")]
    summands = [f"`{phase.name}`" for phase in PHASES.values() if phase.pipeline]
    assert " + ".join(summands) in row
