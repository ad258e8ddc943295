"""Nothing that the bridge has acknowledged is lost or doubled, whatever dies.

Ten scenarios of the many that ``make faults`` runs. They take most of their time waiting, so a few
run side by side; each test waits for its own.
"""

from collections.abc import Iterator, Mapping
from concurrent.futures import Future

import pytest

from tests.faults.crew import Crew
from tests.faults.outcome import Outcome

# The first one to ask waits for what was begun before it, on a machine that has other work as well.
pytestmark = [pytest.mark.process, pytest.mark.timeout(600)]

SEEDS = range(1, 11)
AT_A_TIME = 3

# Each catches its mutant nearly always: not every scenario strikes where a layer is missing.
MUTANT_SEEDS = {
    "layers.early_acknowledgement": (1, 2, 3, 7),
    "layers.no_recognition": (1, 2),
    "layers.trusted_cursor": (23, 20, 10, 24, 14, 5),
}


@pytest.fixture(scope="module")
def crew(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Crew]:
    with Crew(tmp_path_factory.mktemp("faults"), AT_A_TIME) as crew:
        yield crew


@pytest.fixture(scope="module")
def outcomes(crew: Crew) -> Mapping[int, "Future[Outcome]"]:
    return {seed: crew.run(seed) for seed in SEEDS}


@pytest.fixture(scope="module")
def mutants(
    crew: Crew, outcomes: Mapping[int, "Future[Outcome]"]
) -> Mapping[str, "Future[Outcome]"]:
    """The first try of each, begun after the others."""
    return {mutant: crew.run(seeds[0], mutant=mutant) for mutant, seeds in MUTANT_SEEDS.items()}


@pytest.mark.parametrize("seed", SEEDS)
def test_every_acknowledged_measurement_is_in_the_run_exactly_once(
    outcomes: Mapping[int, "Future[Outcome]"], seed: int
) -> None:
    outcome = outcomes[seed].result()
    assert outcome.verdict.is_sound, outcome.report()
    assert outcome.verdict.acknowledged > 0


def test_the_scenarios_kill_and_cut(outcomes: Mapping[int, "Future[Outcome]"]) -> None:
    done = [future.result() for future in outcomes.values()]
    assert sum(outcome.kills for outcome in done) >= len(done)
    assert all(outcome.faults["lose answer"] for outcome in done)


@pytest.mark.parametrize("mutant", MUTANT_SEEDS)
def test_a_bridge_without_a_safety_layer_is_found_out(
    crew: Crew, mutants: Mapping[str, "Future[Outcome]"], mutant: str
) -> None:
    verdict = mutants[mutant].result().verdict
    for seed in MUTANT_SEEDS[mutant][1:]:
        if verdict.lost or verdict.duplicated:
            return
        verdict = crew.run(seed, mutant=mutant).result().verdict
    assert verdict.lost or verdict.duplicated, f"nothing was noticed in {MUTANT_SEEDS[mutant]}"
