"""``otel-rl demo --fault``: what is said before anything is started."""

from pathlib import Path

import pytest

from otel_rl.cli.main import main
from otel_rl.demo.faults import Kind


@pytest.fixture(autouse=True)
def nothing_is_left_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def test_help_lists_every_kind(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["demo", "--fault", "help"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines] == list(Kind)


@pytest.mark.parametrize(
    ("fault", "says"),
    [
        ("slow", "--fault: one of none, slow_generation"),
        ("straggler@trainer/7", "--fault: there is no trainer/7"),
        ("nan@generator/0", "--fault: nan affects trainer"),
    ],
)
def test_what_cannot_be_done_is_said_and_nothing_is_started(
    fault: str, says: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["demo", "--fault", fault]) == 2
    said = capsys.readouterr().err
    assert says in said
    assert "otel-rl demo --fault help" in said
    assert not [*tmp_path.iterdir()]
