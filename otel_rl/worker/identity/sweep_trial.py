"""Names of the trials of a sweep, whose launcher starts several below one environment. Pure."""

from collections.abc import Mapping
from typing import Final
from urllib.parse import quote

from otel_rl.semconv.names import RL_TRIAL_NAME
from otel_rl.worker.identity.names import MAX_NAME_LENGTH, parse_resource_attributes

__all__ = ["SWEEP", "sweep_environment"]

SWEEP: Final = "OTEL_RL_SWEEP"
"""Trial of the environment in which the launcher was started, as long as one of its trials runs."""

_TRIAL: Final = "OTEL_RL_TRIAL"
_RESOURCE: Final = "OTEL_RESOURCE_ATTRIBUTES"


def sweep_environment(environ: Mapping[str, str], name: str) -> dict[str, str]:
    """Return the variables that make a process and its children report for a trial of a sweep.

    Its name follows that of the environment's trial, if that has one: ``20261126-lr_0``. They
    replace those of another trial of the same sweep.

    Args:
        environ: The process's environment.
        name: The launcher's name of the trial.
    """
    resource = parse_resource_attributes(environ.get(_RESOURCE, ""))
    outer = environ.get(SWEEP)
    if outer is None:
        outer = environ.get(_TRIAL) or resource.get(RL_TRIAL_NAME, "")
    own = "".join(filter(str.isprintable, name)).strip() or "trial"
    trial = f"{outer}-{own}" if outer else own
    variables = {SWEEP: outer, _TRIAL: trial[-MAX_NAME_LENGTH:].strip()}
    if resource:
        resource[RL_TRIAL_NAME] = variables[_TRIAL]
        pairs = (f"{key}={quote(value, safe='')}" for key, value in resource.items())
        variables[_RESOURCE] = ",".join(pairs)
    return variables
