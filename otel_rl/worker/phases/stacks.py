"""Place of a thread or task in its program, as text."""

import sys
import threading
from collections.abc import Iterable, Iterator
from types import FrameType
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    import asyncio

__all__ = ["MAX_FRAMES", "stack_of"]

MAX_FRAMES: Final = 40
"""Innermost calls; deeper stacks are cut at their outer end."""

_MAX_LINE_CHARS: Final = 300
_INSTALLED: Final = "site-packages/"


def stack_of(thread: threading.Thread, task: "asyncio.Task[object] | None" = None) -> list[str]:
    """Return the open calls of a flow as ``file:line in function``, the innermost first.

    No line of source and no value of a variable: those may be anything.

    Args:
        thread: The flow, or the thread of its event loop.
        task: The flow, if it is a task.
    """
    if task is not None:
        waiting = task.get_stack(limit=MAX_FRAMES)  # empty while it runs
        if waiting:
            return [*_lines(reversed(waiting))]
    # Documented, and the only way to the stack of another thread.
    frame = sys._current_frames().get(thread.ident or 0)  # noqa: SLF001
    return [*_lines(_outward(frame))]


def _outward(frame: FrameType | None) -> Iterator[FrameType]:
    while frame is not None:
        yield frame
        frame = frame.f_back


def _lines(frames: Iterable[FrameType]) -> Iterator[str]:
    for place, frame in enumerate(frames):
        if place >= MAX_FRAMES:
            yield "..."
            return
        code = frame.f_code
        path = code.co_filename.rpartition(_INSTALLED)[2]
        line = f"{path}:{frame.f_lineno} in {code.co_qualname}"
        yield line[-_MAX_LINE_CHARS:]
