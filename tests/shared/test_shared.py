"""Several bridges share a PostgreSQL database: everything dies, nothing is lost or doubled.

``SHARED_RUNS=20`` looks at as many seeds, ``SHARED_SEED=7`` at one.
"""

import logging
import os
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest

from tests.faults.keeper import wait_for
from tests.shared.site import Sender, Site, Striker
from tests.support.postgres import PostgresServer
from tests.support.wandb_server import WandbServer

_log = logging.getLogger(__name__)

pytestmark = [pytest.mark.process, pytest.mark.slow, pytest.mark.timeout(600)]

_FIRST = int(os.environ.get("SHARED_SEED", "0"))
SEEDS = range(_FIRST, _FIRST + int(os.environ.get("SHARED_RUNS", "1")))
STRIKES = 8
DEADLINE_S = 300.0
EXPERIMENTS = [f"e{n}" for n in range(4)]


@pytest.fixture
def server() -> Iterator[PostgresServer]:
    with PostgresServer() as running:  # of its own: it is struck
        yield running


@pytest.fixture
def site(server: PostgresServer, tmp_path: Path) -> Iterator[Site]:
    with Site(server, tmp_path, bridges=3) as running:
        wait_until_up(running)
        yield running


@pytest.fixture
def wandb_site(server: PostgresServer, tmp_path: Path) -> Iterator[Site]:
    with WandbServer() as wandb, Site(server, tmp_path, bridges=2, wandb=wandb) as running:
        wait_until_up(running)
        yield running


def wait_until_up(site: Site) -> None:
    wait(lambda: all(bridge.is_up() for bridge in site.bridges), "a bridge does not come up")


def wait(condition: Callable[[], bool], what: str) -> None:
    assert wait_for(condition, DEADLINE_S), what


def begun(site: Site) -> Sequence[Sender]:
    """Two senders for each experiment, with rows in each run."""
    senders = [Sender(n, EXPERIMENTS[n % len(EXPERIMENTS)], site) for n in range(8)]
    for sender in senders:
        sender.start()
    wait(lambda: all(site.rows(name) for name in EXPERIMENTS), f"no rows: {site.said()}")
    return senders


def all_shown(site: Site, senders: Sequence[Sender]) -> bool:
    return all(len(site.shown(sender)) >= len(sender.acknowledged) for sender in senders)


def ended(site: Site, senders: Sequence[Sender]) -> None:
    """Everything that was measured is acknowledged and in its run, once."""
    for sender in senders:
        sender.finish()
    for sender in senders:
        sender.join(DEADLINE_S)
        assert not sender.is_alive(), "a request is never taken"
    wait(lambda: all_shown(site, senders), f"something is missing: {site.said()}")
    for sender in senders:
        expected = {sender.value(step): 1 for step in sender.acknowledged}
        assert site.shown(sender) == expected
    for name in EXPERIMENTS:
        rows = site.rows(name)
        assert [row["number"] for row in rows] == list(range(len(rows)))


@pytest.mark.parametrize("seed", SEEDS)
def test_what_any_bridge_acknowledged_is_in_the_run_once(
    server: PostgresServer, site: Site, seed: int
) -> None:
    senders = begun(site)
    striker = Striker(site, server, seed)
    striker.strike(STRIKES)
    ended(site, senders)
    wait_until_up(site)
    statuses = [bridge.stop() for bridge in site.bridges]
    assert statuses == [0, 0, 0], site.said()
    assert "Traceback" not in site.said(), site.said()
    _log.info(
        "seed %d: %d steps, %s", seed, sum(len(s.acknowledged) for s in senders), striker.struck
    )


def test_a_bridge_that_is_told_to_end_leaves_its_runs_to_the_others(site: Site) -> None:
    senders = begun(site)
    leaving, *others = site.bridges
    begin = time.monotonic()
    assert leaving.stop() == 0
    site.bridges[:] = others
    assert time.monotonic() - begin < DEADLINE_S
    ended(site, senders)


@pytest.mark.parametrize("seed", SEEDS)
def test_each_experiment_is_one_run_of_wandb_whoever_owns_it(
    server: PostgresServer, wandb_site: Site, seed: int
) -> None:
    senders = begun(wandb_site)
    Striker(wandb_site, server, seed).strike(STRIKES // 2)
    ended(wandb_site, senders)
