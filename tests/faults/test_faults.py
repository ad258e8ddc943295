"""Nothing that the bridge has acknowledged is lost or doubled, whatever dies.

Ten scenarios of the many that ``make faults`` runs, and one that strikes where layers of safety
act, at the bridge and at bridges that lack one of them. They take most of their time waiting, so a
few run side by side; each test waits for its own.
"""

from collections.abc import Iterator, Mapping
from concurrent.futures import Future

import pytest

from tests.faults.books import Verdict
from tests.faults.crew import Crew
from tests.faults.gateway import Fate
from tests.faults.outcome import Outcome
from tests.faults.scenario import STOP_TIMEOUT_S
from tests.support.slow import selected

# The first one to ask waits for what was begun before it, on a machine that has other work as well.
pytestmark = [pytest.mark.process, pytest.mark.timeout(900)]

SEEDS = range(1, 11)
AT_A_TIME = 3

CUTS = (Fate.CUT, Fate.HANG_UP, Fate.LOSE_ANSWER, Fate.CUT_ANSWER)
AIMED_SEED = 13


def _has_lost_what_it_answered_for(verdict: Verdict) -> bool:
    """It has delivered the rest, so what is missing does not merely wait."""
    return bool(verdict.lost) and verdict.has_ended_well


def _has_doubled(verdict: Verdict) -> bool:
    return bool(verdict.duplicated)


def _has_left_rows_out(verdict: Verdict) -> bool:
    return bool(verdict.lost)


FOUND_OUT = {
    "early_acknowledgement": _has_lost_what_it_answered_for,
    "no_recognition": _has_doubled,
    "trusted_cursor": _has_left_rows_out,
}

# W&B never confirms the rows that it lacks, so this one waits for as long as it may.
NEVER_READY = {"trusted_cursor": 10.0}


@pytest.fixture(scope="module")
def crew(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Crew]:
    with Crew(tmp_path_factory.mktemp("faults"), AT_A_TIME) as crew:
        yield crew


@pytest.fixture(scope="module")
def outcomes(crew: Crew, request: pytest.FixtureRequest) -> Mapping[int, "Future[Outcome]"]:
    return {seed: crew.run(seed) for seed in selected(request, "seed")}


@pytest.fixture(scope="module")
def aimed(crew: Crew, outcomes: Mapping[int, "Future[Outcome]"]) -> Mapping[str, "Future[Outcome]"]:
    """By the layer that is missing, and of the bridge with all; begun after the others."""
    return {
        layer: crew.run(
            AIMED_SEED,
            without=layer,
            is_aimed=True,
            stop_timeout_s=NEVER_READY.get(layer, STOP_TIMEOUT_S),
        )
        for layer in ("", *FOUND_OUT)
    }


@pytest.mark.slow
@pytest.mark.parametrize("seed", SEEDS)
def test_every_acknowledged_measurement_is_in_the_run_exactly_once(
    outcomes: Mapping[int, "Future[Outcome]"], seed: int
) -> None:
    outcome = outcomes[seed].result()
    assert outcome.verdict.is_sound, outcome.report()
    assert outcome.verdict.acknowledged > 0


@pytest.mark.slow
def test_the_scenarios_kill_and_cut(outcomes: Mapping[int, "Future[Outcome]"]) -> None:
    done = [future.result() for future in outcomes.values()]
    assert sum(outcome.kills for outcome in done) >= len(done)
    # How many requests there are, and so how many suffer each of these, is a matter of the machine.
    assert all(sum(outcome.faults[fate] for fate in CUTS) for outcome in done)
    assert all(sum(outcome.faults[fate] for outcome in done) >= len(done) for fate in CUTS)


@pytest.mark.slow
def test_a_bridge_with_all_its_layers_survives_strikes_where_they_act(
    aimed: Mapping[str, "Future[Outcome]"],
) -> None:
    outcome = aimed[""].result()
    assert outcome.verdict.is_sound, outcome.report()
    assert outcome.kills == 2


@pytest.mark.slow
@pytest.mark.parametrize("layer", FOUND_OUT)
def test_a_bridge_without_a_safety_layer_is_found_out(
    aimed: Mapping[str, "Future[Outcome]"], layer: str
) -> None:
    outcome = aimed[layer].result()
    assert FOUND_OUT[layer](outcome.verdict), outcome.report()
