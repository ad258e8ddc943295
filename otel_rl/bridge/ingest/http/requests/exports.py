"""Exports of OTLP/HTTP as an ASGI application.

    head ─ authorise ─> body ─ known shape ─> durable ─> answer        on the event loop
                             └ any other ─> a thread: unpack, parse, validate, store ─> answer

A framework would take longer than a request of a known shape (docs/adr/0020). Such a request waits
for the disk without a thread, together with those that are complete at the same moment.
"""

import asyncio
import math
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from functools import partial

from starlette.requests import ClientDisconnect
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

from otel_rl.bridge.counters import Outcome, Where
from otel_rl.bridge.ingest import body
from otel_rl.bridge.ingest.accepted_answer import export_response
from otel_rl.bridge.ingest.admission.call_slots import Places
from otel_rl.bridge.ingest.admission.token_shares import token_of
from otel_rl.bridge.ingest.error_answers import Answer
from otel_rl.bridge.ingest.http.requests.media import Media, RequestHead, encoded, error_response
from otel_rl.bridge.ingest.http.requests.repeated_exports import KNOWN_EXPORT, MAX_SHORT_BYTES
from otel_rl.bridge.ingest.http.requests.stored_together import StoredTogether
from otel_rl.bridge.ingest.pipeline import IngestPipeline
from otel_rl.bridge.ingest.security.tokens import Grant
from otel_rl.bridge.ingest.sender_address import address_of
from otel_rl.bridge.ingest.validation.validate import Validated
from otel_rl.errors import JournalClosed
from otel_rl.signals import Signal

__all__ = ["PATHS", "Exports"]

PATHS = {
    Signal.METRICS: "/v1/metrics",
    Signal.TRACES: "/v1/traces",
    Signal.LOGS: "/v1/logs",
}
"""Path of each signal, as OTLP names it."""

_CLIENT_CLOSED = 499  # nginx's code for a closed request; it is never sent


class Exports:
    """Handlers of ``POST`` requests, and the threads in which they parse and store.

    Args:
        intake: Takes the requests, from up to ``max_concurrent_requests`` threads at once.
    """

    def __init__(self, intake: IngestPipeline) -> None:
        self._intake = intake
        self._limits = intake.limits
        self._together = StoredTogether(intake.accept_together, intake.answered)
        self._threads: ThreadPoolExecutor
        self._places: Places

    @asynccontextmanager
    async def lifespan(self, _app: object) -> AsyncGenerator[None]:
        """Keep the threads for as long as the application serves."""
        with ThreadPoolExecutor(
            self._limits.max_concurrent_requests, thread_name_prefix="otel-rl-http-worker"
        ) as threads:
            self._threads = threads
            self._places = Places(
                asyncio.get_running_loop(),
                self._limits.max_concurrent_requests,
                max_waiting=self._limits.max_connections,  # a connection has one request at a time
                wait_s=math.inf,  # as long as the sender waits
                patience_s=math.inf,
            )
            yield
            # Requests cut off while they waited for a thread must not be stored later.
            threads.shutdown(wait=True, cancel_futures=True)

    async def __call__(self, signal: Signal, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle a request of a signal."""
        response = await self._answered(signal, scope, receive)
        await response(scope, receive, send)

    async def _answered(self, signal: Signal, scope: Scope, receive: Receive) -> ASGIApp:
        head, chunks = RequestHead.of(scope), _chunks(receive)
        try:
            return await self._export(signal, scope, head, chunks)
        except ClientDisconnect:
            self._intake.count(Outcome.DISCONNECTED)
            return Response(status_code=_CLIENT_CLOSED)
        except asyncio.CancelledError:
            # The server stops. A 500 is not retried by every sender.
            closed = JournalClosed("The bridge is stopping.", hint="Send the batch again later.")
            return self._error(head, *self._intake.answer(closed, Where.HTTP))
        except Exception as error:  # noqa: BLE001  # the edge: counted, logged, retryable
            await body.drain(chunks, timeout_s=self._limits.body_timeout_s)
            return self._error(head, *self._intake.answer(error, Where.HTTP))

    async def _export(
        self, signal: Signal, scope: Scope, head: RequestHead, chunks: AsyncIterator[bytes]
    ) -> ASGIApp:
        # Checked first, so that nothing of an unauthorised request is read into memory.
        host, _ = scope.get("client") or ("", 0)
        grant = self._intake.grant_to(host, PATHS[signal], head.authorization)
        encoding, media, limits = head.encoding, head.media, self._limits
        if media is None:
            await body.drain(chunks, timeout_s=limits.body_timeout_s)
            self._intake.count(Outcome.UNSUPPORTED_MEDIA_TYPE)
            return Response(
                f"415 unsupported media type, supported: [{', '.join(Media)}]",
                status_code=415,
                media_type="text/plain",
            )
        with self._intake.hold(grant) as held:
            compressed = await body.read(
                chunks,
                max_bytes=limits.max_body_bytes,
                timeout_s=limits.body_timeout_s,
                held=held,
            )
            is_json = media is Media.JSON
            admitted: Validated | None = None
            if (
                signal is Signal.METRICS
                and not is_json
                and encoding == "identity"
                and len(compressed) <= MAX_SHORT_BYTES
            ):
                admitted = await self._by_shape(compressed, grant)
                if admitted is not None and not admitted.message:
                    scope["state"].get(KNOWN_EXPORT, _ignore)(grant)
            if admitted is None:
                unpack = partial(
                    body.decompress,
                    compressed,
                    encoding,
                    max_bytes=limits.max_body_bytes,
                    held=held,
                )
                take = partial(self._intake.take, signal, unpack, grant, is_json=is_json)
                admitted = await self._by_turns(take, scope, grant)
        if admitted.message:
            return encoded(media, export_response(signal, admitted))
        return _ACCEPTED[media]

    async def _by_shape(self, payload: bytes, grant: Grant | None) -> Validated | None:
        """Take a request of known shapes; None if it is not certainly one."""
        validated = self._intake.known(payload, grant)
        if validated is None or not await self._together.keep(validated.batches):
            return None
        return self._intake.known_was_kept(validated)

    async def _by_turns(
        self, take: Callable[[], Validated], scope: Scope, grant: Grant | None
    ) -> Validated:
        """Call ``take`` in a thread when it is the sender's turn."""
        host, port = scope.get("client") or ("", 0)
        address = address_of(host)
        place = await self._places.take((token_of(grant), address, f"{address}:{port}"))
        self._places.arrived(place)
        loop = asyncio.get_running_loop()
        try:
            taking = self._threads.submit(take)
        except BaseException:
            self._places.release(place)
            raise
        # Also for a request that was cut off: its thread goes on.
        taking.add_done_callback(lambda _: loop.call_soon_threadsafe(self._places.release, place))
        try:
            return await asyncio.wrap_future(taking)
        finally:
            # Its error would keep this frame, and the request, until the next collection.
            del taking

    def _error(self, head: RequestHead, answer: Answer, message: str) -> Response:
        return error_response(head.media, answer, message, retry_after_s=self._limits.retry_after_s)


class _Accepted:
    """The answer to a request of which everything was accepted: an empty message."""

    def __init__(self, media: Media, content: bytes) -> None:
        headers = [
            (b"content-type", media.encode()),
            (b"content-length", str(len(content)).encode()),
        ]
        self._start = {"type": "http.response.start", "status": 200, "headers": headers}
        self._body = {"type": "http.response.body", "body": content}

    async def __call__(self, _scope: Scope, _receive: Receive, send: Send) -> None:
        await send(self._start)
        await send(self._body)


_ACCEPTED: Mapping[Media, ASGIApp] = {
    Media.PROTOBUF: _Accepted(Media.PROTOBUF, b""),
    Media.JSON: _Accepted(Media.JSON, b"{}"),
}


def _ignore(_grant: Grant | None) -> None:
    """Learn nothing: the request did not wait for others."""


async def _chunks(receive: Receive) -> AsyncIterator[bytes]:
    """Yield the pieces of a body.

    Raises:
        ClientDisconnect: The sender has gone.
    """
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise ClientDisconnect
        piece = message.get("body", b"")
        if piece:
            yield piece
        if not message.get("more_body", False):
            return
