"""Settings from variables, beside the file and the command line."""

from pathlib import Path

import pytest

from otel_rl.bridge.config import load_settings
from otel_rl.errors import ConfigError


def test_a_variable_wins_over_the_file_and_the_command_line_over_both(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "bridge.toml"
    file.write_text("[rows]\nwindow = 2\nworker_timeout = 3\nwait = 4\n")
    monkeypatch.setenv("OTEL_RL_BRIDGE__ROWS__WORKER_TIMEOUT", "30")
    monkeypatch.setenv("OTEL_RL_BRIDGE__ROWS__WAIT", "40")
    rows = load_settings(file, {"rows": {"wait_s": 400}}).rows
    assert (rows.window_s, rows.worker_timeout_s, rows.wait_s) == (2, 30, 400)


def test_a_variable_may_be_written_in_small_letters(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("otel_rl_bridge__listen__http", "1234")
    assert load_settings().listen.http == ("127.0.0.1", 1234)


def test_a_variable_may_hold_a_whole_section(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_RL_BRIDGE__TRACKER", '{"name": "jsonl"}')
    monkeypatch.setenv("OTEL_RL_BRIDGE__TRACKER__DETAIL", "full")
    tracker = load_settings().tracker
    assert (tracker.name, str(tracker.detail)) == ("jsonl", "full")


def test_a_section_that_is_not_json_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_RL_BRIDGE__TRACKER", "{jsonl")
    with pytest.raises(ConfigError, match="such as OTEL_RL_BRIDGE__TRACKER__NAME"):
        load_settings()
