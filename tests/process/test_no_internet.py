"""A W&B key, but no way to W&B: the job may end at once, and one command writes the rest later."""

import json
import shlex
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from otel_rl.run_id import run_id
from tests.process.commands import (
    OTEL_RL,
    TIMEOUT_S,
    Finished,
    clean_environment,
    otel_rl,
    otel_rl_here,
)
from tests.support.wandb_server import API_KEY, WandbServer

pytestmark = pytest.mark.process

PROGRAM = """
import sys
import otel_rl

otel_rl.init(role="trainer")
for step in range(5):
    otel_rl.log({"loss": 1.0}, step=step)
sys.exit(3)
"""
RUN = run_id("e", "default")


@dataclass(frozen=True)
class Cut:
    """A job whose end was cut off by Ctrl-C, and what wrote its rest.

    Attributes:
        status: Of the job.
        said: By it.
        after: Its status file then.
        rest: The command that it named, without any variable but the key.
        directory: Of both.
        server: That answers again.
    """

    status: int
    said: str
    after: dict[str, object]
    rest: Finished
    directory: Path
    server: WandbServer


@pytest.fixture(scope="module")
def cut(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cut]:
    directory = tmp_path_factory.mktemp("cut")
    (directory / "train.py").write_text(PROGRAM)
    with WandbServer() as server:
        server.fail(0)  # as a firewall that drops everything
        with subprocess.Popen(
            [*OTEL_RL, "run", "--experiment", "e", "--", sys.executable, "train.py"],
            cwd=directory,
            env=clean_environment(directory, **server.environment(), WANDB_PROJECT="far"),
            stderr=subprocess.PIPE,
            text=True,
        ) as process:
            assert process.stderr is not None
            said = ""
            for line in process.stderr:
                said += line
                if "taken nothing" in line:
                    process.send_signal(signal.SIGINT)
                    break
            said += process.stderr.read()
            status = process.wait(TIMEOUT_S)
        after = status_file(directory)
        server.heal()
        _, _, command = said.rpartition("write the rest with: ")
        rest = otel_rl(
            *shlex.split(command.splitlines()[0])[1:],
            cwd=directory,
            env=clean_environment(directory, WANDB_API_KEY=API_KEY),
        )
        yield Cut(status, said, after, rest, directory, server)


def status_file(directory: Path) -> dict[str, object]:
    content: dict[str, object] = json.loads(
        (directory / ".otel_rl" / RUN / "status.json").read_text()
    )
    return content


def test_the_job_says_why_it_waits_and_how_not_to(cut: Cut) -> None:
    (line,) = (line for line in cut.said.splitlines() if "taken nothing" in line)
    assert "WANDB_MODE=offline" in line
    assert "Ctrl-C ends the wait" in line
    assert f"stay in .otel_rl/{RUN}" in line
    assert f"`otel-rl finish .otel_rl/{RUN}`" in line


def test_ctrl_c_ends_the_wait_with_the_status_of_the_command(cut: Cut) -> None:
    assert cut.status == 3
    assert "Traceback" not in cut.said
    assert cut.after["exit_status"] == 3
    left = cut.after["left"]
    assert isinstance(left, dict)
    assert left["rows"] >= 5
    assert left["command"] == f"otel-rl finish .otel_rl/{RUN}"


def test_one_command_without_any_setting_writes_the_rest_and_ends(cut: Cut) -> None:
    assert cut.rest.status == 0, cut.rest.err
    steps = [row["step"] for row in cut.server.history(RUN) if "trainer/loss" in row]
    assert steps == [*range(5)]
    run = cut.server.run(RUN)
    assert (run.project, run.exit_code) == ("far", 3)
    left = status_file(cut.directory)["left"]
    assert left == {"requests": 0, "rows": 0, "command": ""}


def test_what_is_kept_for_it_holds_no_secret_and_is_for_the_owner_alone(cut: Cut) -> None:
    for name in ("settings.json", "status.json"):
        path = cut.directory / ".otel_rl" / RUN / name
        assert API_KEY not in path.read_text()
        assert path.stat().st_mode & 0o077 == 0


def test_there_is_nothing_to_do_a_second_time(cut: Cut) -> None:
    again = otel_rl_here("finish", cwd=cut.directory)
    assert (again.status, again.err) == (0, "otel-rl: nothing is left to write in .otel_rl\n")


@pytest.mark.slow
def test_the_rest_says_what_is_left_while_the_way_is_closed(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(PROGRAM)
    away = {"WANDB_API_KEY": API_KEY, "WANDB_BASE_URL": "http://127.0.0.1:9"}
    short = {"OTEL_RL_BRIDGE__STOP_TIMEOUT": "2"}
    environment = clean_environment(tmp_path, **away, **short)
    command = ("run", "--experiment", "e", "--", sys.executable, "train.py")
    assert otel_rl(*command, cwd=tmp_path, env=environment).status == 3
    done = otel_rl("finish", cwd=tmp_path, env=clean_environment(tmp_path, **short, **away))
    assert done.status == 1
    assert "http://127.0.0.1:9: cannot be reached" in done.err
    assert f"write the rest with: otel-rl finish .otel_rl/{RUN}" in done.err


def test_a_place_without_a_journal_is_an_error(tmp_path: Path) -> None:
    done = otel_rl_here("finish", "nothing", cwd=tmp_path)
    assert done.status == 2
    assert "There is no journal in 'nothing' or below" in done.err
