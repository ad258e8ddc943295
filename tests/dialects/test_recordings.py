"""Exports of other projects, recorded, become runs: they had an endpoint and nothing else."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.dialects.replay import requests
from tests.lab.running import Bridge
from tests.process.commands import Row, jsonl_rows, otel_rl
from tests.support import plain_http

pytestmark = pytest.mark.process

STEPS, SLOW_FROM = 24, 12  # as in emitters/grpo.py
SLOWER_S = 0.25


@dataclass(frozen=True)
class Run:
    """The run of one recording."""

    rows: Sequence[Row]
    diagnosis: Mapping[str, Any]

    @property
    def keys(self) -> set[str]:
        return {key for row in self.rows for key in row.values}

    def by_step(self, key: str) -> dict[int, float]:
        return {row.step: row.values[key] for row in self.rows if key in row.values}


def run_of(name: str, directory: Path) -> Run:
    """Replay a recording into a bridge of its own."""
    bridge = Bridge(directory)
    with bridge:
        for path, body in requests(name):
            answer = plain_http.post(
                f"{bridge.url}{path}", content=body, headers={"content-type": "application/json"}
            )
            assert (answer.status_code, answer.json()) == (200, {})
        assert bridge.stop() == 0, bridge.said()
    diagnosed = otel_rl("diagnose", "--json", "--data", directory / "data", cwd=directory)
    assert diagnosed.status == 0, diagnosed.err
    return Run(jsonl_rows(directory, "nemo", run_id_of(name)), json.loads(diagnosed.out))


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """Telemetry of NeMo-RL ce32d4208 through nemo-lens b85578f, by ``emitters/grpo.py``."""
    return run_of("nemo_rl", tmp_path_factory.mktemp("nemo_rl"))


def run_id_of(name: str) -> str:
    _, found = requests(name)[0]
    resource = next(iter(json.loads(found).values()))[0]["resource"]
    return next(
        str(pair["value"]["stringValue"])
        for pair in resource["attributes"]
        if pair["key"] == "nemo.run.id"
    )


def test_each_step_is_a_row(run: Run) -> None:
    took = run.by_step("trainer/iteration/duration")
    assert sorted(took) == [*range(1, STEPS + 1)]
    assert took[STEPS] - took[2] == pytest.approx(SLOWER_S, abs=0.15)


def test_gauges_have_shared_names_and_the_step_in_progress(run: Run) -> None:
    names = ("loss", "grad/norm", "learning_rate", "policy/entropy", "policy/kl/reference")
    assert {f"trainer/{name}" for name in (*names, "reward/mean", "episode/length")} <= run.keys
    loss = run.by_step("trainer/loss")
    assert loss
    assert min(loss) > 0
    assert loss[max(loss)] == pytest.approx(1 / STEPS, rel=0.5)


def test_groups_of_workers_are_roles_with_ranks(run: Run) -> None:
    assert run.by_step("service/generator/expected").popitem()[1] == 2
    assert run.by_step("service/trainer/expected").popitem()[1] == 1
    assert run.by_step("service/trajectory_collector/expected").popitem()[1] == 1


def test_a_run_has_a_page_of_keys_without_ids(run: Run) -> None:
    assert len(run.keys) < 80
    assert not [key for key in run.keys if "/rl." in key]


def test_the_critical_path_leads_from_one_trace_into_another(run: Run) -> None:
    generated = run.by_step("critical_path/trajectory_collector/generate")
    slow = [generated[step] for step in range(SLOW_FROM + 4, STEPS)]
    assert min(slow) > 0.1
    assert "critical_path/trainer/train" in run.keys


def test_a_diagnosis_names_the_slow_role_and_phase(run: Run) -> None:
    first = run.diagnosis["causes"][0]
    assert first["kind"] == "slow_generation"
    assert "trajectory_collector" in json.dumps(first)


def test_ranks_in_traces_of_their_own_are_one_run_with_a_straggler(tmp_path: Path) -> None:
    """Telemetry of Megatron-LM d98e8a6 by nemo-lens b85578f, by ``emitters/megatron_lm.py``."""
    run = run_of("megatron", tmp_path)
    took = run.by_step("trainer/iteration/duration")
    assert sorted(took) == [*range(20)]
    assert run.by_step("service/trainer/expected").popitem()[1] == 3
    assert {"trainer/loss", "trainer/grad/norm", "critical_path/trainer/train"} <= run.keys
    assert not [key for key in run.keys if "megatron.train.iteration" in key]
    assert run.diagnosis["causes"], run.diagnosis
    first = run.diagnosis["causes"][0]
    assert (first["kind"], first["phase"]) == ("straggler", "train")
    assert "trainer/1" in json.dumps(first)
