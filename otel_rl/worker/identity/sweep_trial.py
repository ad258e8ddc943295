"""Names of the trials of a sweep, whose launcher starts several below one environment. Pure."""

from collections.abc import Mapping
from typing import Final
from urllib.parse import quote

from otel_rl.run_id import run_id
from otel_rl.semconv.names import RL_TRIAL_NAME
from otel_rl.worker.identity.names import MAX_NAME_LENGTH, parse_resource_attributes

__all__ = ["SWEEP", "is_within", "sweep_environment"]

SWEEP: Final = "OTEL_RL_SWEEP"
"""Launchers' names of the trials around, from the outermost one, with slashes between."""

_TRIAL: Final = "OTEL_RL_TRIAL"
_RESOURCE: Final = "OTEL_RESOURCE_ATTRIBUTES"

_DIGEST_LENGTH: Final = 8
"""Of a long name, whose beginning may be what tells it from another one."""


def sweep_environment(environ: Mapping[str, str], name: str) -> dict[str, str]:
    """Return the variables that make a process and its children report for a trial of a sweep.

    Its name follows that of the environment's trial, if that has one: ``20261126-lr_0``.

    Args:
        environ: The process's environment.
        name: The launcher's name of the trial.
    """
    resource = parse_resource_attributes(environ.get(_RESOURCE, ""))
    outer = environ.get(_TRIAL) or resource.get(RL_TRIAL_NAME, "")
    own = "".join(filter(str.isprintable, name)).strip() or "trial"
    trial = f"{outer}-{own}" if outer else own
    if len(trial) > MAX_NAME_LENGTH:
        kept = trial[_DIGEST_LENGTH + 1 - MAX_NAME_LENGTH :]
        trial = f"{run_id('', trial)[:_DIGEST_LENGTH]}-{kept}"
    around = environ.get(SWEEP)
    variables = {SWEEP: f"{around}/{own}" if around else own, _TRIAL: trial.strip()}
    if resource:
        resource[RL_TRIAL_NAME] = variables[_TRIAL]
        pairs = (f"{key}={quote(value, safe='')}" for key, value in resource.items())
        variables[_RESOURCE] = ",".join(pairs)
    return variables


def is_within(environ: Mapping[str, str], name: str) -> bool:
    """Report whether a process is within the trial of this name already, or in one of its own."""
    return name in environ.get(SWEEP, "").split("/")
