"""Derives the worker's names from the arguments of ``wandb.init``. Pure.

A W&B run belongs to one process, an otel_rl run to all processes. So ``job_type``, which
distinguishes the processes of an experiment, becomes the role, and common names become the run's.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace

from otel_rl.worker.identity.names import WorkerNames, worker_names

__all__ = ["DEFAULT_PROJECT", "Names", "worker_of"]

DEFAULT_PROJECT = "uncategorized"
"""W&B's project of a program that names none."""


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

    def as_worker(self) -> WorkerNames:
        """Return what they name: the project is the experiment, the id or name the trial."""
        trial = self.id or self.name or None
        return WorkerNames(self.project or None, trial, self.job_type or None)


def worker_of(
    given: Names,
    environ: Mapping[str, str],
    process_name: str,
    finished: Collection[tuple[str, str]] = (),
) -> WorkerNames:
    """Return the names of the process, by the precedence of ``worker_names``.

    Processes with equal ones share a run.

    Args:
        given: The arguments.
        environ: The process's environment.
        process_name: From its launcher.
        finished: See ``worker_names``.

    Raises:
        ConfigError: A name is invalid.
    """
    variables = ("WANDB_PROJECT", "WANDB_NAME", "WANDB_RUN_ID", "WANDB_JOB_TYPE")
    found = worker_names(
        environ,
        process_name,
        given=given.as_worker(),
        stated=Names(*map(environ.get, variables)).as_worker(),
        finished=finished,
    )
    return replace(found, experiment=found.experiment or DEFAULT_PROJECT)
