"""Wakes the exporter when a call of a Ray actor or task has returned.

Ray ends the processes of a job without a word when its driver ends, and those of an actor that is
killed: no exit handler runs, and what was recorded since the last export is gone. Ray packs a
call's result after the call has returned and before the caller hears of it. That is the moment to
send what the call has recorded: nobody can know yet that the process may go.
"""

import functools
import inspect
import sys
from collections.abc import Callable
from typing import Any, Final

from otel_rl.worker.guard import Guard

__all__ = ["watch_calls"]

_LOOP: Final = "main_loop"
"""Ray's Python function around its core. The core packs results, whoever else does has frames above
it; what threads and tasks of asyncio return is packed with no Python frame around."""

_MARK: Final = "_wakes_otel_rl"


def watch_calls(wake: Callable[[], None], guard: Guard) -> None:
    """Call ``wake`` whenever a call of this process has returned; nothing in other processes.

    Ray has no public place for that. Where its own has another name, calls are not watched, and a
    process that Ray ends misses its last export interval. Idempotent.

    Args:
        wake: Returns at once.
        guard: Catches what it raises: Ray would end the process for it.
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
    """Ray's class that packs what calls return, or None in a process that Ray has not started."""
    worker = sys.modules.get("ray._private.worker")
    mode = getattr(getattr(worker, "global_worker", None), "mode", None)
    if mode is None or mode != getattr(worker, "WORKER_MODE", None):
        return None
    return getattr(sys.modules.get("ray._private.serialization"), "SerializationContext", None)
