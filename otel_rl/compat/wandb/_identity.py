"""From what ``wandb.init`` is told to who the worker is. Pure.

One run of W&B is one process's; one run of otel_rl is all processes'. So what tells processes of
one experiment apart (``job_type``) becomes the role, and what they share names the run.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from otel_rl.errors import ConfigError
from otel_rl.worker.identity import named_by

__all__ = ["Names", "Place", "place_of"]

_DEFAULT_PROJECT = "uncategorized"  # as W&B calls it
_DEFAULT_ROLE = "worker"  # as of a process that otel_rl starts from its environment alone


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


@dataclass(frozen=True, slots=True)
class Place:
    """Arguments for ``otel_rl.init``; None leaves it to the environment.

    Attributes:
        experiment: What groups the workers.
        trial: One attempt at it.
        role: What this worker does.
    """

    experiment: str | None
    trial: str | None
    role: str | None


def place_of(given: Names, environ: Mapping[str, str]) -> Place:
    """Who the process is.

    An experiment in the environment, as ``otel-rl run`` sets it, wins over all that the code says:
    it is what puts the processes into one run. Else the project is the experiment and the run's id
    or name the trial, so that processes with equal ones meet.

    Raises:
        ConfigError: Nothing says which processes belong together.
    """
    names = Names(
        given.project or environ.get("WANDB_PROJECT") or None,
        given.name or environ.get("WANDB_NAME") or None,
        given.id or environ.get("WANDB_RUN_ID") or None,
        given.job_type or environ.get("WANDB_JOB_TYPE") or None,
    )
    named = named_by(environ)
    role = names.job_type
    if role is None and "role" not in named:
        role = _DEFAULT_ROLE
    if "experiment" in named:
        return Place(None, None, role)
    trial = names.id or names.name
    if trial is None:
        raise ConfigError(
            "wandb.init: nothing says which processes belong to one run.",
            hint="Start the program with otel-rl run, set OTEL_RL_EXPERIMENT, or pass the same "
            "name= or id= in every process.",
        )
    return Place(names.project or _DEFAULT_PROJECT, trial, role)
