"""Wakes the exporter when a call of a Ray actor or task has returned.

Ray kills the processes of a job when its driver ends, and those of a killed actor: no exit handler
runs, and records since the last export are lost. Ray packs a call's result after the call has
returned and before the caller receives it. The call's records are sent at that moment, before the
process can be killed.
"""

import functools
import inspect
import sys
from collections.abc import Callable
from typing import Any, Final

from otel_rl.worker.guard import Guard

__all__ = ["watch_calls"]

_LOOP: Final = "main_loop"
"""Ray's Python function around its core. Only the core packs results directly; other callers have
frames above it, and results of asyncio threads and tasks are packed without a surrounding frame."""

_MARK: Final = "_wakes_otel_rl"


def watch_calls(wake: Callable[[], None], guard: Guard) -> None:
    """Call ``wake`` whenever a call of this process has returned; outside Ray workers do nothing.

    Ray has no public hook for it. If Ray's internal name differs, calls are not watched, and a
    process that Ray kills loses its last export interval. Idempotent.

    Args:
        wake: Returns at once.
        guard: Catches its exceptions: Ray would end the process for them.
    """
    kind = _packing_class()
    original = getattr(kind, "serialize", None)
    if original is None or hasattr(original, _MARK):
        return

    # Any: Ray's own.
    @functools.wraps(original)
    def serialize(self: Any, *args: Any, **named: Any) -> Any:
        frame = inspect.currentframe()
        caller = None if frame is None else frame.f_back
        if caller is None or caller.f_code.co_name == _LOOP:
            with guard:
                wake()
        return original(self, *args, **named)

    setattr(serialize, _MARK, True)
    setattr(kind, "serialize", serialize)  # noqa: B010  # of a type that is not known here


def _packing_class() -> object:
    """Return Ray's class that packs results, or None outside a process started by Ray."""
    worker = sys.modules.get("ray._private.worker")
    mode = getattr(getattr(worker, "global_worker", None), "mode", None)
    if mode is None or mode != getattr(worker, "WORKER_MODE", None):
        return None
    return getattr(sys.modules.get("ray._private.serialization"), "SerializationContext", None)
