"""Derives the worker's names from the arguments of ``wandb.init``. Pure.

A W&B run belongs to one process, an otel_rl run to all processes. So ``job_type``, which
distinguishes the processes of an experiment, becomes the role, and common names become the run's.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from otel_rl.errors import ConfigError
from otel_rl.worker.identity.names import DEFAULT_ROLE, WorkerNames, worker_names

__all__ = ["Names", "worker_of"]

_DEFAULT_PROJECT = "uncategorized"  # as W&B calls it


@dataclass(frozen=True, slots=True)
class Names:
    """Naming arguments of ``wandb.init``, or W&B's variables for them.

    Attributes:
        project: ``WANDB_PROJECT``.
        name: ``WANDB_NAME``.
        id: ``WANDB_RUN_ID``.
        job_type: ``WANDB_JOB_TYPE``.
    """

    project: str | None = None
    name: str | None = None
    id: str | None = None
    job_type: str | None = None


def worker_of(given: Names, environ: Mapping[str, str], process_name: str) -> WorkerNames:
    """Return the names of the process.

    An experiment in the environment, as set by ``otel-rl run``, overrides W&B's names of the run:
    it groups the processes. Otherwise the project is the experiment and the run's id or name the
    trial, so that processes with equal ones share a run. The job type comes from the program, so it
    overrides ``OTEL_RL_ROLE``; its variable does not.

    Args:
        given: The arguments.
        environ: The process's environment.
        process_name: From its launcher.

    Raises:
        ConfigError: No name groups the processes, or a name is invalid.
    """
    trial = given.id or environ.get("WANDB_RUN_ID") or given.name or environ.get("WANDB_NAME")
    project = given.project or environ.get("WANDB_PROJECT") or _DEFAULT_PROJECT
    found = worker_names(
        environ,
        process_name,
        given=WorkerNames(role=given.job_type or None),
        known=WorkerNames(project if trial else None, trial, environ.get("WANDB_JOB_TYPE") or None),
        default_role=DEFAULT_ROLE,
    )
    if found.experiment is None:
        raise ConfigError(
            "wandb.init: no name groups the processes into one run.",
            hint="Start the program with otel-rl run, set OTEL_RL_EXPERIMENT, or pass the same "
            "name= or id= in every process.",
        )
    return found
