"""Reports of a worker's errors: one that left a step, and the one that ended the process."""

import sys
from collections.abc import Iterator
from contextlib import suppress
from typing import Final, NamedTuple

from otel_rl.semconv.names import (
    ERROR_TYPE,
    EXCEPTION_MESSAGE,
    RL_LOOP_ITERATION,
    RL_WORKER_ERROR,
    RL_WORKER_STATUS,
    RlWorkerStatusValues,
)
from otel_rl.worker.events.queue import EventQueue, text_chars
from otel_rl.worker.guard import Guard
from otel_rl.worker.otlp.anyvalue import Plain
from otel_rl.worker.otlp.requests import Request

__all__ = ["ExitReport", "Failure", "mark_step", "uncaught"]

_ENDS_A_LOOP: Final = (StopIteration, StopAsyncIteration)

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


def mark_step(error: BaseException, step: int) -> None:
    """Remember that the error has left the block of a step. Stays with it, pickled too."""
    with suppress(Exception):  # an error may allow no attributes
        setattr(error, _STEP, step)


def _failure_of(error: BaseException, *, with_message: bool) -> Failure:
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


class ExitReport:
    """Errors of one worker. Any thread may call any method; none raises.

    Args:
        events: Takes the events.
        guard: Counts losses.
        with_message: Whether messages of exceptions are reported, besides their types.

    Attributes:
        failure: What the worker reports as its failure when it ends; None for success.
    """

    def __init__(self, events: EventQueue, guard: Guard, *, with_message: bool) -> None:
        self._events = events
        self._guard = guard
        self._with_message = with_message
        self.failure: Failure | None = None

    def error(self, error: BaseException) -> None:
        """Report an exception that has left a step: the process may be killed for it.

        Exceptions that only end a loop or the process are not errors.
        """
        if not isinstance(error, Exception) or isinstance(error, _ENDS_A_LOOP):
            return
        with self._guard:
            attributes = _attributes_of(_failure_of(error, with_message=self._with_message))
            self._events.add(RL_WORKER_ERROR, attributes, text_chars=text_chars(attributes))

    def note(self, error: BaseException | None) -> None:
        """Remember the exception that ends the process, if any."""
        if error is not None and not isinstance(error, SystemExit):
            with self._guard:
                self.failure = _failure_of(error, with_message=self._with_message)

    def request(self) -> Request:
        """Return the last request of the worker: how it ended."""
        attributes: dict[str, Plain] = {RL_WORKER_STATUS: RlWorkerStatusValues.COMPLETE}
        if self.failure is not None:
            attributes = {
                RL_WORKER_STATUS: RlWorkerStatusValues.FAILED,
                **_attributes_of(self.failure),
            }
        return self._events.end_request(attributes)


def _attributes_of(failure: Failure) -> dict[str, Plain]:
    attributes: dict[str, Plain] = {ERROR_TYPE: failure.error}
    if failure.message:
        attributes[EXCEPTION_MESSAGE] = failure.message
    if failure.step is not None:
        attributes[RL_LOOP_ITERATION] = failure.step
    return attributes
