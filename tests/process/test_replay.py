"""``otel-rl replay``: stored runs in a tracker, each row once, however often it is called."""

import os
import shutil
import signal
import subprocess
import sys
import textwrap
import time
from functools import partial
from pathlib import Path

import pytest

from otel_rl.bridge.delivery.tracker import RunInfo
from otel_rl.records import ExperimentKey
from otel_rl.run_id import run_id
from tests.process.commands import OTEL_RL, clean_environment, jsonl_rows, otel_rl, otel_rl_here
from tests.support import waiting
from tests.support.wandb_offline import read_offline_run
from tests.trackers.places import read_tensorboard, read_trackio, trackio_query
from tests.trackers.programs import TrackioServer

pytestmark = pytest.mark.process

wait_until = partial(waiting.wait_until, timeout_s=240, look_s=0.2)

SCRIPT = """
import sys
import otel_rl
import otel_rl

otel_rl.init(role="trainer")
for step in range(int(sys.argv[1])):
    otel_rl.log({"loss": 1 / (step + 1)}, step=step)
"""


def info(directory: Path, experiment: str, trial: str = "default") -> RunInfo:
    return RunInfo(ExperimentKey(experiment, trial), run_id(experiment, trial), directory)


def offline_run(directory: Path, experiment: str, steps: int) -> None:
    """A run that went to JSON lines on a node without internet."""
    (directory / "train.py").write_text(SCRIPT)
    done = otel_rl(
        *("run", "--tracker", "jsonl", "--experiment", experiment),
        *("--", sys.executable, "train.py", str(steps)),
        cwd=directory,
        env=clean_environment(directory),
    )
    assert done.status == 0, done.err


@pytest.mark.slow
def test_a_run_is_written_to_another_tracker_once_however_often_it_is_replayed(
    tmp_path: Path,
) -> None:
    offline_run(tmp_path, "grpo", 30)
    environment = clean_environment(tmp_path, TRACKIO_DIR=str(tmp_path / "trackio"))
    words = ["replay", "grpo", "--tracker", "trackio", "--tracker", "tensorboard", "--again"]
    for _ in range(2):
        done = otel_rl(*words, cwd=tmp_path, env=environment)
        assert done.status == 0, done.err
        assert "rows in trackio" in done.err
    rows = jsonl_rows(tmp_path, "grpo")
    assert len(rows) >= 30
    in_trackio = read_trackio(trackio_query(tmp_path / "trackio"), info(tmp_path, "grpo"))
    in_tensorboard = read_tensorboard(info(tmp_path, "grpo"))
    for found in (in_trackio, in_tensorboard):
        assert [row.number for row in found] == [row.number for row in rows]
    assert [row.values for row in in_trackio] == [row.values for row in rows]


def test_a_run_gets_another_name_in_the_tracker(tmp_path: Path) -> None:
    offline_run(tmp_path, "grpo", 5)
    words = ["replay", "grpo", "--tracker", "tensorboard", "--name", "again/second"]
    done = otel_rl(*words, cwd=tmp_path, env=clean_environment(tmp_path))
    assert done.status == 0, done.err
    assert len(read_tensorboard(info(tmp_path, "again", "second"))) >= 5


@pytest.mark.slow
def test_a_directory_of_runs_goes_in_one_command_and_again_in_no_time(tmp_path: Path) -> None:
    offline_run(tmp_path, "one", 4)
    offline_run(tmp_path, "two", 6)
    shutil.move(tmp_path / ".otel_rl", tmp_path / "copied")
    words = ["replay", "copied", "--tracker", "tensorboard"]
    done = otel_rl(*words, cwd=tmp_path, env=clean_environment(tmp_path))
    assert done.status == 0, done.err
    for name, n in (("one", 4), ("two", 6)):
        assert len(read_tensorboard(info(tmp_path, name))) >= n
    again = otel_rl(*words, cwd=tmp_path, env=clean_environment(tmp_path))
    assert "2 were written by an earlier replay" in again.err
    assert "rows in tensorboard" not in again.err


@pytest.mark.slow
def test_an_offline_run_of_wandb_is_made_once_however_often_it_is_replayed(tmp_path: Path) -> None:
    offline_run(tmp_path, "grpo", 4)
    environment = clean_environment(tmp_path, WANDB_MODE="offline")
    found = []
    for _ in range(2):
        done = otel_rl("replay", ".otel_rl", "--tracker", "wandb", cwd=tmp_path, env=environment)
        assert done.status == 0, done.err
        found.append(sorted(path.name for path in tmp_path.rglob("offline-run-*") if path.is_dir()))
    assert len(found[0]) == 1
    assert found[0] == found[1]


@pytest.mark.slow
def test_the_run_of_a_team_goes_where_its_bridge_would_write_it(tmp_path: Path) -> None:
    offline_run(tmp_path, "llm/grpo", 4)
    team = f"""
        [[team]]
        name = "llm"
        experiments = ["llm/*"]
        sha256 = ["{"0" * 64}"]
        [team.tracker.options]
        project = "of-{{experiment}}"
    """
    (tmp_path / "bridge.toml").write_text(textwrap.dedent(team))
    done = otel_rl(
        *("replay", ".otel_rl", "--tracker", "wandb", "--config", "bridge.toml"),
        cwd=tmp_path,
        env=clean_environment(tmp_path, WANDB_MODE="offline"),
    )
    assert done.status == 0, done.err
    (file,) = tmp_path.rglob("*.wandb")
    assert read_offline_run(file).project == "of-llm-grpo"


@pytest.mark.slow
def test_a_replay_that_is_killed_goes_on_and_writes_no_row_twice(tmp_path: Path) -> None:
    offline_run(tmp_path, "grpo", 3_000)
    with TrackioServer(tmp_path / "server") as server:
        environment = clean_environment(tmp_path, **server.environment)
        query = trackio_query(server)
        words = ["replay", "grpo", "--tracker", "trackio"]
        killed = subprocess.Popen(
            [*OTEL_RL, *words], cwd=tmp_path, env=environment, start_new_session=True
        )
        wait_until(lambda: _count(server) > 0, "the first rows are there")
        os.killpg(killed.pid, signal.SIGKILL)
        killed.wait()
        while (done := otel_rl(*words, cwd=tmp_path, env=environment)).status:
            assert "Another writer" in done.err, done.err  # of the killed one, for a moment
            time.sleep(1)
        found = read_trackio(query, info(tmp_path, "grpo"))
    assert [row.number for row in found] == [row.number for row in jsonl_rows(tmp_path, "grpo")]


@pytest.mark.slow
def test_a_run_of_which_the_journal_lacks_the_first_rows_is_refused(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(SCRIPT)
    environment = clean_environment(
        tmp_path, OTEL_RL_BRIDGE__TRACKER__KEEP_CONFIRMED="0", OTEL_RL_BRIDGE__STOP_TIMEOUT="20"
    )
    words = ["--tracker", "jsonl", "--experiment", "grpo", "--", sys.executable, "train.py", "9"]
    done = otel_rl("run", *words, cwd=tmp_path, env=environment)
    assert done.status == 0, done.err
    done = otel_rl("replay", "grpo", "--tracker", "tensorboard", cwd=tmp_path, env=environment)
    assert done.status == 1
    assert "not kept any more" in done.err
    assert read_tensorboard(info(tmp_path, "grpo")) == []


@pytest.mark.slow
def test_runs_below_a_directory_may_be_chosen_by_name(tmp_path: Path) -> None:
    offline_run(tmp_path, "one", 3)
    offline_run(tmp_path, "two", 3)
    words = ["replay", ".otel_rl", "two", "--tracker", "tensorboard"]
    done = otel_rl(*words, cwd=tmp_path, env=clean_environment(tmp_path))
    assert done.status == 0, done.err
    assert "run two" in done.err
    assert "run one" not in done.err


def _count(server: TrackioServer) -> int:
    try:
        return int(trackio_query(server)("SELECT COUNT(*) AS n FROM metrics")[0]["n"])
    except Exception:  # noqa: BLE001  # there is no project yet
        return 0


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["grpo"], "--tracker: name the tracker"),
        (["--tracker", "jsonl"], "Name the run"),
        (["gone", "--tracker", "jsonl"], "There is no directory '.otel_rl'"),
        ([".", "--tracker", "jsonl"], "There is no run in the journals below"),
        (["gone", "--tracker", "wanbd"], "unknown name"),
        (["gone", "--tracker", "jsonl", "--at-once", "0"], "at least one run"),
    ],
)
def test_what_cannot_be_replayed_is_said_in_one_line(
    tmp_path: Path, words: list[str], message: str
) -> None:
    done = otel_rl_here("replay", *words, cwd=tmp_path, env=clean_environment(tmp_path))
    assert done.status == 2
    assert message in done.err
    assert len(done.err.splitlines()) == 1


@pytest.mark.slow
def test_a_tracker_that_is_away_is_given_up_and_what_is_there_stays(tmp_path: Path) -> None:
    offline_run(tmp_path, "grpo", 5)
    environment = clean_environment(
        tmp_path,
        TRACKIO_SERVER_URL="http://127.0.0.1:9",
        OTEL_RL_BRIDGE__STOP_TIMEOUT="20",  # in which a busy machine starts a writer
    )
    done = otel_rl("replay", "grpo", "--tracker", "trackio", cwd=tmp_path, env=environment)
    assert done.status == 1
    assert "cannot be reached" in done.err
    assert "call it again to continue" in done.err
