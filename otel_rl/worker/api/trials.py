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

# _lock guards the list.
_lock = threading.Lock()
_outer: Final[list[tuple[dict[str, str | None], str | None]]] = []
"""Variables, and the worker's trial, before each open trial."""


def _renew_lock() -> None:
    global _lock  # another thread of the parent may hold it
    _lock = threading.Lock()


if hasattr(os, "register_at_fork"):  # there is no fork on Windows
    os.register_at_fork(after_in_child=_renew_lock)


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
    """Begin a trial, within that of the process, if any. Never raises.

    It waits for the delivery of what was recorded so far.

    Args:
        name: See ``trial``.
    """
    with session.GUARD, _lock:
        running = session.running()
        so_far = None if running is None else running.identity.trial
        _outer.append(({variable: os.environ.get(variable) for variable in _VARIABLES}, so_far))
        variables = sweep_environment(os.environ, name)
        session.change_trial(None if so_far is None else variables["OTEL_RL_TRIAL"])
        os.environ.update(variables)


def end_trial(failure: Exception | None = None) -> None:
    """End the trial that has begun last, if any, and go on as before it. Never raises.

    It waits for the delivery of what was recorded so far.

    Args:
        failure: What has ended it, if it failed.
    """
    with session.GUARD, _lock:
        if not _outer:
            return
        variables, before = _outer.pop()
        session.change_trial(before, failure)
        for variable, value in variables.items():
            if value is None:
                os.environ.pop(variable, None)
            else:
                os.environ[variable] = value
