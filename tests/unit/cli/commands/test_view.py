"""What `otel-rl view` is asked to show: a run by its name, or a data directory."""

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest

from otel_rl.bridge.config import BridgeSettings
from otel_rl.cli.commands import view
from otel_rl.cli.main import main
from otel_rl.records import ExperimentKey
from otel_rl.run_id import run_id
from tests.support.view_runs import LookedAt, write_run


class Server:
    """Serves nothing, and keeps the directory that it was to serve."""

    shown: Path


def serve(settings: BridgeSettings, _address: object, started: Callable[[object], None]) -> None:
    Server.shown = settings.data
    started(SimpleNamespace(url="http://127.0.0.1:1/", token=""))


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working directory with a run, and with folders that hold the program."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(view, "_serve", serve)
    write_run(tmp_path / ".otel_rl" / "x", LookedAt(ExperimentKey("grpo", "1")))
    for folder in ("grpo", "other"):
        (tmp_path / folder).mkdir()
    return tmp_path


def test_a_run_is_shown_though_a_folder_has_its_name(
    home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["view", "grpo"]) == 0
    assert (home / Server.shown).resolve() == home / ".otel_rl"
    assert f"#/run/{run_id('grpo', '1')}/overview" in capsys.readouterr().err


def test_a_folder_that_is_no_run_is_a_data_directory(
    home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["view", "other"]) == 0
    assert (home / Server.shown).resolve() == home / "other"
    assert "#/run" not in capsys.readouterr().err


@pytest.mark.parametrize("named", [["--data", "typo"], []])
def test_a_data_directory_that_is_not_there_yet_is_said(
    named: list[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(view, "_serve", serve)
    assert main(["view", *named]) == 0
    place = named[-1] if named else ".otel_rl"
    assert f"there is no directory '{place}' yet" in capsys.readouterr().err


def test_nothing_is_said_of_a_data_directory_that_is_there(
    home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["view", "--data", str(home / "other")]) == 0
    assert "no directory" not in capsys.readouterr().err
