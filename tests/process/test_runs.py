"""Which run a program reports to: as a user starts it, against a bridge that writes JSON lines."""

import json
import re
import signal
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from otel_rl.run_id import run_id
from tests.process.commands import (
    OTEL_RL,
    TIMEOUT_S,
    clean_environment,
    http_address,
    reported_rows,
)
from tests.support.slow import slow_after

pytestmark = pytest.mark.process

_RUN = re.compile(r"run (\S+)/(\S+): \d+ rows? in jsonl")
"""What the bridge says at its end of each run with rows."""


@dataclass
class Service:
    """A bridge for everybody, and the programs that report to it.

    Attributes:
        directory: Of the bridge and the programs.
        url: Of the bridge.
        runs: (experiment, trial) of each run, once the bridge has ended.
    """

    directory: Path
    url: str
    runs: frozenset[tuple[str, str]] = frozenset()

    def start(self, program: str, *arguments: str, **environment: str) -> "subprocess.Popen[str]":
        """Start a program that names its run nowhere but in its code and these variables."""
        path = self.directory / "train.py"
        text = textwrap.dedent(program)
        # To write it again would truncate it while a process started before reads it.
        if not path.exists() or path.read_text() != text:
            path.write_text(text)
        environ = clean_environment(self.directory, OTEL_EXPORTER_OTLP_ENDPOINT=self.url)
        del environ["OTEL_RL_TRIAL"]
        return subprocess.Popen(
            [sys.executable, str(path), *arguments],
            env=environ | environment,
            stderr=subprocess.PIPE,
            text=True,
        )

    def run(self, program: str, *arguments: str, **environment: str) -> str:
        """Run a program to its end and return what it says."""
        return ended(self.start(program, *arguments, **environment))

    def values(self, experiment: str, trial: str, key: str) -> list[tuple[int, float]]:
        """(step, value) of one key of a run."""
        return [
            (row.step, row.values[key])
            for row in reported_rows(self.directory, experiment, trial)
            if key in row.values
        ]


def ended(process: "subprocess.Popen[str]") -> str:
    _, said = process.communicate(timeout=TIMEOUT_S)
    assert process.returncode == 0, said
    return said


@contextmanager
def service(directory: Path) -> Iterator[Service]:
    """A bridge that ends with the block; then its runs are known."""
    process = subprocess.Popen(
        [
            *OTEL_RL, "bridge", "--http", "127.0.0.1:0", "--grpc", "127.0.0.1:0",
            "--data", str(directory / "data"), "--tracker", "jsonl",
        ],
        cwd=directory,
        env=clean_environment(directory),
        stderr=subprocess.PIPE,
        text=True,
    )  # fmt: skip
    assert process.stderr is not None
    try:
        found = Service(directory, f"http://{http_address(process)}")
        yield found
        process.send_signal(signal.SIGTERM)
        _, said = process.communicate(timeout=TIMEOUT_S)
        found.runs = frozenset((run[1], run[2]) for run in _RUN.finditer(said))
    finally:
        if process.poll() is None:
            process.kill()
            process.communicate()


def trials(found: Service, experiment: str) -> set[str]:
    return {trial for of, trial in found.runs if of == experiment}


SEEDS = """
    import otel_rl.integrations.wandb as wandb
    for seed in range(3):
        wandb.init(project="bandit", name=f"seed-{seed}", config={"seed": seed}, reinit=True)
        for step in range(3):
            wandb.log({"loss": seed + step / 10})
        wandb.finish()
"""


def test_three_seeds_in_a_loop_are_three_runs_with_their_own_values(tmp_path: Path) -> None:
    with service(tmp_path) as found:
        found.run(SEEDS)
    assert found.runs == {("bandit", f"seed-{seed}") for seed in range(3)}
    for seed in range(3):
        expected = [(step, seed + step / 10) for step in range(3)]
        assert found.values("bandit", f"seed-{seed}", "trainer/loss") == expected
        (about,) = tmp_path.rglob(f"{run_id('bandit', f'seed-{seed}')}.run.json")
        assert json.loads(about.read_text())["config"] == {"seed": seed}


@pytest.mark.slow
def test_three_seeds_below_otel_rl_run_are_three_runs_too(tmp_path: Path) -> None:
    invented = "rl.experiment.name=train,rl.trial.name=launch-1"
    with service(tmp_path) as found:
        found.run(
            SEEDS,
            OTEL_RL_DEFAULT_EXPERIMENT="train",
            OTEL_RL_LAUNCH="launch-1",
            OTEL_RESOURCE_ATTRIBUTES=f"{invented},rl.run.id={run_id('train', 'launch-1')}",
        )
    assert found.runs == {("bandit", f"seed-{seed}") for seed in range(3)}


def test_three_processes_with_one_name_are_one_run(tmp_path: Path) -> None:
    program = """
        import sys
        import otel_rl.integrations.wandb as wandb
        wandb.init(project="grpo", name="experiment-123", job_type=sys.argv[1])
        wandb.log({"value": 1.0}, step=1)
        wandb.finish()
    """
    roles = ("trainer", "generator", "reward")
    with service(tmp_path) as found:
        for process in [found.start(program, role) for role in roles]:
            ended(process)
    assert found.runs == {("grpo", "experiment-123")}
    for role in roles:
        assert found.values("grpo", "experiment-123", f"{role}/value") == [(1, 1.0)]


@pytest.mark.slow
def test_two_inits_without_a_name_are_two_runs_of_the_launch(tmp_path: Path) -> None:
    program = """
        import otel_rl.integrations.wandb as wandb
        for value in (1.0, 2.0):
            with wandb.init(project="bandit") as run:
                run.log({"value": value})
    """
    with service(tmp_path) as found:
        # The ranks of one launch, of which each has the k-th run in common.
        for process in [found.start(program, OTEL_RL_LAUNCH="launch", RANK=rank) for rank in "01"]:
            ended(process)
        found.run(program)
    ours = trials(found, "bandit")
    (own, second) = sorted(ours - {"launch", "launch-2"}, key=len)
    assert {"launch", "launch-2"} < ours
    assert second == f"{own}-2"
    assert found.values("bandit", own, "trainer/value") == [(0, 1.0)]
    assert found.values("bandit", second, "trainer/value") == [(0, 2.0)]


PLAIN = """
    import otel_rl
    otel_rl.init(experiment="e")
    otel_rl.log({"loss": 1.0}, step=1)
"""


@pytest.mark.slow
def test_the_id_that_a_run_tells_resumes_it(tmp_path: Path) -> None:
    program = """
        import otel_rl.integrations.wandb as wandb

        run = wandb.init(project="p")
        run.log({"loss": 1.0}, step=0)
        wandb.finish()
        wandb.init(project="p", id=run.id, resume="allow")
        wandb.log({"loss": 2.0}, step=1)
        wandb.finish()
    """
    with service(tmp_path) as bridge:
        bridge.run(program)
    ((experiment, trial),) = bridge.runs
    assert experiment == "p"
    assert bridge.values("p", trial, "trainer/loss") == [(0, 1.0), (1, 2.0)]


@pytest.mark.slow
def test_a_program_that_names_no_trial_makes_a_run_each_time(tmp_path: Path) -> None:
    with service(tmp_path) as found:
        for _ in range(3):
            found.run(PLAIN)
    assert len(trials(found, "e")) == 3


@pytest.mark.slow
def test_a_requeued_job_goes_on_with_its_run(tmp_path: Path) -> None:
    job = {"SLURM_JOB_ID": "4711", "SLURM_STEP_ID": "0"}
    with service(tmp_path) as found:
        for restart in ("", "1"):
            found.run(PLAIN, **job, SLURM_RESTART_COUNT=restart)
        found.run(PLAIN, SLURM_JOB_ID="4712", SLURM_STEP_ID="0")
    assert trials(found, "e") == {"slurm-4711.0", "slurm-4712.0"}


AGENT = """
    import os, subprocess, sys
    if "RANK" not in os.environ:  # the agent of torchrun
        ranks = [
            subprocess.Popen(
                [sys.executable, __file__],
                env={**os.environ, "RANK": rank, "WORLD_SIZE": sys.argv[1], "LOCAL_WORLD_SIZE": "2",
                     "TORCHELASTIC_RUN_ID": "none"},
            )
            for rank in "01"
        ]
        sys.exit(max(rank.wait() for rank in ranks))
    import otel_rl
    otel_rl.init(experiment="e")
    otel_rl.log({"rank": float(os.environ["RANK"])}, step=1, reduce="sum")
"""


def test_ranks_of_torchrun_without_an_id_share_a_run(tmp_path: Path) -> None:
    with service(tmp_path) as found:
        said = [found.run(AGENT, "2") for _ in range(2)]
    assert said == ["", ""]
    assert len(trials(found, "e")) == 2
    for trial in trials(found, "e"):
        assert found.values("e", trial, "trainer/rank")[-1] == (1, 1.0)


@pytest.mark.slow
def test_ranks_on_several_hosts_without_an_id_are_told_to_name_a_trial(tmp_path: Path) -> None:
    with service(tmp_path) as found:
        said = found.run(AGENT, "4")
        named = found.run(AGENT, "4", OTEL_RL_TRIAL="mine")
    assert said.count("set OTEL_RL_TRIAL") == 2  # by each rank here
    assert named == ""
    assert "mine" in trials(found, "e")


CHILDREN = """
    import multiprocessing, os, subprocess, sys
    import otel_rl

    def log(value):
        otel_rl.log({"value": value}, step=1)

    def child(value):
        otel_rl.init()
        log(value)

    if __name__ == "__main__":
        if sys.argv[1:] == ["child"]:
            child(1.0)
            sys.exit()
        otel_rl.init(experiment="e", **eval(sys.argv[1]))
        log(0.0)
        for how in ("fork", "spawn"):
            process = multiprocessing.get_context(how).Process(target=child, args=(1.0,))
            process.start()
            process.join()
            assert process.exitcode == 0
        fork = multiprocessing.get_context("fork")
        for name in ("generator-1", None):
            process = fork.Process(target=log, args=(1.0,), name=name)
            process.start()
            process.join()
        subprocess.run([sys.executable, __file__, "child"], check=True)
        otel_rl.finish()
"""


@pytest.mark.parametrize("named", slow_after(1, ["{}", "{'trial': 'seed-1'}"]))
def test_children_share_the_run_of_their_parent(tmp_path: Path, named: str) -> None:
    with service(tmp_path) as found:
        found.run(CHILDREN, named)
    ((_, trial),) = found.runs
    assert (trial == "seed-1") == (named != "{}")
    # The parent and the program that it starts, its children without a name, and the one with.
    for role, expected in (("trainer", 0.5), ("worker", 1.0), ("generator", 1.0)):
        assert found.values("e", trial, f"{role}/value")[-1] == (1, expected)


@pytest.mark.slow
def test_children_of_a_parent_that_reports_nothing_share_a_run(tmp_path: Path) -> None:
    program = """
        import multiprocessing
        import otel_rl

        def child(value):
            otel_rl.init(experiment="e")
            otel_rl.log({"value": value}, step=1)

        if __name__ == "__main__":
            spawn = multiprocessing.get_context("spawn")
            for number in range(2):
                process = spawn.Process(target=child, args=(number,), name=f"generator-{number}")
                process.start()
                process.join()
                assert process.exitcode == 0
    """
    with service(tmp_path) as found:
        found.run(program)
    assert len(found.runs) == 1


PRECEDENCE: list[tuple[dict[str, str], str, str]] = [
    ({}, "code", "code"),
    ({"OTEL_RL_EXPERIMENT": "variable", "OTEL_RL_TRIAL": "variable"}, "code", "code"),
    (
        {
            "OTEL_RL_EXPERIMENT": "typed",
            "OTEL_RL_TRIAL": "typed",
            "OTEL_RL_TYPED": "experiment,trial",
        },
        "typed",
        "typed",
    ),
    ({"OTEL_RL_EXPERIMENT": "typed", "OTEL_RL_TYPED": "experiment"}, "typed", "code"),
    ({"WANDB_PROJECT": "variable", "WANDB_NAME": "variable"}, "code", "code"),
    ({"OTEL_RL_DEFAULT_EXPERIMENT": "invented", "OTEL_RL_LAUNCH": "l"}, "code", "code"),
]
"""Environment, and the sources of the experiment and the trial of a program that names both."""


@pytest.mark.slow
def test_init_and_the_drop_in_have_one_precedence(tmp_path: Path) -> None:
    programs = {
        "init": """
            import sys
            import otel_rl
            otel_rl.init(experiment=sys.argv[1], trial=sys.argv[1])
            otel_rl.log({"loss": 1.0}, step=1)
        """,
        "drop-in": """
            import sys
            import otel_rl.integrations.wandb as wandb
            wandb.init(project=sys.argv[1], name=sys.argv[1])
            wandb.log({"loss": 1.0})
        """,
    }
    expected = set()
    with service(tmp_path) as found:
        for api, program in programs.items():
            for number, (environment, *sources) in enumerate(PRECEDENCE):
                own = f"-{api}-{number}"
                variables = {
                    name: value if name == "OTEL_RL_TYPED" else value + own
                    for name, value in environment.items()
                }
                found.run(program, f"code{own}", **variables)
                expected.add(tuple(source + own for source in sources))
    assert found.runs == expected


def test_a_disabled_drop_in_records_nothing(tmp_path: Path) -> None:
    with service(tmp_path) as found:
        assert found.run(SEEDS, WANDB_MODE="disabled") == ""
    assert found.runs == frozenset()
