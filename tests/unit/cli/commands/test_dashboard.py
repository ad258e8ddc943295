"""``otel-rl dashboard`` of journals, without an account."""

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import pytest

from otel_rl.bridge.delivery.wandb.account import Account
from otel_rl.bridge.journal.log import Log
from otel_rl.bridge.journal.runs import Commit, RunStore
from otel_rl.bridge.journal.sqlite import JOURNAL_FILE, SqliteJournal
from otel_rl.bridge.journal.state import encode_keys
from otel_rl.cli.main import main
from otel_rl.records import ExperimentKey, KeySpec, Row
from otel_rl.semconv import names
from otel_rl.semconv.spec import Tier

LOSS = KeySpec("trainer/loss", names.RL_TRAIN_LOSS, "trainer", axis="step", own_name="actor/loss")
NORM = KeySpec("trainer/grad/abs_max", names.RL_TRAIN_GRAD_ABS_MAX, "trainer", tier=Tier.FULL)
ALIVE = KeySpec("service/trainer/alive", names.RL_SERVICE_ALIVE, "trainer", unit="{worker}")

Dashboard = Callable[..., tuple[int, str]]


def keep(directory: Path, runs: Mapping[ExperimentKey, list[KeySpec]]) -> None:
    journal = SqliteJournal(directory)
    store = RunStore(journal)
    for key, specs in runs.items():
        row = Row(0, 0, 1, {spec.key: 1.0 for spec in specs})
        store.commit([Commit(key, [row], 1, b"", added={Log.KEYS: (0, encode_keys(specs))})])
    journal.close()


@pytest.fixture
def dashboard(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Dashboard:
    keep(tmp_path, {ExperimentKey("grpo"): [LOSS, NORM], ExperimentKey("ppo", "b"): [ALIVE]})

    def run(*arguments: str) -> tuple[int, str]:
        status = main(["dashboard", *arguments, "--tracker", "jsonl", "--data", str(tmp_path)])
        said = capsys.readouterr()
        return status, said.out or said.err

    return run


def sections(said: str) -> dict[str, list[str]]:
    return {
        section["title"]: [key for panel in section["panels"] for key in panel["keys"]]
        for section in json.loads(said)["sections"]
    }


def test_it_has_what_the_tracker_gets_under_the_names_there(dashboard: Dashboard) -> None:
    status, said = dashboard("--json")
    assert status == 0
    assert sections(said) == {"Learning": ["actor/loss"], "Workers": ["service/trainer/alive"]}
    _, said = dashboard("--json", "--detail", "full", "--names", "otel_rl")
    assert sections(said)["Learning"] == ["trainer/loss", "trainer/grad/abs_max"]


@pytest.mark.parametrize("name", ["ppo", "b", "ppo/b"])
def test_a_run_can_be_chosen(dashboard: Dashboard, name: str) -> None:
    _, said = dashboard(name, "--json")
    assert sections(said) == {"Workers": ["service/trainer/alive"]}


def test_without_an_account_it_is_printed(dashboard: Dashboard) -> None:
    assert dashboard("ppo") == (
        0,
        "Workers\n  Workers alive (worker): service/trainer/alive\n",
    )


def test_the_view_of_a_teams_runs_is_in_the_account_of_the_team(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))  # without the key of `wandb login`
    keep(
        tmp_path,
        {ExperimentKey("a/x"): [LOSS], ExperimentKey("b/x"): [ALIVE], ExperimentKey("x"): [ALIVE]},
    )
    text = 'tracker.options.mode = "online"\n'
    for team in "ab":
        (tmp_path / team).write_text(team * 40)
        (tmp_path / team).chmod(0o600)
        text += f'[[team]]\nname = "{team}"\nexperiments = ["{team}/*"]\nsha256 = ["{team * 64}"]\n'
        text += f'[team.tracker.options]\nkey_file = "{tmp_path}/{team}"\n'
        text += 'project = "rl-{experiment}"\n'
    (tmp_path / "bridge.toml").write_text(text)
    saved = {}

    def save_view(account: Account, keys: Sequence[KeySpec], *, is_forced: bool) -> str:
        saved[account.api_key[0], account.project] = [spec.key for spec in keys]
        return "https://wandb"

    monkeypatch.setattr("otel_rl.cli.commands.dashboard.save_view", save_view)
    config = ["--config", str(tmp_path / "bridge.toml"), "--data", str(tmp_path)]
    assert main(["dashboard", "--tracker", "wandb", *config]) == 1
    assert saved == {("a", "rl-a-x"): ["actor/loss"], ("b", "rl-b-x"): ["service/trainer/alive"]}
    assert "No team has the experiment 'x'" in capsys.readouterr().err


def test_a_run_that_is_not_there_is_an_error_with_those_that_are(dashboard: Dashboard) -> None:
    status, said = dashboard("nobody")
    assert status == 2
    assert "'nobody'" in said
    assert "grpo/default, ppo/b" in said


@pytest.mark.parametrize("options", [(), ("--json",)])
def test_a_journal_that_cannot_be_read_is_said_beside_the_others(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], options: tuple[str, ...]
) -> None:
    keep(tmp_path / "good", {ExperimentKey("grpo"): [LOSS]})
    (tmp_path / "bad").mkdir()
    (tmp_path / "bad" / JOURNAL_FILE).write_bytes(b"not a database" * 1000)
    command = ["dashboard", *options, "--tracker", "jsonl", "--data", str(tmp_path)]
    assert main(command) == 1
    printed = capsys.readouterr()
    assert "actor/loss" in printed.out
    assert "Cannot read the journal" in printed.err


def test_an_empty_directory_is_an_error(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["dashboard", "--data", str(tmp_path / "none"), "--tracker", "jsonl"]) == 2
    assert "--data DIR" in capsys.readouterr().err
