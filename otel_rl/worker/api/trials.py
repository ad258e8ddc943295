"""Trials of a sweep, one after another in a process: each is a run of its own."""

import json
import os
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Final

from otel_rl.errors import ConfigError
from otel_rl.worker import session
from otel_rl.worker.drops import DropReason
from otel_rl.worker.events.masking import is_secret
from otel_rl.worker.launch import sweep_environment
from otel_rl.worker.otlp.anyvalue import plain_config
from otel_rl.worker.settings import CONFIG, SWEEP, TYPED, read_config

VARIABLES: Final = (CONFIG, "OTEL_RESOURCE_ATTRIBUTES", SWEEP, "OTEL_RL_TRIAL", TYPED)
"""What tells a process that it is of a trial, and of which."""

_MAX_CONFIG_CHARS: Final = 30_000
"""Of the config in the environment: a variable of Linux has 131,072 bytes."""

# _lock guards the list.
_lock = threading.Lock()
_outer: Final[list[tuple[dict[str, str | None], str | None]]] = []
"""Variables, and the worker's trial, before each open trial."""


def _renew_lock() -> None:
    global _lock  # another thread of the parent may hold it
    _lock = threading.Lock()


os.register_at_fork(after_in_child=_renew_lock)


@contextmanager
def trial(name: str, config: Mapping[str, object] | None = None) -> Iterator[None]:
    """Report for a trial of its own within the block, in this process and its children.

    Args:
        name: Name of the trial in its sweep; its run is named ``<trial so far>-<name>``.
        config: Hyper-parameters of the trial, for the config of its run, which leaves out secrets.
    """
    begin_trial(name, config)
    failure: Exception | None = None
    try:
        yield
    except Exception as error:
        failure = error
        raise
    finally:
        end_trial(failure)


def begin_trial(name: str, config: Mapping[str, object] | None = None) -> None:
    """Begin a ``trial`` within that of the process, if any. Never raises.

    Waits for the delivery of what was recorded so far.
    """
    with session.GUARD, _lock:
        running = session.running()
        so_far = None if running is None else running.identity.trial
        _outer.append(({variable: os.environ.get(variable) for variable in VARIABLES}, so_far))
        variables = sweep_environment(os.environ, name)
        with session.GUARD:
            variables |= _with_config(_without_secrets(config or {}))
        session.change_trial(
            None if so_far is None else variables["OTEL_RL_TRIAL"],
            _config_of(os.environ | variables),
        )
        os.environ.update(variables)


def end_trial(failure: Exception | None = None) -> None:
    """End the trial that began last, with a failure if there was one. Never raises.

    Waits for the delivery of what was recorded so far.
    """
    with session.GUARD, _lock:
        if not _outer:
            return
        variables, before = _outer.pop()
        with session.GUARD:
            config = _config_of({CONFIG: variables[CONFIG] or ""})
            session.change_trial(before, config, failure)
        for variable, value in variables.items():
            if value is None:
                os.environ.pop(variable, None)
            else:
                os.environ[variable] = value


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
