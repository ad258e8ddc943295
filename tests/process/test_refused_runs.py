"""Trackers that are away or refuse a run: one line each, the training goes on, its rows wait."""

import http.server
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from otel_rl.bridge.journal.reader import journals_below, overview
from tests.process.commands import OTEL_RL, TIMEOUT_S, clean_environment, otel_rl_here
from tests.support.ports import free_ports
from tests.trackers.programs import TrackioServer

pytestmark = pytest.mark.process

SCRIPT = """
import sys

import otel_rl
import otel_rl

otel_rl.init(role="trainer")
for step in range(5):
    otel_rl.log({"loss": 1 / (step + 1)}, step=step)
sys.stdin.readline()
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


def trained(
    directory: Path, trackers: list[str], troubles: list[str], **variables: str
) -> dict[str, str]:
    """Train until each trouble was told, then end.

    The end of a run whose trackers take nothing is as without them.

    Args:
        directory: Of the command.
        trackers: Names.
        troubles: Words, one for each line that is to come, whatever the machine takes for it.
        variables: Of the environment.

    Returns:
        The line of each trouble.
    """
    (directory / "train.py").write_text(SCRIPT)
    environment = clean_environment(
        directory, OTEL_RL_BRIDGE__STOP_TIMEOUT="8", TRACKIO_DIR=str(directory), **variables
    )
    chosen = [word for tracker in trackers for word in ("--tracker", tracker)]
    with subprocess.Popen(
        [*OTEL_RL, "run", *chosen, "--experiment", "refused", "--", sys.executable, "train.py"],
        cwd=directory,
        env=environment,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        told = lines_about(troubles, process)
        out, _ = process.communicate("go on\n", timeout=TIMEOUT_S)
    assert process.returncode == 0
    assert "trained" in out
    (journal,) = journals_below(directory / ".otel_rl")
    waiting = {run.tracker: run.unconfirmed for run in overview(journal)}
    assert waiting.keys() == {*trackers}
    assert all(unconfirmed >= 5 for unconfirmed in waiting.values())
    return told


def lines_about(troubles: list[str], process: "subprocess.Popen[str]") -> dict[str, str]:
    """Read lines of the command until each trouble was told."""
    assert process.stderr is not None
    told: dict[str, str] = {}
    while len(told) < len(troubles):
        line = process.stderr.readline()
        assert line, f"the command has ended and told only {told}"
        told |= {words: line for words in troubles if words in line and words not in told}
    return told


@pytest.mark.slow
def test_refused_credentials_and_a_refused_name_leave_the_training_alone(
    tmp_path: Path, refusing: str
) -> None:
    told = trained(
        tmp_path,
        ["mlflow", "trackio"],
        ["MLFLOW_TRACKING_USERNAME", "reserved"],  # no digits: a port in another line has them
        MLFLOW_TRACKING_URI=refusing,
        OTEL_RL_BRIDGE__TRACKER__OPTIONS__TRACKIO__PROJECT="registry-of-runs",
    )
    assert "401" in told["MLFLOW_TRACKING_USERNAME"]
    assert "another project" in told["reserved"]


@pytest.mark.slow
def test_servers_that_are_away_leave_the_training_alone(tmp_path: Path) -> None:
    mlflow, trackio, wandb = (f"http://127.0.0.1:{port}" for port in free_ports(3))
    trained(
        tmp_path,
        ["mlflow", "trackio", "wandb"],
        [mlflow, trackio, wandb],
        MLFLOW_TRACKING_URI=mlflow,
        TRACKIO_SERVER_URL=trackio,
        WANDB_BASE_URL=wandb,
        WANDB_API_KEY="k" * 40,
    )


@pytest.mark.slow
def test_a_wrong_token_and_a_file_in_the_way_leave_the_training_alone(tmp_path: Path) -> None:
    (tmp_path / "tensorboard").touch()
    with TrackioServer(tmp_path / "server") as server:
        told = trained(
            tmp_path,
            ["trackio", "tensorboard"],
            ["TRACKIO_WRITE_TOKEN", "cannot be opened"],
            TRACKIO_SERVER_URL=server.url,
            TRACKIO_WRITE_TOKEN="another",  # no secret
        )
    assert "trackio" in told["TRACKIO_WRITE_TOKEN"]
    assert "a directory that it may write to" in told["cannot be opened"]


def test_a_misspelt_tracker_is_one_line_before_the_training_begins(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(SCRIPT)
    done = otel_rl_here(
        *("run", "--tracker", "mlfow", "--", sys.executable, "train.py"),
        cwd=tmp_path,
        env=clean_environment(tmp_path),
    )
    assert done.status == 2
    assert "Known trackers: wandb, jsonl, mlflow, trackio, tensorboard" in done.err
    assert len(done.err.splitlines()) == 1
    assert "trained" not in done.out
