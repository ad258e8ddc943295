"""A tracker that is away or refuses a run says so in one line with a hint, and takes no rows."""

import contextlib
import http.server
import os
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from otel_rl.bridge.delivery.tracker import RunInfo
from otel_rl.bridge.delivery.writer import WriterProcess
from otel_rl.errors import TrackerError, TrackerRejected, TrackerUnavailable
from otel_rl.records import ExperimentKey, Row
from otel_rl.run_id import run_id
from tests.support.ports import free_ports
from tests.support.slow import slow_after
from tests.trackers.programs import MlflowServer, TrackioServer

pytestmark = pytest.mark.process

KEY = ExperimentKey("grpo", "refused")


@pytest.fixture(autouse=True)
def no_settings(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for variable in [name for name in os.environ if name.startswith(("MLFLOW_", "TRACKIO_"))]:
        monkeypatch.delenv(variable)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("TRACKIO_DIR", str(tmp_path / "trackio"))


@pytest.fixture(scope="module")
def trackio_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TrackioServer]:
    with TrackioServer(tmp_path_factory.mktemp("trackio")) as server:
        yield server


@pytest.fixture(scope="module")
def mlflow_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[MlflowServer]:
    with MlflowServer(tmp_path_factory.mktemp("mlflow")) as server:
        yield server


def opened(tracker: str, directory: Path, **attributes: str) -> TrackerError:
    """The error of the opening, which must be one line."""
    run = RunInfo(KEY, run_id(KEY.experiment, KEY.trial), directory, tuple(attributes.items()))
    with WriterProcess(tracker) as writer, pytest.raises(TrackerError) as caught:
        writer.open(run)
    assert "\n" not in str(caught.value)
    return caught.value


@pytest.mark.parametrize(
    ("tracker", "option"), slow_after(1, [("trackio", "server_url"), ("mlflow", "tracking_uri")])
)
def test_a_server_that_is_away_is_unavailable(tracker: str, option: str, tmp_path: Path) -> None:
    (port,) = free_ports(1)
    error = opened(tracker, tmp_path, **{option: f"http://user:secret@127.0.0.1:{port}"})
    assert isinstance(error, TrackerUnavailable)
    assert "cannot be reached" in str(error)
    assert "secret" not in str(error)


class _Refusing(http.server.BaseHTTPRequestHandler):
    status = 401

    def _refuse(self) -> None:
        self.rfile.read(int(self.headers.get("Content-Length") or 0))
        self.send_response(self.status)
        self.send_header("Content-Length", "0")
        self.end_headers()

    do_GET = do_POST = _refuse  # noqa: N815  # the names of the standard library

    def log_message(self, *_: object) -> None: ...


class _Limiting(_Refusing):
    status = 429


@contextlib.contextmanager
def answering(handler: type[_Refusing]) -> Iterator[str]:
    """The URL of a server that answers every request in this way."""
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("tracker", "option"), [("trackio", "server_url"), ("mlflow", "tracking_uri")]
)
def test_a_server_that_limits_rates_is_asked_again_later(
    tracker: str, option: str, tmp_path: Path
) -> None:
    with answering(_Limiting) as url:
        error = opened(tracker, tmp_path, **{option: url})
    assert isinstance(error, TrackerUnavailable)
    assert "429" in str(error)


def test_refused_credentials_of_mlflow_are_rejected_with_a_hint(tmp_path: Path) -> None:
    with answering(_Refusing) as url:
        error = opened("mlflow", tmp_path, tracking_uri=url)
    assert isinstance(error, TrackerRejected)
    assert "MLFLOW_TRACKING_USERNAME" in error.hint


@pytest.mark.slow
def test_a_wrong_token_of_trackio_is_rejected_with_a_hint(
    tmp_path: Path, trackio_server: TrackioServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TRACKIO_WRITE_TOKEN", "another")
    run = RunInfo(KEY, run_id(KEY.experiment, KEY.trial), tmp_path)
    run = replace(run, attributes=(("server_url", trackio_server.url),))
    with WriterProcess("trackio") as writer:
        writer.open(run)
        with pytest.raises(TrackerRejected) as caught:
            writer.write([_row()])
    assert "TRACKIO_WRITE_TOKEN" in caught.value.hint
    assert "another" not in str(caught.value).replace("another project", "")


def test_a_project_that_trackio_refuses_is_rejected_with_a_hint(tmp_path: Path) -> None:
    error = opened("trackio", tmp_path, project="registry-of-runs")
    assert isinstance(error, TrackerRejected)
    assert "reserved" in str(error)
    assert "another project" in error.hint


@pytest.mark.slow
def test_a_deleted_experiment_of_mlflow_is_rejected_with_a_hint(
    tmp_path: Path, mlflow_server: MlflowServer
) -> None:
    from mlflow.tracking import MlflowClient

    client = MlflowClient(mlflow_server.url)
    client.delete_experiment(client.create_experiment(KEY.experiment))
    error = opened("mlflow", tmp_path, tracking_uri=mlflow_server.url)
    assert isinstance(error, TrackerRejected)
    assert "mlflow experiments restore" in error.hint


@pytest.mark.slow
def test_a_name_that_mlflow_refuses_is_rejected_with_a_hint(tmp_path: Path) -> None:
    error = opened("mlflow", tmp_path, experiment="x" * 600)
    assert isinstance(error, TrackerRejected)
    assert "exceeds the maximum length" in str(error)
    assert "the experiment's name" in error.hint


@pytest.mark.parametrize("tracker", ["tensorboard", "trackio", "jsonl"])
def test_others_refuse_no_name_of_a_run(tmp_path: Path, tracker: str) -> None:
    key = ExperimentKey("../a\0b" * 100, "..")
    run = RunInfo(key, run_id(key.experiment, key.trial), tmp_path / "files")
    run.directory.mkdir()
    with WriterProcess(tracker) as writer:
        assert writer.open(run) == 0
        writer.write([_row()])
        assert writer.close(exit_code=0) == 1
    made = {path.relative_to(tmp_path).parts[0] for path in tmp_path.rglob("*")}
    assert made <= {"files", "trackio", ".cache", ".config", ".huggingface"}


def test_a_directory_that_tensorboard_cannot_have_is_rejected_with_a_hint(tmp_path: Path) -> None:
    (tmp_path / "tensorboard").touch()
    error = opened("tensorboard", tmp_path)
    assert isinstance(error, TrackerRejected)
    assert "directory" in error.hint


@pytest.mark.slow
def test_a_server_that_comes_back_has_every_row_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with TrackioServer(tmp_path / "server") as server:
        for variable, value in server.environment.items():
            monkeypatch.setenv(variable, value)
        run = RunInfo(KEY, run_id(KEY.experiment, KEY.trial), tmp_path)
        with WriterProcess("trackio") as writer:
            writer.open(run)
            writer.write([_row(0)])
            server.kill()
            with pytest.raises(TrackerUnavailable, match="cannot be reached"):
                writer.write([_row(1)])
        server.start()
        with WriterProcess("trackio") as writer:
            assert writer.open(run) == 1
            writer.write([_row(1)])
            assert writer.close(exit_code=0) == 2


def _row(number: int = 0) -> Row:
    return Row(number, number, 1_700_000_000_000_000_000 + number, {"trainer/loss": 0.5})
