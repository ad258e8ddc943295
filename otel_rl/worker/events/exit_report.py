"""Reports of a worker's errors: one that left a step, and the one that ended the process."""

from typing import Final

from otel_rl.semconv.names import (
    ERROR_TYPE,
    EXCEPTION_MESSAGE,
    RL_LOOP_ITERATION,
    RL_WORKER_ERROR,
    RL_WORKER_STATUS,
    RlWorkerStatusValues,
)
from otel_rl.worker.events.exit_status import Failure, failure_of
from otel_rl.worker.events.queue import EventQueue, text_chars
from otel_rl.worker.guard import Guard
from otel_rl.worker.otlp.anyvalue import Plain
from otel_rl.worker.otlp.request_packer import Request

__all__ = ["ExitReport"]

_ENDS_A_LOOP: Final = (StopIteration, StopAsyncIteration)


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
            attributes = _attributes_of(failure_of(error, with_message=self._with_message))
            self._events.add(RL_WORKER_ERROR, attributes, text_chars=text_chars(attributes))

    def note(self, error: BaseException | None) -> None:
        """Remember the exception that ends the process, if any."""
        if error is not None and not isinstance(error, SystemExit):
            with self._guard:
                self.failure = failure_of(error, with_message=self._with_message)

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
