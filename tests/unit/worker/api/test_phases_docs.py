"""docs/phases.md has every field of the registry, under the key that it has in the run."""

from pathlib import Path

import pytest

from otel_rl.bridge.tracker_keys import tracker_key
from otel_rl.semconv.names import PHASES, RL_PHASE, RL_PHASE_DURATION

PAGE = (Path(__file__).parents[4] / "docs" / "phases.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("name", PHASES)
def test_every_phase_is_documented_field_by_field(name: str) -> None:
    key = tracker_key("ROLE", RL_PHASE_DURATION, [(RL_PHASE, name)]).replace("ROLE", "<role>")
    assert key.replace(name, "<phase>") in PAGE
    (row,) = [line for line in PAGE.splitlines() if line.startswith(f"- `{name}`: ")]
    holds, _, excludes = row.partition(": ")[2].partition("; not ")
    assert holds
    assert excludes


@pytest.mark.parametrize(
    ("metric", "attributes", "key"),
    [
        ("rl.worker.phase.age", [(RL_PHASE, "train")], "worker/phase/age/train"),
        ("rl.worker.step.number", [], "worker/step/number"),
        ("rl.worker.step.age", [], "worker/step/age"),
    ],
)
def test_what_shows_a_hang_has_the_key_that_is_documented(
    metric: str, attributes: list[tuple[str, str]], key: str
) -> None:
    assert tracker_key("trainer", metric, attributes) == f"trainer/{key}"
    assert f"| `{metric}` | `<role>/{key.replace('train', '<phase>')}` |" in PAGE


def test_the_summands_of_the_pipeline_are_those_of_the_registry() -> None:
    (row,) = [
        line for line in PAGE.splitlines() if line.startswith("- `<role>/pipeline/duration`: ")
    ]
    summands = [f"`{phase.name}`" for phase in PHASES.values() if phase.pipeline]
    assert " + ".join(summands) in row
