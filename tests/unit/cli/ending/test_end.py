import sys
from pathlib import Path

import pytest

from otel_rl.bridge.bridge import Left
from otel_rl.cli.ending.end import left_in_words
from otel_rl.cli.ending.report import rest_command


@pytest.mark.parametrize(
    ("left", "seconds", "words"),
    [
        (Left(0, 0), 9.0, "closing the runs, for at most 9 s"),
        (Left(7, 0), 9.0, "7 requests left, for at most 9 s"),
        (Left(0, 1), 59.4, "1 row left, for at most 59 s"),
        (Left(0, 1200), 290.0, "1200 rows left, for at most 4 min 50 s"),
        (Left(2, 30), -1.0, "2 requests and 30 rows left, for at most 0 s"),
    ],
)
def test_what_is_left_to_write_is_said_in_words(left: Left, seconds: float, words: str) -> None:
    assert left_in_words(left, seconds) == words


@pytest.mark.parametrize(
    ("path", "started_as", "word"),
    [
        ("found", "/somewhere/.venv/bin/otel-rl", "otel-rl"),
        ("empty", ".venv/bin/otel-rl", ".venv/bin/otel-rl"),
        ("empty", "/usr/bin/pytest", "otel-rl"),
    ],
)
def test_a_command_to_be_typed_begins_as_this_shell_finds_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, path: str, started_as: str, word: str
) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "found").mkdir()
    (tmp_path / "found" / "otel-rl").touch(0o755)
    monkeypatch.setenv("PATH", str(tmp_path / path))
    monkeypatch.setattr(sys, "argv", [started_as, "run"])
    assert rest_command(Path("d")) == f"{word} finish d"
