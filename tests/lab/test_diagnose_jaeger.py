"""``otel-rl diagnose --jaeger``: by what the real Jaeger has kept, and nothing else."""

import json
import time
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import pytest

from otel_rl.cli.jaeger import Jaeger as Reader
from otel_rl.cli.main import main
from otel_rl.diagnose.history.records import Facts
from otel_rl.diagnose.history.run_history import RunHistory
from otel_rl.records import ExperimentKey
from tests import plain_http
from tests.lab.running import Jaeger
from tests.unit.diagnose.traced import Traced

pytestmark = [pytest.mark.process, pytest.mark.timeout(600)]

SLOW, SOUND = ExperimentKey("grpo", "slow"), ExperimentKey("ppo", "sound")
STEPS = 50
NS = 1_000_000_000


def judges_are_slow(role: str, _index: int, step: int) -> float:
    return 8.0 if role == "judge" and step >= 25 else 1.0


@pytest.fixture(scope="module")
def jaeger(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Jaeger]:
    """Of two runs; of the second it has heard last."""
    now_ns = time.time_ns()
    with Jaeger(tmp_path_factory.mktemp("jaeger")) as jaeger:
        for run in (
            Traced(SLOW, now_ns - 1800 * NS, STEPS, slower=judges_are_slow),
            Traced(SOUND, now_ns - 900 * NS, STEPS),
        ):
            for request in run.requests():
                answer = plain_http.post(
                    f"{jaeger.url}/v1/traces",
                    content=request.SerializeToString(),
                    headers={"content-type": "application/x-protobuf"},
                    timeout=60,
                )
                answer.raise_for_status()
        yield jaeger


def said(jaeger: Jaeger, capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    assert main(["diagnose", *arguments, "--jaeger", jaeger.query_url]) == 0
    return capsys.readouterr().out


@pytest.mark.parametrize("name", ["grpo/slow", "grpo", "slow"])
def test_the_cause_is_named_by_traces_alone(
    jaeger: Jaeger, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    report = json.loads(said(jaeger, capsys, name, "--json"))
    assert ExperimentKey(report["experiment"], report["trial"]) == SLOW
    assert report["causes"][0]["kind"] == "slow_reward"
    assert 20 <= report["causes"][0]["since_step"] <= 30


def test_the_run_that_was_heard_of_last_is_meant_if_none_is_named(
    jaeger: Jaeger, capsys: pytest.CaptureFixture[str]
) -> None:
    words = said(jaeger, capsys)
    assert words.startswith(f"ppo/sound, {STEPS - 1} steps")
    assert "healthy" in words


def test_a_trace_that_is_named_can_be_looked_at(
    jaeger: Jaeger, capsys: pytest.CaptureFixture[str]
) -> None:
    words = said(jaeger, capsys, "grpo/slow")
    link = next(word for word in words.split() if word.startswith(jaeger.query_url))
    page, _, trace = link.rpartition("/")
    assert page == f"{jaeger.query_url}/trace"
    assert jaeger.trace(trace)


def test_more_traces_than_an_answer_may_have_are_all_read(jaeger: Jaeger) -> None:
    reader = Reader(jaeger.query_url, timedelta(hours=1), max_traces=7)
    history = RunHistory(map(Facts.decode, reader.histories("ppo")[SOUND]))
    assert [step.step for step in history.steps] == list(range(STEPS))


def test_what_is_older_than_the_lookback_is_not_found(
    jaeger: Jaeger, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["diagnose", "--jaeger", jaeger.query_url, "--lookback", "0.17"]) == 2
    assert "--lookback" in capsys.readouterr().err


def test_a_run_that_is_not_there_is_said_with_those_that_are(
    jaeger: Jaeger, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["diagnose", "gpro", "--jaeger", jaeger.query_url]) == 2
    assert "grpo/slow, ppo/sound" in capsys.readouterr().err


def test_an_address_of_something_else_is_said(
    jaeger: Jaeger, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    for url in (jaeger.url, "http://127.0.0.1:1", "localhost"):
        assert main(["diagnose", "--jaeger", url, "--data", str(tmp_path)]) == 2
        assert "16686" in capsys.readouterr().err
