"""CUDA or ROCm as the program's torch shows it. Nothing here loads torch."""

import sys
from typing import Any

__all__ = ["is_in_use", "torch_cuda"]


def torch_cuda() -> Any | None:
    """Return ``torch.cuda``; None if the program has not loaded torch."""
    return getattr(sys.modules.get("torch"), "cuda", None)


def is_in_use() -> bool:
    """Report whether the process has queued work on a device."""
    # A thread may be importing torch.
    is_initialized = getattr(torch_cuda(), "is_initialized", None)
    return is_initialized is not None and bool(is_initialized())
