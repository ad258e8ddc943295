"""CUDA or ROCm as the program's torch shows it. Nothing here loads torch.

By default the capture of a CUDA graph fails if any other thread of the process asks whether an
event has happened. A thread may tell the driver that it asks for nothing of the capture.
"""

import sys
import threading
from collections.abc import Callable
from typing import Any, Final

__all__ = ["is_in_use", "leave_captures_alone", "torch_cuda"]

_LIBRARY: Final = "libcuda.so.1"

_FUNCTION: Final = "cuThreadExchangeStreamCaptureMode"

_RELAXED: Final = 2
"""CU_STREAM_CAPTURE_MODE_RELAXED."""


class _Thread(threading.local):
    has_asked = False


_this = _Thread()


def torch_cuda() -> Any | None:
    """Return ``torch.cuda``; None if the program has not loaded torch."""
    return getattr(sys.modules.get("torch"), "cuda", None)


def is_in_use() -> bool:
    """Report whether the process has queued work on a device."""
    # A thread may be importing torch.
    is_initialized = getattr(torch_cuda(), "is_initialized", None)
    return is_initialized is not None and bool(is_initialized())


def leave_captures_alone() -> None:
    """Make calls of this thread invisible to captures of others. Call it in own threads only.

    Idempotent; does nothing until the process uses CUDA.
    """
    if _this.has_asked or not is_in_use():
        return
    _this.has_asked = True
    exchange = _exchange_mode()
    if exchange is not None:
        import ctypes  # torch has loaded it

        exchange(ctypes.byref(ctypes.c_int(_RELAXED)))


def _exchange_mode() -> Callable[[Any], int] | None:
    """Return the driver's function; None without NVIDIA's driver."""
    import ctypes

    try:
        found: Callable[[Any], int] = getattr(ctypes.CDLL(_LIBRARY), _FUNCTION)
    except (OSError, AttributeError):
        return None
    return found
