"""The table of trackers, and the checks that a person runs."""

import importlib.util
import json
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from otel_rl.bridge.delivery.tracker import BACKENDS, backend
from otel_rl.errors import ConfigError, MissingExtra
from tests.support.wandb_owned import Owned
from tests.support.wandb_server import WandbServer
from tests.trackers.example import install_example, register


@pytest.fixture(autouse=True)
def no_login(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for variable in ("WANDB_API_KEY", "WANDB_MODE", "WANDB_BASE_URL", "NETRC", "WANDB_CONFIG_DIR"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))


def test_an_unknown_tracker_is_answered_with_the_known_ones() -> None:
    with pytest.raises(ConfigError, match="Known trackers: wandb, jsonl"):
        backend("wanbd")


@pytest.mark.parametrize("name", BACKENDS)
def test_every_backend_works_without_settings(name: str, tmp_path: Path) -> None:
    backend(name).validate({})
    assert all(result.ok for result in backend(name).check({}, tmp_path))


@pytest.mark.parametrize("name", BACKENDS)
def test_every_backend_names_an_unknown_setting(name: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="colour"):
        backend(name).validate({"colour": "red"})
    (failed,) = [r for r in backend(name).check({"colour": "red"}, tmp_path) if not r.ok]
    assert "colour" in failed.message


@pytest.mark.parametrize("name", BACKENDS)
def test_a_check_says_that_the_directory_cannot_be_written_to(name: str, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    results = backend(name).check({}, tmp_path / "file" / "below")
    assert [result.ok for result in results if result.name == "tracker directory"] == [False]


def test_a_check_says_that_runs_are_offline_without_a_key(tmp_path: Path) -> None:
    messages = " ".join(result.message for result in backend("wandb").check({}, tmp_path))
    assert "There is no API key, so runs are written to files" in messages


def test_a_check_says_that_the_server_cannot_be_reached(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    monkeypatch.setenv("WANDB_BASE_URL", f"http://127.0.0.1:{port}")
    monkeypatch.setenv("WANDB_API_KEY", "k" * 40)
    last = backend("wandb").check({}, tmp_path)[-1]
    assert (last.name, last.ok) == ("wandb server", False)


@pytest.mark.parametrize(
    ("name", "option"), [("mlflow", "tracking_uri"), ("trackio", "server_url")]
)
def test_a_check_says_that_a_server_of_others_cannot_be_reached_and_no_password(
    tmp_path: Path, name: str, option: str
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    last = backend(name).check({option: f"http://me:hunter2@127.0.0.1:{port}"}, tmp_path)[-1]
    assert (last.name, last.ok) == (f"{name} server", False)
    assert "cannot be reached" in last.message
    assert "hunter2" not in last.message
    assert last.hint.startswith("Rows are kept")


@pytest.mark.parametrize(
    ("name", "features", "ok", "message"),
    [
        ("ours", [14, 67], True, "is there, and in shared mode"),
        ("alone", [14], False, "is not in shared mode"),
        ("other", [14, 67], True, "is not there yet"),
    ],
)
def test_a_check_says_whether_the_run_to_join_can_be_joined(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    name: str,
    features: list[int],
    ok: bool,
    message: str,
) -> None:
    with WandbServer() as server:
        for variable, value in (server.environment() | {"WANDB_MODE": "shared"}).items():
            monkeypatch.setenv(variable, value)
        config = json.dumps({"_wandb": {"value": {"t": {"3": features}}}})
        Owned(server, name if name != "other" else "another", config=config)
        last = backend("wandb").check({"attach": f"theirs/{name}"}, tmp_path)[-1]
    assert (last.name, last.ok) == ("wandb run", ok)
    assert message in last.message


def test_a_check_knows_the_supported_versions_from_the_package_itself(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("importlib.metadata.version", lambda _: "0.99.0")
    (failed,) = [r for r in backend("wandb").check({}, tmp_path) if not r.ok]
    assert "wandb 0.99.0 is installed; <0.32,>=0.23 is supported" in failed.message


def test_a_writer_may_take_as_long_as_the_tracker_allows_itself() -> None:
    patience = backend("wandb").patience({"finish_timeout_s": "3600", "init_timeout_s": "900"})
    assert (patience.close_s > 3600, patience.open_s > 900) == (True, True)


@pytest.mark.process
def test_the_table_loads_no_tracker_library() -> None:
    code = "import sys, otel_rl.bridge.delivery.manager; sys.exit('wandb' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=120)


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    place = install_example(tmp_path)
    monkeypatch.syspath_prepend(str(place))
    return place


def test_a_registered_tracker_is_found_by_its_name(site: Path) -> None:
    assert backend("sqlite").name == "sqlite"


def test_an_unknown_name_is_answered_with_the_registered_ones_too(site: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        backend("wanbd")
    known = "wandb, jsonl, mlflow, trackio, tensorboard, sqlite"
    assert caught.value.hint == f"Known trackers: {known}."


def test_a_registered_tracker_never_takes_the_place_of_one_of_ours(site: Path) -> None:
    register(site, "taker", {"jsonl": "my_package.tracker:KIND"})
    assert backend("jsonl").name == "jsonl"


@pytest.mark.parametrize(
    ("value", "words"),
    [("gone.module:KIND", "cannot be loaded"), ("my_package.tracker:TABLES", "is no TrackerKind")],
)
def test_one_that_cannot_be_used_says_why(site: Path, value: str, words: str) -> None:
    register(site, "broken", {"broken": value})
    with pytest.raises(ConfigError, match=words) as caught:
        backend("broken")
    assert caught.value.hint


@pytest.mark.parametrize(
    ("name", "package"),
    [
        ("wandb", "wandb"),
        ("mlflow", "mlflow-skinny"),
        ("trackio", "trackio"),
        ("tensorboard", "tensorboard"),
    ],
)
def test_a_missing_library_is_named_with_its_package(
    name: str, package: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: None)
    with pytest.raises(MissingExtra, match=rf"pip install .*\b{package}[<>]"):
        backend(name).validate({})


def test_files_of_runs_are_refused_because_they_have_no_key() -> None:
    with pytest.raises(ConfigError, match="must be a server or a database") as caught:
        backend("mlflow").validate({"tracking_uri": "file:./mlruns"})
    assert "sqlite:///mlflow.db" in caught.value.hint


def test_a_secret_among_the_options_is_never_shown() -> None:
    with pytest.raises(ConfigError) as caught:
        backend("trackio").validate({"write_token": "hunter2"})
    assert "hunter2" not in str(caught.value)
    assert "TRACKIO_WRITE_TOKEN" in caught.value.hint
