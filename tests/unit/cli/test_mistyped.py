"""A mistyped command, option or setting is told with what was meant."""

import re
from pathlib import Path

import pytest

from otel_rl.bridge.config import load_settings
from otel_rl.cli.main import main
from otel_rl.errors import ConfigError


@pytest.mark.parametrize(
    ("line", "usage", "told"),
    [
        ("diagnos", "otel-rl [-h]", "there is no command 'diagnos'. Did you mean diagnose?"),
        ("xyz", "otel-rl [-h]", "there is no command 'xyz'."),
        ("runs --jsn", "otel-rl runs", "unrecognized arguments: --jsn. Did you mean --json?"),
        ("run --expriment=x -- true", "otel-rl run", "Did you mean --experiment?"),
        ("run --exp=x -- true", "otel-rl run", ": --exp=x. Did you mean --experiment?"),
        ("runs --js", "otel-rl runs", "unrecognized arguments: --js. Did you mean --json?"),
        ("runs --tr jsonl", "otel-rl runs", "unrecognized arguments: --tr."),
        ("runs --interval", "otel-rl runs", "unrecognized arguments: --interval."),
        ("runs --zzz", "otel-rl runs", "unrecognized arguments: --zzz."),
    ],
)
def test_what_was_meant_on_the_command_line_is_told(
    line: str, usage: str, told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        main(line.split())
    error = capsys.readouterr().err
    assert ended.value.code == 2
    assert f"usage: {usage}" in error
    assert error.endswith(f"{told}\n")


def test_without_a_command_the_commands_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main([])
    assert ended.value.code == 2
    assert "find what makes a run slow" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("content", "told"),
    [
        ("trackr = 'jsonl'", "trackr: unknown setting. Did you mean tracker? See"),
        (
            "[rows]\nwindow_s = 5",
            "rows.window_s: unknown setting. Did you mean rows.window? See",
        ),
        (
            "[rows]\nwindows = 5",
            "rows.windows: unknown setting. Did you mean rows.window? See",
        ),
        ("window = 5", "window: unknown setting. Did you mean rows.window? See"),
        ("[listen]\nxyzzy = 5", "listen.xyzzy: unknown setting. See `otel-rl help bridge`."),
    ],
)
def test_what_was_meant_in_a_file_is_told(tmp_path: Path, content: str, told: str) -> None:
    file = tmp_path / "bridge.toml"
    file.write_text(content)
    with pytest.raises(ConfigError, match=f"^{re.escape(told)}"):
        load_settings(file)


@pytest.mark.parametrize(
    ("variable", "told"),
    [
        (
            "ROSW__WINDOW_S",
            (
                "OTEL_RL_BRIDGE__ROSW__WINDOW_S: unknown setting. Did you mean "
                "OTEL_RL_BRIDGE__ROWS__WINDOW? See"
            ),
        ),
        (
            "TRACKER__NAM",
            (
                "OTEL_RL_BRIDGE__TRACKER__NAM: unknown setting. Did you mean "
                "OTEL_RL_BRIDGE__TRACKER__NAME? See"
            ),
        ),
    ],
)
def test_what_was_meant_in_a_variable_is_told(
    monkeypatch: pytest.MonkeyPatch, variable: str, told: str
) -> None:
    monkeypatch.setenv(f"OTEL_RL_BRIDGE__{variable}", "2")
    with pytest.raises(ConfigError, match=f"^{re.escape(told)}"):
        load_settings()


@pytest.mark.parametrize("options", [[], ["--json"]])
@pytest.mark.parametrize("named", [[], ["--data"]])
def test_a_directory_that_is_named_and_not_there_is_an_error(
    named: list[str], options: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["runs", *named, "./no/such/place", *options]) == 2
    said = capsys.readouterr()
    assert re.search(
        "There is no directory '(./)?no/such/place'. Name the data directory", said.err
    )
    assert not said.out


def test_before_the_first_run_there_is_nothing_to_list(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["runs"]) == 0
    assert "Start one with `otel-rl run" in capsys.readouterr().out
