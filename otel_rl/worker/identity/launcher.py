"""Name that the launcher gave to this process."""

import sys
from contextlib import suppress

__all__ = ["process_name"]

_MAIN = "MainProcess"
"""Name by ``multiprocessing`` of a process that it has not started."""


def process_name() -> str:
    """Return the Ray actor's, else the ``multiprocessing`` process's name; never imports Ray."""
    ray = sys.modules.get("ray")
    name: object = None
    if ray is not None:
        # Ray raises outside an actor; the process's own name is used then.
        with suppress(Exception):
            if ray.is_initialized():
                name = ray.get_runtime_context().get_actor_name()
    return name if name and isinstance(name, str) else _process_name()


def _process_name() -> str:
    """Return the name that ``multiprocessing`` gives the process; a child of it has loaded it."""
    process = sys.modules.get("multiprocessing.process")
    return _MAIN if process is None else str(process.current_process().name)
