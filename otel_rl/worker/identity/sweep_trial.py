"""Names of the trials of a sweep, whose launcher starts several below one environment."""

from collections.abc import Mapping
from typing import Final

from otel_rl.run_id import run_id
from otel_rl.semconv.names import RL_TRIAL_NAME
from otel_rl.worker.identity.launch import launch_of, with_names
from otel_rl.worker.identity.names import MAX_NAME_LENGTH, parse_resource_attributes
from otel_rl.worker.settings import DEFAULT_TRIAL, SWEEP, TYPED

__all__ = ["is_within", "sweep_environment"]

_TRIAL: Final = "OTEL_RL_TRIAL"
_RESOURCE: Final = "OTEL_RESOURCE_ATTRIBUTES"

_DIGEST_LENGTH: Final = 8
"""Of a long name, whose beginning may be what tells it from another one."""


def sweep_environment(environ: Mapping[str, str], name: str) -> dict[str, str]:
    """Return the variables that make a process and its children report for a trial of a sweep.

    Its name follows that of the trial around, or of the launch: ``20261126-lr_0``. It counts as
    typed, because the program of a sweep may give each trial the same name.

    Args:
        environ: The process's environment.
        name: The launcher's name of the trial.
    """
    resource = parse_resource_attributes(environ.get(_RESOURCE, ""))
    outer = environ.get(_TRIAL) or environ.get(DEFAULT_TRIAL) or resource.get(RL_TRIAL_NAME)
    outer = outer or launch_of(environ).id
    own = "".join(filter(str.isprintable, name)).strip() or "trial"
    trial = f"{outer}-{own}"
    if len(trial) > MAX_NAME_LENGTH:
        kept = trial[_DIGEST_LENGTH + 1 - MAX_NAME_LENGTH :]
        trial = f"{run_id('', trial)[:_DIGEST_LENGTH]}-{kept}"
    around = environ.get(SWEEP)
    typed = {*filter(None, environ.get(TYPED, "").split(",")), "trial"}
    variables = {
        SWEEP: f"{around}/{own}" if around else own,
        _TRIAL: trial.strip(),
        TYPED: ",".join(sorted(typed)),
    }
    if resource:
        variables[_RESOURCE] = with_names(resource, {RL_TRIAL_NAME: variables[_TRIAL]})
    return variables


def is_within(environ: Mapping[str, str], name: str) -> bool:
    """Report whether a process is within the trial of this name already, or in one of its own."""
    return name in environ.get(SWEEP, "").split("/")
