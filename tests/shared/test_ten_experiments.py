"""Two bridges, ten experiments: one bridge goes, each experiment is one run with every step once.

``SHARED_RUNS=20`` does it as many times, with W&B's SDK and a stand-in server, too.
"""

import logging
import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from otel_rl.run_id import run_id
from tests.faults.keeper import BridgeKeeper, kill, wait_for
from tests.faults.link import Trouble
from tests.shared.site import Sender, Site
from tests.support.postgres import PostgresServer
from tests.support.wandb_server import WandbServer

_log = logging.getLogger(__name__)

pytestmark = [pytest.mark.process, pytest.mark.slow, pytest.mark.timeout(600)]

EXPERIMENTS = [f"e{n}" for n in range(10)]
TIMES = range(int(os.environ.get("SHARED_RUNS", "1")))
TRACKERS = ["jsonl", "wandb"] if "SHARED_RUNS" in os.environ else ["jsonl"]
DEADLINE_S = 120.0
LEASE_S = 10.0  # nobody loses one by being slow: who is gone is gone for good
PAUSE_S = 0.2
MORE = 2

Strike = Callable[[Site, int], None]


@pytest.fixture(params=TRACKERS)
def site(
    request: pytest.FixtureRequest, postgres: PostgresServer, tmp_path: Path
) -> Iterator[Site]:
    with ExitStack() as stack:
        wandb = stack.enter_context(WandbServer()) if request.param == "wandb" else None
        running = stack.enter_context(
            Site(postgres, tmp_path, bridges=2, wandb=wandb, lease_s=LEASE_S)
        )
        wait(running, "both bridges come up", lambda: all(b.is_up() for b in running.bridges))
        yield running


def wait(site: Site, what: str, condition: Callable[[], bool]) -> None:
    assert wait_for(condition, DEADLINE_S), f"waited in vain: {what}\n{site.said()}"


def owned(site: Site, bridge: BridgeKeeper) -> set[str]:
    return {name for name, pid in site.owners().items() if pid == bridge.pid}


def is_shown(site: Site, sender: Sender) -> bool:
    return len(site.shown(sender)) >= len(sender.acknowledged)


def kill_it(site: Site, number: int) -> None:
    bridge = site.bridges[number]
    bridge.restart_pause_s = 3600.0  # it stays away
    assert bridge.pid is not None
    kill([bridge.pid])


def cut_it_off(site: Site, number: int) -> None:
    site.links[number].suffer(Trouble.FROZEN)


@pytest.mark.parametrize("time", TIMES)
@pytest.mark.parametrize("strike", [kill_it, cut_it_off])
def test_each_experiment_ends_in_one_run_with_every_step_once(
    site: Site, strike: Strike, time: int
) -> None:
    senders = [Sender(n, name, site, pause_s=PAUSE_S) for n, name in enumerate(EXPERIMENTS)]
    for sender in senders:
        sender.start()
    wait(site, "every run has rows", lambda: all(site.rows(name) for name in EXPERIMENTS))
    gone, stays = site.bridges
    wait(site, "both own runs", lambda: bool(owned(site, gone) and owned(site, stays)))

    strike(site, 0)
    wait(site, "one owns all", lambda: owned(site, stays) == {*EXPERIMENTS})
    more = {sender: len(site.rows(sender.experiment)) + MORE for sender in senders}
    wait(site, "rows go on", lambda: all(len(site.rows(s.experiment)) > more[s] for s in senders))
    # Who was cut off comes back, and what it said meanwhile arrives.
    site.links[0].suffer(Trouble.NONE)
    more = {sender: len(sender.acknowledged) + MORE for sender in senders}
    wait(site, "steps go on", lambda: all(len(s.acknowledged) > more[s] for s in senders))

    for sender in senders:
        sender.finish()
    for sender in senders:
        sender.join(DEADLINE_S)
        assert not sender.is_alive(), "a request is never taken"
    wait(site, "every step is shown", lambda: all(is_shown(site, s) for s in senders))

    assert site.run_ids() == {run_id(name, "default") for name in EXPERIMENTS}
    for sender in senders:
        assert site.shown(sender) == {sender.value(step): 1 for step in sender.acknowledged}
        rows = site.rows(sender.experiment)
        assert [row["number"] for row in rows] == list(range(len(rows)))
    _log.info("%d steps in %d runs", sum(len(s.acknowledged) for s in senders), len(senders))
