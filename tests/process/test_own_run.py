"""What a process tells of the W&B run that it makes: ``integrations.own_run``."""

import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.process.commands import clean_environment
from tests.support.otlp_sink import Sink, serve
from tests.support.wandb_server import WandbServer

pytestmark = pytest.mark.process

PATH = "rl.tracker.wandb.run_path"


@pytest.fixture(scope="module")
def server() -> Iterator[WandbServer]:
    with WandbServer() as server:
        yield server


def told(home: Path, server: WandbServer, code: str, **extra: str) -> list[tuple[str, str, str]]:
    """Experiment, trial and path of every word about a run of the program's own."""
    script = (
        "import otel_rl, wandb\nfrom otel_rl.integrations import own_run\n"
        "own_run.share()\n" + textwrap.dedent(code)
    )
    with serve(Sink()) as sink:
        variables = {**server.environment(), "WANDB_ERROR_REPORTING": "false"}
        del variables["WANDB_MODE"]
        variables |= {"OTEL_EXPORTER_OTLP_ENDPOINT": sink.url, "OTEL_RL_EXPERIMENT": "grpo"}
        environment = clean_environment(home, **variables | extra)
        subprocess.run(
            [sys.executable, "-c", script], cwd=home, env=environment, check=True, timeout=100
        )
        return [
            (
                str(event.resource["rl.experiment.name"]),
                str(event.resource["rl.trial.name"]),
                str(event.attributes[PATH]),
            )
            for event in sink.events("rl.experiment.start")
            if PATH in event.attributes
        ]


@pytest.mark.slow
def test_the_path_is_told_again_once_init_names_another_run(
    tmp_path: Path, server: WandbServer
) -> None:
    found = told(
        tmp_path,
        server,
        """
        wandb.init(project="theirs", id="named-later")
        otel_rl.flush()
        otel_rl.init(experiment="other", trial="t", role="trainer")
        """,
    )
    path = "test-entity/theirs/named-later"
    assert set(found) == {("grpo", "default", path), ("other", "t", path)}


@pytest.mark.parametrize(
    ("code", "extra"),
    [
        ("wandb.init(project='p', mode='disabled')", {}),
        ("wandb.init(project='p', settings={'mode': 'disabled'})", {}),
        ("wandb.init(project='p', settings=wandb.Settings(mode='offline'))", {}),
        ("wandb.init(project='p')", {"WANDB_MODE": "offline"}),
        ("wandb.init(project='p', mode='online')", {"OTEL_SDK_DISABLED": "true"}),
    ],
)
@pytest.mark.slow
def test_nothing_is_told_of_a_run_that_is_not_shared(
    tmp_path: Path, server: WandbServer, code: str, extra: dict[str, str]
) -> None:
    assert told(tmp_path, server, f"assert {code}.settings.mode != 'shared'", **extra) == []


@pytest.mark.slow
def test_a_directory_that_was_set_offline_stays_offline(
    tmp_path: Path, server: WandbServer
) -> None:
    (tmp_path / "wandb").mkdir()
    (tmp_path / "wandb" / "settings").write_text("[default]\nmode = offline\n")
    assert told(tmp_path, server, "assert wandb.init(project='p').offline") == []


@pytest.mark.slow
def test_an_axis_of_the_code_for_all_its_metrics_stays(tmp_path: Path, server: WandbServer) -> None:
    code = """
    run = wandb.init(project="theirs", id="own-axis")
    run.define_metric("*", step_metric="mine")
    run.log({"loss": 1.0, "mine": 2}, step=7)
    run.finish()
    """
    assert told(tmp_path, server, code)
    (row,) = server.history("own-axis")
    assert (row["mine"], row["otel_rl/step"]) == (2, 7)
    config = server.run("own-axis").config["_wandb"]
    assert "otel_rl/step" not in {one.get("1") for one in config["value"]["m"]}  # type: ignore[index]


@pytest.mark.slow
def test_a_trial_within_which_a_loop_makes_runs_ends_as_ever(
    tmp_path: Path, server: WandbServer
) -> None:
    found = told(
        tmp_path,
        server,
        """
        from otel_rl.integrations.adapter import trial

        with trial("lr_0"):
            for run in "ab":
                wandb.init(project="theirs", id=f"first-{run}").finish()
        with trial("lr_1"):
            wandb.init(project="theirs", id="second").finish()
        """,
    )
    theirs = "test-entity/theirs"
    assert found == [
        ("grpo", "default-lr_0", f"{theirs}/first-a"),
        ("grpo", "default-lr_0-first-b", f"{theirs}/first-b"),
        ("grpo", "default-lr_1", f"{theirs}/second"),
    ]
