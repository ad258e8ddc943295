"""When files of tokens are read again."""

from pathlib import Path

import pytest

from otel_rl.cli.reloads import Reloads
from otel_rl.errors import ConfigError


class Reader:
    """Reads a file; while it has a fault it refuses it."""

    def __init__(self, path: Path) -> None:
        self.fault, self.texts, self.now_s, self._path = "", list[str](), 0.0, path
        path.write_text("first")
        self.reloads = Reloads(self._read, [path], clock_s=lambda: self.now_s)

    def _read(self) -> None:
        self.texts.append(self._path.read_text())
        if self.fault:
            raise ConfigError(self.fault)

    def look(self, now_s: float) -> int:
        """Look twice, as a change is noticed. Returns how often the file was read so far."""
        self.now_s = now_s
        for _ in range(2):
            self.reloads.look()
        return len(self.texts)


@pytest.fixture
def reader(tmp_path: Path) -> Reader:
    return Reader(tmp_path / "tokens")


def test_a_change_is_read_once(reader: Reader, tmp_path: Path) -> None:
    assert reader.look(0) == 0
    (tmp_path / "tokens").write_text("second one")
    assert reader.look(1) == 1
    assert reader.look(1_000) == 1
    assert reader.texts == ["second one"]


def test_what_could_not_be_read_is_read_again_without_a_change(
    reader: Reader, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    reader.fault = "no descriptor is free"
    (tmp_path / "tokens").write_text("second one")
    assert [reader.look(now_s) for now_s in (1, 30, 32, 61, 63)] == [1, 1, 2, 2, 3]
    assert capsys.readouterr().err.count("stay as they were. no descriptor is free") == 1
    reader.fault = ""
    assert [reader.look(now_s) for now_s in (94, 200)] == [4, 4]
    assert "another try: the files of tokens and certificates are read again" in (
        capsys.readouterr().err
    )


def test_a_corrected_file_is_read_before_the_next_try(reader: Reader, tmp_path: Path) -> None:
    reader.fault = "too short"
    reader.reloads.read("SIGHUP")
    reader.fault = ""
    (tmp_path / "tokens").write_text("second one")
    assert [reader.look(now_s) for now_s in (1, 100)] == [2, 2]
