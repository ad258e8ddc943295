"""Gets the body of a request into memory, and never more of it than the limits allow."""

import asyncio
import threading
import zlib
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from io import BytesIO

from starlette.requests import ClientDisconnect

from otel_rl.bridge.receive.shares import NOBODY, Shares
from otel_rl.bridge.receive.tokens import AuthSettings
from otel_rl.errors import MalformedRequest, Overloaded, RequestTooLarge, SlowSender

__all__ = ["ENCODINGS", "Held", "InFlight", "decompress", "drain", "read"]

# zlib's window size; +16 says that the stream has a gzip header.
_WINDOW_BITS = {"gzip": 16 + zlib.MAX_WBITS, "deflate": zlib.MAX_WBITS}

ENCODINGS = ("identity", *_WINDOW_BITS)
"""The values of Content-Encoding that are understood. An absent one means identity."""

_OUTPUT_CHUNK_BYTES = 1 << 20

# What zlib is given at a time: what it leaves of it is copied, once for each stream that ends in
# it and each chunk of output. It grows with a stream, so that short streams cost little.
_FIRST_INPUT_BYTES = 1 << 9
_MAX_INPUT_BYTES = 1 << 16

# One is what every exporter sends. Writers of blocks make one for each 64 KiB, as BGZF does.
_MAX_STREAMS = 1024


class InFlight:
    """Bounds the bytes of all request bodies held at once. Any thread may call any method.

    Every token has a share that no other can use up. Beyond it, it takes from what is for all, so
    that the largest request fits however many tokens there are.

    Args:
        max_bytes: Over all requests.
        shares: Of each token.
        for_all_bytes: Part of it that is nobody's share.
    """

    def __init__(
        self, max_bytes: int, shares: Shares | None = None, *, for_all_bytes: int = 0
    ) -> None:
        self._max_bytes = max_bytes
        self._shares = shares or Shares(AuthSettings())
        self._for_all_bytes = for_all_bytes
        # _lock guards everything below.
        self._lock = threading.Lock()
        self._bytes: Counter[str] = Counter()
        self._beyond_bytes = 0

    @contextmanager
    def hold(self, token: str = NOBODY) -> Iterator["Held"]:
        """The share of one request, given back at the end of the block."""
        held = Held(self, token)
        try:
            yield held
        finally:
            self._add(token, -held.bytes)

    def _add(self, token: str, n: int) -> None:
        share = self._shares.of(token, self._max_bytes - self._for_all_bytes)
        with self._lock:
            before = self._bytes[token]
            beyond = self._beyond_bytes + max(0, before + n - share) - max(0, before - share)
            if n > 0 and beyond > max(self._beyond_bytes, self._for_all_bytes):
                raise Overloaded(
                    f"More than {self._max_bytes} bytes of requests are in flight"
                    f"{f', or those of token {token} are over its share' * bool(token)}.",
                    hint="Send it again later. If this stays, raise receive.max_in_flight_bytes.",
                )
            self._beyond_bytes = beyond
            self._bytes[token] = before + n
            if not self._bytes[token]:
                del self._bytes[token]


class Held:
    """What one request holds of an ``InFlight``."""

    def __init__(self, in_flight: InFlight, token: str) -> None:
        self.bytes = 0
        self._in_flight = in_flight
        self._token = token

    def add(self, n: int) -> None:
        """Hold ``n`` more bytes.

        Raises:
            Overloaded: That is more than all requests together may hold, or those of the token.
        """
        self._in_flight._add(self._token, n)  # noqa: SLF001  # the two classes are one idea
        self.bytes += n


async def read(
    chunks: AsyncIterator[bytes], *, max_bytes: int, timeout_s: float, held: Held
) -> bytes:
    """All chunks, joined.

    Raises:
        RequestTooLarge: They are more than ``max_bytes``.
        SlowSender: They did not all arrive within ``timeout_s``.
        Overloaded: All requests together hold too much.
    """
    body = BytesIO()  # gives its bytes out without a copy
    left = max_bytes
    try:
        async with asyncio.timeout(timeout_s):
            async for chunk in chunks:
                left -= len(chunk)
                if left < 0:
                    raise _too_large(max_bytes)
                held.add(len(chunk))
                body.write(chunk)
    except TimeoutError as exc:
        raise SlowSender(
            f"The request took longer than {timeout_s:g} s to arrive.",
            hint="Send it again. For a slow link, raise receive.body_timeout_s.",
        ) from exc
    return body.getvalue()


async def drain(chunks: AsyncIterator[bytes], *, timeout_s: float) -> None:
    """Throw the rest of a body away, for at most ``timeout_s``.

    A server that answers and closes while the sender is still sending makes the sender see a reset
    connection in place of the answer, and send the same request again for ever.
    """
    try:
        async with asyncio.timeout(timeout_s):
            async for _ in chunks:
                pass
    except (TimeoutError, ClientDisconnect):
        pass  # nobody reads the answer, which is given and counted all the same


def decompress(body: bytes, encoding: str, *, max_bytes: int, held: Held) -> bytes:
    """Undo a Content-Encoding. A bomb is found out as it passes ``max_bytes``, not at its end.

    Takes time in proportion to the bytes that go in and come out. Any thread may call it; others
    run meanwhile.

    Args:
        body: As it came over the wire.
        encoding: One of ``ENCODINGS``.
        max_bytes: Of the result.
        held: The result is added to it as it grows.

    Raises:
        RequestTooLarge: The result is larger, or the body is over 1,024 gzip streams, one after
            another.
        MalformedRequest: The body is not so compressed, or ends too early.
        Overloaded: All requests together hold too much.
    """
    if encoding == "identity":
        return body
    result = BytesIO()  # gives its bytes out without a copy
    left, position = max_bytes, 0
    # A gzip file may be several streams, one after another.
    for _ in range(_MAX_STREAMS):
        stream, input_bytes = zlib.decompressobj(_WINDOW_BITS[encoding]), _FIRST_INPUT_BYTES
        while not stream.eof:
            given = stream.unconsumed_tail
            if not given:
                given = body[position : position + input_bytes]
                position += len(given)
                input_bytes = min(2 * input_bytes, _MAX_INPUT_BYTES)
            try:
                chunk = stream.decompress(given, min(_OUTPUT_CHUNK_BYTES, left + 1))
            except zlib.error as exc:
                raise MalformedRequest(f"The body is not {encoding}: {exc}.") from exc
            left -= len(chunk)
            if left < 0:
                raise _too_large(max_bytes)
            if not given and not chunk and not stream.eof:
                raise MalformedRequest(f"The {encoding} body is cut off.")
            held.add(len(chunk))
            result.write(chunk)
        position -= len(stream.unused_data)
        if position == len(body):
            return result.getvalue()
        if encoding != "gzip":
            raise MalformedRequest(f"Bytes follow the end of the {encoding} body.")
    raise RequestTooLarge(
        f"The gzip body has more than {_MAX_STREAMS} streams.", hint="Compress it as one stream."
    )


def _too_large(max_bytes: int) -> RequestTooLarge:
    return RequestTooLarge(
        f"The request is over {max_bytes} bytes, counted after decompression.",
        hint="Send smaller batches, or raise receive.max_body_bytes.",
    )
