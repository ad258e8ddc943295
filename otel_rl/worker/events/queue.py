"""Events of a worker: each is queued, encoded as an OTLP log record, and sent once.

init, log_config, ... -> EventQueue -> exporter: start, samples | measurements | end of the run
"""

import sys
import threading
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import count
from time import time_ns
from typing import Final

from opentelemetry import trace
from opentelemetry.proto.common.v1.common_pb2 import AnyValue, KeyValueList
from opentelemetry.proto.logs.v1.logs_pb2 import LogRecord
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.util.instrumentation import InstrumentationScope

from otel_rl.semconv.names import (
    ERROR_TYPE,
    EXCEPTION_MESSAGE,
    LOG_RECORD_UID,
    RL_EXPERIMENT_END,
    RL_LOOP_ITERATION,
    RL_ROLLOUT_SAMPLE,
    RL_WORKER_END,
    RL_WORKER_ERROR,
    RL_WORKER_STATUS,
    RlWorkerStatusValues,
)
from otel_rl.signals import Signal
from otel_rl.version import __version__
from otel_rl.worker.drops import DropReason
from otel_rl.worker.events.masking import masked_message
from otel_rl.worker.guard import Guard
from otel_rl.worker.otlp.anyvalue import Plain, attributes, cut, key_value, text_of
from otel_rl.worker.otlp.requests import (
    MAX_REQUEST_BYTES,
    Request,
    RequestPacker,
    encode_resource,
    encode_scope,
)
from otel_rl.worker.tensors import NotANumber, number

MAX_WAITING_BYTES: Final = 8 << 20
"""Approximate size of the events between two exports. Run metadata may use the same again, so that
samples cannot displace it.
"""

_EVENT_BYTES: Final = 512
"""Approximate size of an event without its texts."""

_ENDS_A_LOOP: Final = (StopIteration, StopAsyncIteration)

_STEP: Final = "_otel_rl_step"
_MAX_CHAIN: Final = 16  # exceptions that are the cause of one another
_MAX_TYPE_CHARS: Final = 256
_MAX_MESSAGE_CHARS: Final = 512
"""The message of an exhausted GPU is as long."""


_SCOPE: Final = encode_scope(InstrumentationScope("otel_rl", __version__)).head


@dataclass(frozen=True, slots=True)
class Event:
    """An event of a run, reported once.

    Attributes:
        name: One of ``names.EVENTS``.
        body: A text, or fields in this order; None if the attributes hold everything.
        span: Trace id and span id of the span in which the event happened; None without one.
        uid: Id that identifies a repetition; empty until the event is sent.
    """

    name: str
    time_ns: int
    attributes: Mapping[str, Plain]
    body: Mapping[str, object] | str | None = None
    span: tuple[int, int] | None = None
    uid: str = ""

    @property
    def carries_data(self) -> bool:
        """Return whether the loss of the event would lose data of the program."""
        return bool(self.attributes or self.body) and self.name != RL_WORKER_END


class EventQueue:
    """Events of one process. Any thread may add one; the exporter thread takes them."""

    def __init__(
        self, resource: Resource, guard: Guard, max_waiting_bytes: int = MAX_WAITING_BYTES
    ) -> None:
        self._guard = guard
        self._max_waiting_bytes = max_waiting_bytes
        self.bind(resource)
        self.forget()

    def bind(self, resource: Resource) -> None:
        self._resource = encode_resource(resource)
        self._instance = str(resource.attributes.get("service.instance.id", ""))

    def forget(self) -> None:
        """Reset in a forked child: the parent sends the waiting events."""
        # _lock guards the two below. Re-entrant, so that a signal handler may log.
        self._lock = threading.RLock()
        self._waiting: deque[Event] = deque()
        self._waiting_bytes = 0
        # The parent's ids have another instance as prefix.
        self._numbers = count(1)

    @property
    def are_waiting(self) -> bool:
        return bool(self._waiting)

    @property
    def is_crowded(self) -> bool:
        """Return whether an export should take the events before the interval ends."""
        return self._waiting_bytes > self._max_waiting_bytes // 4

    def add(
        self,
        name: str,
        attributes: Mapping[str, Plain],
        body: Mapping[str, object] | None = None,
    ) -> bool:
        """Add an event of the present time for the next export. Returns False if the queue is full.

        Args:
            name: One of ``names.EVENTS``.
            attributes: Attributes, which are not changed after the call.
            body: Plain values, or results of ``tensors.hold``, which are not changed after the
                call.
        """
        event = Event(name, time_ns(), attributes, body, _span() if body is not None else None)
        size = _EVENT_BYTES + _text_chars(attributes) + _text_chars(body or {})
        room = self._max_waiting_bytes * (1 if name == RL_ROLLOUT_SAMPLE else 2)
        with self._lock:
            if self._waiting_bytes + size > room:
                return False
            self._waiting.append(event)
            self._waiting_bytes += size
        return True

    def take_all(self) -> list[Event]:
        with self._lock:
            taken, self._waiting, self._waiting_bytes = self._waiting, deque(), 0
        return list(taken)

    def abandon(self) -> int:
        """Clear the queue. Returns the number of lost events that carried data."""
        return sum(event.carries_data for event in self.take_all())

    def requests(self, events: list[Event]) -> list[Request]:
        """Encode events as requests, each event with an id that identifies a repetition."""
        known = [self._readable(event) for event in events]
        return event_requests(self._resource, known, self._guard)

    def end_request(self, attributes: Mapping[str, Plain]) -> Request:
        """Encode the end of this worker. Waiting events are not included."""
        (request,) = self.requests([Event(RL_WORKER_END, time_ns(), attributes)])
        return request

    def _readable(self, event: Event) -> Event:
        body = event.body
        if body is not None and not isinstance(body, str):
            body = {name: self._read(value) for name, value in body.items()}
        return replace(event, body=body, uid=f"{self._instance}/{next(self._numbers)}")

    def _read(self, held: object) -> object:
        if held is None or isinstance(held, str):
            return held
        with self._guard:  # a tensor without data or on a failed device costs no other
            found = number(held)
            return found.description if isinstance(found, NotANumber) else found
        return f"unreadable {type(held).__name__}"


def _encoded(event: Event) -> bytes:
    record = LogRecord(
        time_unix_nano=event.time_ns,
        attributes=attributes({**event.attributes, LOG_RECORD_UID: event.uid}),
        event_name=event.name,
    )
    if isinstance(event.body, str):
        text = event.body.encode("utf-8", "backslashreplace").decode()
        record.body.CopyFrom(AnyValue(string_value=text))
    elif event.body is not None:  # in the order of the program
        fields = KeyValueList(values=[key_value(*pair) for pair in event.body.items()])
        record.body.CopyFrom(AnyValue(kvlist_value=fields))
    if event.span is not None:
        trace_id, span_id = event.span
        record.trace_id, record.span_id = trace_id.to_bytes(16), span_id.to_bytes(8)
    encoded: bytes = record.SerializeToString()
    return encoded


def event_requests(
    resource: bytes,
    events: Iterable[Event],
    guard: Guard,
    *,
    max_request_bytes: int = MAX_REQUEST_BYTES,
) -> list[Request]:
    """Pack events into as many requests as the size limit needs, in order."""
    packer = RequestPacker(resource, Signal.LOGS, max_request_bytes)
    for event in events:
        if not packer.add(_SCOPE, _encoded(event), event.carries_data):
            guard.drop(DropReason.TOO_LARGE, "An event alone is larger than a request may be.")
    return packer.requests()


def _span() -> tuple[int, int] | None:
    context = trace.get_current_span().get_span_context()
    return (context.trace_id, context.span_id) if context.is_valid else None


def around(events: list[Event]) -> tuple[list[Event], list[Event]]:
    """Split the events of an export into those sent before its measurements and those after.

    The start of a run precedes its first measurement; its end follows the last.
    """
    names = [event.name for event in events]
    first = names.index(RL_EXPERIMENT_END) if RL_EXPERIMENT_END in names else len(names)
    return events[:first], events[first:]


def _text_chars(fields: Mapping[str, object]) -> int:
    texts = (
        one for value in fields.values() for one in (value if isinstance(value, list) else [value])
    )
    return sum(len(text) for text in texts if isinstance(text, str))


class ExitReport:
    """Errors of one worker. Any thread may call any method; none raises.

    ``with_message`` tells whether messages of exceptions are reported beside their types.

    Attributes:
        failure: Attributes of the error that has ended the worker; None for success.
    """

    def __init__(self, events: EventQueue, guard: Guard, *, with_message: bool) -> None:
        self._events = events
        self._guard = guard
        self._with_message = with_message
        self.failure: Mapping[str, Plain] | None = None

    def error(self, error: BaseException) -> None:
        """Report an exception that has ended a step: the process may be killed for it.

        Exceptions that only end a loop or the process are not errors.
        """
        if not isinstance(error, Exception) or isinstance(error, _ENDS_A_LOOP):
            return
        with self._guard:
            self._events.add(RL_WORKER_ERROR, self._attributes_of(error))

    def note(self, error: BaseException | None) -> None:
        if error is not None and not isinstance(error, SystemExit):
            with self._guard:
                self.failure = self._attributes_of(error)

    def request(self) -> Request:
        """Return the last request of the worker, which says how the worker ended."""
        if self.failure is None:
            return self._events.end_request({RL_WORKER_STATUS: RlWorkerStatusValues.COMPLETE})
        status: dict[str, Plain] = {RL_WORKER_STATUS: RlWorkerStatusValues.FAILED}
        return self._events.end_request({**status, **self.failure})

    def _attributes_of(self, error: BaseException) -> Mapping[str, Plain]:
        attributes: dict[str, Plain] = {ERROR_TYPE: _type_name(error)[:_MAX_TYPE_CHARS]}
        if self._with_message and (message := _message(error)):
            attributes[EXCEPTION_MESSAGE] = message
        if (step := _step(error)) is not None:
            attributes[RL_LOOP_ITERATION] = step
        return attributes


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
    """Remember on the error that it has ended a step's block, also when it is pickled."""
    with suppress(Exception):  # an error may allow no attributes
        setattr(error, _STEP, step)


def _type_name(error: BaseException) -> str:
    """Return the type of ``error`` for ``error.type``: with its module, except for builtins."""
    kind = type(error)
    if kind.__module__ == "builtins":
        return kind.__qualname__
    return f"{kind.__module__}.{kind.__qualname__}"


def _message(error: BaseException) -> str:
    # Masked first: a secret that is cut is not recognised any more. The rest is too long anyway.
    return cut(masked_message(text_of(error)[: 8 * _MAX_MESSAGE_CHARS]).strip(), _MAX_MESSAGE_CHARS)


def _step(error: BaseException) -> int | None:
    for one in _chain(error):
        step = getattr(one, _STEP, None)
        if type(step) is int:
            return step
    return None


def _chain(error: BaseException) -> Iterator[BaseException]:
    found: BaseException | None = error
    for _ in range(_MAX_CHAIN):
        if found is None:
            return
        yield found
        of_ray = getattr(found, "cause", None)  # that a task of Ray has raised elsewhere
        found = found.__cause__ or (
            of_ray if isinstance(of_ray, BaseException) else found.__context__
        )
