"""What a worker is called: by the program, its environment, a framework, a launcher. Pure.

The one place that knows which of them counts.
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
    "NOBODY",
    "Who",
    "checked_name",
    "named_place",
    "names_an_experiment",
    "parse_resource_attributes",
    "tag_of",
    "who",
]

DEFAULT_ROLE: Final = "worker"
"""The role of a process that does not call ``init`` and that nobody names."""

MAX_NAME_LENGTH: Final = 128
"""W&B cuts display names at 128 characters; a name that is cut no longer names one thing."""

_TORCHRUN_DEFAULT_ROLES: Final = frozenset({"", "default", "default_role"})

_NAMED: Final = re.compile(rf"({'|'.join(RlWorkerRoleValues)})(?:[-_. ]?(\d{{1,9}}))?")
"""A process that is called after its role: ``trainer``, ``generator-2``."""


@dataclass(frozen=True, slots=True)
class Who:
    """A worker's names, as far as one source has them.

    Attributes:
        experiment: ``rl.experiment.name``.
        trial: ``rl.trial.name``.
        role: ``rl.worker.role``.
    """

    experiment: str | None = None
    trial: str | None = None
    role: str | None = None


NOBODY: Final = Who()


def who(
    environ: Mapping[str, str],
    process_name: str = "",
    *,
    said: Who = NOBODY,
    known: Who = NOBODY,
    default_role: str | None = None,
) -> Who:
    """The worker's names, each from the first source that has it.

    1. ``said``
    2. ``OTEL_RL_*``, then ``OTEL_RESOURCE_ATTRIBUTES``
    3. ``known``, whose trial is one of its experiment and counts with it alone
    4. a role: torchrun's ``--role``, then the name of the process
    5. a role: the default

    Args:
        environ: The process's environment.
        process_name: What its launcher calls it.
        said: What the program tells otel_rl.
        known: What a framework, or a library that otel_rl stands in for, calls the process.
        default_role: The role of a process that nobody names, or None.

    Raises:
        ConfigError: A name that counts cannot be one.
    """
    inherited = parse_resource_attributes(environ.get("OTEL_RESOURCE_ATTRIBUTES", ""))
    stated = Who(
        _stated("experiment", RL_EXPERIMENT_NAME, said.experiment, environ, inherited),
        _stated("trial", RL_TRIAL_NAME, said.trial, environ, inherited),
        _stated("role", RL_WORKER_ROLE, said.role, environ, inherited),
    )
    role = (
        stated.role
        or known.role
        or _torchrun_role(environ)
        or named_place(process_name)[0]
        or default_role
    )
    if stated.experiment is not None:
        return Who(stated.experiment, stated.trial, role)
    return Who(known.experiment, stated.trial or known.trial, role)


def names_an_experiment(environ: Mapping[str, str]) -> bool:
    """Whether the environment says which experiment the process works for."""
    inherited = parse_resource_attributes(environ.get("OTEL_RESOURCE_ATTRIBUTES", ""))
    return bool(environ.get("OTEL_RL_EXPERIMENT") or inherited.get(RL_EXPERIMENT_NAME))


def tag_of(environ: Mapping[str, str], said: str | None = None) -> str | None:
    """``rl.worker.tag``, from the same sources as ``who``.

    Raises:
        ConfigError: It cannot be one.
    """
    inherited = parse_resource_attributes(environ.get("OTEL_RESOURCE_ATTRIBUTES", ""))
    return _stated("tag", RL_WORKER_TAG, said, environ, inherited)


def named_place(process_name: str) -> tuple[str | None, int | None]:
    """(role, index) of a process that is called after its role; nothing of any other."""
    match = _NAMED.fullmatch(process_name.strip().lower())
    if match is None:
        return None, None
    return match[1], int(match[2]) if match[2] else None


def _stated(
    argument: str,
    attribute: str,
    said: object,
    environ: Mapping[str, str],
    inherited: Mapping[str, str],
) -> str | None:
    """The first of argument, variable and resource attribute that is given, checked."""
    if said is not None:
        return checked_name(argument, said)
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


def parse_resource_attributes(text: str) -> dict[str, str]:
    """Read ``key=value,key=value`` as the OpenTelemetry specification says, skipping bad pairs."""
    pairs = (item.partition("=") for item in text.split(","))
    return {key.strip(): unquote(value.strip()) for key, sep, value in pairs if sep}
