"""What the launcher of this process calls it."""

import multiprocessing
import sys
from contextlib import suppress

__all__ = ["process_name"]


def process_name() -> str:
    """The name of the Ray actor, else of the ``multiprocessing`` process; never imports Ray."""
    ray = sys.modules.get("ray")
    name: object = None
    if ray is not None:
        # Another library's, which raises where there is no actor; then the process's own name will
        # have to do.
        with suppress(Exception):
            if ray.is_initialized():
                name = ray.get_runtime_context().get_actor_name()
    return name if name and isinstance(name, str) else multiprocessing.current_process().name
