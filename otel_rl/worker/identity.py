"""Who a worker is: from arguments and environment to resource attributes. Pure."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final
from urllib.parse import unquote

from opentelemetry.util.types import AttributeValue

from otel_rl.errors import ConfigError
from otel_rl.semconv.names import (
    RL_EXPERIMENT_NAME,
    RL_RUN_ID,
    RL_TRIAL_NAME,
    RL_WORKER_COUNT,
    RL_WORKER_INDEX,
    RL_WORKER_ROLE,
    RL_WORKER_TAG,
    RlWorkerRoleValues,
)
from otel_rl.semconv.run_id import run_id

__all__ = [
    "DEFAULT_TRIAL",
    "Identity",
    "checked_name",
    "detect",
    "identify",
    "named_by",
    "parse_resource_attributes",
]

DEFAULT_TRIAL: Final = "default"

MAX_NAME_LENGTH: Final = 128
"""W&B cuts display names at 128 characters; a name that is cut no longer names one thing."""

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

_TORCHRUN_DEFAULT_ROLES: Final = frozenset({"", "default", "default_role"})

_NAMED: Final = re.compile(rf"({'|'.join(RlWorkerRoleValues)})(?:[-_. ]?(\d{{1,9}}))?")
"""A process that is called after its role: ``trainer``, ``generator-2``."""

_ARGUMENT_OF: Final = {
    RL_EXPERIMENT_NAME: "experiment",
    RL_TRIAL_NAME: "trial",
    RL_WORKER_ROLE: "role",
    RL_WORKER_INDEX: "index",
    RL_WORKER_COUNT: "count",
    RL_WORKER_TAG: "tag",
}


@dataclass(frozen=True, slots=True)
class Identity:
    """A worker's place in an experiment.

    Attributes:
        experiment: ``rl.experiment.name``.
        trial: ``rl.trial.name``.
        role: ``rl.worker.role``.
        index: Place among the workers of the role, or None: the bridge then numbers it.
        count: Number of workers of the role, or None if unknown.
        tag: ``rl.worker.tag``, e.g. ``evaluation``, or None.
        run_id: ``rl.run.id``.
        service_name: ``service.name``.
        extra: Further resource attributes, sorted by name.
    """

    experiment: str
    trial: str
    role: str
    index: int | None
    count: int | None
    tag: str | None
    run_id: str
    service_name: str
    extra: tuple[tuple[str, AttributeValue], ...] = field(default=())

    def without_place(self) -> "Identity":
        """The same worker with no index: a forked child is not its parent's rank."""
        return replace(self, index=None, count=None)

    def attributes(self) -> dict[str, AttributeValue]:
        """Resource attributes that do not depend on the process or the host."""
        found: dict[str, AttributeValue] = dict(self.extra)
        found |= {
            RL_EXPERIMENT_NAME: self.experiment,
            RL_TRIAL_NAME: self.trial,
            RL_RUN_ID: self.run_id,
            RL_WORKER_ROLE: self.role,
            "service.name": self.service_name,
        }
        if self.index is not None:
            found[RL_WORKER_INDEX] = self.index
        if self.count is not None:
            found[RL_WORKER_COUNT] = self.count
        if self.tag is not None:
            found[RL_WORKER_TAG] = self.tag
        return found


def identify(
    environ: Mapping[str, str],
    *,
    experiment: str | None = None,
    trial: str | None = None,
    role: str | None = None,
    index: int | None = None,
    count: int | None = None,
    tag: str | None = None,
    resource_attributes: Mapping[str, AttributeValue] | None = None,
    default_role: str | None = None,
    process_name: str = "",
) -> Identity:
    """Work out who this worker is. Arguments win over ``OTEL_RL_*`` over resource attributes.

    Args:
        environ: The process's environment.
        experiment: See ``Identity``; the other arguments too.
        trial: Defaults to ``default``.
        role: Required here or in the environment unless ``default_role`` is given.
        index: Place, with ``count``. Without both, the variables of launchers are read.
        count: Number of workers of the role.
        tag: ``training`` or ``evaluation``, or any other word.
        resource_attributes: Further attributes; they win over ``OTEL_RESOURCE_ATTRIBUTES``.
        default_role: The role of a process that says none, or None to insist on one.
        process_name: What its launcher calls it, for a role and an index if nothing else says.

    Raises:
        ConfigError: Naming what is wrong, its value and the way out.
    """
    extra = _extra_attributes(resource_attributes)
    inherited = parse_resource_attributes(environ.get("OTEL_RESOURCE_ATTRIBUTES", ""))
    found_experiment = _name("experiment", experiment, "OTEL_RL_EXPERIMENT", environ, inherited)
    if found_experiment is None:
        raise ConfigError(
            "experiment: no experiment was named.",
            hint='Pass init(experiment="my-run", ...) or set OTEL_RL_EXPERIMENT.',
        )
    named_role, named_index = _from_name(process_name)
    stated_role = _stated_role(role, environ, inherited)
    found_role = stated_role or named_role or default_role
    if found_role is None:
        raise ConfigError(
            "role: no role was named.",
            hint='Pass init(role="trainer", ...) (or generator, replay_buffer, reward, any word) '
            "or set OTEL_RL_ROLE.",
        )
    found_trial = _name("trial", trial, "OTEL_RL_TRIAL", environ, inherited) or DEFAULT_TRIAL
    place_index, place_count = _place(
        environ, inherited, index, count, None if stated_role else named_index
    )
    default_id = run_id(found_experiment, found_trial)
    default_service = (
        environ.get("OTEL_SERVICE_NAME") or inherited.get("service.name") or f"otel_rl.{found_role}"
    )
    return Identity(
        experiment=found_experiment,
        trial=found_trial,
        role=found_role,
        index=place_index,
        count=place_count,
        tag=_name("tag", tag, "OTEL_RL_TAG", environ, inherited),
        run_id=str(extra.pop(RL_RUN_ID, None) or inherited.get(RL_RUN_ID) or default_id),
        service_name=str(extra.pop("service.name", None) or default_service),
        extra=tuple(sorted(extra.items())),
    )


def detect(environ: Mapping[str, str], process_name: str = "") -> dict[str, AttributeValue]:
    """As much of a worker's identity as the environment says, for a resource that is not ours.

    Raises:
        ConfigError: What it says is wrong.
    """
    inherited = parse_resource_attributes(environ.get("OTEL_RESOURCE_ATTRIBUTES", ""))
    named_role, named_index = _from_name(process_name)
    stated_role = _stated_role(None, environ, inherited)
    role = stated_role or named_role
    index, count = _place(environ, inherited, None, None, None if stated_role else named_index)
    found: dict[str, AttributeValue | None] = {
        RL_WORKER_ROLE: role,
        RL_WORKER_INDEX: index,
        RL_WORKER_COUNT: count,
        RL_WORKER_TAG: _name("tag", None, "OTEL_RL_TAG", environ, inherited),
        "service.name": f"otel_rl.{role}" if role else None,
    }
    experiment = _name("experiment", None, "OTEL_RL_EXPERIMENT", environ, inherited)
    if experiment is not None:
        trial = _name("trial", None, "OTEL_RL_TRIAL", environ, inherited) or DEFAULT_TRIAL
        found |= {
            RL_EXPERIMENT_NAME: experiment,
            RL_TRIAL_NAME: trial,
            RL_RUN_ID: run_id(experiment, trial),
        }
    return {key: value for key, value in found.items() if value is not None}


def named_by(environ: Mapping[str, str]) -> frozenset[str]:
    """Which of ``experiment``, ``trial``, ``role`` and ``tag`` the environment says."""
    inherited = parse_resource_attributes(environ.get("OTEL_RESOURCE_ATTRIBUTES", ""))
    return frozenset(
        argument
        for attribute, argument in _ARGUMENT_OF.items()
        if argument not in ("index", "count")
        and (environ.get(f"OTEL_RL_{argument.upper()}") or inherited.get(attribute))
    )


def _name(
    argument: str,
    value: object,
    variable: str,
    environ: Mapping[str, str],
    inherited: Mapping[str, str],
) -> str | None:
    """The first of argument, variable and resource attribute that is given, checked."""
    if value is not None:
        return checked_name(argument, value)
    if environ.get(variable):
        return checked_name(variable, environ[variable])
    attribute = next(key for key, name in _ARGUMENT_OF.items() if name == argument)
    if inherited.get(attribute):
        return checked_name(f"OTEL_RESOURCE_ATTRIBUTES {attribute}", inherited[attribute])
    return None


def checked_name(where: str, value: object) -> str:
    """``value``, if it can name an experiment, a trial, a role or a tag.

    Args:
        where: The argument or variable that it came from, for the error.
        value: What was given.

    Raises:
        ConfigError: It cannot; says why.
    """
    if not isinstance(value, str):
        raise ConfigError(f"{where}: must be a string (got {value!r}).", hint="Pass str(...).")
    if not value.strip():
        raise ConfigError(
            f"{where}: must not be empty (got {value!r}).", hint="Name it, or leave it out."
        )
    if len(value) > MAX_NAME_LENGTH:
        raise ConfigError(
            f"{where}: must have at most {MAX_NAME_LENGTH} characters (got {len(value)}).",
            hint="Shorten it; long descriptions belong in the run's config.",
        )
    if not value.isprintable():
        raise ConfigError(
            f"{where}: must not hold control characters (got {value!r}).",
            hint="Remove line breaks and tabs.",
        )
    return value


def _stated_role(
    role: object, environ: Mapping[str, str], inherited: Mapping[str, str]
) -> str | None:
    """The role that somebody has said, torchrun's ``--role`` included."""
    stated = _name("role", role, "OTEL_RL_ROLE", environ, inherited)
    if stated is None and "ROLE_RANK" in environ:
        given = environ.get("ROLE_NAME", "").strip()
        stated = None if given in _TORCHRUN_DEFAULT_ROLES else checked_name("ROLE_NAME", given)
    return stated


def _from_name(process_name: str) -> tuple[str | None, int | None]:
    """(role, index) of a process that is called after its role; nothing of any other."""
    match = _NAMED.fullmatch(process_name.strip().lower())
    if match is None:
        return None, None
    return match[1], int(match[2]) if match[2] else None


def _place(
    environ: Mapping[str, str],
    inherited: Mapping[str, str],
    index: int | None,
    count: int | None,
    named_index: int | None,
) -> tuple[int | None, int | None]:
    """(index, count) from the first source that says either; never mixed from two sources."""
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
    variables = _RANK_VARIABLES
    if _RAY_WORKER not in environ:
        variables += _MPI_AND_SLURM_VARIABLES
    for index_variable, *count_variables in variables:
        counts = (environ[variable] for variable in count_variables if variable in environ)
        place = _launcher_place(environ.get(index_variable), next(counts, None))
        if place is not None:
            return place
    return None, None


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


def parse_resource_attributes(text: str) -> dict[str, str]:
    """Read ``key=value,key=value`` as the OpenTelemetry specification says, skipping bad pairs."""
    pairs = (item.partition("=") for item in text.split(","))
    return {key.strip(): unquote(value.strip()) for key, sep, value in pairs if sep}


def _extra_attributes(given: object) -> dict[str, AttributeValue]:
    if given is None:
        return {}
    if not isinstance(given, Mapping):
        raise ConfigError(
            f"resource_attributes: must be a mapping (got {type(given).__name__}).",
            hint='Pass {"team": "alignment"}.',
        )
    found: dict[str, AttributeValue] = {}
    for key, value in given.items():
        if not isinstance(key, str) or not key:
            raise ConfigError(
                f"resource_attributes: keys must be non-empty strings (got {key!r}).",
                hint="Use dotted names such as team.name.",
            )
        if key in _ARGUMENT_OF:
            raise ConfigError(
                f"resource_attributes: {key} is set by an argument (got {value!r}).",
                hint=f"Pass init({_ARGUMENT_OF[key]}=...) instead.",
            )
        found[key] = _checked_attribute(key, value)
    return found


def _checked_attribute(key: str, value: object) -> AttributeValue:
    if isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, Sequence) and all(isinstance(item, str) for item in value):
        return tuple(str(item) for item in value)
    raise ConfigError(
        f"resource_attributes.{key}: must be text, a number, a boolean or a list of text "
        f"(got {type(value).__name__}).",
        hint="Pass str(...).",
    )
