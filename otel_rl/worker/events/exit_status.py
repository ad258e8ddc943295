"""Cause of a process's end, as far as the process can determine it."""

import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import wraps
from typing import Any, Final, NamedTuple

__all__ = ["Failure", "failure_of", "mark_step", "uncaught", "watch_failure_of_child"]

_FORGETS: Final = sys.version_info >= (3, 13)
"""Whether a child of ``multiprocessing`` forgets its exception before its finalizers run."""

_MARK: Final = "_tells_otel_rl"
_STEP: Final = "_otel_rl_step"
_MAX_CHAIN: Final = 16  # exceptions that are the cause of one another
_MAX_TYPE_CHARS: Final = 256
_MAX_MESSAGE_CHARS: Final = 512
"""The message of an exhausted GPU is as long."""


class Failure(NamedTuple):
    """Error that ended a process.

    Attributes:
        error: Type of the exception; empty if it is unknown.
        message: Without secrets, cut.
        step: The step that the exception has left; None if it left none.
    """

    error: str = ""
    message: str = ""
    step: int | None = None


def uncaught() -> BaseException | None:
    """Return the uncaught exception after it has ended the main thread; None until then.

    Python stores it before it runs exit handlers. ``sys.exit`` stores nothing.
    """
    if hasattr(sys, "ps1"):
        return None  # a prompt and a notebook survive their errors
    # Python 3.11 has no last_exc.
    error = getattr(sys, "last_exc", None) or getattr(sys, "last_value", None)
    return error if isinstance(error, BaseException) else None


def watch_failure_of_child(note: Callable[[BaseException | None], None]) -> None:
    """Have the exception noted that ends this child of ``multiprocessing``; nothing in others.

    From Python 3.13 on a child runs its finalizers after it has printed the exception, and nothing
    knows it any more: it is noted as it is printed.
    """
    process = sys.modules.get("multiprocessing.process")
    if not _FORGETS or process is None or process.parent_process() is None:
        return
    import traceback

    printing: Any = traceback.print_exc
    if hasattr(printing, _MARK):
        return

    @wraps(printing)
    def print_exc(*arguments: Any, **named: Any) -> None:
        if sys._getframe(1).f_globals.get("__name__") == process.__name__:  # noqa: SLF001
            note(sys.exception())
        printing(*arguments, **named)

    setattr(print_exc, _MARK, True)
    traceback.print_exc = print_exc


def mark_step(error: BaseException, step: int) -> None:
    """Remember that the error has left the block of a step. Stays with it, pickled too."""
    with suppress(Exception):  # an error may allow no attributes
        setattr(error, _STEP, step)


def failure_of(error: BaseException, *, with_message: bool) -> Failure:
    """Describe the error that ended a process."""
    return Failure(
        _type_name(error)[:_MAX_TYPE_CHARS], _message(error) if with_message else "", _step(error)
    )


def _type_name(error: BaseException) -> str:
    """Return the type of ``error`` as in ``error.type``: with its module, except builtins."""
    kind = type(error)
    if kind.__module__ == "builtins":
        return kind.__qualname__
    return f"{kind.__module__}.{kind.__qualname__}"


def _message(error: BaseException) -> str:
    from otel_rl.worker.events.masking import masked_message
    from otel_rl.worker.otlp.anyvalue import cut, text_of

    # Masked first: a secret that is cut is not recognised any more. The rest is too long anyway.
    return cut(masked_message(text_of(error)[: 8 * _MAX_MESSAGE_CHARS]).strip(), _MAX_MESSAGE_CHARS)


def _step(error: BaseException) -> int | None:
    for one in _chain(error):
        step = getattr(one, _STEP, None)
        if type(step) is int:
            return step
    return None


def _chain(error: BaseException) -> Iterator[BaseException]:
    """Yield the error and those that it was raised from or while handling."""
    found: BaseException | None = error
    for _ in range(_MAX_CHAIN):
        if found is None:
            return
        yield found
        of_ray = getattr(found, "cause", None)  # that a task of Ray has raised elsewhere
        found = found.__cause__ or (
            of_ray if isinstance(of_ray, BaseException) else found.__context__
        )
