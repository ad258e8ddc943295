"""Who a worker is: its names, its place in its role and its resource attributes. Pure.

Each part comes from the first source that has it: the program, the environment, a framework, the
launcher, the name of the process. Only this module defines their precedence.
"""

import os
import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final, NamedTuple
from urllib.parse import unquote
from uuid import uuid4

from opentelemetry.util.types import AttributeValue

from otel_rl.errors import ConfigError
from otel_rl.run_id import run_id
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
from otel_rl.worker.settings import DEFAULT_EXPERIMENT, DEFAULT_TRIAL, LAUNCH, TYPED

MAX_NAME_LENGTH: Final = 128
"""W&B cuts display names at 128 characters; a cut name may no longer be unique."""

MAIN_PROCESS: Final = "MainProcess"
"""Name by ``multiprocessing`` of a process that it has not started."""

RAY_WORKER: Final = "RAY_RAYLET_PID"
"""Set in processes of Ray, where Slurm and MPI variables describe the raylet, not the worker."""

_ATTRIBUTES: Final = {
    "experiment": RL_EXPERIMENT_NAME,
    "trial": RL_TRIAL_NAME,
    "role": RL_WORKER_ROLE,
    "index": RL_WORKER_INDEX,
    "count": RL_WORKER_COUNT,
    "tag": RL_WORKER_TAG,
}
"""Resource attributes, by the argument of ``init`` with the same meaning."""


class Ranks(NamedTuple):
    """Names of a launcher's environment variables.

    Attributes:
        rank: Variable with the index of the process.
        sizes: Variables with the number of processes; the first that is set counts.
        local_size: Variable with the number of processes on this host; empty if the launcher has
            none.
        is_of_raylet: Whether these variables describe the raylet in a process of Ray.
    """

    rank: str
    sizes: tuple[str, ...]
    local_size: str = ""
    is_of_raylet: bool = True


RANKS: Final = (
    Ranks("ROLE_RANK", ("ROLE_WORLD_SIZE",), is_of_raylet=False),
    Ranks("RANK", ("WORLD_SIZE",), "LOCAL_WORLD_SIZE", is_of_raylet=False),
    Ranks("OMPI_COMM_WORLD_RANK", ("OMPI_COMM_WORLD_SIZE",), "OMPI_COMM_WORLD_LOCAL_SIZE"),
    Ranks("MV2_COMM_WORLD_RANK", ("MV2_COMM_WORLD_SIZE",), "MV2_COMM_WORLD_LOCAL_SIZE"),
    Ranks("PMI_RANK", ("PMI_SIZE",), "MPI_LOCALNRANKS"),
    Ranks("SLURM_PROCID", ("SLURM_STEP_NUM_TASKS", "SLURM_NTASKS")),
)
"""Launchers, best first: torchrun also sets the rank among the workers of a role; Ray Train and
others are compatible to it. A process of mpirun within a Slurm job inherits the Slurm variables of
mpirun. A batch script of Slurm has the job's number of tasks, a step its own.
"""

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


class WorkerNames(NamedTuple):
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

    A framework's names come after invented ones, because not all of its processes know its names:
    the processes of one launch would report to different runs. Its names are the run's names in the
    tracker instead.

    Names that no source has are the launch's, see ``unnamed_trial``, and ``default_role``.

    Args:
        environ: Environment of the process.
        process_name: Name that the launcher gave the process.
        given: Names from the program.
        stated: Names from the variables of a library that otel_rl replaces.
        known: Names from a framework.
        finished: Experiment and trial of each run that the process is done with. The process
            continues such a run only if the program names it; else the run that follows has a
            number.

    Raises:
        ConfigError: A selected name is invalid.
    """
    experiment, trial, role = (
        _first(environ, argument, getattr(given, argument)) or getattr(stated, argument)
        for argument in ("experiment", "trial", "role")
    )
    experiment = experiment or environ.get(DEFAULT_EXPERIMENT) or None
    if experiment is None:
        experiment, trial = known.experiment, trial or known.trial
    if experiment and trial and (given.trial is None or _is_typed(environ, "trial")):
        trial = _unfinished(experiment, trial, finished)
    of_torchrun = environ.get("ROLE_NAME", "").strip() if "ROLE_RANK" in environ else ""
    if of_torchrun in ("", "default", "default_role"):
        of_torchrun = named_place(process_name)[0] or ""
    role = role or known.role or (checked_name("ROLE_NAME", of_torchrun) if of_torchrun else None)
    return WorkerNames(experiment, trial or None, role)


def chosen_attributes(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the attributes of ``OTEL_RESOURCE_ATTRIBUTES``, without names that nobody has chosen.

    ``otel-rl run`` and parent processes write such names as attributes, too.
    """
    found = _inherited(environ)
    for attribute, *variables in (
        (RL_EXPERIMENT_NAME, DEFAULT_EXPERIMENT),
        (RL_TRIAL_NAME, LAUNCH, DEFAULT_TRIAL),
    ):
        if found.get(attribute) in [environ.get(name, "") for name in variables]:
            del found[attribute]
    return found


def unnamed_trial(
    environ: Mapping[str, str],
    experiment: str,
    launch: str,
    finished: Collection[tuple[str, str]] = (),
) -> str:
    """Return the trial of a worker for which no source names one.

    It is the trial of the process's parent, if the process works for the parent's experiment, else
    the launch. A process that has ``finished`` it goes on with the launch's second run, and so on.
    """
    of_parent = environ.get(DEFAULT_TRIAL) if environ.get(DEFAULT_EXPERIMENT) == experiment else ""
    return _unfinished(experiment, of_parent or launch, finished)


def default_role(environ: Mapping[str, str], process_name: str) -> str:
    is_ranked_by_ray = {"RANK", RAY_WORKER} <= {*environ}
    is_child = process_name not in ("", MAIN_PROCESS)
    return "worker" if is_child and not is_ranked_by_ray else RlWorkerRoleValues.TRAINER.value


def run_word(
    environ: Mapping[str, str], argument: str, given: str | None, stated: str | None = None
) -> str | None:
    """Return the tracker's project or the run's name, by the precedence of ``worker_names``."""
    variable = environ.get(f"OTEL_RL_{argument.upper()}")
    if variable and _is_typed(environ, argument):
        return variable
    return given or variable or stated


def names_an_experiment(environ: Mapping[str, str]) -> bool:
    named = environ.get("OTEL_RL_EXPERIMENT") or environ.get(DEFAULT_EXPERIMENT)
    return bool(named or _inherited(environ).get(RL_EXPERIMENT_NAME))


def named_place(process_name: str) -> tuple[str | None, int | None]:
    """Return (role, index) from the name of a child process; (None, None) if it has neither."""
    name = process_name.strip()
    match = _AFTER_ROLE.fullmatch(name.lower())
    if match is None and name not in ("", MAIN_PROCESS) and not _OF_LIBRARY.fullmatch(name):
        match = _ANY_NAME.fullmatch(name)
    if match is None:
        return None, None
    role = re.sub(r"\W+", "_", _WORD_BEGINS.sub("_", match[1])).strip("_").lower()
    role = role.removesuffix("_worker").removesuffix("_actor")
    if role in _SAYS_NOTHING or not role[0].isalpha() or len(role) > MAX_NAME_LENGTH:
        return None, None
    return role, int(match[2]) if match[2] else None


def _is_typed(environ: Mapping[str, str], argument: str) -> bool:
    return argument in environ.get(TYPED, "").split(",")


def _first(environ: Mapping[str, str], argument: str, given: object) -> str | None:
    """Return the first of typed name, argument, variable and resource attribute, validated."""
    variable, attribute = f"OTEL_RL_{argument.upper()}", _ATTRIBUTES[argument]
    if given is not None and not (environ.get(variable) and _is_typed(environ, argument)):
        return checked_name(argument, given)
    if environ.get(variable):
        return checked_name(variable, environ[variable])
    inherited = chosen_attributes(environ).get(attribute)
    return checked_name(f"OTEL_RESOURCE_ATTRIBUTES {attribute}", inherited) if inherited else None


def _unfinished(experiment: str, trial: str, finished: Collection[tuple[str, str]]) -> str:
    """Return the trial, with a number at its end if the process is done with that run."""
    found, number = trial, 1
    while (experiment, found) in finished:
        number += 1
        suffix = f"-{number}"
        found = f"{trial[: MAX_NAME_LENGTH - len(suffix)]}{suffix}"
    return found


def checked_name(where: str, value: object) -> str:
    """Validate the name of an experiment, a trial, a role or a tag.

    Raises:
        ConfigError: The name is invalid; the message says ``where`` it is set, and why it is
            invalid.
    """
    if not isinstance(value, str):
        wrong, hint = f"be a string (got {value!r})", "Pass str(...)."
    elif not value.strip():
        wrong, hint = f"not be empty (got {value!r})", "Name it, or leave it out."
    elif len(value) > MAX_NAME_LENGTH:
        wrong = f"have at most {MAX_NAME_LENGTH} characters (got {len(value)})"
        hint = "Shorten it; long descriptions belong in the run's config."
    elif not value.isprintable():
        wrong = f"not hold control characters (got {value!r})"
        hint = "Remove line breaks and tabs."
    else:
        return value
    raise ConfigError(f"{where}: must {wrong}.", hint=hint)


def _inherited(environ: Mapping[str, str]) -> dict[str, str]:
    return parse_resource_attributes(environ.get("OTEL_RESOURCE_ATTRIBUTES", ""))


def parse_resource_attributes(text: str) -> dict[str, str]:
    """Parse ``key=value,key=value`` by the OpenTelemetry specification, skipping bad pairs."""
    pairs = (item.partition("=") for item in text.split(","))
    return {key.strip(): unquote(value.strip()) for key, sep, value in pairs if sep}


# Places: index of a worker and number of workers of its role. They are never mixed from two sources


_Place = tuple[int | None, int | None]


def launcher_index(environ: Mapping[str, str], process_name: str) -> int | None:
    """Return the launcher's index, for a worker that may be the only reporting rank.

    Return None if a person, or the name of the process, gives the place, which ``identify`` reads.
    """
    is_stated = _stated_place(environ, None, None) is not None
    return None if is_stated or named_place(process_name)[1] is not None else _launched(environ)[0]


def invalid_place(environ: Mapping[str, str]) -> str | None:
    """Return the first invalid pair of launcher variables, formatted for a message."""
    for rank, size, place in _of_launchers(environ):
        if place is None:
            beside = f" with {size}={environ[size]}" if size in environ else ""
            return f"{rank}={environ[rank]}{beside}"
    return None


def _launched(environ: Mapping[str, str]) -> _Place:
    """Return the place from the best launcher; invalid values, which are not ours, are ignored."""
    return next((place for *_, place in _of_launchers(environ) if place), (None, None))


def _of_launchers(environ: Mapping[str, str]) -> Iterator[tuple[str, str, _Place | None]]:
    """Yield the variables of each launcher that has ranked the process, and a valid place."""
    for one in RANKS:
        if not environ.get(one.rank, "").strip() or (one.is_of_raylet and RAY_WORKER in environ):
            continue
        size = next((size for size in one.sizes if size in environ), one.sizes[0])
        try:
            place = _checked_place({one.rank: environ[one.rank], size: environ.get(size)})
        except ConfigError:
            place = None
        yield one.rank, size, place


def _stated_place(environ: Mapping[str, str], index: object, count: object) -> _Place | None:
    """Return the place from the arguments, else from variables, else from resource attributes."""
    if index is not None or count is not None:
        for name, value in (("index", index), ("count", count)):
            if isinstance(value, str | bool):
                raise _no_number(name, value, 1 if name == "count" else 0)
        return _checked_place({"index": index, "count": count})
    for names, texts in (
        (("OTEL_RL_INDEX", "OTEL_RL_COUNT"), environ),
        ((RL_WORKER_INDEX, RL_WORKER_COUNT), _inherited(environ)),
    ):
        if any(texts.get(name, "").strip() for name in names):
            return _checked_place({name: texts.get(name) for name in names})
    return None


def _checked_place(named: Mapping[str, object]) -> _Place:
    """Return index and count, each given under its name as a number, a text or None."""
    (index_name, index), (count_name, count) = (
        (name, _number(name, given, least))
        for (name, given), least in zip(named.items(), (0, 1), strict=True)
    )
    if index is not None and count is not None and index >= count:
        raise ConfigError(
            f"{index_name}: must be below {count_name} (got {index} of {count}).",
            hint="The first worker of a role is 0.",
        )
    return index, count


def _number(name: str, given: object, least: int) -> int | None:
    if given is None or (isinstance(given, str) and not given.strip()):
        return None
    try:
        found = int(given) if isinstance(given, int | str) else least - 1
    except ValueError:
        found = least - 1
    if found < least:
        raise _no_number(name, given, least)
    return found


def _no_number(name: str, given: object, least: int = 0) -> ConfigError:
    return ConfigError(
        f"{name}: must be an integer of at least {least} (got {given!r}).",
        hint="Correct it, or leave it out if the process does not know it.",
    )


# The whole


@dataclass(frozen=True, slots=True)
class Identity:
    """Identity of a worker in an experiment.

    Attributes:
        experiment: ``rl.experiment.name``.
        trial: ``rl.trial.name``.
        role: ``rl.worker.role``.
        index: Index among the workers of the role, or None: the bridge then assigns one.
        count: Number of workers of the role, or None if unknown.
        tag: ``rl.worker.tag``, e.g. ``evaluation``, or None.
        run_id: ``rl.run.id``.
        extra: Further resource attributes, sorted by name.
        has_default_role: Whether no source names the role.
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
    has_default_role: bool = field(default=False, compare=False)

    def without_place(self) -> "Identity":
        """Return a copy without index and count: a forked child is not its parent's rank."""
        return replace(self, index=None, count=None)

    def of_child(self, environ: Mapping[str, str], process_name: str) -> "Identity":
        """Return the identity of a forked child without names: its process name may tell a role."""
        role = self.role
        if worker_names(environ).role is None:
            inherited = default_role(environ, process_name) if self.has_default_role else role
            role = named_place(process_name)[0] or inherited
        is_named = self.service_name != f"otel_rl.{self.role}"
        return replace(
            self,
            role=role,
            index=_named_index(process_name, role),
            service_name=self.service_name if is_named else f"otel_rl.{role}",
            has_default_role=False,
        )

    def attributes(self) -> dict[str, AttributeValue]:
        """Return the resource attributes that do not depend on the process or the host."""
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
    launch: Callable[[], str],
    experiment: str | None = None,
    trial: str | None = None,
    role: str | None = None,
    index: int | None = None,
    count: int | None = None,
    tag: str | None = None,
    resource_attributes: Mapping[str, AttributeValue] | None = None,
    process_name: str = "",
    finished: Collection[tuple[str, str]] = (),
) -> Identity:
    """Determine the worker's identity from the sources in ``worker_names``.

    The place is that of the arguments, variables or resource attributes, else of the name of the
    process, else of the launcher. ``launch`` returns the id of the launch, and is called only if no
    source names a trial. The other arguments are those of ``init`` and of ``worker_names``.

    Raises:
        ConfigError: A value is wrong. The error names the value and the remedy.
    """
    extra = _extra_attributes(resource_attributes)
    inherited = _inherited(environ)
    given = WorkerNames(experiment, trial, role)
    named = worker_names(environ, process_name, given=given, finished=finished)
    if named.experiment is None:
        raise ConfigError(
            "experiment: no experiment was named.",
            hint="Start the program with `otel-rl run -- CMD`, which names it and writes the run. "
            'Beside a bridge or collector of your own, pass init(experiment="my-run") or set '
            "OTEL_RL_EXPERIMENT.",
        )
    found_trial = named.trial or unnamed_trial(environ, named.experiment, launch(), finished)
    found_role = named.role or default_role(environ, process_name)
    own_index = _named_index(process_name, found_role)
    place = _stated_place(environ, index, count) or (
        _launched(environ) if own_index is None else (own_index, None)
    )
    default_id = run_id(named.experiment, found_trial)
    service = environ.get("OTEL_SERVICE_NAME") or inherited.get("service.name")
    return Identity(
        experiment=named.experiment,
        trial=found_trial,
        role=found_role,
        index=place[0],
        count=place[1],
        tag=_first(environ, "tag", tag),
        run_id=str(extra.pop(RL_RUN_ID, None) or _run_id_of_a_person(inherited) or default_id),
        service_name=str(extra.pop("service.name", None) or service or f"otel_rl.{found_role}"),
        extra=tuple(sorted(extra.items())),
        has_default_role=named.role is None,
    )


def _run_id_of_a_person(inherited: Mapping[str, str]) -> str | None:
    """Return the run's id in the resource attributes, unless it only follows from their names."""
    names = inherited.get(RL_EXPERIMENT_NAME), inherited.get(RL_TRIAL_NAME)
    given = inherited.get(RL_RUN_ID)
    return None if given == run_id(names[0] or "", names[1] or "") else given


def detect(
    environ: Mapping[str, str], process_name: str = "", *, launch: Callable[[], str]
) -> dict[str, AttributeValue]:
    """Return the identity attributes in the environment, for a resource of another SDK.

    The attributes are those of ``identify``: a process has one run, whichever SDK reports. What no
    source names is left out: the run, and a role, which ``service.name`` may tell.
    """
    is_named = names_an_experiment(environ)
    identity = identify(
        environ, launch=launch, experiment=None if is_named else "none", process_name=process_name
    )
    unnamed = [] if is_named else [RL_EXPERIMENT_NAME, RL_TRIAL_NAME, RL_RUN_ID]
    if identity.has_default_role:
        unnamed += [RL_WORKER_ROLE, "service.name"]
    return {name: value for name, value in identity.attributes().items() if name not in unnamed}


def _named_index(process_name: str, role: str | None) -> int | None:
    named_role, named_index = named_place(process_name)
    return named_index if named_role == role else None


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
        for argument, attribute in _ATTRIBUTES.items():
            if key == attribute:
                raise ConfigError(
                    f"resource_attributes: {key} is set by an argument (got {value!r}).",
                    hint=f"Pass init({argument}=...) instead.",
                )
        if isinstance(value, bool | int | float | str):
            found[key] = value
        elif isinstance(value, Sequence) and all(isinstance(item, str) for item in value):
            found[key] = tuple(str(item) for item in value)
        else:
            raise ConfigError(
                f"resource_attributes.{key}: must be text, a number, a boolean or a list of text "
                f"(got {type(value).__name__}).",
                hint="Pass str(...).",
            )
    return found


def instance_id() -> str:
    """Return the ``service.instance.id`` of this process; a forked child has its own."""
    from opentelemetry.sdk import resources  # commands name workers without the SDK

    # The SDK's, where it makes one: a provider of the program has it, too, also after a fork.
    detector = getattr(resources, "ServiceInstanceIdResourceDetector", None)
    if detector is not None:
        return str(detector().detect().attributes["service.instance.id"])
    pid = os.getpid()  # before 1.43 it makes none
    if pid not in _instance_ids:
        _instance_ids.clear()
        _instance_ids[pid] = str(uuid4())
    return _instance_ids[pid]


_instance_ids: Final[dict[int, str]] = {}
