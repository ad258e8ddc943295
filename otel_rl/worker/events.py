"""What a worker says in words: of its run, of samples, of its own end. Sent once each.

init, log_config, ... -> Events -> exporter: start, samples | measurements | end of the run
"""

import threading
from collections import deque
from collections.abc import Mapping
from itertools import count
from time import time_ns
from typing import Final

from opentelemetry.sdk.resources import Resource

from otel_rl.semconv.names import (
    LOG_RECORD_UID,
    RL_EXPERIMENT_END,
    RL_ROLLOUT_SAMPLE,
    RL_WORKER_END,
)
from otel_rl.worker.encode import Request, encode_resource
from otel_rl.worker.encode_events import Event, Record, encode_event, event_requests
from otel_rl.worker.plain import Plain
from otel_rl.worker.values import NotANumber, number

__all__ = ["MAX_WAITING_BYTES", "Events", "around"]

MAX_WAITING_BYTES: Final = 8 << 20
"""Of events between two exports, about. What is said of the run has as much again: samples, however
many, do not crowd it out."""

_EVENT_BYTES: Final = 512
"""What an event costs without its texts, about."""


class Events:
    """The events of one process. Any thread may say one; the exporter thread takes them.

    Args:
        resource: Whose events these are.
        max_waiting_bytes: See ``MAX_WAITING_BYTES``.
    """

    def __init__(self, resource: Resource, max_waiting_bytes: int = MAX_WAITING_BYTES) -> None:
        self._max_waiting_bytes = max_waiting_bytes
        self.bind(resource)
        self.forget()

    def bind(self, resource: Resource) -> None:
        """Events that are taken from now on are of ``resource``."""
        self._resource = encode_resource(resource)
        self._instance = str(resource.attributes.get("service.instance.id", ""))

    def forget(self) -> None:
        """Begin anew in a forked child: what waits is the parent's to send."""
        # _lock guards the two below. Re-entrant, so that a signal handler may log.
        self._lock = threading.RLock()
        self._waiting: deque[Event] = deque()
        self._waiting_bytes = 0
        # The parent's ids begin with another instance.
        self._numbers = count(1)

    @property
    def is_crowded(self) -> bool:
        """Whether the events should be taken before the export interval is over."""
        return self._waiting_bytes > self._max_waiting_bytes // 4

    def say(
        self,
        name: str,
        attributes: Mapping[str, Plain],
        body: Mapping[str, object] | None = None,
        *,
        text_chars: int = 0,
    ) -> bool:
        """Let an event of this moment wait for the next export.

        Args:
            name: Of ``names.EVENTS``.
            attributes: Not changed after the call.
            body: Plain values, or what ``values.hold`` made of them. Not changed after the call.
            text_chars: How much text it holds.

        Returns:
            False if there is no room for it.
        """
        event = Event(name, time_ns(), attributes, body)
        size = _EVENT_BYTES + text_chars
        room = self._max_waiting_bytes * (1 if name == RL_ROLLOUT_SAMPLE else 2)
        with self._lock:
            if self._waiting_bytes + size > room:
                return False
            self._waiting.append(event)
            self._waiting_bytes += size
        return True

    def take_all(self) -> list[Event]:
        """Everything that was said since the last call, in order."""
        with self._lock:
            taken, self._waiting, self._waiting_bytes = self._waiting, deque(), 0
        return list(taken)

    def abandon(self) -> int:
        """Forget everything. Returns how many events that said something those were."""
        return sum(event.says_something for event in self.take_all())

    def requests(self, events: list[Event]) -> list[Request]:
        """Events as requests ready to send, each with an id by which a repetition is known."""
        return event_requests(self._resource, [self._encoded(event) for event in events])

    def goodbye(self, said: Mapping[str, Plain]) -> Request:
        """The end of this worker, ready to send. What still waits is not in it."""
        (request,) = self.requests([Event(RL_WORKER_END, time_ns(), said)])
        return request

    def _encoded(self, event: Event) -> Record:
        uid = f"{self._instance}/{next(self._numbers)}"
        body = event.body
        if body is not None:
            body = {name: _read(value) for name, value in body.items()}
        known = Event(event.name, event.time_ns, {**event.attributes, LOG_RECORD_UID: uid}, body)
        return Record(encode_event(known), event.says_something)


def _read(held: object) -> object:
    """A field of a sample; a tensor's value is waited for here."""
    if held is None or isinstance(held, str):
        return held
    found = number(held)
    return found.description if isinstance(found, NotANumber) else found


def around(events: list[Event]) -> tuple[list[Event], list[Event]]:
    """The events to be sent before the measurements of an export, and those after.

    A run is known before its first measurement, and has ended after its last.
    """
    names = [event.name for event in events]
    first = names.index(RL_EXPERIMENT_END) if RL_EXPERIMENT_END in names else len(names)
    return events[:first], events[first:]
