"""How a run arranges itself in W&B: axes, hidden keys, summary; by the real SDK."""

import os
import signal
from dataclasses import replace
from pathlib import Path

import pytest

from otel_rl.bridge.delivery.tracker import RunInfo
from otel_rl.bridge.delivery.writer import WriterProcess
from otel_rl.records import Attempt, Description, ExperimentKey, KeySpec, Row
from otel_rl.run_id import run_id
from otel_rl.semconv import names
from tests.support.wandb_offline import read_offline_run, run_directories
from tests.support.wandb_server import WandbServer

pytestmark = [pytest.mark.process, pytest.mark.usefixtures("no_login")]

NOON_NS = 1_700_000_000_000_000_000
MINUTE_NS = 60_000_000_000

REWARD = KeySpec("trainer/reward/mean", names.RL_REWARD_MEAN, "trainer", axis="step")
ALIVE = KeySpec("service/trainer/alive", names.RL_SERVICE_ALIVE, "trainer")
WORKER = KeySpec("workers/trainer/0/reward/mean", names.RL_REWARD_MEAN, "trainer", worker="0")
DROPS = KeySpec("otel_rl/bridge/points/x", "otel_rl.worker.spans.dropped")
OWN = KeySpec("trainer/cpu.share", "cpu.share", "trainer")
STAR = KeySpec("reward*/a", "reward*/a", "trainer", axis="step")
TEXT = KeySpec("diagnosis/cause", statistic="text", axis="step")
KEYS = (REWARD, ALIVE, WORKER, DROPS, OWN, STAR, TEXT)

VALUES: tuple[dict[str, float], ...] = (
    {REWARD.key: 0.5, "unknown/key": 1.0, STAR.key: 1.0, "trainer/cpu": 1.0},
    {ALIVE.key: 2.0, WORKER.key: 1.0, DROPS.key: 1.0, OWN.key: 0.5},
    {REWARD.key: 0.9},
    {ALIVE.key: 1.0},
    {REWARD.key: float("nan")},
    {ALIVE.key: 0.0},
)
ROWS = [
    Row(n, n // 2, NOON_NS + n * MINUTE_NS, values, labels={} if n else {TEXT.key: "slow"})
    for n, values in enumerate(VALUES)
]
"""Two windows and three steps; the workers end after the last one."""

AXES = {
    "*": "step",
    ALIVE.key: "hours",
    **dict.fromkeys((REWARD.key, WORKER.key, DROPS.key, OWN.key), "step"),
}
HIDDEN = {"step", "hours", "attempt", WORKER.key, DROPS.key}


def info(directory: Path, **attributes: str) -> RunInfo:
    key = ExperimentKey("grpo")
    return RunInfo(key, run_id(key.experiment, key.trial), directory, tuple(attributes.items()))


def write(writer: WriterProcess, start: int, stop: int) -> None:
    first, *others = ROWS[start:stop]
    writer.write([replace(first, new_keys=KEYS), *others])


def session(run: RunInfo, stop: int = len(ROWS)) -> None:
    with WriterProcess("wandb") as writer:
        write(writer, writer.open(run), stop)
        writer.close(exit_code=0)


def is_arranged(summary: dict[str, object]) -> bool:
    best = summary[REWARD.key]
    assert isinstance(best, dict)
    assert best == {"max": 0.9, "last": "NaN"}
    return summary[ALIVE.key] == 2.0


def test_the_file_of_an_offline_run_says_how_to_show_each_key(tmp_path: Path) -> None:
    run = info(tmp_path)
    session(run)
    (directory,) = run_directories(tmp_path, run.run_id)
    found = read_offline_run(directory)
    assert {key: axis for key, axis in found.metrics.items() if axis} == AXES
    assert found.hidden == HIDDEN
    assert [row["hours"] for row in found.history] == [n / 60 for n in range(6)]
    assert is_arranged(found.summary)


def definitions(server: WandbServer, run: RunInfo) -> tuple[dict[str, str], set[str]]:
    """What the server knows of keys: of each its axis, and those that are hidden."""
    internal = server.run(run.run_id).config["_wandb"]
    assert isinstance(internal, dict)
    stored = internal["value"]["m"]
    known = [metric.get("1") or metric["2"] for metric in stored]
    axes = {
        name: known[metric["5"] - 1]
        for name, metric in zip(known, stored, strict=True)
        if "5" in metric
    }
    return axes, {
        name for name, metric in zip(known, stored, strict=True) if 2 in metric.get("6", ())
    }


@pytest.mark.slow
def test_a_resumed_run_is_arranged_as_one_that_was_never_interrupted(
    tmp_path: Path, server: WandbServer
) -> None:
    run = info(tmp_path, transmit_interval_s="1")
    session(run, 3)
    with WriterProcess("wandb") as writer:
        write(writer, writer.open(run), 5)
        writer.flush(timeout_s=60)
        assert writer.pid is not None
        os.kill(writer.pid, signal.SIGKILL)
    session(run)
    stored = server.run(run.run_id)
    assert [row["hours"] for row in server.history(run.run_id)] == [n / 60 for n in range(6)]
    assert is_arranged(stored.summary)
    axes, hidden = definitions(server, run)
    assert {key: axes.get(key) for key in AXES} == AXES
    assert hidden >= HIDDEN
    assert REWARD.key not in hidden


@pytest.mark.slow
def test_the_summary_continues_from_the_server_on_another_machine(
    tmp_path: Path, server: WandbServer
) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    session(info(tmp_path / "a", transmit_interval_s="1"), 4)
    other = info(tmp_path / "b", transmit_interval_s="1")
    session(other)
    assert is_arranged(server.run(other.run_id).summary)
    assert server.history(other.run_id)[-1]["hours"] == pytest.approx(5 / 60)


PASSES = [(1, 1), (1, 2), (1, 3), (2, 2), (1, 3), (2, 3), (2, 4)]
"""Attempt and step of each row; one of the former attempt comes late."""

RESUMED = [
    Row(n, step, NOON_NS + n * MINUTE_NS, {REWARD.key: float(n), "own": 1.0}, attempt=attempt)
    for n, (attempt, step) in enumerate(PASSES)
]
SECOND = "step/attempt_2"


def resumed(run: RunInfo, stop: int = len(RESUMED)) -> None:
    with WriterProcess("wandb") as writer:
        first, *others = RESUMED[writer.open(run) : stop]
        writer.write([replace(first, new_keys=[REWARD, ALIVE]), *others])
        writer.close(exit_code=0)


def own_axis(history: list[dict[str, float]]) -> list[tuple[float | None, float]]:
    return [(row.get(SECOND), row["attempt"]) for row in history]


OWN_AXIS = [(step if attempt == 2 else None, attempt) for attempt, step in PASSES]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("settings", "axis"),
    [({}, SECOND), ({"attempt_axes": "false"}, "step")],
    ids=["moves", "stays"],
)
def test_charts_show_the_newest_attempt_unless_all_are_wanted(
    tmp_path: Path, settings: dict[str, str], axis: str
) -> None:
    run = info(tmp_path, **settings)
    resumed(run)
    (directory,) = run_directories(tmp_path, run.run_id)
    found = read_offline_run(directory)
    assert {key: axis for key, axis in found.metrics.items() if axis} == {
        "*": axis,
        REWARD.key: axis,
        ALIVE.key: "hours",
    }
    assert found.hidden >= {"attempt", SECOND}
    assert own_axis(found.history) == OWN_AXIS
    assert [row["step"] for row in found.history] == [step for _, step in PASSES]
    assert [row["_step"] for row in found.history] == list(range(len(PASSES)))


@pytest.mark.slow
@pytest.mark.parametrize("stop", [3, 4, 5])
def test_a_writer_that_dies_leaves_charts_of_the_newest_attempt(
    tmp_path: Path, server: WandbServer, stop: int
) -> None:
    second = Attempt(2, 2, 3, NOON_NS)
    run = replace(
        info(tmp_path, transmit_interval_s="1"), description=Description(attempts=[second])
    )
    resumed(run, stop)
    resumed(run)
    axes, hidden = definitions(server, run)
    assert (axes[REWARD.key], axes["*"]) == (SECOND, SECOND)
    assert hidden >= {"attempt", SECOND}
    assert own_axis(server.history(run.run_id)) == OWN_AXIS
