"""The pages of docs/how-to about launchers, each as it stands there, with stand-ins for them.

A stand-in starts processes with the variables that the real one gives them.
"""

import os
import re
import shutil
import subprocess
import sys
import textwrap
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest
import yaml

from otel_rl.worker.identity import identify
from tests.process.commands import OPEN_FOR_LONG, clean_environment, jsonl_rows
from tests.support.docs_examples import blocks
from tests.support.ports import free_ports

pytestmark = pytest.mark.process

ROOT = Path(__file__).parents[2]
TIMEOUT_S = 200

TRAIN = """
    import os
    import pathlib
    import time

    import otel_rl


    def barrier(name):
        pathlib.Path(f"{name}-{os.getpid()}").touch()
        while len(list(pathlib.Path().glob(f"{name}-*"))) < int(os.environ["PROCESSES"]):
            time.sleep(0.02)


    otel_rl.init()
    barrier("begin")
    otel_rl.log({"x": 1.0}, step=1)
    assert otel_rl.finish(timeout_s=60)
    barrier("end")
"""

SRUN = """#!/bin/sh
for rank in 0 1 2; do SLURM_PROCID=$rank SLURM_STEP_NUM_TASKS=3 "$@" & done
wait
"""

# Two processes on a node, however many GPUs the recipe speaks of.
TORCHRUN = f"""#!{sys.executable}
import argparse, os, subprocess, sys

parser = argparse.ArgumentParser()
parser.add_argument("--standalone", action="store_true")
parser.add_argument("--nnodes", type=int, default=1)
parser.add_argument("--node-rank", type=int, default=0)
parser.add_argument("--nproc-per-node", type=int, required=True)
parser.add_argument("--master-addr")
parser.add_argument("--role", default="default")
parser.add_argument("script")
a = parser.parse_args()
started = []
for i in range(2):
    rank, size = str(2 * a.node_rank + i), str(2 * a.nnodes)
    place = dict(RANK=rank, WORLD_SIZE=size, ROLE_RANK=rank, ROLE_WORLD_SIZE=size, ROLE_NAME=a.role)
    started.append(subprocess.Popen([sys.executable, a.script], env=os.environ | place))
sys.exit(max(process.wait() for process in started))
"""


def recipe(page: str, language: str = "sh") -> list[str]:
    """The code blocks of a page."""
    return blocks(ROOT / "docs" / "how-to" / f"{page}.md", language)


class Site:
    """A directory with a training script, and the launchers on the PATH."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        (self._port,) = free_ports(1)  # in place of 4318, which may be taken
        bin_ = directory / "bin"
        bin_.mkdir()
        for name, text in {
            "srun": SRUN,
            "torchrun": TORCHRUN,
            "hostname": "#!/bin/sh\necho 127.0.0.1\n",
            "otel-rl": f'#!/bin/sh\nexec {sys.executable} -m otel_rl "$@"\n',
            "python": f'#!/bin/sh\nexec {sys.executable} "$@"\n',
        }.items():
            (bin_ / name).write_text(text)
            (bin_ / name).chmod(0o755)
        (directory / "train.py").write_text(textwrap.dedent(TRAIN))
        self._environment = clean_environment(
            directory,
            PATH=f"{bin_}{os.pathsep}{os.environ['PATH']}",
            PYTHONPATH=str(ROOT),
            OTEL_RL_BRIDGE__TRACKER__NAME="jsonl",
            OTEL_RL_BRIDGE__TRACKER__DIRECTORY=str(directory),
            OTEL_RL_BRIDGE__ROWS__PER_WORKER="true",
            **OPEN_FOR_LONG,
        )

    def run(self, *scripts: tuple[str, Mapping[str, str]]) -> None:
        """Run scripts side by side, as the machines of a job do, until all have ended well."""
        shell = shutil.which("bash")
        assert shell
        running = [
            subprocess.Popen(
                [shell, "-euc", script.replace("4318", str(self._port))],
                cwd=self._directory,
                env={**self._environment, **variables},
                stderr=subprocess.PIPE,
                text=True,
            )
            for script, variables in scripts
        ]
        said = [process.communicate(timeout=TIMEOUT_S)[1] for process in running]
        assert [process.returncode for process in running] == [0] * len(running), said

    def workers(self, experiment: str, trial: str) -> Sequence[str]:
        """The workers that have reported x at step 1."""
        rows = jsonl_rows(self._directory, experiment, trial)
        keys = {key for row in rows if row.step == 1 for key in row.values}
        return sorted(key for key in keys if re.fullmatch(r"workers/\w+/\d+/x", key))


@pytest.fixture
def site(tmp_path: Path) -> Site:
    return Site(tmp_path)


def trainers(n: int) -> list[str]:
    return [f"workers/trainer/{i}/x" for i in range(n)]


def test_torchrun_on_one_machine(site: Site) -> None:
    _, one, *_ = recipe("several-hosts")
    site.run((one, {"PROCESSES": "2"}))
    assert site.workers("grpo-7b", "1") == trainers(2)


@pytest.mark.slow
def test_torchrun_on_several_machines(site: Site) -> None:
    _, _, first, other, _ = recipe("several-hosts")
    variables = {"PROCESSES": "4", "HEAD": "127.0.0.1"}
    site.run((first, variables), (other, variables))
    assert site.workers("grpo-7b", "1") == trainers(4)


@pytest.mark.slow
def test_slurm(site: Site) -> None:
    (script,) = recipe("slurm")
    job = {"SLURM_JOB_NAME": "grpo-7b", "SLURM_JOB_ID": "4711"}
    site.run((script, {**job, "PROCESSES": "3"}))
    assert site.workers("grpo-7b", "4711") == trainers(3)


@pytest.mark.slow
def test_skypilot(site: Site) -> None:
    (text,) = recipe("skypilot", "yaml")
    task = yaml.safe_load(text)
    variables = {
        "PROCESSES": "4",
        "SKYPILOT_NODE_IPS": "127.0.0.1\n127.0.0.1",
        "SKYPILOT_NUM_NODES": str(task["num_nodes"]),
        "SKYPILOT_NUM_GPUS_PER_NODE": "8",
        "SKYPILOT_TASK_ID": "sky-managed-2026-11-21-15-00-00-000000_grpo-7b_1-0",
    }
    site.run(*((task["run"], variables | {"SKYPILOT_NODE_RANK": rank}) for rank in "01"))
    assert site.workers("grpo-7b", variables["SKYPILOT_TASK_ID"]) == trainers(4)


def test_ray_gives_its_processes_an_experiment_and_an_endpoint() -> None:
    (command,) = recipe("ray")
    found = re.search(r"--runtime-env-json '(.*?)'", command, re.DOTALL)
    assert found
    variables = yaml.safe_load(found[1])["env_vars"]
    who = identify(variables, launch=lambda: "", role="trainer")
    assert (who.experiment, who.trial) == ("grpo-7b", "1")
    assert variables["OTEL_EXPORTER_OTLP_ENDPOINT"]


def test_a_pod_of_kubernetes_knows_its_experiment_and_the_agent_of_its_node() -> None:
    (text,) = recipe("kubernetes", "yaml")
    variables = {entry["name"]: entry.get("value", "") for entry in yaml.safe_load(text)["env"]}
    who = identify(variables, launch=lambda: "", role="trainer")
    assert (who.experiment, who.trial) == ("grpo-7b", "1")
    agent = (ROOT / "deploy" / "helm" / "otel-rl" / "templates" / "agent.yaml").read_text()
    address = variables["OTEL_EXPORTER_OTLP_ENDPOINT"].removeprefix("http://")
    assert f'OTEL_RL_AGENT_HTTP, value: "{address}"' in agent
