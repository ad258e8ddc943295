"""Trials of a sweep, one after another in a process: each is a run of its own."""

import json
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import Final

from otel_rl.errors import ConfigError
from otel_rl.worker import session
from otel_rl.worker.drops import DropReason
from otel_rl.worker.events.masking import is_secret
from otel_rl.worker.launch import sweep_environment, take_back
from otel_rl.worker.otlp.anyvalue import plain_config
from otel_rl.worker.settings import CONFIG, SWEEP, TYPED, read_config

VARIABLES: Final = (CONFIG, "OTEL_RESOURCE_ATTRIBUTES", SWEEP, "OTEL_RL_TRIAL", TYPED)
"""What tells a process that it is of a trial, and of which."""

_MAX_CONFIG_CHARS: Final = 30_000
"""Of the config in the environment: a variable of Linux has 131,072 bytes."""

EndTrial = Callable[[Exception | None], None]
"""Ends a trial, with a failure if there was one. Waits for the delivery of what was recorded."""


@contextmanager
def trial(name: str, config: Mapping[str, object] | None = None) -> Iterator[None]:
    """Report for a trial of its own within the block, in this process and its children.

    Args:
        name: Name of the trial in its sweep; its run is named ``<trial so far>-<name>``.
        config: Hyper-parameters of the trial, for the config of its run, which leaves out secrets.
    """
    end = begin_trial(name, config)
    failure: Exception | None = None
    try:
        yield
    except Exception as error:
        failure = error
        raise
    finally:
        end(failure)


def begin_trial(name: str, config: Mapping[str, object] | None = None) -> EndTrial:
    """Begin a ``trial`` within that of the process, if any. Neither this nor its end ever raises.

    Waits for the delivery of what was recorded so far.
    """
    running = session.running()
    so_far = None if running is None else running.identity.trial
    before = {variable: os.environ.get(variable) for variable in VARIABLES}
    with session.GUARD:
        variables = sweep_environment(os.environ, name)
        with session.GUARD:
            variables |= _with_config(_without_secrets(config or {}))
        session.change_trial(
            None if so_far is None else variables["OTEL_RL_TRIAL"],
            _config_of(os.environ | variables),
        )
        os.environ.update(variables)
    return partial(_end, so_far, before)


def _end(so_far: str | None, before: Mapping[str, str | None], failure: Exception | None) -> None:
    with session.GUARD:
        session.change_trial(so_far, _config_of({CONFIG: before[CONFIG] or ""}), failure)
    take_back(os.environ, before)


def _without_secrets(config: Mapping[str, object], path: str = "") -> dict[str, object]:
    """Leave out secrets: a sweep's hyper-parameters get into a run without being asked for."""
    return {
        name: _without_secrets(value, f"{path}{name}.") if isinstance(value, Mapping) else value
        for name, value in config.items()
        if not is_secret(f"{path}{name}")
    }


def _config_of(environ: Mapping[str, str]) -> Mapping[str, object]:
    """Return the config that the environment gives. A wrong one is counted, logged and left out."""
    try:
        return read_config(environ)
    except ConfigError as error:
        session.GUARD.drop(DropReason.BAD_ATTRIBUTES, f"{error} It is left out of the run.")
        return {}


def _with_config(config: Mapping[str, object]) -> dict[str, str]:
    """Return the variable that adds to the config of this process and its children."""
    added, left_out = plain_config(config)
    if not added and not left_out:
        return {}
    kept, room = {**_config_of(os.environ), **added}, _MAX_CONFIG_CHARS
    for key in [*kept]:
        room -= len(json.dumps({key: kept[key]}))
        if room < 0:
            del kept[key]
            left_out.append(key)
    if left_out:
        session.GUARD.drop(
            DropReason.TOO_LARGE,
            f"The config of a trial may have {_MAX_CONFIG_CHARS} characters; left out: "
            f"{', '.join(left_out)}.",
            len(left_out),
        )
    return {CONFIG: json.dumps(kept)}
