"""Identity of a worker: converts arguments and environment to resource attributes."""

import os
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final
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
)
from otel_rl.worker.identity.names import (
    WorkerNames,
    default_role,
    named_place,
    parse_resource_attributes,
    tag_of,
    unnamed_trial,
    worker_names,
)
from otel_rl.worker.identity.rank import place_of

__all__ = ["Identity", "detect", "identify", "instance_id"]

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
    """Identity of a worker in an experiment.

    Attributes:
        experiment: ``rl.experiment.name``.
        trial: ``rl.trial.name``.
        role: ``rl.worker.role``.
        index: Index among the workers of the role, or None: the bridge then assigns one.
        count: Number of workers of the role, or None if unknown.
        tag: ``rl.worker.tag``, e.g. ``evaluation``, or None.
        run_id: ``rl.run.id``.
        service_name: ``service.name``.
        extra: Further resource attributes, sorted by name.
        has_default_role: True if nothing names the role.
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
        """Return that of a forked child which has not named itself; a role given here is its own.

        Args:
            environ: The process's environment.
            process_name: From its launcher.
        """
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
    """Determine the worker's identity from the sources in ``worker_names`` and ``place_of``.

    Args:
        environ: The process's environment.
        launch: Returns the id of the launch; asked if nothing names a trial.
        experiment: See ``Identity``; the other arguments too.
        trial: See ``unnamed_trial`` for the default.
        role: See ``default_role`` for the default.
        index: With ``count``. Without both, launcher variables are read.
        count: Number of workers of the role.
        tag: ``training`` or ``evaluation``, or any other word.
        resource_attributes: Further attributes; they override ``OTEL_RESOURCE_ATTRIBUTES``.
        process_name: From its launcher; the last source of a role and an index.
        finished: See ``worker_names``.

    Raises:
        ConfigError: Names the wrong value and the remedy.
    """
    extra = _extra_attributes(resource_attributes)
    inherited = parse_resource_attributes(environ.get("OTEL_RESOURCE_ATTRIBUTES", ""))
    named = worker_names(
        environ, process_name, given=WorkerNames(experiment, trial, role), finished=finished
    )
    if named.experiment is None:
        raise ConfigError(
            "experiment: no experiment was named.",
            hint="Start the program with `otel-rl run -- CMD`, which names it and writes the run. "
            'Beside a bridge or collector of your own, pass init(experiment="my-run") or set '
            "OTEL_RL_EXPERIMENT.",
        )
    found_experiment = named.experiment
    found_trial = named.trial or unnamed_trial(environ, found_experiment, launch(), finished)
    found_role = named.role or default_role(environ, process_name)
    place_index, place_count = place_of(
        environ, inherited, index, count, _named_index(process_name, found_role)
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
        tag=tag_of(environ, tag),
        run_id=str(extra.pop(RL_RUN_ID, None) or _run_id_of_a_person(inherited) or default_id),
        service_name=str(extra.pop("service.name", None) or default_service),
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

    The trial is that of ``identify``: a process has one run, whichever SDK reports. A role that
    nothing names is left out, as ``service.name`` may tell it.

    Args:
        environ: The process's environment.
        process_name: From its launcher.
        launch: See ``identify``.

    Raises:
        ConfigError: An attribute is invalid.
    """
    inherited = parse_resource_attributes(environ.get("OTEL_RESOURCE_ATTRIBUTES", ""))
    named = worker_names(environ, process_name)
    role = named.role
    index, count = place_of(environ, inherited, None, None, _named_index(process_name, role))
    found: dict[str, AttributeValue | None] = {
        RL_WORKER_ROLE: role,
        RL_WORKER_INDEX: index,
        RL_WORKER_COUNT: count,
        RL_WORKER_TAG: tag_of(environ),
        "service.name": f"otel_rl.{role}" if role else None,
    }
    if named.experiment is not None:
        trial = named.trial or unnamed_trial(environ, named.experiment, launch())
        found |= {
            RL_EXPERIMENT_NAME: named.experiment,
            RL_TRIAL_NAME: trial,
            RL_RUN_ID: run_id(named.experiment, trial),
        }
    return {key: value for key, value in found.items() if value is not None}


def _named_index(process_name: str, role: str | None) -> int | None:
    """Return the index in the name of a process named after its role."""
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
