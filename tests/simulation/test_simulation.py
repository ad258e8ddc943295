"""Nothing acknowledged is lost or doubled, in a few hundred simulated worlds.

``SIMULATION_SEEDS=5000`` looks at as many, ``SIMULATION_FIRST=71 SIMULATION_SEEDS=1`` at one.
"""

import logging
import os
from collections.abc import Iterator

import pytest

from tests.simulation.mutants import MUTANTS, SURVIVORS, Mutant
from tests.simulation.world import simulate

FIRST = int(os.environ.get("SIMULATION_FIRST", "0"))
SEEDS = int(os.environ.get("SIMULATION_SEEDS", "150"))

# A mutant that takes more worlds than this to be noticed is hardly noticed at all.
MUTANT_SEEDS = 200

SURVIVOR_SEEDS = 20


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    """What goes wrong in these worlds is not worth a million lines."""
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


@pytest.mark.timeout(120 + SEEDS)
def test_every_acknowledged_measurement_is_in_the_run_once() -> None:
    verdicts = {seed: simulate(seed) for seed in range(FIRST, FIRST + SEEDS)}
    wrong = {seed: verdict.wrong for seed, verdict in verdicts.items() if verdict.wrong}
    assert not wrong


def test_the_worlds_are_bad_enough() -> None:
    verdicts = [simulate(seed) for seed in range(10)]
    assert sum(verdict.crashes for verdict in verdicts) > 10
    assert sum(verdict.writers for verdict in verdicts) > 50
    assert sum(verdict.repeated for verdict in verdicts) > 50
    assert sum(verdict.rewritten for verdict in verdicts) > 10


def test_a_world_happens_again_in_the_same_way() -> None:
    assert simulate(5) == simulate(5)


@pytest.mark.timeout(300)
@pytest.mark.parametrize("mutant", MUTANTS.values(), ids=MUTANTS)
def test_a_bridge_with_a_layer_of_its_safety_removed_is_noticed(
    mutant: Mutant, monkeypatch: pytest.MonkeyPatch
) -> None:
    mutant(monkeypatch)
    assert any(simulate(seed).wrong for seed in range(MUTANT_SEEDS))


@pytest.mark.parametrize("mutant", SURVIVORS.values(), ids=SURVIVORS)
def test_a_second_layer_does_what_a_removed_one_did(
    mutant: Mutant, monkeypatch: pytest.MonkeyPatch
) -> None:
    mutant(monkeypatch)
    assert [simulate(seed).wrong for seed in range(SURVIVOR_SEEDS)] == [[]] * SURVIVOR_SEEDS
