"""Trackers that are away or refuse a run: one line each, the training goes on, its rows wait."""

import http.server
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from otel_rl.bridge.journal.reader import journals_below, overview
from tests.ports import free_ports
from tests.process.commands import Finished, clean_environment, otel_rl
from tests.trackers.programs import TrackioServer

pytestmark = pytest.mark.process

SCRIPT = """
import otel_rl
from otel_rl import mlogger

otel_rl.init(role="trainer")
for step in range(5):
    mlogger.log({"loss": 1 / (step + 1)}, step=step)
print("trained")
"""


class _Refusing(http.server.BaseHTTPRequestHandler):
    """Refuses every request's credentials."""

    def _refuse(self) -> None:
        self.rfile.read(int(self.headers.get("Content-Length") or 0))
        self.send_response(401)
        self.send_header("Content-Length", "0")
        self.end_headers()

    do_GET = do_POST = _refuse  # noqa: N815  # the names of the standard library

    def log_message(self, *_: object) -> None: ...


@pytest.fixture
def refusing() -> Iterator[str]:
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), _Refusing) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


def trained(directory: Path, trackers: list[str], **variables: str) -> Finished:
    """The end of a run whose trackers take nothing: all is as without them."""
    (directory / "train.py").write_text(SCRIPT)
    environment = clean_environment(
        directory, OTEL_RL_BRIDGE__STOP_TIMEOUT_S="6", TRACKIO_DIR=str(directory), **variables
    )
    chosen = [word for tracker in trackers for word in ("--tracker", tracker)]
    done = otel_rl(
        *("run", *chosen, "--experiment", "refused", "--", sys.executable, "train.py"),
        cwd=directory,
        env=environment,
    )
    assert done.status == 0, done.err
    assert "trained" in done.out
    (journal,) = journals_below(directory / ".otel_rl")
    waiting = {run.tracker: run.unconfirmed for run in overview(journal)}
    assert waiting.keys() == {*trackers}
    assert all(unconfirmed >= 5 for unconfirmed in waiting.values())
    return done


def line_about(done: Finished, words: str) -> str:
    """The line that says it, which is there once."""
    found = {line for line in done.err.splitlines() if words in line}
    assert found, done.err
    (first, *_) = sorted(found, key=len)
    return first


def test_refused_credentials_and_a_refused_name_leave_the_training_alone(
    tmp_path: Path, refusing: str
) -> None:
    done = trained(
        tmp_path,
        ["mlflow", "trackio"],
        MLFLOW_TRACKING_URI=refusing,
        OTEL_RL_BRIDGE__TRACKER__OPTIONS__TRACKIO__PROJECT="registry-of-runs",
    )
    assert "MLFLOW_TRACKING_USERNAME" in line_about(done, "401")
    assert "another project" in line_about(done, "reserved")


@pytest.mark.slow
def test_servers_that_are_away_leave_the_training_alone(tmp_path: Path) -> None:
    mlflow, trackio, wandb = (f"http://127.0.0.1:{port}" for port in free_ports(3))
    done = trained(
        tmp_path,
        ["mlflow", "trackio", "wandb"],
        MLFLOW_TRACKING_URI=mlflow,
        TRACKIO_SERVER_URL=trackio,
        WANDB_BASE_URL=wandb,
        WANDB_API_KEY="k" * 40,
    )
    for url in (mlflow, trackio, wandb):
        assert line_about(done, url)


@pytest.mark.slow
def test_a_wrong_token_and_a_file_in_the_way_leave_the_training_alone(tmp_path: Path) -> None:
    (tmp_path / "tensorboard").touch()
    with TrackioServer(tmp_path / "server") as server:
        done = trained(
            tmp_path,
            ["trackio", "tensorboard"],
            TRACKIO_SERVER_URL=server.url,
            TRACKIO_WRITE_TOKEN="another",  # no secret
        )
    assert "TRACKIO_WRITE_TOKEN" in line_about(done, "token")
    assert "a directory that it may write to" in line_about(done, "cannot be opened")


def test_a_misspelt_tracker_is_one_line_before_the_training_begins(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(SCRIPT)
    done = otel_rl(
        *("run", "--tracker", "mlfow", "--", sys.executable, "train.py"),
        cwd=tmp_path,
        env=clean_environment(tmp_path),
    )
    assert done.status == 2
    assert "Known trackers: wandb, jsonl, mlflow, trackio, tensorboard" in done.err
    assert len(done.err.splitlines()) == 1
    assert "trained" not in done.out
