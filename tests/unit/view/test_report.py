"""A report is one file that needs nothing else."""

import asyncio
import json
import re
from pathlib import Path
from typing import Any

import httpx
import pytest
from starlette.applications import Starlette

from otel_rl.bridge.config import BridgeSettings
from otel_rl.bridge.receive.tokens import Grant
from otel_rl.errors import ConfigError
from otel_rl.records import ExperimentKey
from otel_rl.run_id import run_id
from otel_rl.view import pages
from otel_rl.view.access import Access
from otel_rl.view.app import PageRoutes
from otel_rl.view.pages import Pages
from otel_rl.view.questions import Answer, Question
from otel_rl.view.report import CAUSES, report_answers, report_html
from tests.support.view_runs import HOSTILE, T0, LookedAt, write_run


def report(directory: Path, run: str) -> str:
    return report_html(Pages(BridgeSettings(data=directory), clock_ns=lambda: T0), run)


def test_a_report_has_every_chart_and_loads_nothing(tmp_path: Path) -> None:
    write_run(tmp_path, LookedAt())
    run = run_id("grpo", "1")
    html = report(tmp_path, run)
    answers = answers_of(html)
    panels = [
        panel["id"]
        for section in answers[f"runs/{run}/overview"]["sections"]
        for panel in section["panels"]
    ]
    assert len(panels) == 3
    assert {f"runs/{run}/panel?id={panel}" for panel in panels} <= answers.keys()
    assert re.findall(r'<(?:script|link|img|iframe)[^>]* (?:src|href)="(?!data:)', html) == []


def answers_of(html: str) -> dict[str, Any]:
    found = re.search(r'<script type="application/json" id="report">(.*)</script>', html)
    assert found is not None
    answers: dict[str, Any] = json.loads(found[1])
    return answers


def test_the_page_of_a_diagnosis_has_what_concerns_the_causes(tmp_path: Path) -> None:
    write_run(tmp_path, LookedAt(steps=60, slow=2, slow_from=31, has_spans=True))
    run = run_id("grpo", "1")
    pages = Pages(BridgeSettings(data=tmp_path), clock_ns=lambda: T0)
    answers = answers_of(report_html(pages, run, CAUSES))
    assert [one["title"] for one in answers[f"runs/{run}/overview"]["sections"]] == ["Step time"]
    assert answers[f"runs/{run}/diagnosis"]["causes"][0]["worker"] == "trainer/2"
    assert answers[f"runs/{run}/workers?phase=trainer%2Ftrain"]["chosen"] == "trainer/train"
    assert answers[f"runs/{run}/change?since=31"]["after"]["steps"][0]["step"] == 31
    assert f"runs/{run}/rollouts" not in answers
    assert "rollouts" not in answers["pages"]


def test_only_the_steps_asked_for_are_diagnosed(tmp_path: Path) -> None:
    write_run(tmp_path, LookedAt(steps=60, slow=2))
    run = run_id("grpo", "1")
    pages = Pages(BridgeSettings(data=tmp_path), clock_ns=lambda: T0)
    answers = answers_of(report_html(pages, run, CAUSES._replace(steps=(7, 9))))
    assert answers[f"runs/{run}/diagnosis"]["steps"] == [7, 9]


def test_a_hostile_name_ends_no_script(tmp_path: Path) -> None:
    key = ExperimentKey(HOSTILE + "</script>", "</script><script>hacked=1</script>")
    write_run(tmp_path, LookedAt(key, keys=["</script>"]))
    html = report(tmp_path, run_id(key.experiment, key.trial))
    data = html.partition('id="report">')[2].partition("</script>")[0]
    assert json.loads(data)
    assert "<script>hacked" not in html


def test_a_run_that_is_not_there_has_no_report(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no such run"):
        report(tmp_path, "none")


def test_a_part_whose_history_has_left_the_memory_is_asked_for_again(tmp_path: Path) -> None:
    write_run(tmp_path, LookedAt())
    pages = Pages(BridgeSettings(data=tmp_path), clock_ns=lambda: T0)
    steps = report_answers(run_id("grpo", "1"))
    question, asked_before = next(steps), set[str]()
    answers: dict[str, Any] = {}
    while not answers:
        answer = pages.answer(question)
        if question.path not in asked_before and question.path.endswith(("panel", "health")):
            answer = Answer(200, json.dumps({"read": 0.1}).encode())
        asked_before.add(question.path)
        try:
            question = steps.send(answer)
        except StopIteration as end:
            answers = end.value
    assert {found.get("read", 1) for found in answers.values() if isinstance(found, dict)} == {1}


class Server:
    """Of reports; histories are half read until ``is_read`` is set."""

    def __init__(self, directory: Path, *experiments: str) -> None:
        self._pages = Pages(BridgeSettings(data=directory), clock_ns=lambda: T0)
        grant = Grant("", experiments) if experiments else None
        access = Access(lambda _: grant, grant is not None, "127.0.0.1")
        app = Starlette(routes=[*PageRoutes(self._ask, access).routes()])
        transport = httpx.ASGITransport(app, raise_app_exceptions=False)
        self._client = httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1")
        self.is_read = True
        self.is_busy = asyncio.Event()  # several reports have asked several times
        self._asked = 0

    async def get(self, path: str) -> httpx.Response:
        return await self._client.get(f"/api/{path}")

    async def _ask(self, question: Question) -> Answer:
        await asyncio.sleep(0)
        self._asked += 1
        if self._asked == 40:
            self.is_busy.set()
        answer = self._pages.answer(question)
        is_half_read = question.path.endswith("/overview") and not self.is_read
        return Answer(200, b'{"read":0.5}') if is_half_read else answer


def test_the_page_gives_a_report_to_those_who_may_see_the_run(tmp_path: Path) -> None:
    write_run(tmp_path, LookedAt())
    run = run_id("grpo", "1")
    found = asyncio.run(Server(tmp_path, "grpo").get(f"runs/{run}/report"))
    assert (found.status_code, found.headers["content-type"]) == (200, "text/html; charset=utf-8")
    assert found.text == report(tmp_path, run)
    assert asyncio.run(Server(tmp_path, "other").get(f"runs/{run}/report")).status_code == 404
    assert asyncio.run(Server(tmp_path).get("runs/none/report")).status_code == 404


def test_a_mistake_in_a_report_is_told_to_its_asker_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_run(tmp_path, LookedAt())
    server, path = Server(tmp_path), f"runs/{run_id('grpo', '1')}/report"
    with monkeypatch.context() as patched:
        patched.setattr(pages, "_read_so_far", lambda _progress: {"read": "all"})
        assert asyncio.run(server.get(path)).status_code == 500
    assert asyncio.run(server.get(path)).status_code == 200


def test_reports_wait_for_the_history_hold_up_no_other_question_and_are_bounded(
    tmp_path: Path,
) -> None:
    write_run(tmp_path, LookedAt())
    server, path = Server(tmp_path), f"runs/{run_id('grpo', '1')}/report"

    async def several() -> None:
        server.is_read = False
        reports = [asyncio.create_task(server.get(path)) for _ in range(4)]
        await server.is_busy.wait()
        assert (await server.get("runs")).status_code == 200
        assert (await server.get(path)).status_code == 503
        assert not any(one.done() for one in reports)
        server.is_read = True
        assert [(await one).status_code for one in reports] == [200] * 4
        assert (await server.get(path)).status_code == 200

    asyncio.run(several())
