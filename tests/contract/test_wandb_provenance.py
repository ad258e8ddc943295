"""The command, code and machine of a run are where W&B shows them."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from otel_rl.bridge.delivery.tracker import RunInfo
from otel_rl.bridge.delivery.writer import WriterProcess
from otel_rl.records import Description, ExperimentKey, Provenance, Row
from otel_rl.run_id import run_id
from tests.support.wandb_offline import run_directories
from tests.support.wandb_server import WandbServer

pytestmark = [pytest.mark.process, pytest.mark.usefixtures("no_login")]

STARTED = Provenance(
    role="trainer",
    index=0,
    host="node7",
    command=("train.py", "--lr", "1e-6"),
    executable="/usr/bin/python3",
    runtime="3.12.1",
    system="Linux-6.1",
    commit="0f4c0de",
    repository="https://example.org/grpo.git",
    diff="diff --git a/train.py b/train.py\n",
    packages=("numpy==2.1.0", "torch==2.9.1"),
    time_ns=1_790_000_000_000_000_000,
)
KEY = ExperimentKey("grpo")
HOSTS = {"node7": ["generator", "trainer"], "node8": ["generator"]}


def written(directory: Path, *later: Description) -> str:
    """Write a run whose description changes, and return its id."""
    described = Description(provenance=STARTED, hosts=HOSTS)
    run = RunInfo(KEY, run_id(KEY.experiment, KEY.trial), directory, (), description=described)
    with WriterProcess("wandb") as writer:
        writer.open(run)
        writer.write(
            [
                Row(
                    0,
                    time_ns=STARTED.time_ns,
                    step=0,
                    policy_version=None,
                    values={"trainer/loss": 1.0},
                )
            ]
        )
        for description in later:
            writer.describe(description)
        writer.close(exit_code=0)
    return run.run_id


def test_the_server_has_the_files_that_the_program_itself_would_have_sent(
    server: WandbServer, tmp_path: Path
) -> None:
    resumed = Description(provenance=replace(STARTED, commit="1f4c0de"), hosts=HOSTS)
    run = written(tmp_path, resumed)
    files = server.uploads(run)
    assert json.loads(files["wandb-metadata.json"]) == {
        "os": "Linux-6.1",
        "python": "3.12.1",
        "startedAt": "2026-09-21T14:13:20+00:00",
        "args": ["--lr", "1e-6"],
        "program": "train.py",
        "codePath": "train.py",
        "git": {"remote": "https://example.org/grpo.git", "commit": "1f4c0de"},
        "host": "node7",
        "executable": "/usr/bin/python3",
    }
    assert files["diff.patch"].decode() == STARTED.diff
    assert files["requirements.txt"].decode().split() == [*STARTED.packages]
    config = server.run(run).config["hosts"]
    assert isinstance(config, dict)
    assert config["value"] == HOSTS


@pytest.mark.slow
def test_an_offline_run_has_them_beside_it(tmp_path: Path) -> None:
    by_module = replace(STARTED, command=("-m", "train", "--lr", "1e-6"))
    run = written(tmp_path, Description(provenance=by_module, hosts=HOSTS))
    (directory,) = run_directories(tmp_path, run)
    metadata = json.loads((directory / "files/wandb-metadata.json").read_text())
    assert metadata["git"]["commit"] == "0f4c0de"
    assert (metadata["program"], metadata["args"]) == ("-m train", ["--lr", "1e-6"])
    assert (directory / "files/diff.patch").read_text() == STARTED.diff
