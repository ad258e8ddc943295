"""A reader of one team sees nothing of another team's runs, on any route of a bridge."""

import json
import re
import urllib.error
import urllib.request
from collections.abc import Iterator
from hashlib import sha256
from pathlib import Path

import pytest
from starlette.routing import Route

from otel_rl.bridge.bridge import Bridge
from otel_rl.bridge.config import BridgeSettings
from otel_rl.records import ExperimentKey
from otel_rl.run_id import run_id
from otel_rl.view.page_process import BridgePage
from otel_rl.view.pages import Pages
from tests.support.view_runs import LookedAt, write_run

pytestmark = pytest.mark.process

DEADLINE_S = 120.0
TEAMS = ("a", "b")
TOKENS = {
    f"{team}-{kind}": f"{kind}-token-of-team-{team}-0123456789"
    for team in TEAMS
    for kind in ("write", "read")
}
RUNS = {team: run_id(f"{team}/secret-of-{team}", "1") for team in TEAMS}
ROLLOUTS: list[dict[str, str | float]] = [{"rollout.id": "1", "prompt": "2+2", "reward": 1.0}]

# What else a part of a run has to be told, so that its reader gets it.
ASKED = {"panel": "?id={panel}", "rollout": "?number={rollout}"}


class Served:
    """A bridge with a page, and a run of each of two teams."""

    def __init__(self, data: Path) -> None:
        for team in TEAMS:
            key = ExperimentKey(f"{team}/secret-of-{team}", "1")
            write_run(data, LookedAt(key, samples=ROLLOUTS, has_spans=True))
        self.settings = BridgeSettings.model_validate(
            {
                "data": data,
                "audit": True,
                "listen": {"http": "127.0.0.1:0", "grpc": "off"},
                "tracker": {"name": "jsonl"},
                "archive": {"enabled": False},
                "team": [
                    *(
                        {
                            "name": team,
                            "experiments": [f"{team}/*"],
                            "sha256": [digest(TOKENS[f"{team}-write"])],
                            "read_sha256": [digest(TOKENS[f"{team}-read"])],
                        }
                        for team in TEAMS
                    ),
                    {"name": "gateway", "gateway": True, "sha256": [digest("the-gateways-token")]},
                ],
            }
        )
        self.page = BridgePage(self.settings)
        self.bridge = Bridge(self.settings, page=self.page)
        self.bridge.start()

    def get(self, path: str, token: str = "") -> tuple[int, str]:
        headers = {"authorization": f"Bearer {token}"} if token else {}
        request = urllib.request.Request(f"http://{self.bridge.http}{path}", headers=headers)
        try:
            with urllib.request.urlopen(request, timeout=DEADLINE_S) as answer:
                if path == "/api/events":  # which has no end
                    return answer.status, answer.readline().decode()
                return answer.status, answer.read().decode(errors="replace")
        except urllib.error.HTTPError as error:
            return error.code, error.read().decode()

    def paths(self) -> list[str]:
        """Every path of the page, but for those of one run."""
        assert self.page._routes is not None
        return [route.path for route in self.page._routes.routes() if isinstance(route, Route)]

    def parts(self) -> list[str]:
        """Every part of a run that has a path."""
        return [*Pages(self.settings)._parts, "report"]


def digest(token: str) -> str:
    return sha256(token.encode()).hexdigest()


@pytest.fixture
def served(tmp_path: Path) -> Iterator[Served]:
    served = Served(tmp_path / "data")
    yield served
    served.bridge.stop()


@pytest.mark.parametrize("kind", ["write", "read"])
def test_every_part_of_a_run_is_there_for_its_team_and_404_for_another(
    served: Served, kind: str
) -> None:
    run, token = RUNS["a"], TOKENS[f"a-{kind}"]
    overview = json.loads(served.get(f"/api/runs/{run}/overview", token)[1])
    panel = next(one["id"] for section in overview["sections"] for one in section["panels"])
    rollout = json.loads(served.get(f"/api/runs/{run}/rollouts", token)[1])["numbers"][0]
    for part in served.parts():
        path = f"/api/runs/{run}/{part}{ASKED.get(part, '').format(panel=panel, rollout=rollout)}"
        assert served.get(path, token)[0] == 200, path
        status, body = served.get(path, TOKENS[f"b-{kind}"])
        assert (status, "secret-of" in body) == (404, False), path
        assert served.get(path)[0] == 401, path
        assert served.get(path, "the-gateways-token")[0] == 404, path


def test_every_other_path_says_nothing_of_another_teams_runs(served: Served) -> None:
    team, other = "a", "b"
    token = TOKENS[f"{team}-read"]
    # A further path belongs here, with what it says.
    assert served.paths() == [
        "/", "/sign-in", "/static/{name}", "/api/events", "/api/{path:path}"
    ]  # fmt: skip
    _, own = served.get("/api/runs", token)
    assert [run["experiment"] for run in json.loads(own)["runs"]] == [f"{team}/secret-of-{team}"]
    assert json.loads(served.get(f"/api/runs?search=secret-of-{other}", token)[1])["runs"] == []
    for pair in ((RUNS[team], RUNS[other]), (RUNS[other], RUNS[team])):
        path = "/api/compare?a={}&b={}".format(*pair)
        assert served.get(path, token)[0] == 404
    assert served.get("/api/compare?a={0}&b={0}".format(RUNS[team]), token)[0] == 200
    assert re.fullmatch(r'\{"revision":"\d+"\}', served.get("/api/revision", token)[1])
    assert re.fullmatch(r'data: \{"revision":"\d+"\}\n', served.get("/api/events", token)[1])
    for path in ("/", "/static/plotly.js", "/api/runs"):
        assert f"secret-of-{other}" not in served.get(path, token)[1]
    assert json.loads(served.get("/api/runs", "the-gateways-token")[1])["runs"] == []


def test_the_audit_log_says_who_asked_for_which_run(
    served: Served, caplog: pytest.LogCaptureFixture
) -> None:
    for _ in range(2):  # each once a minute
        served.get(f"/api/runs/{RUNS['a']}/overview", TOKENS["a-read"])
        served.get(f"/api/runs/{RUNS['a']}/overview", TOKENS["b-write"])
    served.get(f"/api/runs/{RUNS['a']}/health", TOKENS["a-read"])
    served.get("/api/compare?a={a}&b={b}".format(**RUNS), TOKENS["a-read"])
    served.get("/api/runs", TOKENS["a-read"])
    served.get("/api/revision", TOKENS["a-read"])
    told = [json.loads(one.message) for one in caplog.records if one.name == "otel_rl.audit"]
    reader, stranger = (
        {
            "event": "read",
            "team": team,
            "token": f"{team} {digest(TOKENS[name])[:8]}",
            "address": "127.0.0.1",
        }
        for team, name in (("a", "a-read"), ("b", "b-write"))
    )
    assert told == [
        {**reader, "route": "overview", "run_id": RUNS["a"], "status": 200},
        {**stranger, "route": "overview", "run_id": RUNS["a"], "status": 404},
        {**reader, "route": "health", "run_id": RUNS["a"], "status": 200},
        {**reader, "route": "compare", "run_id": RUNS["a"], "status": 404},
        {**reader, "route": "compare", "run_id": RUNS["b"], "status": 404},
        {**reader, "route": "runs", "run_id": "", "status": 200},
    ]


def test_a_token_that_reads_writes_nothing(served: Served) -> None:
    headers = {
        "authorization": f"Bearer {TOKENS['a-read']}",
        "content-type": "application/x-protobuf",
    }
    url = f"http://{served.bridge.http}/v1/metrics"
    with pytest.raises(urllib.error.HTTPError) as caught:
        urllib.request.urlopen(urllib.request.Request(url, b"", headers), timeout=DEADLINE_S)
    assert caught.value.code == 401
