"""Names of a worker, from the program, its environment, a framework and a launcher. Pure.

Only this module defines their precedence.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final
from urllib.parse import unquote

from otel_rl.errors import ConfigError
from otel_rl.semconv.names import (
    RL_EXPERIMENT_NAME,
    RL_TRIAL_NAME,
    RL_WORKER_ROLE,
    RL_WORKER_TAG,
    RlWorkerRoleValues,
)

__all__ = [
    "DEFAULT_ROLE",
    "NO_NAMES",
    "WorkerNames",
    "checked_name",
    "named_place",
    "names_an_experiment",
    "parse_resource_attributes",
    "tag_of",
    "worker_names",
]

DEFAULT_ROLE: Final = "worker"
"""Role of a process without ``init`` and without any configured role."""

MAX_NAME_LENGTH: Final = 128
"""W&B cuts display names at 128 characters; a cut name may no longer be unique."""

_TORCHRUN_DEFAULT_ROLES: Final = frozenset({"", "default", "default_role"})

_NAMED: Final = re.compile(rf"({'|'.join(RlWorkerRoleValues)})(?:[-_. ]?(\d{{1,9}}))?")
"""Process named after its role: ``trainer``, ``generator-2``."""


@dataclass(frozen=True, slots=True)
class WorkerNames:
    """Names of a worker, as far as one source has them.

    Attributes:
        experiment: ``rl.experiment.name``.
        trial: ``rl.trial.name``.
        role: ``rl.worker.role``.
    """

    experiment: str | None = None
    trial: str | None = None
    role: str | None = None


NO_NAMES: Final = WorkerNames()


def worker_names(
    environ: Mapping[str, str],
    process_name: str = "",
    *,
    given: WorkerNames = NO_NAMES,
    known: WorkerNames = NO_NAMES,
    default_role: str | None = None,
) -> WorkerNames:
    """Return the worker's names, each from the first source that has it.

    1. ``given``
    2. ``OTEL_RL_*``, then ``OTEL_RESOURCE_ATTRIBUTES``
    3. ``known``, whose trial belongs to its experiment and is used only with it
    4. a role: torchrun's ``--role``, then the name of the process
    5. a role: the default

    Args:
        environ: The process's environment.
        process_name: From its launcher.
        given: From the program, passed to otel_rl.
        known: From a framework, or from a library that otel_rl replaces.
        default_role: The role if no source has one, or None.

    Raises:
        ConfigError: A selected name is invalid.
    """
    inherited = parse_resource_attributes(environ.get("OTEL_RESOURCE_ATTRIBUTES", ""))
    stated = WorkerNames(
        _stated("experiment", RL_EXPERIMENT_NAME, given.experiment, environ, inherited),
        _stated("trial", RL_TRIAL_NAME, given.trial, environ, inherited),
        _stated("role", RL_WORKER_ROLE, given.role, environ, inherited),
    )
    role = (
        stated.role
        or known.role
        or _torchrun_role(environ)
        or named_place(process_name)[0]
        or default_role
    )
    if stated.experiment is not None:
        return WorkerNames(stated.experiment, stated.trial, role)
    return WorkerNames(known.experiment, stated.trial or known.trial, role)


def names_an_experiment(environ: Mapping[str, str]) -> bool:
    """Report whether the environment names the experiment of the process."""
    inherited = parse_resource_attributes(environ.get("OTEL_RESOURCE_ATTRIBUTES", ""))
    return bool(environ.get("OTEL_RL_EXPERIMENT") or inherited.get(RL_EXPERIMENT_NAME))


def tag_of(environ: Mapping[str, str], given: str | None = None) -> str | None:
    """Return ``rl.worker.tag``, from the same sources as ``worker_names``.

    Raises:
        ConfigError: The tag is invalid.
    """
    inherited = parse_resource_attributes(environ.get("OTEL_RESOURCE_ATTRIBUTES", ""))
    return _stated("tag", RL_WORKER_TAG, given, environ, inherited)


def named_place(process_name: str) -> tuple[str | None, int | None]:
    """Return (role, index) of a process named after its role; (None, None) for any other."""
    match = _NAMED.fullmatch(process_name.strip().lower())
    if match is None:
        return None, None
    return match[1], int(match[2]) if match[2] else None


def _stated(
    argument: str,
    attribute: str,
    given: object,
    environ: Mapping[str, str],
    inherited: Mapping[str, str],
) -> str | None:
    """Return the first of argument, variable and resource attribute that is set, validated."""
    if given is not None:
        return checked_name(argument, given)
    variable = f"OTEL_RL_{argument.upper()}"
    if environ.get(variable):
        return checked_name(variable, environ[variable])
    if inherited.get(attribute):
        return checked_name(f"OTEL_RESOURCE_ATTRIBUTES {attribute}", inherited[attribute])
    return None


def _torchrun_role(environ: Mapping[str, str]) -> str | None:
    given = environ.get("ROLE_NAME", "").strip() if "ROLE_RANK" in environ else ""
    return None if given in _TORCHRUN_DEFAULT_ROLES else checked_name("ROLE_NAME", given)


def checked_name(where: str, value: object) -> str:
    """Validate the name of an experiment, a trial, a role or a tag.

    Args:
        where: Its argument or variable, for the error.
        value: The value to check.

    Raises:
        ConfigError: The name is invalid; the message gives the reason.
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


def parse_resource_attributes(text: str) -> dict[str, str]:
    """Parse ``key=value,key=value`` by the OpenTelemetry specification, skipping bad pairs."""
    pairs = (item.partition("=") for item in text.split(","))
    return {key.strip(): unquote(value.strip()) for key, sep, value in pairs if sep}
