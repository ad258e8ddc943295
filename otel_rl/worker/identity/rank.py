"""Index and count of a worker within its role, from the first source that has them. Pure."""

from collections.abc import Iterator, Mapping
from typing import Final

from otel_rl.errors import ConfigError
from otel_rl.semconv.names import RL_WORKER_COUNT, RL_WORKER_INDEX
from otel_rl.worker.identity.names import parse_resource_attributes

__all__ = ["invalid_place", "launcher_index", "place_of"]

_RANK_VARIABLES: Final[tuple[tuple[str, ...], ...]] = (
    ("ROLE_RANK", "ROLE_WORLD_SIZE"),
    ("RANK", "WORLD_SIZE"),
)
"""Variables of torchrun, Ray Train and compatible launchers, best first: torchrun also sets the
rank among the workers of a role.
"""

_MPI_AND_SLURM_VARIABLES: Final[tuple[tuple[str, ...], ...]] = (
    ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"),
    ("MV2_COMM_WORLD_RANK", "MV2_COMM_WORLD_SIZE"),
    ("PMI_RANK", "PMI_SIZE"),
    ("SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "SLURM_NTASKS"),
)
"""Variables of Open MPI, MVAPICH, MPICH and Slurm. MPI first: a process of mpirun within a Slurm
job inherits the Slurm variables of mpirun. A batch script has the job's number of tasks, a step its
own.
"""

_RAY_WORKER: Final = "RAY_RAYLET_PID"
"""Set in processes of Ray, where Slurm and MPI variables describe the raylet, not the worker."""


def place_of(
    environ: Mapping[str, str],
    inherited: Mapping[str, str],
    index: int | None,
    count: int | None,
    named_index: int | None,
) -> tuple[int | None, int | None]:
    """Return (index, count) from the first source that has either; never mixed from two sources.

    Args:
        environ: The process's environment.
        inherited: The attributes in its ``OTEL_RESOURCE_ATTRIBUTES``.
        index: From the program.
        count: From the program.
        named_index: The index in the name of a process named after its role.

    Raises:
        ConfigError: The index or count is invalid. Invalid values of a launcher are ignored.
    """
    if index is not None or count is not None:
        return _checked_place("index", index, "count", count)
    for where, texts in (
        (("OTEL_RL_INDEX", "OTEL_RL_COUNT"), environ),
        ((RL_WORKER_INDEX, RL_WORKER_COUNT), inherited),
    ):
        own = _integer(where[0], texts), _integer(where[1], texts)
        if own != (None, None):
            return _checked_place(where[0], own[0], where[1], own[1])
    if named_index is not None:
        return named_index, None
    for index_variable, count_variable in _of_launchers(environ):
        place = _launcher_place(environ.get(index_variable), environ.get(count_variable))
        if place is not None:
            return place
    return None, None


def launcher_index(environ: Mapping[str, str], named_index: int | None) -> int | None:
    """Return the index of a launcher, for a worker that may be the only one of its ranks to report.

    Args:
        environ: The process's environment.
        named_index: See ``place_of``.

    Returns:
        None if a person, or the name of the process, gives the place, which ``place_of`` reads.
    """
    if named_index is not None:
        return None
    given = ("OTEL_RL_INDEX", "OTEL_RL_COUNT")
    inherited = parse_resource_attributes(environ.get("OTEL_RESOURCE_ATTRIBUTES", ""))
    if any(name in environ for name in given) or {RL_WORKER_INDEX, RL_WORKER_COUNT} & {*inherited}:
        return None
    return place_of(environ, {}, None, None, None)[0]


def invalid_place(environ: Mapping[str, str]) -> str | None:
    """Return the first invalid pair of launcher variables, formatted for a message."""
    for index_variable, count_variable in _of_launchers(environ):
        index, count = environ.get(index_variable), environ.get(count_variable)
        if index and _launcher_place(index, count) is None:
            beside = "" if count is None else f" with {count_variable}={count}"
            return f"{index_variable}={index}{beside}"
    return None


def _of_launchers(environ: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    """Yield the launcher variables of index and count, best first."""
    variables = _RANK_VARIABLES
    if _RAY_WORKER not in environ:
        variables += _MPI_AND_SLURM_VARIABLES
    for index, *counts in variables:
        yield index, next((count for count in counts if count in environ), counts[0])


def _checked_place(
    index_name: str, index: object, count_name: str, count: object
) -> tuple[int | None, int | None]:
    for name, value, smallest in ((index_name, index, 0), (count_name, count, 1)):
        if value is not None and (
            not isinstance(value, int) or isinstance(value, bool) or value < smallest
        ):
            raise ConfigError(
                f"{name}: must be an integer of at least {smallest} (got {value!r}).",
                hint="Leave it out if the process does not know it.",
            )
    if isinstance(index, int) and isinstance(count, int) and index >= count:
        raise ConfigError(
            f"{index_name}: must be below {count_name} (got {index} of {count}).",
            hint="The first worker of a role is 0.",
        )
    return (
        index if isinstance(index, int) else None,
        count if isinstance(count, int) else None,
    )


def _integer(variable: str, texts: Mapping[str, str]) -> int | None:
    text = texts.get(variable, "").strip()
    if not text:
        return None
    try:
        return int(text)
    except ValueError as exc:
        raise ConfigError(
            f"{variable}: must be an integer (got {text!r}).", hint="Correct or unset it."
        ) from exc


def _launcher_place(index: str | None, count: str | None) -> tuple[int, int | None] | None:
    """Parse a launcher's index and count; None if invalid: otel_rl does not own the variables."""
    try:
        found = int(index or "")
        total = int(count) if count else None
    except ValueError:
        return None
    if found < 0 or (total is not None and found >= total):
        return None
    return found, total
