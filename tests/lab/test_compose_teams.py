"""Teams as users start them: ``docker-compose.yml`` with ``deploy/teams.compose.yaml``."""

import subprocess
from functools import partial
from pathlib import Path

from tests.faults.keeper import wait_for
from tests.lab.test_compose import OTLP, ROOT, UP_S, Compose
from tests.lab.test_compose import pytestmark as pytestmark
from tests.support import plain_http
from tests.support.docs_examples import blocks
from tests.support.otlp_requests import gauge, key_values, metrics_request, point

PORTS = {"team-a": OTLP, "team-b": "http://127.0.0.1:4402"}


def status(port: str, token: str, experiment: str) -> int:
    """The answer to one measurement of an experiment, sent to the port of a team."""
    one = point()
    one.attributes.extend(key_values({"rl.loop.iteration": 0}))
    resource = {"rl.experiment.name": experiment, "rl.worker.role": "trainer"}
    return plain_http.post(
        f"{PORTS[port]}/v1/metrics",
        content=metrics_request(gauge(one), resource=resource).SerializeToString(),
        headers={"content-type": "application/x-protobuf", "authorization": f"Bearer {token}"},
        timeout=60,
    ).status_code


def has_rows(compose: Compose, experiment: str) -> bool:
    return bool(compose.history(experiment, "default"))


def test_teams_have_ports_tokens_and_runs_of_their_own(tmp_path: Path) -> None:
    page = blocks(ROOT / "docs/how-to/teams.md", "sh")
    (block,) = (block for block in page if "site/gateway.env" in block)
    make_site = block.partition("\ndocker compose ")[0]
    subprocess.run(["sh", "-ec", make_site], cwd=tmp_path, check=True)
    site = tmp_path / "site"
    tokens = {team: (site / "gateway" / team).read_text().strip() for team in PORTS}
    compose = Compose(tmp_path, "deploy/teams.compose.yaml", {"OTEL_RL_SITE": str(site)})
    try:
        compose.up()
        assert status("team-a", tokens["team-b"], "team-a/x") == 401
        for team in PORTS:
            assert status(team, tokens[team], f"{team}/x") == 200
        for team in PORTS:
            assert wait_for(partial(has_rows, compose, f"{team}/x"), UP_S), team
    finally:
        compose("down", "--volumes", "--timeout", "60")
