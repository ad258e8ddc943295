"""What settings, environment and netrc together say about where W&B runs go."""

from collections.abc import Mapping
from pathlib import Path

import pytest

from otel_rl.bridge.delivery.wandb.account import (
    OWN_RUN,
    WandbSettings,
    find_account,
    writer_environment,
)
from otel_rl.errors import ConfigError
from otel_rl.records import ExperimentKey

KEY = "k" * 40


def account(tmp_path: Path, settings: WandbSettings | None = None, **environ: str) -> object:
    return find_account(settings or WandbSettings(), {"HOME": str(tmp_path), **environ})


def online(tmp_path: Path, settings: WandbSettings | None = None, **environ: str) -> bool:
    return find_account(settings or WandbSettings(), {"HOME": str(tmp_path), **environ}).online


def test_without_a_key_runs_are_offline(tmp_path: Path) -> None:
    assert not online(tmp_path)


def test_with_a_key_runs_are_online(tmp_path: Path) -> None:
    assert online(tmp_path, WANDB_API_KEY=KEY)


@pytest.mark.parametrize(("mode", "expected"), [("offline", False), ("dryrun", False)])
def test_wandb_mode_wins_over_a_key(tmp_path: Path, mode: str, expected: bool) -> None:
    assert online(tmp_path, WANDB_API_KEY=KEY, WANDB_MODE=mode) is expected


def test_the_setting_wins_over_wandb_mode(tmp_path: Path) -> None:
    assert online(tmp_path, WandbSettings(mode="online"), WANDB_API_KEY=KEY, WANDB_MODE="offline")


def test_online_without_a_key_says_how_to_get_one(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no API key") as caught:
        online(tmp_path, WandbSettings(mode="online"))
    assert "wandb login" in caught.value.hint


def test_keyed_is_online_with_a_key_whatever_wandb_mode_says(tmp_path: Path) -> None:
    keyed = WandbSettings(mode="keyed")
    assert online(tmp_path, keyed, WANDB_API_KEY=KEY, WANDB_MODE="offline")
    assert not online(tmp_path, keyed, WANDB_MODE="online")


def test_what_no_program_names_is_of_the_environment_and_then_the_default(tmp_path: Path) -> None:
    open_to_all = WandbSettings(project="rl-{project}", entity="{entity}", mode="{mode}")
    home = {"HOME": str(tmp_path)}
    found = find_account(open_to_all, {**home, "WANDB_PROJECT": "p", "WANDB_ENTITY": "e"})
    assert (found.project, found.entity, found.online) == ("rl-p", "e", False)
    found = find_account(open_to_all, home)
    assert (found.project, found.entity) == ("rl-otel_rl", "")


@pytest.mark.parametrize("name", ["project", "entity"])
@pytest.mark.parametrize("text", ["../other", "a/b", "a#b", "x" * 129])
def test_a_name_that_leads_elsewhere_is_refused(tmp_path: Path, name: str, text: str) -> None:
    with pytest.raises(ConfigError, match=f"wandb.{name}"):
        account(tmp_path, WandbSettings.parse({name: text}))


def test_a_mode_that_would_write_nothing_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="WANDB_MODE"):
        online(tmp_path, WANDB_MODE="disabled")


@pytest.mark.parametrize(
    ("machine", "base_url"),
    [
        ("api.wandb.ai", ""),
        ("api.forge.coreweave.com", ""),
        ("wandb.example.com", "https://wandb.example.com"),
        ("127.0.0.1:8080", "http://127.0.0.1:8080/"),
    ],
)
def test_the_key_of_the_server_is_found_in_netrc(
    tmp_path: Path, machine: str, base_url: str
) -> None:
    netrc = tmp_path / ".netrc"
    netrc.write_text(f"machine other\n login u\n password no\nmachine {machine}\n password {KEY}\n")
    netrc.chmod(0o600)
    found = find_account(WandbSettings(base_url=base_url), {"HOME": str(tmp_path)})
    assert found.api_key == KEY


def test_a_key_for_another_server_is_not_sent(tmp_path: Path) -> None:
    netrc = tmp_path / ".netrc"
    netrc.write_text(f"machine api.wandb.ai\n login user\n password {KEY}\n")
    netrc.chmod(0o600)
    assert not online(tmp_path, WandbSettings(base_url="https://wandb.example.com"))


def test_a_broken_netrc_is_as_good_as_none(tmp_path: Path) -> None:
    (tmp_path / ".netrc").write_text("machine")
    assert not online(tmp_path)


def test_the_server_of_wandb_login_is_used(tmp_path: Path) -> None:
    directory = tmp_path / ".config" / "wandb"
    directory.mkdir(parents=True)
    (directory / "settings").write_text("[default]\nbase_url = https://wandb.example.com\n")
    found = find_account(WandbSettings(), {"HOME": str(tmp_path), "WANDB_API_KEY": KEY})
    assert found.base_url == "https://wandb.example.com"


def test_the_project_comes_from_setting_then_variable_then_default(tmp_path: Path) -> None:
    home = {"HOME": str(tmp_path)}
    variable = {**home, "WANDB_PROJECT": "from-env"}
    assert find_account(WandbSettings(project="mine"), variable).project == "mine"
    assert find_account(WandbSettings(), variable).project == "from-env"
    assert find_account(WandbSettings(), home).project == "otel_rl"


@pytest.mark.parametrize("project", ["a/b", "a:b", "50%", "x" * 129])
def test_a_project_that_the_server_refuses_is_refused_at_start(
    tmp_path: Path, project: str
) -> None:
    with pytest.raises(ConfigError, match=r"wandb\.project"):
        online(tmp_path, WandbSettings(project=project))


def test_the_key_is_never_shown(tmp_path: Path) -> None:
    assert KEY not in repr(account(tmp_path, WANDB_API_KEY=KEY))


@pytest.mark.parametrize(
    ("attributes", "message"),
    [
        ({"projekt": "x"}, "projekt"),
        ({"stall_timeout_s": "soon"}, "stall_timeout_s"),
        ({"finish_timeout_s": "-1"}, "finish_timeout_s"),
        ({"transmit_interval_s": "nan"}, "transmit_interval_s"),
    ],
)
def test_a_wrong_setting_is_named(attributes: Mapping[str, str], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        WandbSettings.parse(attributes)


def test_a_writer_inherits_no_run_of_the_users_own() -> None:
    environ = {
        "PATH": "/bin",
        "WANDB_API_KEY": KEY,
        "WANDB_RUN_ID": "mine",
        "WANDB_SERVICE": "3-1-unix-x",
        "WANDB_SWEEP_ID": "sweep",
    }
    assert writer_environment(environ) == {
        "PATH": "/bin",
        "WANDB_API_KEY": KEY,
        "WANDB_ERROR_REPORTING": "false",
        "WANDB_SILENT": "true",
        "GOMAXPROCS": "1",
    }


def test_the_cpus_of_the_core_are_the_users_to_set() -> None:
    assert writer_environment({"GOMAXPROCS": "4"})["GOMAXPROCS"] == "4"


@pytest.mark.parametrize(
    ("attach", "expected"),
    [
        ("run-7", ("", "otel_rl", "run-7")),
        ("grpo/run-7", ("", "grpo", "run-7")),
        ("team/grpo/run-7", ("team", "grpo", "run-7")),
        ("team/grpo/runs/run-7", ("team", "grpo", "run-7")),
    ],
)
def test_a_run_to_join_may_be_named_with_its_project_and_entity(
    tmp_path: Path, attach: str, expected: tuple[str, str, str]
) -> None:
    environ = {"HOME": str(tmp_path), "WANDB_API_KEY": KEY}
    found = find_account(WandbSettings(attach=attach), environ)
    assert (found.entity, found.project, found.attached_run) == expected
    again = find_account(WandbSettings(attach=found.attached_path), environ)
    assert again == found


@pytest.mark.parametrize("attach", ["a/b/c/d", "/run-7", "grpo/", "what?", "https://wandb.ai/x/y"])
def test_a_run_to_join_that_is_no_path_is_refused(tmp_path: Path, attach: str) -> None:
    with pytest.raises(ConfigError, match=r"must be .*RUN_ID"):
        account(tmp_path, WandbSettings(attach=attach), WANDB_API_KEY=KEY)


def test_the_variables_of_the_owner_name_the_run_to_join(tmp_path: Path) -> None:
    variables = {"WANDB_MODE": "shared", "WANDB_RUN_ID": "run-7", "WANDB_PROJECT": "grpo"}
    environ = {"HOME": str(tmp_path), "WANDB_API_KEY": KEY, **variables}
    found = find_account(WandbSettings(), environ)
    assert found.attached_run == "run-7"
    assert find_account(WandbSettings(), writer_environment(environ)) == found


def test_a_run_id_of_a_mode_that_is_not_shared_is_not_ours(tmp_path: Path) -> None:
    environ = {"HOME": str(tmp_path), "WANDB_API_KEY": KEY, "WANDB_RUN_ID": "run-7"}
    found = find_account(WandbSettings(), environ)
    assert found.attached_run == ""
    assert "WANDB_RUN_ID" not in writer_environment(environ)


def test_shared_mode_without_a_run_says_how_to_name_one(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no run to join") as caught:
        account(tmp_path, WANDB_MODE="shared", WANDB_API_KEY=KEY)
    assert "WANDB_RUN_ID" in caught.value.hint


@pytest.mark.parametrize(
    ("settings", "environ"),
    [
        (WandbSettings(attach="run-7"), {"WANDB_MODE": "offline"}),
        (WandbSettings(attach="run-7", mode="offline"), {}),
    ],
)
def test_a_run_cannot_be_joined_offline(
    tmp_path: Path, settings: WandbSettings, environ: Mapping[str, str]
) -> None:
    with pytest.raises(ConfigError, match="only be joined online"):
        account(tmp_path, settings, WANDB_API_KEY=KEY, **environ)


def test_joining_a_run_needs_a_key(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no API key"):
        account(tmp_path, WandbSettings(attach="run-7"))


def test_a_run_to_join_may_be_named_after_the_experiment_and_the_trial(tmp_path: Path) -> None:
    environ = {"HOME": str(tmp_path), "WANDB_API_KEY": KEY}
    settings = WandbSettings(attach="team/{experiment}/run-{trial}")
    found = find_account(settings, environ, ExperimentKey("grpo", "7"))
    assert found.attached_path == "team/grpo/run-7"
    assert find_account(settings, environ).attached_path == settings.attach


def test_a_name_that_looks_like_a_pattern_is_a_name(tmp_path: Path) -> None:
    environ = {"HOME": str(tmp_path), "WANDB_API_KEY": KEY}
    settings = WandbSettings(attach="team/{experiment}/run-{trial}")
    found = find_account(settings, environ, ExperimentKey("{trial}", "7"))
    assert found.attached_path == "team/{trial}/run-7"


@pytest.mark.parametrize("trial", ["a/b", "", "a:b"])
def test_a_name_that_makes_no_run_id_is_refused(tmp_path: Path, trial: str) -> None:
    environ = {"HOME": str(tmp_path), "WANDB_API_KEY": KEY}
    with pytest.raises(ConfigError, match="RUN_ID"):
        find_account(WandbSettings(attach="{trial}"), environ, ExperimentKey("grpo", trial))


OWN = WandbSettings(attach=OWN_RUN)
RUN = ExperimentKey("grpo", "7")


@pytest.mark.parametrize("mode", ["", "online", "shared"])
def test_a_run_that_the_program_makes_is_joined_by_the_path_that_it_reports(
    tmp_path: Path, mode: str
) -> None:
    environ = {"HOME": str(tmp_path), "WANDB_API_KEY": KEY, "WANDB_MODE": mode}
    environ |= {"WANDB_PROJECT": "of-the-bridge", "WANDB_RUN_ID": "of-somebody"}
    assert find_account(OWN, environ).attached_path.endswith(OWN_RUN), "not known yet"
    found = find_account(OWN, environ, RUN, "team/{trial}/ab12")
    assert found.attached_path == "team/{trial}/ab12", "no pattern"
    assert found.online


def test_a_run_that_the_program_cannot_share_leaves_one_of_the_bridges_own(tmp_path: Path) -> None:
    environ = {"HOME": str(tmp_path), "WANDB_API_KEY": KEY, "WANDB_PROJECT": "grpo"}
    found = find_account(OWN, environ, RUN, "")
    assert (found.online, found.attached_run, found.project) == (True, "", "grpo")


@pytest.mark.parametrize("variables", [{}, {"WANDB_API_KEY": KEY, "WANDB_MODE": "offline"}])
def test_offline_there_is_no_run_of_the_program_to_join(
    tmp_path: Path, variables: Mapping[str, str]
) -> None:
    found = find_account(OWN, {"HOME": str(tmp_path), **variables}, RUN, "team/grpo/ab12")
    assert (found.online, found.attached_run) == (False, "")


def test_a_path_that_a_program_reports_must_be_one(tmp_path: Path) -> None:
    environ = {"HOME": str(tmp_path), "WANDB_API_KEY": KEY}
    with pytest.raises(ConfigError, match=r"wandb.init: must be .*RUN_ID"):
        find_account(OWN, environ, RUN, "a/b/c/d")


def test_an_unknown_name_in_the_run_to_join_is_refused_at_start(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="RUN_ID"):
        account(tmp_path, WandbSettings(attach="grpo/{step}"), WANDB_API_KEY=KEY)
