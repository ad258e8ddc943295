"""What ``multiprocessing`` and Ray say of this process. Imports neither."""

import sys
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

from otel_rl.worker.identity.names import MAIN_PROCESS

__all__ = ["is_process_of_ray", "parent_pid", "process_name", "ray_job"]

_RAY_TASK: Final = "process"
"""Name of a child that says nothing."""


def process_name() -> str:
    """Return the name of the process as a child: the Ray actor's, its class, or the process's.

    Returns:
        ``MainProcess`` if neither Ray nor ``multiprocessing`` has started it.
    """
    # Ray raises outside a worker, and where its version lacks a method.
    with suppress(Exception):
        context = _ray_context()
        if context is not None and context.get_actor_id() is not None:
            if name := context.get_actor_name():
                return str(name)
            return str(context.get_task_function_name()).split(".")[-2]
        if context is not None and is_process_of_ray():
            return _RAY_TASK
    process = sys.modules.get("multiprocessing.process")  # which a child of it has loaded
    return MAIN_PROCESS if process is None else str(process.current_process().name)


def is_process_of_ray() -> bool:
    """Report whether Ray has started this process, which it may kill at any time."""
    return Path(sys.argv[0]).name == "default_worker.py"


def ray_job() -> str | None:
    """Return the id of the Ray job that the process works for; job ids repeat in each cluster."""
    with suppress(Exception):
        context = _ray_context()
        if context is not None:
            of_cluster = getattr(context, "get_session_name", lambda: context.gcs_address)
            return f"{of_cluster()}-{context.get_job_id()}"
    return None


def parent_pid() -> int | None:
    """Return the process that has started this one by ``multiprocessing``."""
    process = sys.modules.get("multiprocessing.process")
    parent = None if process is None else process.parent_process()
    return None if parent is None else parent.pid


def _ray_context() -> Any:  # Ray's own
    ray = sys.modules.get("ray")
    return ray.get_runtime_context() if ray is not None and ray.is_initialized() else None
