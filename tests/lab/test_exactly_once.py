"""Every measurement that an agent has answered for is in the run exactly once, whatever dies.

The agent, the gateway, the bridge and Jaeger are the real programs, with the files that users get.
"""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.lab.site import Site
from tests.lab.traffic import Traffic

pytestmark = [pytest.mark.process, pytest.mark.timeout(600)]

STRIKES = 3
BETWEEN = 200

KILLED = ["bridge", "agent", "gateway", "gateway+bridge", "agent+gateway+bridge"]

# Queues that a few seconds fill.
SMALL = """
exporters:
  {exporter}:
    retry_on_failure: {{initial_interval: 200ms, max_interval: 500ms}}
    sending_queue:
      queue_size: 60000
      batch: {{min_size: 4000, max_size: 20000}}
"""


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    with Site(tmp_path_factory.mktemp("site")) as site:
        yield site


@pytest.mark.slow
@pytest.mark.parametrize("killed", KILLED)
def test_kill_9_loses_and_doubles_nothing(site: Site, killed: str, tmp_path: Path) -> None:
    names = killed.split("+")
    parts = [getattr(site, name) for name in names]
    with Traffic(site.agent.url, f"kill {names}", tmp_path, seed=len(names)) as traffic:
        for _ in range(STRIKES):
            traffic.wait_for_more(BETWEEN)
            for part in parts:
                part.kill()
            for part in parts:
                part.start()
        verdict = traffic.finish(site.history)
    assert verdict.is_sound, verdict
    assert verdict.acknowledged >= STRIKES * BETWEEN


@pytest.mark.slow
@pytest.mark.parametrize("name", ["agent", "gateway", "bridge"])
def test_an_orderly_restart_loses_and_doubles_nothing(
    site: Site, name: str, tmp_path: Path
) -> None:
    part = getattr(site, name)
    with Traffic(site.agent.url, f"restart {name}", tmp_path) as traffic:
        traffic.wait_for_more(BETWEEN)
        assert part.stop() == 0
        part.start()
        verdict = traffic.finish(site.history)
    assert verdict.is_sound, verdict


def test_what_was_measured_while_the_bridge_was_away_is_in_the_run(
    site: Site, tmp_path: Path
) -> None:
    with Traffic(site.agent.url, "away", tmp_path) as traffic:
        site.bridge.kill()
        traffic.wait_for_more(5 * BETWEEN)
        assert traffic.refused() == 0
        site.gateway.kill()
        site.gateway.start()
        site.bridge.start()
        verdict = traffic.finish(site.history)
    assert verdict.is_sound, verdict


@pytest.mark.slow
def test_full_queues_tell_workers_to_come_again_and_lose_nothing(tmp_path: Path) -> None:
    with (
        Site(tmp_path / "site", overlay=SMALL) as site,
        Traffic(site.agent.url, "full", tmp_path) as traffic,
    ):
        site.bridge.kill()
        traffic.wait_until(lambda: traffic.refused() > 5)
        site.bridge.start()
        verdict = traffic.finish(site.history)
    assert verdict.is_sound, verdict
