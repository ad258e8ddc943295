"""Takes exports whose head is that of the last one of their connection, but for a length.

A worker repeats the head of its exports, so only a body of a known shape is new (docs/adr/0020).
Neither the HTTP parser nor the application is asked again.
"""

import re
from collections.abc import Callable
from functools import partial
from typing import Final

from starlette.responses import Response

from otel_rl.bridge.counters import Where
from otel_rl.bridge.ingest.accepted_answer import export_response
from otel_rl.bridge.ingest.body import Held
from otel_rl.bridge.ingest.http.requests.media import Media, encoded, error_response
from otel_rl.bridge.ingest.http.requests.stored_together import StoredTogether
from otel_rl.bridge.ingest.pipeline import IngestPipeline
from otel_rl.bridge.ingest.security.tokens import Grant
from otel_rl.bridge.ingest.validation.known_shapes import SentShape
from otel_rl.bridge.ingest.validation.validate import Validated
from otel_rl.errors import Overloaded
from otel_rl.signals import Signal

__all__ = ["KNOWN_EXPORT", "MAX_SHORT_BYTES", "KnownHead", "RepeatedExports"]

KNOWN_EXPORT: Final = "otel_rl.known_export"
"""Key of the ASGI state with what to call, with the grant, once an export of known shape is
accepted whole."""


MAX_SHORT_BYTES: Final = 64 << 10
"""Longer requests take a thread, so that none delays all others by more than a millisecond."""

_LENGTH: Final = re.compile(rb"\r\ncontent-length: *(\d+)\r\n", re.IGNORECASE)


class KnownHead:
    """Head of a request that was accepted, as protobuf without an encoding.

    Args:
        head: With the blank line.
        grant: Grant of the sender.

    Attributes:
        sent: What else its sender repeats.
        sent_bytes: Size of the last body that was recognised.
    """

    def __init__(self, head: bytes, grant: Grant | None) -> None:
        found = _LENGTH.search(head)
        self._size = len(head)
        self._start, self._end = (len(head), len(head)) if found is None else found.span(1)
        self._before, self._after = head[: self._start], head[self._end :]
        self.grant = grant
        self.sent: SentShape | None = None
        self.sent_bytes = 0

    def body(self, request: bytes) -> bytes | None:
        """Return the body of a request with this head; None if it has another one.

        The length of the body may be another one, but none of another number of digits.
        """
        start, end = self._start, self._end
        if not (request.startswith(self._before) and request.startswith(self._after, end)):
            return None
        body = request[self._size :]
        return body if request[start:end] == b"%d" % len(body) else None


class RepeatedExports:
    """Stores such exports. Used on one event loop.

    Args:
        intake: Takes the requests.
    """

    def __init__(self, intake: IngestPipeline) -> None:
        self._intake = intake
        self._together = StoredTogether(intake.accept_together, intake.answered)

    def take(
        self,
        known: KnownHead,
        payload: bytes,
        answer: Callable[[Response], None],
        otherwise: Callable[[], None],
    ) -> bool:
        """Validate a request, and begin to store it if it is of a known shape.

        Args:
            known: Its head.
            payload: Its body.
            answer: Called once, if it is taken.
            otherwise: Called instead of it, if the journal needs a thread.

        Returns:
            Whether it is taken.
        """
        if len(payload) > min(self._intake.limits.max_body_bytes, MAX_SHORT_BYTES):
            return False
        if not self._intake.is_current(known.grant):
            return False
        grant, sent, validated = known.grant, known.sent, None
        if sent is not None:
            validated = self._intake.known_next(sent, payload, grant)
        if validated is None:
            validated = self._intake.known(payload, grant)
            if validated is None:
                return False
            is_like_last = len(payload) == known.sent_bytes
            known.sent = self._intake.sent(payload) if is_like_last else None
            known.sent_bytes = len(payload)
        held = self._intake.held(grant)
        try:
            held.add(len(payload))
        except Overloaded:
            return False
        done = partial(self._done, validated, held, answer, otherwise)
        self._together.begin(validated.batches, done)
        return True

    def _done(
        self,
        validated: Validated,
        held: Held,
        answer: Callable[[Response], None],
        otherwise: Callable[[], None],
        kept: "bool | BaseException",
    ) -> None:
        held.release()
        if kept is False:
            otherwise()
        elif isinstance(kept, BaseException):  # whatever ended the thread: it is not stored
            retry_after_s = self._intake.limits.retry_after_s
            reason = self._intake.answer(kept, Where.HTTP)
            answer(error_response(Media.PROTOBUF, *reason, retry_after_s=retry_after_s))
        else:
            found = self._intake.known_was_kept(validated)
            if found.message:
                answer(encoded(Media.PROTOBUF, export_response(Signal.METRICS, found)))
            else:
                answer(_ACCEPTED)


_ACCEPTED: Final = Response(b"", headers={"content-type": str(Media.PROTOBUF)})
