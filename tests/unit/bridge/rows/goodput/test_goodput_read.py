"""Goodput as people and programs read it from a journal, whatever bridges have come and gone."""

import gzip
import json
from pathlib import Path

import pytest

from otel_rl.bridge.config import BridgeSettings
from otel_rl.bridge.journal.reader import looking, read_keys
from otel_rl.cli.main import main
from otel_rl.records import Batch, ExperimentKey, Signal
from otel_rl.run_id import run_id
from otel_rl.semconv.spec import Tier
from otel_rl.view.pages import Pages, Question
from tests.journals.small_run import T0, Life, S
from tests.otlp_requests import Attributes, gauge, key_values, metrics_request, point

RUN = ExperimentKey("paid", "t")

SPENT = {"productive_s": 40.0, "overhead_s": 15.0, "idle_s": 125.0, "wasted_s": 20.0}
"""Two trainers: two steps of 20 s, a crash, 40 s without them, and the second step again."""

WORDS = "goodput 20%: productive 40 s, overhead 15 s, idle 2.08 min, wasted 20 s of worker time"


def step(rank: int, life: str, number: int, at_s: float) -> Batch:
    """The phases of a step that ends at a time."""
    points = []
    for phase, seconds in (("train", 10.0), ("weight_sync", 2.5), ("idle", 7.5)):
        one = point(seconds, T0 + round(at_s * S))
        one.attributes.extend(key_values({"rl.phase": phase, "rl.loop.iteration": number}))
        points.append(one)
    whole = point(20.0, T0 + round(at_s * S))
    whole.attributes.extend(key_values({"rl.loop.iteration": number}))
    resource: Attributes = {
        "rl.experiment.name": RUN.experiment,
        "rl.experiment.trial": RUN.trial,
        "rl.worker.role": "trainer",
        "rl.worker.index": rank,
        "rl.worker.count": 2,
        "service.instance.id": f"{life}-{rank}",
    }
    request = metrics_request(
        gauge(*points, name="rl.phase.duration"),
        gauge(whole, name="rl.iteration.duration"),
        resource=resource,
    )
    return Batch(RUN, Signal.METRICS, request.SerializeToString(), T0 + round(at_s * S))


@pytest.fixture(params=["one bridge", "a bridge for each step"])
def data(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    life = Life(tmp_path)
    made = [("a", 1, 20.0), ("a", 2, 40.0), ("b", 2, 100.0)]
    for process, number, at_s in made:
        if request.param != "one bridge":
            life.processor.finish(T0 + round(at_s * S))
            life.journal.close()
            life = Life(tmp_path)
        for rank in range(2):
            life.take(step(rank, process, number, at_s), now_ns=T0 + round(at_s * S))
    life.processor.finish(T0 + 110 * S)
    life.journal.close()
    return tmp_path


def test_the_list_of_runs_has_it(data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["runs", "--json", str(data)]) == 0
    (run,) = json.loads(capsys.readouterr().out)
    assert run["spent"][""] == SPENT
    assert run["goodput"] == 0.2
    assert main(["runs", str(data)]) == 0
    assert "  20%  " in capsys.readouterr().out


def test_a_diagnosis_ends_with_it(data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["diagnose", "--data", str(data)]) == 0
    assert capsys.readouterr().out.splitlines()[-1] == WORDS
    assert main(["diagnose", "--json", "--data", str(data)]) == 0
    assert json.loads(capsys.readouterr().out)["goodput"] == {"": SPENT}


def test_the_page_has_it(data: Path) -> None:
    pages = Pages(BridgeSettings(data=data), clock_ns=lambda: T0 + 110 * S)
    path = f"runs/{run_id(RUN.experiment, RUN.trial)}/overview"
    while True:
        answer = pages.answer(Question(path, {}))
        body = gzip.decompress(answer.body) if answer.encoding else answer.body
        found = json.loads(body)
        if found["read"] == 1:
            break
    assert found["goodput"] == {"words": WORDS, "spent": {"": SPENT}}
    (panel,) = [
        panel
        for section in found["sections"]
        if section["title"] == "Throughput"
        for panel in section["panels"]
        if panel["stacked"]
    ]
    assert panel["title"] == "Goodput, time of the workers (s)"
    pages.close()


def test_the_charts_to_keep_are_the_runs(data: Path) -> None:
    with looking(data) as connection:
        keys = read_keys(connection, run_id(*RUN))
    specs = {spec.key: spec for spec in keys if spec.key.startswith("goodput/")}
    assert {spec.axis for spec in specs.values()} == {"time"}
    assert {spec.tier for spec in specs.values()} == {Tier.BASIC}
    assert {spec.unit for spec in specs.values()} == {"s", "1"}
