"""A directory in place of a run's name, for every command that reads journals."""

from collections.abc import Sequence
from pathlib import Path

import pytest

from otel_rl.bridge.journal.places import WHERE_RUNS_ARE
from otel_rl.bridge.journal.sqlite import JOURNAL_FILE
from otel_rl.cli.main import main
from otel_rl.records import ExperimentKey
from otel_rl.run_id import run_id
from tests.support.view_runs import LookedAt, write_run

RUN_ID = run_id("grpo", "1")
READERS = (("diagnose",), ("runs",), ("view", "--html", "page.html"))
ASKS_FOR_A_RUN = (READERS[0], READERS[2])


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working directory with a data directory of two runs, and others without any."""
    monkeypatch.chdir(tmp_path)
    for name in ("grpo", "later"):
        key = ExperimentKey(name, "1")
        write_run(tmp_path / "runs" / "data" / run_id(name, "1"), LookedAt(key))
    (tmp_path / "empty").mkdir()
    return tmp_path


@pytest.mark.parametrize("command", READERS)
@pytest.mark.parametrize(
    "place", ["runs/data/{}/", "./runs/data/{}", "runs/data/{}/" + JOURNAL_FILE]
)
@pytest.mark.usefixtures("home")
def test_the_directory_of_a_run_stands_for_the_run(
    command: tuple[str, ...], place: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*command, place.format(RUN_ID)]) == 0
    out = capsys.readouterr().out
    assert "later" not in out
    assert "grpo/1" in out or "page.html" in out


@pytest.mark.parametrize("command", READERS)
@pytest.mark.usefixtures("home")
def test_a_data_directory_stands_for_its_runs(command: tuple[str, ...]) -> None:
    assert main([*command, "runs/data"]) == 0


@pytest.mark.parametrize("command", READERS)
def test_the_directory_in_which_runs_were_started_stands_for_them(
    command: tuple[str, ...], home: Path
) -> None:
    write_run(home / "project" / ".otel_rl" / RUN_ID, LookedAt())
    assert main([*command, "project"]) == 0


@pytest.mark.parametrize("command", READERS)
@pytest.mark.usefixtures("home")
def test_a_run_is_named_by_its_id(command: tuple[str, ...]) -> None:
    assert main([*command, RUN_ID, "--data", "runs/data"]) == 0


@pytest.mark.parametrize("command", ASKS_FOR_A_RUN)
@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["empty"], "no journal in 'empty', nor directly below. Name the data directory"),
        (["runs"], "no journal in 'runs'"),
        (["./missing"], "There is no directory './missing'. Name the data directory"),
        (["runs/data", "--data", "empty"], "Name the directory once, as DIR or by --data."),
    ],
)
@pytest.mark.usefixtures("home")
def test_a_directory_without_runs_is_refused_with_a_hint(
    command: tuple[str, ...],
    arguments: list[str],
    told: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main([*command, *arguments]) == 2
    assert told in capsys.readouterr().err


@pytest.mark.parametrize(
    ("directory", "told"),
    [
        ("empty", "There is no run in the journals below 'empty'."),
        ("missing", "There is no directory 'missing'."),
    ],
)
@pytest.mark.parametrize(
    "command",
    [*READERS, ("export",), ("dashboard",), ("replay", "grpo", "--tracker", "jsonl")],
)
@pytest.mark.usefixtures("home")
def test_without_any_run_every_command_has_the_same_words(
    command: tuple[str, ...], directory: str, told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    status = main([*command, "--data", directory])
    out, err = capsys.readouterr()
    assert told in out + err
    if command != ("runs",) or directory == "missing":  # of none there is a list, too
        assert status == 2
        assert f"{told} {WHERE_RUNS_ARE}" in err


@pytest.mark.parametrize("command", [("doctor",), ("run", "--data", "/tmp", "--", "true")])
def test_a_working_directory_that_was_removed_is_told(
    command: tuple[str, ...],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    (tmp_path / "gone").mkdir()
    monkeypatch.chdir(tmp_path / "gone")
    (tmp_path / "gone").rmdir()
    assert main(command) == 2
    assert "otel-rl: The working directory was removed. Change to" in capsys.readouterr().err


@pytest.mark.parametrize("command", [("runs",), ("replay", "--tracker", "jsonl")])
@pytest.mark.parametrize("name", ["~no-user-of-this-name", "名" * 120])
@pytest.mark.usefixtures("home")
def test_a_name_that_can_be_no_path_is_no_directory(
    name: str, command: Sequence[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*command, name, "--data", "runs/data"]) == 2
    assert name in capsys.readouterr().err


def test_a_run_whose_name_is_too_long_for_a_path_is_found(home: Path) -> None:
    name = "名" * 120
    write_run(home / "runs" / "data" / "long", LookedAt(ExperimentKey(name)))
    assert main(["runs", name, "--data", "runs/data"]) == 0


def test_a_run_comes_before_a_directory_of_its_name(
    home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_run(home / "grpo", LookedAt(ExperimentKey("other")))
    assert main(["diagnose", "grpo", "--data", "runs/data"]) == 0
    assert "grpo/1" in capsys.readouterr().out


@pytest.mark.usefixtures("home")
def test_a_misspelt_name_among_several_is_told_before_anything_is_replayed(
    home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data = ("--data", "runs/data", "--tracker", "jsonl")
    assert main(["replay", "grpo", "latre", *data]) == 2
    assert "There is no run 'latre'" in capsys.readouterr().err
    assert not [*home.rglob("*.jsonl")]
