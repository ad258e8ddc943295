"""A report is one file that needs nothing else."""

import gzip
import json
import re
from pathlib import Path
from typing import Any

import pytest

from otel_rl.bridge.config import BridgeSettings
from otel_rl.errors import ConfigError
from otel_rl.records import ExperimentKey
from otel_rl.run_id import run_id
from otel_rl.view import pages
from otel_rl.view.pages import Answer, Pages, Question
from otel_rl.view.report import CAUSES, report_html, report_steps
from otel_rl.view.report_jobs import UNFINISHED, ReportJobs
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


def asked(jobs: ReportJobs, question: Question) -> Answer:
    """Ask until the report is made."""
    while (answer := jobs.answer(question)).status == UNFINISHED:
        pass
    return answer


def test_the_page_gives_a_report_to_those_who_may_see_the_run(tmp_path: Path) -> None:
    write_run(tmp_path, LookedAt())
    run = run_id("grpo", "1")
    jobs = ReportJobs(Pages(BridgeSettings(data=tmp_path), clock_ns=lambda: T0))
    found = asked(jobs, Question(f"runs/{run}/report", {}, ["grpo"]))
    assert (found.status, found.media, found.encoding) == (200, "text/html", "gzip")
    assert gzip.decompress(found.body).decode() == report(tmp_path, run)
    assert jobs.answer(Question(f"runs/{run}/report", {}, ["other"])).status == 404
    assert jobs.answer(Question("runs/none/report")).status == 404
    assert jobs.answer(Question("runs")).media == "application/json"


def test_a_report_that_cannot_be_made_is_told_to_its_asker_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A mistake of the builder ends neither the server nor the report of another reader."""
    write_run(tmp_path, LookedAt())
    jobs = ReportJobs(Pages(BridgeSettings(data=tmp_path), clock_ns=lambda: T0))
    broken, sound = (
        Question(f"runs/{run_id('grpo', '1')}/report", {"ticket": ticket}) for ticket in "ab"
    )
    assert jobs.answer(sound).status == UNFINISHED
    assert jobs.answer(broken).status == UNFINISHED
    with monkeypatch.context() as patched:
        patched.setattr(pages, "_read_so_far", lambda _progress: {"read": "all"})
        answer = asked(jobs, broken)
    assert answer.status == 500
    assert "TypeError" in json.loads(answer.body)["error"]
    assert "Traceback" in caplog.text
    assert asked(jobs, sound).status == 200


def test_a_report_waits_for_the_history_and_holds_up_no_other_question(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_run(tmp_path, LookedAt())
    run = run_id("grpo", "1")
    jobs = ReportJobs(Pages(BridgeSettings(data=tmp_path), clock_ns=lambda: T0))
    question = Question(f"runs/{run}/report", {"ticket": "a"})
    with monkeypatch.context() as patched:
        patched.setattr(pages, "_read_so_far", lambda _progress: {"read": 0.5})
        for _ in range(20):
            assert jobs.answer(question).status == UNFINISHED
            assert jobs.answer(Question("runs")).status == 200
    assert asked(jobs, question).status == 200


def test_a_part_whose_history_has_left_the_memory_is_asked_for_again(tmp_path: Path) -> None:
    write_run(tmp_path, LookedAt())
    pages = Pages(BridgeSettings(data=tmp_path), clock_ns=lambda: T0)
    steps = report_steps(run_id("grpo", "1"))
    question, asked_before, html = next(steps), set[str](), ""
    while not html:
        answer = pages.answer(question)
        if question.path not in asked_before and question.path.endswith(("panel", "health")):
            answer = Answer(200, json.dumps({"read": 0.1}).encode())
        asked_before.add(question.path)
        try:
            question = steps.send(answer)
        except StopIteration as end:
            html = end.value
    answers = answers_of(html)
    assert {found.get("read", 1) for found in answers.values() if isinstance(found, dict)} == {1}


def test_reports_that_are_made_at_once_are_bounded(tmp_path: Path) -> None:
    write_run(tmp_path, LookedAt())
    now_s = 0.0
    jobs = ReportJobs(Pages(BridgeSettings(data=tmp_path)), clock_s=lambda: now_s)
    path = f"runs/{run_id('grpo', '1')}/report"
    questions = [Question(path, {"ticket": ticket}) for ticket in "abcde"]
    assert [jobs.answer(one).status for one in questions] == [*[UNFINISHED] * 4, 503]
    now_s = 61.0
    assert jobs.answer(questions[-1]).status == UNFINISHED
