"""Several trackers at once: the same values in each, and one that is away holds up none."""

import shlex
import struct
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from otel_rl.bridge.delivery.mlflow import MARK, mlflow_name
from otel_rl.bridge.delivery.tracker import RunInfo
from otel_rl.records import ExperimentKey
from otel_rl.run_id import run_id
from tests.process.commands import (
    OTEL_RL,
    TIMEOUT_S,
    Row,
    clean_environment,
    jsonl_rows,
    otel_rl,
    wandb_run,
)
from tests.process.test_refused_runs import lines_about
from tests.trackers.places import mlflow_values, read_tensorboard, read_trackio, trackio_query
from tests.trackers.programs import TrackioServer

pytestmark = pytest.mark.process

TRACKERS = ("jsonl", "wandb", "mlflow", "trackio", "tensorboard")
SCRIPT = """
import otel_rl
import otel_rl

otel_rl.init(role="trainer")
for step in range(20):
    otel_rl.log({"loss": 1 / (step + 1), "odd": float("nan") if step == 7 else step}, step=step)
    otel_rl.log({"Train Loss": 0.5, "reward (mean)": 1, "损失": 2}, step=step)
    otel_rl.log({"acc@1": 0.3, "50%": 4}, step=step)
"""
NAMES = ("loss", "odd", "Train Loss", "reward (mean)", "损失", "acc@1", "50%")

AXES = {"attempt", "policy_version", MARK}


def chosen(*trackers: str) -> list[str]:
    return [word for tracker in trackers for word in ("--tracker", tracker)]


def run_info(directory: Path, experiment: str) -> RunInfo:
    key = ExperimentKey(experiment)
    return RunInfo(key, run_id(key.experiment, key.trial), directory)


def as_text(values: Mapping[str, float]) -> Mapping[str, str]:
    return {key: repr(float(value)) for key, value in values.items()}


def single(value: float) -> float:
    (rounded,) = struct.unpack("f", struct.pack("f", value))
    return float(rounded)


def check_same(directory: Path, experiment: str) -> int:
    """Compare what each tracker's own reader shows. Returns the number of rows with values."""
    rows = {row.number: row for row in jsonl_rows(directory, experiment)}
    run = run_info(directory, experiment)
    history = {int(line["_step"]): line for line in wandb_run(directory, experiment).history}
    in_trackio = read_trackio(trackio_query(directory / "trackio"), run)
    in_tensorboard = read_tensorboard(run)
    for found in (in_trackio, in_tensorboard):
        assert [row.number for row in found] == [*rows] == [*range(len(rows))]
    for row, trackio, tensorboard in zip(rows.values(), in_trackio, in_tensorboard, strict=True):
        assert row.step == trackio.step == tensorboard.step == int(history[row.number]["step"])
        assert as_text(row.values) == as_text(trackio.values)
        of_row = {key: history[row.number][key] for key in row.values}
        assert as_text(row.values) == as_text(of_row)
        singles = {key: single(value) for key, value in row.values.items()}
        assert as_text(singles) == as_text({key: tensorboard.values[key] for key in row.values})
    check_mlflow(rows, mlflow_values(f"sqlite:///{directory / 'mlflow.db'}", run))
    return len(rows)


def check_mlflow(rows: Mapping[int, Row], values: Sequence[tuple[str, float, int, int]]) -> None:
    listed = [(key, repr(value), step, time_ms) for key, value, step, time_ms in values]
    assert len(listed) == len(set(listed)), "a value is there twice"
    assert sorted(value for key, value, _, _ in values if key == MARK) == [*rows]
    own = {one for one in listed if one[0] not in AXES and not one[0].startswith("system/")}
    assert own == {
        (mlflow_name(key), repr(float(value)), row.step, row.time_ns // 1_000_000)
        for row in rows.values()
        for key, value in row.values.items()
    }


@pytest.mark.slow
def test_a_run_is_the_same_in_five_trackers(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(SCRIPT)
    environment = clean_environment(tmp_path, TRACKIO_DIR=str(tmp_path / "trackio"))
    done = otel_rl(
        *("run", *chosen(*TRACKERS), "--experiment", "five", "--", sys.executable, "train.py"),
        cwd=tmp_path,
        env=environment,
    )
    assert done.status == 0, done.err
    assert check_same(tmp_path, "five") >= 20
    assert {f"trainer/{name}" for name in NAMES} <= jsonl_rows(tmp_path, "five")[0].values.keys()
    assert "mlflow does not store: texts about steps" in done.err


@pytest.mark.slow
def test_a_tracker_that_is_away_holds_up_none_and_gets_its_rows_later(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(f"{SCRIPT}input()\n")
    server = TrackioServer(tmp_path / "server")
    environment = clean_environment(
        tmp_path, **server.environment, OTEL_RL_BRIDGE__STOP_TIMEOUT="8"
    )
    words = [
        "run",
        *chosen("trackio", "jsonl"),
        "--experiment",
        "away",
        "--",
        sys.executable,
        "train.py",
    ]
    with subprocess.Popen(
        [*OTEL_RL, *words],
        cwd=tmp_path,
        env=environment,
        stdin=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        lines_about(["trackio does not store", "cannot be reached"], process)
        _, err = process.communicate("go on\n", timeout=TIMEOUT_S)
    assert len(jsonl_rows(tmp_path, "away")) >= 20
    (command,) = (line for line in err.splitlines() if "write the rest with:" in line)
    rest = command.partition("write the rest with: otel-rl ")[2]
    with server:
        again = otel_rl(*shlex.split(rest), cwd=tmp_path, env=environment)
        assert again.status == 0, again.err
        found = read_trackio(trackio_query(server), run_info(tmp_path, "away"))
    written = [row.number for row in jsonl_rows(tmp_path, "away")]
    assert [row.number for row in found] == written == list(range(len(written)))
