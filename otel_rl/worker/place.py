"""Which of its role's workers a process is: the first place that anybody gives it. Pure."""

from collections.abc import Iterator, Mapping
from typing import Final

from otel_rl.errors import ConfigError
from otel_rl.semconv.names import RL_WORKER_COUNT, RL_WORKER_INDEX

__all__ = ["place_of", "place_that_is_none"]

_RANK_VARIABLES: Final[tuple[tuple[str, ...], ...]] = (
    ("ROLE_RANK", "ROLE_WORLD_SIZE"),
    ("RANK", "WORLD_SIZE"),
)
"""Where torchrun, Ray Train and all who imitate them write a process's place, best first: torchrun
knows its place among the workers of its own role, too."""

_MPI_AND_SLURM_VARIABLES: Final[tuple[tuple[str, ...], ...]] = (
    ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"),
    ("MV2_COMM_WORLD_RANK", "MV2_COMM_WORLD_SIZE"),
    ("PMI_RANK", "PMI_SIZE"),
    ("SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "SLURM_NTASKS"),
)
"""The same of Open MPI, MVAPICH, MPICH and Slurm. MPI first: what mpirun starts within a Slurm job
inherits the place of mpirun. A batch script has the number of tasks of its job, a step its own."""

_RAY_WORKER: Final = "RAY_RAYLET_PID"
"""Set in what Ray starts: the place of its raylet within a Slurm or MPI job is not the worker's."""


def place_of(
    environ: Mapping[str, str],
    inherited: Mapping[str, str],
    index: int | None,
    count: int | None,
    named_index: int | None,
) -> tuple[int | None, int | None]:
    """(index, count) from the first source that says either; never mixed from two sources.

    Args:
        environ: The process's environment.
        inherited: The attributes in its ``OTEL_RESOURCE_ATTRIBUTES``.
        index: What the program says.
        count: What the program says.
        named_index: The index in the name of the process, if it is called after its role.

    Raises:
        ConfigError: The place is none. A launcher's that is none is left out.
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


def place_that_is_none(environ: Mapping[str, str]) -> str | None:
    """The first variables of a launcher that are set and make no sense, as they stand there."""
    for index_variable, count_variable in _of_launchers(environ):
        index, count = environ.get(index_variable), environ.get(count_variable)
        if index and _launcher_place(index, count) is None:
            beside = "" if count is None else f" with {count_variable}={count}"
            return f"{index_variable}={index}{beside}"
    return None


def _of_launchers(environ: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    """The variables of index and count that may be a launcher's, best first."""
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
                hint="Leave it out if the process does not know its place.",
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
    """A launcher's place, or None if it makes no sense: those variables are not ours to judge."""
    try:
        found = int(index or "")
        total = int(count) if count else None
    except ValueError:
        return None
    if found < 0 or (total is not None and found >= total):
        return None
    return found, total
