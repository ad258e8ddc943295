"""From what ``wandb.init`` is told to who the worker is. Pure.

One run of W&B is one process's; one run of otel_rl is all processes'. So what tells processes of
one experiment apart (``job_type``) becomes the role, and what they share names the run.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from otel_rl.errors import ConfigError
from otel_rl.worker.naming import DEFAULT_ROLE, Who, who

__all__ = ["Names", "worker_of"]

_DEFAULT_PROJECT = "uncategorized"  # as W&B calls it


@dataclass(frozen=True, slots=True)
class Names:
    """The arguments of ``wandb.init`` that name something, or W&B's variables for them.

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


def worker_of(given: Names, environ: Mapping[str, str], process_name: str) -> Who:
    """Who the process is.

    An experiment in the environment, as ``otel-rl run`` sets it, wins over W&B's names of the run:
    it is what puts the processes into one. Else the project is the experiment and the run's id
    or name the trial, so that processes with equal ones meet. The job type is what the program says
    of itself, so it wins over ``OTEL_RL_ROLE``; its variable does not.

    Args:
        given: The arguments.
        environ: The process's environment.
        process_name: What its launcher calls it.

    Raises:
        ConfigError: Nothing says which processes belong together, or a name is none.
    """
    trial = given.id or environ.get("WANDB_RUN_ID") or given.name or environ.get("WANDB_NAME")
    project = given.project or environ.get("WANDB_PROJECT") or _DEFAULT_PROJECT
    found = who(
        environ,
        process_name,
        said=Who(role=given.job_type or None),
        known=Who(project if trial else None, trial, environ.get("WANDB_JOB_TYPE") or None),
        default_role=DEFAULT_ROLE,
    )
    if found.experiment is None:
        raise ConfigError(
            "wandb.init: nothing says which processes belong to one run.",
            hint="Start the program with otel-rl run, set OTEL_RL_EXPERIMENT, or pass the same "
            "name= or id= in every process.",
        )
    return found
