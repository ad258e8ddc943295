"""The command writes what differs, and only says so when asked to check."""

from pathlib import Path

import pytest

from tools.semconv import generate

FILES = (
    "otel_rl/semconv/names.py",
    "otel_rl/semconv/registry.json",
    "docs/semantic-conventions.md",
)


def test_check_names_what_differs_and_writes_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert generate.main(["--check", "--root", str(tmp_path)]) == 1
    told = capsys.readouterr().err
    assert all(f"{file}: differs from the registry" in told for file in FILES)
    assert list(tmp_path.iterdir()) == []


def test_what_was_generated_passes_the_check(tmp_path: Path) -> None:
    assert generate.main(["--root", str(tmp_path)]) == 0
    assert generate.main(["--check", "--root", str(tmp_path)]) == 0


def test_one_edited_file_is_the_one_that_differs(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    generate.main(["--root", str(tmp_path)])
    edited = tmp_path / FILES[0]
    edited.write_text(edited.read_text() + "# edited\n")
    capsys.readouterr()
    assert generate.main(["--check", "--root", str(tmp_path)]) == 1
    assert capsys.readouterr().err == f"{FILES[0]}: differs from the registry\n"


def test_generating_again_writes_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    generate.main(["--root", str(tmp_path)])
    capsys.readouterr()
    generate.main(["--root", str(tmp_path)])
    assert capsys.readouterr().out == ""
