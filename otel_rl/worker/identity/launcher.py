"""Name that the launcher gave to this process."""

import multiprocessing
import sys
from contextlib import suppress

__all__ = ["process_name"]


def process_name() -> str:
    """Return the Ray actor's, else the ``multiprocessing`` process's name; never imports Ray."""
    ray = sys.modules.get("ray")
    name: object = None
    if ray is not None:
        # Ray raises outside an actor; the process's own name is used then.
        with suppress(Exception):
            if ray.is_initialized():
                name = ray.get_runtime_context().get_actor_name()
    return name if name and isinstance(name, str) else multiprocessing.current_process().name
