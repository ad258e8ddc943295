"""The launch: what one start of a job has in common, and what a process hands down to its children.

The processes of a launch find the same id each for itself: from their launcher's variables, else
from the process that has started them. A worker hands its launch and its run down to its children,
in their environment; so does the launcher of a sweep. Neither ``multiprocessing`` nor Ray is
imported.
"""

import os
import re
import socket
import sys
from collections.abc import Callable, Mapping, MutableMapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from time import localtime, strftime
from typing import Any, Final
from urllib.parse import quote

from otel_rl.run_id import run_id
from otel_rl.semconv.names import RL_EXPERIMENT_NAME, RL_RUN_ID, RL_TRIAL_NAME
from otel_rl.worker.identity import (
    MAIN_PROCESS,
    MAX_NAME_LENGTH,
    RANKS,
    RAY_WORKER,
    checked_name,
    chosen_attributes,
    parse_resource_attributes,
)
from otel_rl.worker.settings import DEFAULT_EXPERIMENT, DEFAULT_TRIAL, LAUNCH, SWEEP, TYPED

_RESOURCE: Final = "OTEL_RESOURCE_ATTRIBUTES"
_TRIAL: Final = "OTEL_RL_TRIAL"

_NOT_OF_A_STEP: Final = frozenset({"", "4294967291"})
"""Slurm's step of a batch script."""

_INTERACTIVE: Final = "4294967290"
"""Slurm's step of a person's shell, in which each command is a launch of its own."""

_RAY_TASK: Final = "process"
"""Name of a child that says nothing."""

_DIGEST_LENGTH: Final = 8
"""Of a long name, whose beginning may be what tells it from another one."""

_MAX_ID: Final = 96

ON_SEVERAL_HOSTS: Final = (
    "The ranks of this job are on several hosts, which have no id of the launch in common, so the "
    "ranks of each host report to a run of their own. Name a trial: set OTEL_RL_TRIAL to the same "
    "new name on all hosts."
)


@dataclass(frozen=True, slots=True)
class Launch:
    """One start of a job.

    Attributes:
        id: Id of the launch, safe in paths.
        is_of_host: Whether other hosts of the same job find another id.
    """

    id: str
    is_of_host: bool = False


def _name_of(pid: int) -> str:
    """Return the time, pid and host of a process's start: ``20261128-174501-4711-k3f2``."""
    import psutil  # a process of a launcher that has an id does without

    host = socket.gethostname()
    try:
        began_s = psutil.Process(pid).create_time()
    except (psutil.Error, OSError, RuntimeError):  # a sandbox without /proc
        return f"{pid}-{run_id(host, '')[:4]}"
    began = strftime("%Y%m%d-%H%M%S", localtime(began_s))
    return f"{began}-{pid}-{run_id(host, str(began_s))[:4]}"


def _starter(variable: str) -> tuple[int, bool]:
    """Return the nearest ancestor whose environment lacks a variable, and True.

    If every ancestor has the variable, the container sets it: return the eldest, and False.
    """
    import psutil

    eldest = os.getppid() or os.getpid()
    try:
        one = psutil.Process().parent()
        while one is not None:
            eldest = one.pid
            if variable not in one.environ():
                return eldest, True
            one = one.parent()
    except (psutil.Error, OSError):  # another user's process, or a sandbox without /proc
        return eldest, True
    return eldest, False


def process_name() -> str:
    """Return the child's name of the process: of its Ray actor, its class, or the process.

    Returns:
        ``MainProcess`` if neither Ray nor ``multiprocessing`` has started it.
    """
    # Ray raises outside a worker, and where its version lacks a method.
    with suppress(Exception):
        context = _ray_context()
        if context is not None and context.get_actor_id() is not None:
            if name := context.get_actor_name():
                return str(name)
            return str(context.get_task_function_name()).split(".")[-2]
        if context is not None and is_process_of_ray():
            return _RAY_TASK
    process = sys.modules.get("multiprocessing.process")  # which a child of it has loaded
    return MAIN_PROCESS if process is None else str(process.current_process().name)


def is_process_of_ray() -> bool:
    """Return whether Ray has started this process, which Ray may kill at any time."""
    return Path(sys.argv[0]).name == "default_worker.py"


def ray_job() -> str | None:
    """Return the id of the Ray job that the process works for; job ids repeat in each cluster."""
    with suppress(Exception):
        context = _ray_context()
        if context is not None:
            of_cluster = getattr(context, "get_session_name", lambda: context.gcs_address)
            return f"{of_cluster()}-{context.get_job_id()}"
    return None


def parent_pid() -> int | None:
    """Return the pid of the process that has started this one by ``multiprocessing``."""
    process = sys.modules.get("multiprocessing.process")
    parent = None if process is None else process.parent_process()
    return None if parent is None else parent.pid


def _ray_context() -> Any:  # Ray's own
    ray = sys.modules.get("ray")
    return ray.get_runtime_context() if ray is not None and ray.is_initialized() else None


def launch_of(
    environ: Mapping[str, str],
    *,
    ray: Callable[[], str | None] = ray_job,
    parent: Callable[[], int | None] = parent_pid,
) -> Launch:
    """Return the launch that this process belongs to, from the first source that has an id.

    The sources are ``OTEL_RL_LAUNCH``, the Slurm job and step, torchrun's run id, the id of the MPI
    or Ray job, the process that has started the ranks or has started this one by
    ``multiprocessing``, and this process.

    Raises:
        ConfigError: ``OTEL_RL_LAUNCH`` is not a valid name.
    """
    if given := environ.get(LAUNCH):
        return Launch(checked_name(LAUNCH, given))
    is_of_ray = RAY_WORKER in environ
    of_ray = ray()
    for kind, found in (
        ("slurm", _slurm(environ, has_steps=not (is_of_ray or of_ray))),
        ("torchrun", _torchrun(environ)),
        ("mpi", "" if is_of_ray else _mpi(environ)),
        ("ray", of_ray or ""),
    ):
        if found:
            return Launch(f"{kind}-{re.sub(r'[^A-Za-z0-9._-]+', '-', found)}"[:_MAX_ID])
    for one in RANKS:
        if one.local_size and one.rank in environ:
            ranks, here = (_number(environ.get(name)) for name in (*one.sizes, one.local_size))
            starter, is_of_host = _starter(one.rank)
            alone = here == ranks if here else is_of_host
            return Launch(_name_of(starter), is_of_host=ranks > 1 and not alone)
    return Launch(_name_of(parent() or os.getpid()))


def on_several_hosts(environ: Mapping[str, str]) -> bool:
    """Return whether a launcher says that the job has processes on other hosts, too."""
    nodes = (_number(environ.get(name)) for name in ("SLURM_NNODES", "SKYPILOT_NUM_NODES"))
    return max(nodes) > 1 or any(
        _number(environ.get(one.sizes[0])) > _number(environ.get(one.local_size)) > 0
        for one in RANKS
    )


def hand_down(
    environ: MutableMapping[str, str], experiment: str, trial: str
) -> dict[str, str | None]:
    """Make children that name no run report to the run of this process.

    Other SDKs in the children do so, too, unless a person has named another run for them. Returns
    the values that the environment had before, for ``take_back``; the launch stays.
    """
    before = {name: environ.get(name) for name in (DEFAULT_EXPERIMENT, DEFAULT_TRIAL, _RESOURCE)}
    attributes = parse_resource_attributes(environ.get(_RESOURCE, ""))
    chosen = chosen_attributes(environ)
    settled = {RL_EXPERIMENT_NAME: experiment, RL_TRIAL_NAME: trial}
    replaced = {
        key: value for key, value in settled.items() if key in attributes and key not in chosen
    }
    if replaced:
        environ[_RESOURCE] = _with_names(attributes, replaced)
    if not environ.get(LAUNCH):
        environ[LAUNCH] = launch_of(environ).id
    environ.update({DEFAULT_EXPERIMENT: experiment, DEFAULT_TRIAL: trial})
    return before


def _with_names(attributes: Mapping[str, str], names: Mapping[str, str]) -> str:
    """Return ``OTEL_RESOURCE_ATTRIBUTES`` with other names of the run, and its id if it had one."""
    found = {**attributes, **names}
    if RL_RUN_ID in found:
        found[RL_RUN_ID] = run_id(found.get(RL_EXPERIMENT_NAME, ""), found.get(RL_TRIAL_NAME, ""))
    return ",".join(f"{key}={quote(value, safe='')}" for key, value in found.items())


def take_back(environ: MutableMapping[str, str], before: Mapping[str, str | None]) -> None:
    """Give variables the values that they had before, because the run of the process has ended."""
    for name, value in before.items():
        if value is None:
            environ.pop(name, None)
        else:
            environ[name] = value


def _slurm(environ: Mapping[str, str], *, has_steps: bool) -> str:
    """Return the job and its step; nodes of a Ray cluster are different steps of one job."""
    step = environ.get("SLURM_STEP_ID", "")
    job = environ.get("SLURM_JOB_ID", "")
    if not job or (step == _INTERACTIVE and has_steps):
        return ""
    return job if step in _NOT_OF_A_STEP or not has_steps else f"{job}.{step}"


def _torchrun(environ: Mapping[str, str]) -> str:
    given = environ.get("TORCHELASTIC_RUN_ID", "").strip()
    return "" if given.lower() == "none" else given


def _mpi(environ: Mapping[str, str]) -> str:
    """Return PMIx's job id; ids of an old Open MPI repeat, so the job's key is added."""
    job = environ.get("PMIX_NAMESPACE") or environ.get("OMPI_MCA_ess_base_jobid") or ""
    key = environ.get("OMPI_MCA_orte_precondition_transports", "")
    return f"{job}-{key[:8]}" if job and key else job


def _number(text: str | None) -> int:
    return int(text) if text and text.isdecimal() else 0


def sweep_environment(environ: Mapping[str, str], name: str) -> dict[str, str]:
    """Return the variables that make a process and its children report for a trial of a sweep.

    The trial's name follows that of the surrounding trial, or of the launch: ``20261126-lr_0``. It
    counts as typed, because the program of a sweep may give each trial the same name.
    """
    resource = parse_resource_attributes(environ.get(_RESOURCE, ""))
    outer = environ.get(_TRIAL) or environ.get(DEFAULT_TRIAL) or resource.get(RL_TRIAL_NAME)
    outer = outer or launch_of(environ).id
    own = "".join(filter(str.isprintable, name)).strip() or "trial"
    trial = f"{outer}-{own}"
    if len(trial) > MAX_NAME_LENGTH:
        kept = trial[_DIGEST_LENGTH + 1 - MAX_NAME_LENGTH :]
        trial = f"{run_id('', trial)[:_DIGEST_LENGTH]}-{kept}"
    around = environ.get(SWEEP)
    typed = {*filter(None, environ.get(TYPED, "").split(",")), "trial"}
    variables = {
        SWEEP: f"{around}/{own}" if around else own,
        _TRIAL: trial.strip(),
        TYPED: ",".join(sorted(typed)),
    }
    if resource:
        variables[_RESOURCE] = _with_names(resource, {RL_TRIAL_NAME: variables[_TRIAL]})
    return variables


def is_within(environ: Mapping[str, str], name: str) -> bool:
    """Return whether a process is already within the trial of this name, or one of its own."""
    return name in environ.get(SWEEP, "").split("/")
