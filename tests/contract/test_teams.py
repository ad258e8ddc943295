"""Teams of one bridge: their keys, and the options of their trackers."""

from contextlib import closing
from pathlib import Path

import pytest

from otel_rl.bridge.bridge import Bridge
from otel_rl.bridge.config import BridgeSettings, load_settings
from otel_rl.bridge.delivery.run_delivery import RunState, RunStatus
from otel_rl.bridge.delivery.tracker import backend
from otel_rl.bridge.delivery.wandb.account import WandbSettings, find_account
from otel_rl.bridge.journal.runs import Commit, RunStore
from otel_rl.bridge.journal.sqlite import SqliteJournal
from otel_rl.bridge.receive.tokens import TeamSettings
from otel_rl.bridge.stages import delivery_settings
from otel_rl.cli.commands.doctor import check_runs
from otel_rl.cli.embedded_bridge import started
from otel_rl.cli.ending.files import KeptSettings, keep_settings
from otel_rl.cli.main import main
from otel_rl.cli.own_run import wandb_account
from otel_rl.errors import ConfigError
from otel_rl.records import ExperimentKey, Row

KEYS = {"a": "a" * 40, "b": "b" * 40}


@pytest.fixture
def settings(tmp_path: Path) -> BridgeSettings:
    for name, key in KEYS.items():
        (tmp_path / name).write_text(f"{key}\n")
        (tmp_path / name).chmod(0o600)
    return BridgeSettings.model_validate(
        {
            "data": tmp_path,
            "tracker": {"options": {"project": "all", "entity": "site"}},
            "team": [
                {
                    "name": name,
                    "experiments": [f"{name}/*"],
                    "sha256": ["0" * 63 + name],
                    "tracker": {
                        "options": {
                            "key_file": str(tmp_path / name),
                            "project": f"{name}-{{experiment}}",
                        }
                    },
                }
                for name in KEYS
            ],
        }
    )


@pytest.mark.parametrize("name", KEYS)
def test_a_writer_has_the_key_of_its_team_and_no_other(settings: BridgeSettings, name: str) -> None:
    options = delivery_settings(settings, "wandb").of_teams[name]
    own = {"WANDB_API_KEY": "c" * 40, "PATH": "/bin"}
    environment = backend("wandb").environment(own, options)
    held = {value for value in environment.values() if value in {*KEYS.values(), "c" * 40}}
    assert held == {KEYS[name]}


def test_a_teams_options_replace_the_bridges(settings: BridgeSettings) -> None:
    options = delivery_settings(settings, "wandb").of_teams["a"]
    account = find_account(WandbSettings.parse(options), {}, ExperimentKey("a/x", "1"))
    assert (account.entity, account.project) == ("site", "a-a-x")


def test_the_keys_of_the_teams_are_enough(
    settings: BridgeSettings, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Online, the bridge needs no key of its own, which no run would use."""
    monkeypatch.setenv("HOME", str(tmp_path))  # without the key of `wandb login`
    given = settings.model_dump(exclude_unset=True)
    given["tracker"]["options"]["mode"] = "online"
    given["listen"] = {"http": "127.0.0.1:0", "grpc": "off"}
    bridge = Bridge(BridgeSettings.model_validate(given))
    bridge.start()
    bridge.stop()


def test_what_finishes_a_run_has_the_options_of_its_team(settings: BridgeSettings) -> None:
    settings.data.mkdir(exist_ok=True)
    gateway = TeamSettings(name="gateway", gateway=True, sha256=("e" * 64,))
    keep_settings(settings.model_copy(update={"team": (*settings.team, gateway)}), {})
    said = (settings.data / "settings.json").read_text()
    assert not any(key in said for key in KEYS.values())
    assert "sha256" not in said
    kept = load_settings(defaults=KeptSettings.beside(settings.data).settings)
    assert kept.tracker_of_teams == settings.tracker_of_teams
    assert (
        delivery_settings(kept, "wandb").of_teams == delivery_settings(settings, "wandb").of_teams
    )


def test_the_rest_is_finished_elsewhere_with_each_teams_own_account(
    settings: BridgeSettings, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Without the files of tokens, from another directory; a team without a key stays offline."""
    monkeypatch.setenv("HOME", str(tmp_path))  # without the key of `wandb login`
    monkeypatch.chdir(tmp_path)
    tokens = tmp_path / "tokens"
    tokens.write_text("a-token-that-nobody-guesses\n")
    tokens.chmod(0o600)
    given = settings.model_dump(exclude_unset=True)
    given["listen"] = {"http": "127.0.0.1:0", "grpc": "off"}
    a, b = given["team"]
    a["tracker"]["options"]["key_file"] = "a"
    a["sha256"], a["file"] = (), "tokens"
    del b["tracker"]["options"]["key_file"]
    started(BridgeSettings.model_validate(given)).stop()
    tokens.unlink()
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    kept = KeptSettings.beside(tmp_path)
    with kept.in_environment():
        trackers = load_settings(defaults=kept.settings).tracker_of_teams
        accounts = {team: wandb_account(tracker) for team, tracker in trackers.items()}
    assert {team: of.api_key for team, of in accounts.items() if of} == {"a": KEYS["a"], "b": ""}
    assert main(["finish", str(tmp_path)]) == 0


def test_no_secret_of_a_team_is_kept(settings: BridgeSettings) -> None:
    """Not even where it is all that the team has; and its runs go nowhere else instead."""
    given = settings.model_dump(exclude_unset=True)
    given["tracker"] = {"name": "mlflow"}
    given["team"][0]["tracker"]["options"] = {"tracking_uri": "https://user:hunter2pw@mlflow"}
    given["team"][1]["tracker"]["options"] = {"tracking_uri": "https://mlflow"}
    keep_settings(BridgeSettings.model_validate(given), {})
    assert "hunter2pw" not in (settings.data / "settings.json").read_text()
    kept = KeptSettings.beside(settings.data)
    with pytest.raises(ConfigError, match=r"team a: tracker.options.tracking_uri .*not kept"):
        kept.check_secrets(load_settings(defaults=kept.settings))
    kept.check_secrets(BridgeSettings.model_validate(given))


def test_a_replay_asks_for_the_key_of_the_runs_team_and_notes_its_options(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))  # without the key of `wandb login`
    (tmp_path / "key").write_text(KEYS["a"])
    (tmp_path / "key").chmod(0o600)
    with closing(SqliteJournal(tmp_path)) as journal:
        RunStore(journal).commit([Commit(ExperimentKey(name), [], 0, b"") for name in ("a/x", "x")])

    def replayed(run: str, **options: str) -> tuple[int, str]:
        given = {"key_file": f"{tmp_path}/key", **options}
        (tmp_path / "bridge.toml").write_text(
            'tracker.options.mode = "online"\n[[team]]\nname = "a"\nexperiments = ["a/*"]\n'
            f'sha256 = ["{"0" * 64}"]\n[team.tracker.options]\n'
            + "".join(f'{name} = "{value}"\n' for name, value in given.items())
        )
        config = ["--config", str(tmp_path / "bridge.toml"), "--data", str(tmp_path)]
        status = main(["replay", run, "--tracker", "wandb", *config])
        return status, capsys.readouterr().err

    for project, word in (
        ("one", "has no rows"),
        ("one", "an earlier replay"),
        ("two", "has no rows"),  # another place
    ):
        status, said = replayed("a/x", project=project)
        assert (status, word in said) == (0, True), said
    status, said = replayed("x/default")
    assert (status, "No team has the experiment 'x'" in said) == (1, True), said
    status, said = replayed("a/x", nonsense="1")
    assert (status, "nonsense" in said) == (2, True), said


def test_a_key_that_all_users_can_read_is_refused(settings: BridgeSettings, tmp_path: Path) -> None:
    (tmp_path / "a").chmod(0o644)
    options = delivery_settings(settings, "wandb").of_teams["a"]
    with pytest.raises(ConfigError, match="chmod o="):
        find_account(WandbSettings.parse(options), {})


def test_an_empty_key_is_an_error_and_no_offline_run(
    settings: BridgeSettings, tmp_path: Path
) -> None:
    (tmp_path / "a").write_text("\n")
    options = delivery_settings(settings, "wandb").of_teams["a"]
    with pytest.raises(ConfigError, match="is empty"):
        find_account(WandbSettings.parse(options), {})


def test_rows_of_no_team_stay_in_the_journal_until_a_team_has_them(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """They go to no account, least of all to the bridge's own."""
    key, n_rows = ExperimentKey("gone/x"), 3
    with closing(SqliteJournal(tmp_path)) as journal:
        rows = [Row(i, i, i, {"loss": 1.0}) for i in range(n_rows)]
        RunStore(journal).commit([Commit(key, rows, n_rows, b"")])

    def stopped(experiments: str) -> tuple[BridgeSettings, RunStatus]:
        team = {"name": "a", "experiments": [experiments], "sha256": ["a" * 64]}
        settings = BridgeSettings.model_validate(
            {
                "data": tmp_path,
                "listen": {"http": "127.0.0.1:0", "grpc": "off"},
                "tracker": {"name": "jsonl"},
                "team": [team],
            }
        )
        bridge = Bridge(settings)
        bridge.start()
        (status,) = bridge.stop()
        return settings, status

    settings, status = stopped("a/*")
    assert (status.state, status.pending) == (RunState.REJECTED, n_rows)
    assert not [*tmp_path.rglob("*.jsonl")]
    said = [one for one in caplog.messages if "No team has the experiment 'gone/x'" in one]
    assert len(said) == 1
    (result,) = check_runs(settings)
    assert (result.ok, "No team has" in result.message) == (False, True)
    _, status = stopped("gone/*")
    assert (status.state, status.next_row) == (RunState.FINISHED, n_rows)
