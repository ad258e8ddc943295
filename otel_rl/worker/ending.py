"""Why a process ends, as far as it can know."""

import sys

__all__ = ["type_name", "uncaught"]


def uncaught() -> BaseException | None:
    """The exception that nobody caught, once it has ended the main thread; None until then.

    Python leaves it there before it runs exit handlers. ``sys.exit`` leaves nothing.
    """
    if hasattr(sys, "ps1"):
        return None  # a prompt and a notebook outlive their errors
    error = getattr(sys, "last_exc", None) or getattr(sys, "last_value", None)  # 3.12, before it
    return error if isinstance(error, BaseException) else None


def type_name(error: BaseException) -> str:
    """The type of ``error`` as ``error.type`` has it: with its module, unless that is builtins."""
    kind = type(error)
    if kind.__module__ == "builtins":
        return kind.__qualname__
    return f"{kind.__module__}.{kind.__qualname__}"
