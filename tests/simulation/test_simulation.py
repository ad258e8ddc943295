"""Nothing acknowledged is lost or doubled, in a few hundred simulated worlds.

``SIMULATION_SEEDS=5000`` looks at as many, ``SIMULATION_FIRST=71 SIMULATION_SEEDS=1`` at one. That
bridges without a layer of their safety are found out is a matter of ``tests/layers``.
"""

import itertools
import logging
import os
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest

from otel_rl.bridge.rows.run import Run
from tests.simulation.world import simulate
from tests.support.slow import slow_after

FIRST = int(os.environ.get("SIMULATION_FIRST", "0"))
SEEDS = int(os.environ.get("SIMULATION_SEEDS", "250"))
AT_ONCE = 10

# Each of these has to happen in the worlds that are looked at, or they show nothing of it.
EVENTS = {
    "a bridge died",
    "a bridge slept through its lease",
    "a bridge was restarted",
    "a clock was set",
    "a machine slept through its lease",
    "a point was known when it came again",
    "a request was lost",
    "a request was overtaken",
    "a run was taken over",
    "a sample came late",
    "a worker was restarted",
    "an answer was lost",
    "an upload came after its sender's death",
    "the tracker got a line again",
    "the tracker refused",
    "the tracker was away",
    "the tracker's answer was lost",
    "the tracker's count was old",
    *(
        f"{what} {kind}"
        for what in ("crash before", "crash after", "no room for")
        for kind in ("a request", "rows", "a position", "a lease")
    ),
    "fenced write of rows",
    "fenced write of a position",
}


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    """What goes wrong in these worlds is not worth a million lines."""
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


@pytest.fixture(scope="module")
def happened() -> Counter[str]:
    """Filled by the worlds that are looked at before."""
    return Counter()


@pytest.mark.parametrize("first", slow_after(1, range(FIRST, FIRST + SEEDS, AT_ONCE)))
def test_every_acknowledged_measurement_is_in_the_run_once(
    first: int, happened: Counter[str]
) -> None:
    for seed in range(first, min(first + AT_ONCE, FIRST + SEEDS)):
        verdict = simulate(seed)
        assert not verdict.wrong, f"seed {seed}"
        assert verdict.measured
        happened += verdict.events


@pytest.mark.slow
@pytest.mark.skipif(SEEDS < 150, reason="too few worlds for everything to happen in")
def test_everything_of_interest_happens_in_these_worlds(happened: Counter[str]) -> None:
    if not happened:
        pytest.skip("the worlds were not looked at")
    assert EVENTS - happened.keys() == set()
    assert happened["a bridge died"] > 100
    assert happened["fenced write of rows"] > 5


def test_a_world_happens_again_in_the_same_way() -> None:
    assert simulate(5) == simulate(5)


def test_a_defect_that_the_bridge_survives_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    close, calls = Run.close, itertools.count()

    def stumbles(*arguments: Any, **options: Any) -> Any:
        if next(calls) == 3:
            raise ZeroDivisionError  # the drain goes back, and makes the same rows again
        return close(*arguments, **options)

    monkeypatch.setattr(Run, "close", stumbles)
    assert simulate(0).wrong == ["1 exceptions that nobody foresaw"]
