"""One launch has one id in all of its processes; another one, or a trial of a sweep, another."""

import os
from collections.abc import Mapping
from itertools import combinations
from pathlib import Path
from time import localtime, strftime

import psutil
import pytest

from otel_rl.errors import ConfigError
from otel_rl.run_id import run_id
from otel_rl.worker.identity import WorkerNames, parse_resource_attributes, worker_names
from otel_rl.worker.launch import (
    Launch,
    hand_down,
    is_within,
    launch_of,
    sweep_environment,
    take_back,
)

TORCHRUN = {"RANK": "0", "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2", "TORCHELASTIC_RUN_ID": "none"}


def launch(environ: Mapping[str, str], ray: str | None = None, parent: int | None = None) -> Launch:
    return launch_of(environ, ray=lambda: ray, parent=lambda: parent)


@pytest.mark.parametrize(
    ("environ", "ray", "expected"),
    [
        ({"OTEL_RL_LAUNCH": "monday", "SLURM_JOB_ID": "7"}, None, "monday"),
        ({"SLURM_JOB_ID": "4711", "SLURM_STEP_ID": "0"}, None, "slurm-4711.0"),
        ({"SLURM_JOB_ID": "4711"}, None, "slurm-4711"),
        ({"SLURM_JOB_ID": "4711", "TORCHELASTIC_RUN_ID": "abc"}, None, "slurm-4711"),
        # The steps of a Ray cluster are its nodes; the driver is in the batch script or in a step.
        ({"SLURM_JOB_ID": "7", "SLURM_STEP_ID": "1", "RAY_RAYLET_PID": "9"}, None, "slurm-7"),
        ({"SLURM_JOB_ID": "7", "SLURM_STEP_ID": "2"}, "session-01000000", "slurm-7"),
        ({**TORCHRUN, "TORCHELASTIC_RUN_ID": "a b/c"}, None, "torchrun-a-b-c"),
        ({"PMIX_NAMESPACE": "prterun-node-32667@1"}, None, "mpi-prterun-node-32667-1"),
        (
            {
                "OMPI_MCA_ess_base_jobid": "1234",
                "OMPI_MCA_orte_precondition_transports": "5f3ac21d0b8e44f7-01",
            },
            None,
            "mpi-1234-5f3ac21d",
        ),
        ({"RANK": "0", "WORLD_SIZE": "2"}, "session_1-01000000", "ray-session_1-01000000"),
        # Variables of MPI are those of the raylet.
        ({"PMIX_NAMESPACE": "x", "RAY_RAYLET_PID": "9"}, "s-01", "ray-s-01"),
    ],
)
def test_the_id_is_that_of_the_first_launcher_that_has_one(
    environ: dict[str, str], ray: str | None, expected: str
) -> None:
    assert launch(environ, ray) == Launch(expected)


def test_any_two_launches_differ_and_their_processes_agree() -> None:
    jobs = [
        [{"SLURM_JOB_ID": "1", "SLURM_STEP_ID": "0", "SLURM_PROCID": rank} for rank in "01"],
        [{"SLURM_JOB_ID": "1", "SLURM_STEP_ID": "1", "SLURM_PROCID": rank} for rank in "01"],
        [{"SLURM_JOB_ID": "2", "SLURM_STEP_ID": "0", "SLURM_RESTART_COUNT": n} for n in "01"],
        [{"SLURM_JOB_ID": "3", "SLURM_ARRAY_JOB_ID": "2", "SLURM_ARRAY_TASK_ID": "1"}],
        [{**TORCHRUN, "TORCHELASTIC_RUN_ID": "a", "TORCHELASTIC_RESTART_COUNT": n} for n in "01"],
        [{**TORCHRUN, "TORCHELASTIC_RUN_ID": "b", "RANK": rank} for rank in "01"],
        [{"PMIX_NAMESPACE": "a@1", "OMPI_COMM_WORLD_RANK": rank} for rank in "01"],
        [{"PMIX_NAMESPACE": "a@2", "OMPI_COMM_WORLD_RANK": rank} for rank in "01"],
        [{**TORCHRUN, "RANK": rank} for rank in "01"],  # of the process that starts the ranks
        [{}, {"HOME": "/"}],  # this process
    ]
    found = [{launch(process).id for process in job} for job in jobs]
    assert all(len(ids) == 1 for ids in found), found
    assert not any(one & other for one, other in combinations(found, 2)), found


def test_a_slurm_shell_is_no_launch_but_each_of_its_commands(tmp_path: Path) -> None:
    shell = {"SLURM_JOB_ID": "7", "SLURM_STEP_ID": "4294967290"}
    assert launch(shell) == launch({})


class Machine:
    """A ``/proc``: processes with parent, begin and environment."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        (directory / "stat").write_text("cpu  1 2 3\nbtime 1795000000\nprocesses 7\n")
        self.add(os.getpid(), os.getppid())

    def add(self, pid: int, parent: int, ticks: int = 0, **environ: str) -> None:
        (self._directory / str(pid)).mkdir()
        fields = ["S", str(parent), *"0" * 17, str(ticks), *"0" * 30]
        (self._directory / f"{pid}/stat").write_text(f"{pid} (a) {' '.join(fields)}")
        text = "".join(f"{name}={value}\0" for name, value in environ.items())
        (self._directory / f"{pid}/environ").write_text(text)


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Machine:
    monkeypatch.setattr(psutil, "PROCFS_PATH", str(tmp_path))
    return Machine(tmp_path)


def test_ranks_without_an_id_have_the_process_that_started_them(machine: Machine) -> None:
    machine.add(40, 1, PATH="/bin")
    machine.add(os.getppid(), 40, RANK="1", PATH="/bin")  # this one is a child of a rank
    assert launch(TORCHRUN, parent=5) == Launch(launch({}, parent=40).id)


@pytest.mark.parametrize(
    ("environ", "is_of_host"),
    [
        ({"RANK": "0", "WORLD_SIZE": "16", "LOCAL_WORLD_SIZE": "8"}, True),
        ({"RANK": "0", "WORLD_SIZE": "8", "LOCAL_WORLD_SIZE": "8"}, False),
        ({"PMI_RANK": "0", "PMI_SIZE": "4", "MPI_LOCALNRANKS": "2"}, True),
        ({"OMPI_COMM_WORLD_RANK": "0", "OMPI_COMM_WORLD_SIZE": "1"}, False),
        ({"RANK": "0", "WORLD_SIZE": "several"}, False),
        ({}, False),
    ],
)
def test_ranks_on_several_hosts_have_no_id_in_common(
    environ: dict[str, str], is_of_host: bool
) -> None:
    assert launch(environ).is_of_host == is_of_host


def test_a_container_for_each_rank_is_as_a_host_for_each(machine: Machine) -> None:
    machine.add(os.getppid(), 0, RANK="1", WORLD_SIZE="2")
    assert launch({"RANK": "1", "WORLD_SIZE": "2"}).is_of_host


def test_a_process_is_named_after_its_begin_and_its_machine(machine: Machine) -> None:
    hz = os.sysconf("SC_CLK_TCK")
    machine.add(7, 1, ticks=3 * hz)
    machine.add(8, 1, ticks=3 * hz + 1)
    named = launch({}, parent=7).id
    began = strftime("%Y%m%d-%H%M%S", localtime(psutil.Process(7).create_time()))
    assert named.startswith(f"{began}-7-")
    assert named != launch({}, parent=8).id.replace("-8-", "-7-")


def test_without_proc_a_process_is_known_by_its_number(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(psutil, "PROCFS_PATH", str(tmp_path))
    assert launch({}, parent=7) != launch({}, parent=8)
    assert launch(TORCHRUN).id == launch({}, parent=os.getppid()).id


def test_a_launch_must_be_a_name() -> None:
    with pytest.raises(ConfigError, match="OTEL_RL_LAUNCH"):
        launch({"OTEL_RL_LAUNCH": "a\nb"})


def test_children_are_given_the_run_and_the_launch_and_the_names_end_with_the_run() -> None:
    environ = {"OTEL_RL_EXPERIMENT": "e"}
    before = hand_down(environ, "e", "seed-1")
    assert environ["OTEL_RL_DEFAULT_TRIAL"] == "seed-1"
    (of_launch,) = {environ["OTEL_RL_LAUNCH"], launch({}).id}
    take_back(environ, before)
    assert environ == {"OTEL_RL_EXPERIMENT": "e", "OTEL_RL_LAUNCH": of_launch}


def test_names_that_nobody_chose_give_way_for_other_sdks_of_children_too() -> None:
    invented = f"rl.experiment.name=train,rl.trial.name=l,rl.run.id={run_id('train', 'l')},a=b%2C"
    environ = {
        "OTEL_RESOURCE_ATTRIBUTES": invented,
        "OTEL_RL_DEFAULT_EXPERIMENT": "train",
        "OTEL_RL_LAUNCH": "l",
    }
    before = hand_down(environ, "grpo", "seed 1")
    assert parse_resource_attributes(environ["OTEL_RESOURCE_ATTRIBUTES"]) == {
        "rl.experiment.name": "grpo",
        "rl.trial.name": "seed 1",
        "rl.run.id": run_id("grpo", "seed 1"),
        "a": "b,",
    }
    take_back(environ, before)
    assert environ["OTEL_RESOURCE_ATTRIBUTES"] == invented
    chosen = {**environ, "OTEL_RESOURCE_ATTRIBUTES": "rl.experiment.name=mine,rl.trial.name=l"}
    hand_down(chosen, "grpo", "seed-1")
    assert chosen["OTEL_RESOURCE_ATTRIBUTES"] == "rl.experiment.name=mine,rl.trial.name=seed-1"


RUN = {
    "OTEL_RL_TRIAL": "monday",
    "OTEL_RESOURCE_ATTRIBUTES": "team.name=a%2Cb,rl.trial.name=monday",
}


def test_a_trial_of_a_sweep_follows_the_trial_of_its_command() -> None:
    found = sweep_environment(RUN, "lr=1 0")
    assert found["OTEL_RL_TRIAL"] == "monday-lr=1 0"
    resource = parse_resource_attributes(found["OTEL_RESOURCE_ATTRIBUTES"])
    assert resource == {"team.name": "a,b", "rl.trial.name": "monday-lr=1 0"}


def test_a_sweep_within_a_trial_has_trials_of_its_own() -> None:
    outer = RUN | sweep_environment(RUN, "job-0")
    inner = outer | sweep_environment(outer, "study-0")
    assert inner["OTEL_RL_TRIAL"] == "monday-job-0-study-0"
    for name in ("job-0", "study-0"):
        assert is_within(inner, name)
    assert not is_within(inner, "job-1")
    assert not is_within(RUN, "job-0")


def test_another_launch_of_a_sweep_has_other_trials() -> None:
    found = sweep_environment({"OTEL_RL_LAUNCH": "slurm-7"}, "lr_0")
    assert found["OTEL_RL_TRIAL"] == "slurm-7-lr_0"
    of_worker = {"OTEL_RL_LAUNCH": "slurm-7", "OTEL_RL_DEFAULT_TRIAL": "said"}
    assert sweep_environment(of_worker, "lr_0")["OTEL_RL_TRIAL"] == "said-lr_0"


def test_a_trial_of_a_sweep_counts_above_the_name_that_the_program_gives_each() -> None:
    environ = RUN | {"OTEL_RL_TYPED": "experiment"}
    found = environ | sweep_environment(environ, "lr_0")
    assert found["OTEL_RL_TYPED"] == "experiment,trial"
    assert worker_names(found, given=WorkerNames("e", "ppo")).trial == "monday-lr_0"


def test_the_run_s_id_follows_the_trial() -> None:
    attributes = f"rl.experiment.name=e,rl.trial.name=monday,rl.run.id={run_id('e', 'monday')}"
    found = sweep_environment(RUN | {"OTEL_RESOURCE_ATTRIBUTES": attributes}, "lr_0")
    resource = parse_resource_attributes(found["OTEL_RESOURCE_ATTRIBUTES"])
    assert resource["rl.run.id"] == run_id("e", "monday-lr_0")


def test_a_name_is_made_valid_and_tells_trials_apart() -> None:
    assert sweep_environment(RUN, "a\nb")["OTEL_RL_TRIAL"] == "monday-ab"
    assert sweep_environment(RUN, "\n")["OTEL_RL_TRIAL"] == "monday-trial"
    long = sweep_environment(RUN, "x" * 200 + "_00001")["OTEL_RL_TRIAL"]
    assert len(long) == 128
    assert long.endswith("_00001")
    assert long != sweep_environment(RUN, "y" + "x" * 199 + "_00001")["OTEL_RL_TRIAL"]
