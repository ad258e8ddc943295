"""Queue of a worker's events: run metadata, samples and its end. Each is sent once.

init, log_config, ... -> EventQueue -> exporter: start, samples | measurements | end of the run
"""

import threading
from collections import deque
from collections.abc import Mapping
from dataclasses import replace
from itertools import count
from time import time_ns
from typing import Final

from opentelemetry import trace
from opentelemetry.sdk.resources import Resource

from otel_rl.semconv.names import (
    RL_EXPERIMENT_END,
    RL_ROLLOUT_SAMPLE,
    RL_WORKER_END,
)
from otel_rl.worker.guard import Guard
from otel_rl.worker.otlp.anyvalue import Plain
from otel_rl.worker.otlp.logs import Event, event_requests
from otel_rl.worker.otlp.requests import Request, encode_resource
from otel_rl.worker.tensors import NotANumber, number

__all__ = ["MAX_WAITING_BYTES", "EventQueue", "around", "text_chars"]

MAX_WAITING_BYTES: Final = 8 << 20
"""Approximate size of the events between two exports. Run metadata may use the same again, so that
samples cannot displace it.
"""

_EVENT_BYTES: Final = 512
"""Approximate size of an event without its texts."""


class EventQueue:
    """Events of one process. Any thread may add one; the exporter thread takes them.

    Args:
        resource: Resource of the events.
        guard: Counts losses.
        max_waiting_bytes: See ``MAX_WAITING_BYTES``.
    """

    def __init__(
        self, resource: Resource, guard: Guard, max_waiting_bytes: int = MAX_WAITING_BYTES
    ) -> None:
        self._guard = guard
        self._max_waiting_bytes = max_waiting_bytes
        self.bind(resource)
        self.forget()

    def bind(self, resource: Resource) -> None:
        """Set the resource of events that are taken from now on."""
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
    def is_crowded(self) -> bool:
        """Report whether an export should take the events before the interval ends."""
        return self._waiting_bytes > self._max_waiting_bytes // 4

    def add(
        self,
        name: str,
        attributes: Mapping[str, Plain],
        body: Mapping[str, object] | None = None,
        *,
        text_chars: int = 0,
    ) -> bool:
        """Add an event of the present time for the next export.

        Args:
            name: One of ``names.EVENTS``.
            attributes: Not changed after the call.
            body: Plain values, or results of ``values.hold``. Not changed after the call.
            text_chars: Length of its texts.

        Returns:
            False if the queue is full.
        """
        event = Event(name, time_ns(), attributes, body, _span() if body is not None else None)
        size = _EVENT_BYTES + text_chars
        room = self._max_waiting_bytes * (1 if name == RL_ROLLOUT_SAMPLE else 2)
        with self._lock:
            if self._waiting_bytes + size > room:
                return False
            self._waiting.append(event)
            self._waiting_bytes += size
        return True

    def take_all(self) -> list[Event]:
        """Return all events since the last call, in order."""
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
            body = {name: _read(value) for name, value in body.items()}
        return replace(event, body=body, uid=f"{self._instance}/{next(self._numbers)}")


def _span() -> tuple[int, int] | None:
    """Return the ids of the current span of the program, if it is in one."""
    context = trace.get_current_span().get_span_context()
    return (context.trace_id, context.span_id) if context.is_valid else None


def _read(held: object) -> object:
    """Read a field of a sample; waits here for a tensor's value."""
    if held is None or isinstance(held, str):
        return held
    found = number(held)
    return found.description if isinstance(found, NotANumber) else found


def around(events: list[Event]) -> tuple[list[Event], list[Event]]:
    """Split the events of an export into those sent before its measurements and those after.

    The start of a run precedes its first measurement; its end follows the last.
    """
    names = [event.name for event in events]
    first = names.index(RL_EXPERIMENT_END) if RL_EXPERIMENT_END in names else len(names)
    return events[:first], events[first:]


def text_chars(attributes: Mapping[str, Plain]) -> int:
    """Return the number of characters in the texts of an event."""
    texts = (
        one
        for value in attributes.values()
        for one in (value if isinstance(value, list) else [value])
    )
    return sum(len(text) for text in texts if isinstance(text, str))
