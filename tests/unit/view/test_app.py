"""Who sees the page, and what every answer carries."""

import asyncio
import gzip
import importlib.resources
import re
from collections.abc import Mapping, Sequence
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest
from starlette.applications import Starlette
from starlette.testclient import TestClient

from otel_rl.bridge.receive.tokens import TeamSettings, Tokens
from otel_rl.view.access import Access
from otel_rl.view.app import PageRoutes
from otel_rl.view.questions import Answer, Question

RUNS = b'{"runs":[]}'
TOKEN = "a-token-that-nobody-guesses"
_DIGEST = sha256(TOKEN.encode()).hexdigest()


class Served:
    """A server of the page whose answers are what was asked."""

    def __init__(
        self,
        *,
        token: bool = False,
        host: str = "127.0.0.1",
        is_behind_proxy: bool = False,
        teams: Sequence[Mapping[str, Any]] = (),
    ) -> None:
        self.asked: list[Question] = []
        given: list[dict[str, Any]] = [
            {
                "name": "team",
                "experiments": ["grpo*"],
                "sha256": [_DIGEST],
            }
        ]
        teams = teams or (given if token else ())
        self.tokens = tokens = Tokens([TeamSettings.model_validate(one) for one in teams])
        access = Access(tokens.grant, tokens.are_needed, host, is_behind_proxy)
        self.page = PageRoutes(self._answer, access, "otel-rl view here")
        app = Starlette(routes=[*self.page.routes()])
        self.client = TestClient(app, base_url="http://127.0.0.1:4318", follow_redirects=False)

    async def _answer(self, question: Question) -> Answer:
        await asyncio.sleep(0)
        self.asked.append(question)
        if question.path == "runs":
            return Answer(200, gzip.compress(RUNS), encoding="gzip")
        return Answer(200, b'{"revision":"1"}')


@pytest.mark.parametrize("accepted", ["gzip, br", "identity"])
def test_an_answer_is_compressed_for_those_who_accept_it(accepted: str) -> None:
    answer = Served().client.get("/api/runs", headers={"accept-encoding": accepted})
    assert answer.content == RUNS
    assert ("content-encoding" in answer.headers) == ("gzip" in accepted)


PATHS = ["/", "/static/page.css", "/static/plotly.js", "/api/runs", "/api/nothing"]


@pytest.mark.parametrize("path", PATHS)
def test_every_answer_forbids_what_is_not_from_here(path: str) -> None:
    answer = Served().client.get(path)
    policy = answer.headers["content-security-policy"]
    assert answer.status_code == 200
    assert "default-src 'none'; script-src 'self';" in policy
    assert "unsafe-eval" not in policy
    assert answer.headers["x-content-type-options"] == "nosniff"


def test_the_page_names_no_other_host() -> None:
    client = Served().client
    page = client.get("/").text
    assert "//" not in page.replace("<!doctype html>", "")
    assert "<script>" not in page


@pytest.mark.parametrize(
    "name", ["../pages.py", "..%2fpages.py", "%2e%2e/pages.py", "index.html", "no.js"]
)
def test_only_files_of_the_page_are_served(name: str) -> None:
    assert Served().client.get(f"/static/{name}").status_code == 404


def test_code_of_others_is_as_its_packages_have_it() -> None:
    static = importlib.resources.files("otel_rl.view") / "static"
    told = (static / "VENDORED.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| (\w+\.js) \|.*\]\((.*?)\).*\| ([0-9a-f]{64}) \|$", told, re.MULTILINE)
    assert len(rows) == 4
    for name, licence, digest in rows:
        assert sha256((static / name).read_bytes()).hexdigest() == digest
        assert (static / licence).is_file()


def test_parameters_reach_the_reader() -> None:
    served = Served()
    served.client.get("/api/runs/x/panel?id=1&x=time")
    assert served.asked == [Question("runs/x/panel", {"id": "1", "x": "time"}, None)]


# Access


@pytest.mark.parametrize("path", ["/", "/api/runs", "/api/events"])
@pytest.mark.parametrize("host", ["evil.example", "evil.example:4318", "10.0.0.1"])
def test_another_name_for_this_machine_shows_nothing(path: str, host: str) -> None:
    assert Served().client.get(path, headers={"host": host}).status_code == 403


@pytest.mark.parametrize("path", ["/", "/api/runs", "/api/events"])
def test_without_a_token_other_machines_see_nothing(path: str) -> None:
    assert Served(host="0.0.0.0").client.get(path).status_code == 403


def test_behind_a_proxy_that_authenticates_everybody_sees_everything() -> None:
    served = Served(host="0.0.0.0", is_behind_proxy=True)
    assert served.client.get("/api/runs", headers={"host": "runs.example"}).status_code == 200


@pytest.mark.parametrize("path", ["/", "/api/runs", "/api/events"])
def test_a_bridge_with_tokens_wants_one(path: str) -> None:
    served = Served(token=True)
    assert served.client.get(path).status_code == 401
    wrong = {"authorization": "Bearer another-token-of-some-length"}
    assert served.client.get(path, headers=wrong).status_code == 401
    assert served.asked == []


def test_a_token_shows_the_runs_that_it_may_write() -> None:
    served = Served(token=True)
    right = {"authorization": f"Bearer {TOKEN}"}
    assert served.client.get("/api/runs", headers=right).status_code == 200
    assert served.asked[0].experiments == ("grpo*",)


@pytest.mark.parametrize("way", ["link", "form"])
def test_a_browser_keeps_the_token_where_scripts_cannot_read_it(way: str) -> None:
    served = Served(token=True, host="0.0.0.0")
    if way == "link":
        answer = served.client.get(f"/?token={TOKEN}")
    else:
        answer = served.client.post("/sign-in", data={"token": TOKEN})
    assert (answer.status_code, answer.headers["location"]) == (303, "/")
    cookie = answer.headers["set-cookie"].lower()
    assert "httponly" in cookie
    assert "samesite=strict" in cookie
    assert served.client.get("/api/runs").status_code == 200


@pytest.mark.parametrize("token", ["", "wrong", "x" * 3_000, "é", "a b"])
def test_a_wrong_token_is_asked_for_again(token: str) -> None:
    served = Served(token=True)
    answer = served.client.post("/sign-in", data={"token": token})
    assert answer.status_code == 401
    assert "set-cookie" not in answer.headers


def test_a_form_has_a_bound() -> None:
    assert Served(token=True).client.post("/sign-in", content=b"x" * 10_000).status_code == 413


# Events


def test_events_are_those_of_the_reader_s_experiments_until_its_token_is_gone(
    tmp_path: Path,
) -> None:
    file = tmp_path / "tokens"
    file.write_text(TOKEN)
    file.chmod(0o600)
    team = {"name": "team", "experiments": ["grpo*"], "file": file}
    served = Served(teams=[team])
    headers = {"authorization": f"Bearer {TOKEN}"}
    with served.client.stream("GET", "/api/events", headers=headers) as answer:
        lines = answer.iter_lines()
        assert next(lines) == 'data: {"revision":"1"}'
        assert served.asked == [Question("revision", {}, ("grpo*",))]
        file.write_text("another-that-nobody-guesses")
        served.tokens.read_again()
        assert not [line for line in lines if line.startswith(("event", "data"))]


def test_events_tell_of_a_change_and_end_with_the_server() -> None:
    served = Served()
    with served.client.stream("GET", "/api/events") as answer:
        assert answer.headers["content-type"].startswith("text/event-stream")
        lines = answer.iter_lines()
        assert next(lines) == 'data: {"revision":"1"}'
        served.page.stop()
        told = [line for line in lines if line.startswith(("event", "data"))]
        assert told == ["event: end", 'data: {"again":"otel-rl view here"}']
