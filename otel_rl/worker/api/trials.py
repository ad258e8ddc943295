"""Trials of a sweep, one after another in a process: each is a run of its own."""

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from otel_rl.worker import session
from otel_rl.worker.identity.sweep_trial import sweep_environment

__all__ = ["begin_trial", "end_trial", "trial"]

_VARIABLES: Final = ("OTEL_RESOURCE_ATTRIBUTES", "OTEL_RL_SWEEP", "OTEL_RL_TRIAL")

# _lock guards the two below.
_lock = threading.Lock()
_outer: dict[str, str | None] | None = None
_outer_trial: str | None = None


@contextmanager
def trial(name: str) -> Iterator[None]:
    """Report for a trial of its own within the block, in this process and its children.

    Args:
        name: Name of the trial in its sweep; the name of its run is ``<trial so far>-<name>``.
    """
    begin_trial(name)
    failure: Exception | None = None
    try:
        yield
    except Exception as error:
        failure = error
        raise
    finally:
        end_trial(failure)


def begin_trial(name: str) -> None:
    """End the trial of the process, if any, and begin another. Never raises.

    It waits for the delivery of what was recorded so far.

    Args:
        name: See ``trial``.
    """
    global _outer, _outer_trial  # one trial per process
    with session.GUARD, _lock:
        if _outer is None:
            running = session.running()
            _outer = {variable: os.environ.get(variable) for variable in _VARIABLES}
            _outer_trial = None if running is None else running.identity.trial
        variables = sweep_environment(os.environ, name)
        if os.environ.get("OTEL_RL_TRIAL") == variables["OTEL_RL_TRIAL"]:
            return
        session.change_trial(None if _outer_trial is None else variables["OTEL_RL_TRIAL"])
        os.environ.update(variables)


def end_trial(failure: Exception | None = None) -> None:
    """End the trial of the process, and go on as before the first. Idempotent, never raises.

    It waits for the delivery of what was recorded so far.

    Args:
        failure: What has ended it, if it failed.
    """
    global _outer, _outer_trial  # one trial per process
    with session.GUARD, _lock:
        if _outer is None:
            return
        session.change_trial(_outer_trial, failure)
        for variable, value in _outer.items():
            if value is None:
                os.environ.pop(variable, None)
            else:
                os.environ[variable] = value
        _outer = _outer_trial = None
