"""Names of a worker, from the command line, the program, its environment and who started it. Pure.

Only this module defines their precedence.
"""

import re
from collections.abc import Collection, Mapping
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
from otel_rl.worker.settings import DEFAULT_EXPERIMENT, DEFAULT_TRIAL, LAUNCH, TYPED

__all__ = [
    "MAIN_PROCESS",
    "MAX_NAME_LENGTH",
    "NO_NAMES",
    "WorkerNames",
    "checked_name",
    "default_role",
    "named_place",
    "names_an_experiment",
    "parse_resource_attributes",
    "run_word",
    "tag_of",
    "unnamed_trial",
    "worker_names",
]

MAX_NAME_LENGTH: Final = 128
"""W&B cuts display names at 128 characters; a cut name may no longer be unique."""

MAIN_PROCESS: Final = "MainProcess"
"""Name by ``multiprocessing`` of a process that it has not started."""

_TORCHRUN_DEFAULT_ROLES: Final = frozenset({"", "default", "default_role"})

_RAY_WORKER: Final = "RAY_RAYLET_PID"

_AFTER_ROLE: Final = re.compile(rf"({'|'.join(RlWorkerRoleValues)})(?:[-_. ]?(\d{{1,9}}))?")
"""Process named after its role: ``trainer``, ``generator-2``."""

_OF_LIBRARY: Final = re.compile(r"(Fork|Spawn|ForkServer)?(Process|PoolWorker)-\d+(:\d+)*")
"""Name that ``multiprocessing`` gives to a process whose program names none."""

_ANY_NAME: Final = re.compile(r"(.*?)(?:[-_. :]+(\d{1,9}))?")
_WORD_BEGINS: Final = re.compile(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])")
_SAYS_NOTHING: Final = frozenset(
    {"", "actor", "process", "ray_train", "resource_trainable", "train", "worker_dict"}
)
"""Roles that would be made of the names of any library's processes and classes."""


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
    stated: WorkerNames = NO_NAMES,
    known: WorkerNames = NO_NAMES,
    finished: Collection[tuple[str, str]] = (),
) -> WorkerNames:
    """Return the worker's names, each from the first source that has it.

    1. the command line of ``otel-rl run``
    2. ``given``
    3. ``OTEL_RL_*``, ``OTEL_RESOURCE_ATTRIBUTES``, then ``stated``
    4. a role: ``known``, then torchrun's ``--role``, then the name of the process
    5. an experiment: the one that ``otel-rl run`` has invented, or the parent's
    6. ``known``, whose trial belongs to its experiment and is used only with it

    A framework comes after what is invented, since not all of its processes know its names: of one
    launch they would report to different runs. Its names are the run's in the tracker instead.

    What remains is the launch's, see ``unnamed_trial``, and ``default_role``.

    Args:
        environ: The process's environment.
        process_name: From its launcher.
        given: From the program.
        stated: From the variables of a library that otel_rl replaces.
        known: From a framework.
        finished: Experiment and trial of each run that the process is done with. The process
            continues one only if the program names it; else the run that follows has a number.

    Raises:
        ConfigError: A selected name is invalid.
    """
    inherited = parse_resource_attributes(environ.get("OTEL_RESOURCE_ATTRIBUTES", ""))
    for attribute, variables in _INVENTED.items():
        if inherited.get(attribute) in [environ.get(name, "") for name in variables]:
            del inherited[attribute]
    experiment = _first("experiment", RL_EXPERIMENT_NAME, given.experiment, environ, inherited)
    trial = _first("trial", RL_TRIAL_NAME, given.trial, environ, inherited) or stated.trial
    role = _first("role", RL_WORKER_ROLE, given.role, environ, inherited) or stated.role
    experiment = experiment or stated.experiment or environ.get(DEFAULT_EXPERIMENT) or None
    if experiment is None:
        experiment, trial = known.experiment, trial or known.trial
    if experiment and trial and (given.trial is None or _is_typed("trial", environ)):
        trial = _unfinished(experiment, trial, finished)
    role = role or known.role or _torchrun_role(environ) or named_place(process_name)[0]
    return WorkerNames(experiment, trial or None, role)


_INVENTED: Final = {
    RL_EXPERIMENT_NAME: (DEFAULT_EXPERIMENT,),
    RL_TRIAL_NAME: (LAUNCH, DEFAULT_TRIAL),
}
"""Variables of names that nobody has chosen; ``otel-rl run`` writes them as attributes, too."""


def unnamed_trial(
    environ: Mapping[str, str],
    experiment: str,
    launch: str,
    finished: Collection[tuple[str, str]] = (),
) -> str:
    """Return the trial of a worker that nothing names one for.

    That of the process's parent, if it works for the parent's experiment, else the launch. A
    process that is done with it goes on with the launch's second run, and so on.

    Args:
        environ: The process's environment.
        experiment: Of the worker.
        launch: Id of the launch.
        finished: See ``worker_names``.
    """
    of_parent = environ.get(DEFAULT_TRIAL) if environ.get(DEFAULT_EXPERIMENT) == experiment else ""
    return _unfinished(experiment, of_parent or launch, finished)


def default_role(environ: Mapping[str, str], process_name: str) -> str:
    """Return the role of a worker that nothing names one for.

    Args:
        environ: The process's environment.
        process_name: From its launcher.
    """
    if _is_child(process_name) and not ({"RANK", _RAY_WORKER} <= {*environ}):
        return "worker"
    return RlWorkerRoleValues.TRAINER.value


def run_word(
    environ: Mapping[str, str], argument: str, given: str | None, stated: str | None = None
) -> str | None:
    """Return the tracker's project or name of the run, by the precedence of ``worker_names``.

    Args:
        environ: The process's environment.
        argument: ``project`` or ``name``.
        given: From the program.
        stated: From the variable of a library that otel_rl replaces.
    """
    variable = environ.get(f"OTEL_RL_{argument.upper()}")
    if variable and _is_typed(argument, environ):
        return variable
    return given or variable or stated


def names_an_experiment(environ: Mapping[str, str]) -> bool:
    """Report whether the environment names the experiment of the process."""
    inherited = parse_resource_attributes(environ.get("OTEL_RESOURCE_ATTRIBUTES", ""))
    return bool(
        environ.get("OTEL_RL_EXPERIMENT")
        or environ.get(DEFAULT_EXPERIMENT)
        or inherited.get(RL_EXPERIMENT_NAME)
    )


def tag_of(environ: Mapping[str, str], given: str | None = None) -> str | None:
    """Return ``rl.worker.tag``, from the same sources as ``worker_names``.

    Raises:
        ConfigError: The tag is invalid.
    """
    inherited = parse_resource_attributes(environ.get("OTEL_RESOURCE_ATTRIBUTES", ""))
    return _first("tag", RL_WORKER_TAG, given, environ, inherited)


def named_place(process_name: str) -> tuple[str | None, int | None]:
    """Return (role, index) in the name of a child process; (None, None) if it says neither."""
    name = process_name.strip()
    match = _AFTER_ROLE.fullmatch(name.lower())
    if match is None:
        if not _is_child(name) or _OF_LIBRARY.fullmatch(name):
            return None, None
        match = _ANY_NAME.fullmatch(name)
    if match is None:
        return None, None
    role = re.sub(r"\W+", "_", _WORD_BEGINS.sub("_", match[1])).strip("_").lower()
    role = role.removesuffix("_worker").removesuffix("_actor")
    if role in _SAYS_NOTHING or not role[0].isalpha() or len(role) > MAX_NAME_LENGTH:
        return None, None
    return role, int(match[2]) if match[2] else None


def _is_child(process_name: str) -> bool:
    return process_name not in ("", MAIN_PROCESS)


def _is_typed(argument: str, environ: Mapping[str, str]) -> bool:
    return argument in environ.get(TYPED, "").split(",")


def _first(
    argument: str,
    attribute: str,
    given: object,
    environ: Mapping[str, str],
    inherited: Mapping[str, str],
) -> str | None:
    """Return the first of typed name, argument, variable and resource attribute, validated."""
    variable = f"OTEL_RL_{argument.upper()}"
    if given is not None and not (environ.get(variable) and _is_typed(argument, environ)):
        return checked_name(argument, given)
    if environ.get(variable):
        return checked_name(variable, environ[variable])
    if inherited.get(attribute):
        return checked_name(f"OTEL_RESOURCE_ATTRIBUTES {attribute}", inherited[attribute])
    return None


def _unfinished(experiment: str, trial: str, finished: Collection[tuple[str, str]]) -> str:
    """Return the trial, with the first number whose run the process is not done with."""
    found, number = trial, 1
    while (experiment, found) in finished:
        number += 1
        suffix = f"-{number}"
        found = f"{trial[: MAX_NAME_LENGTH - len(suffix)]}{suffix}"
    return found


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
