"""A run that goes back, through restarts of the bridge and of the writer of its rows."""

import json
from pathlib import Path

import pytest

from otel_rl.bridge.delivery.jsonl import JsonLinesTracker
from otel_rl.bridge.delivery.tracker import RunInfo
from otel_rl.bridge.journal.deliveries import DeliveryStore
from otel_rl.records import Batch, ExperimentKey, Signal
from otel_rl.run_id import run_id
from tests.journals.small_run import T0, Life, S
from tests.support.otlp_requests import Attributes, gauge, key_values, metrics_request, point
from tests.support.slow import slow_after

KEY = ExperimentKey("grpo")
INFO = RunInfo(KEY, run_id(KEY.experiment, KEY.trial), Path())


def step(process: str, number: int, value: float, at_s: float) -> Batch:
    """The loss of one step of a trainer."""
    resource: Attributes = {
        "rl.experiment.name": KEY.experiment,
        "rl.worker.role": "trainer",
        "rl.worker.index": 0,
        "service.instance.id": process,
    }
    loss = point(value, T0 + int(at_s * S))
    loss.attributes.extend(key_values({"rl.loop.iteration": number}))
    payload = metrics_request(gauge(loss), resource=resource).SerializeToString()
    return Batch(KEY, Signal.METRICS, payload, T0 + int(at_s * S))


def deliver(life: Life, directory: Path) -> None:
    """Write what the file lacks, by a new writer."""
    tracker = JsonLinesTracker()
    info = RunInfo(KEY, INFO.run_id, directory, description=life.runs.description(KEY))
    start = tracker.open(info)
    rows = life.runs.rows(KEY, start=start, limit=10_000)
    tracker.write(rows)
    tracker.describe(life.runs.description(KEY))
    tracker.close(exit_code=0)
    DeliveryStore(life.journal, "jsonl").confirmed(KEY, start + len(rows))


@pytest.mark.parametrize("away_s", slow_after(1, [6.0, 0.5, 60.0]))
@pytest.mark.parametrize("every", [None, 7, pytest.param(1, marks=pytest.mark.slow)])
def test_each_row_is_there_once_with_its_attempt(
    tmp_path: Path, every: int | None, away_s: float
) -> None:
    """With a restart of everything after every so many steps."""
    life = Life(tmp_path / "journal")
    sent = [("one", number, 1.0) for number in range(401, 501)]
    sent += [("two", number, 100.0) for number in range(400, 521)]
    at_s = 0.0
    for place, (process, number, value) in enumerate(sent):
        at_s += away_s if place == 100 else 1.0
        life.take(step(process, number, value, at_s), now_ns=T0 + int(at_s * S))
        if every is not None and place % every == 0:
            deliver(life, tmp_path)
            life.journal.close()
            life = Life(tmp_path / "journal")
    life.processor.finish(T0 + int((at_s + 60) * S))
    deliver(life, tmp_path)
    attempts = life.runs.description(KEY).attempts
    life.journal.close()
    lines = (tmp_path / f"{INFO.run_id}.jsonl").read_text().splitlines()
    rows = [json.loads(line) for line in lines]
    assert [row["number"] for row in rows] == list(range(len(rows)))
    found = [
        (row["attempt"], row["step"], row["values"]["trainer/loss"])
        for row in rows
        if "trainer/loss" in row["values"]
    ]
    assert found == [
        *((1, number, 1.0) for number in range(401, 501)),
        *((2, number, 100.0) for number in range(400, 521)),
    ]
    (second,) = attempts
    assert (second.number, second.first_step) == (2, 400)
    assert [row["attempt"] == 2 for row in rows].index(True) == second.first_row
    known = json.loads((tmp_path / f"{INFO.run_id}.run.json").read_text())
    assert known["attempts"][0]["first_step"] == 400
