"""Reads request bodies into memory, within the limits."""

import asyncio
import threading
import zlib
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from io import BytesIO

from starlette.requests import ClientDisconnect

from otel_rl.bridge.ingest.admission.token_shares import NO_TOKEN, TokenShares
from otel_rl.bridge.ingest.security.tokens import AuthSettings
from otel_rl.errors import MalformedRequest, Overloaded, RequestTooLarge, SlowSender

__all__ = ["ENCODINGS", "Held", "InFlight", "decompress", "drain", "read"]

# zlib's window size; +16 for a stream with a gzip header.
_WINDOW_BITS = {"gzip": 16 + zlib.MAX_WBITS, "deflate": zlib.MAX_WBITS}

ENCODINGS = ("identity", *_WINDOW_BITS)
"""Supported values of Content-Encoding. An absent one means identity."""

_OUTPUT_CHUNK_BYTES = 1 << 20

# Input of one call of zlib. It copies what it leaves unread, once for each stream that ends in the
# input and each chunk of output. The input grows with a stream, so that short streams cost little.
_FIRST_INPUT_BYTES = 1 << 9
_MAX_INPUT_BYTES = 1 << 16

# Every exporter sends one. Block writers make one for each 64 KiB, as BGZF does.
_MAX_STREAMS = 1024


class InFlight:
    """Bounds the bytes of all request bodies held at once. Any thread may call any method.

    Every token has a share that no other can use up. Beyond it, a token takes from a common part,
    so that the largest request fits whatever the number of tokens.

    Args:
        max_bytes: Over all requests.
        shares: Share of each token.
        for_all_bytes: The common part of ``max_bytes``.
    """

    def __init__(
        self, max_bytes: int, shares: TokenShares | None = None, *, for_all_bytes: int = 0
    ) -> None:
        self._max_bytes = max_bytes
        self._shares = shares or TokenShares(AuthSettings())
        self._for_all_bytes = for_all_bytes
        # _lock guards everything below.
        self._lock = threading.Lock()
        self._bytes: dict[str, int] = {}
        self._beyond_bytes = 0

    @contextmanager
    def hold(self, token: str = NO_TOKEN) -> Iterator["Held"]:
        """Bytes of one request, released at the end of the block."""
        held = Held(self, token)
        try:
            yield held
        finally:
            held.release()

    def _add(self, token: str, n: int) -> None:
        share = self._shares.of(token, self._max_bytes - self._for_all_bytes)
        with self._lock:
            before = self._bytes.get(token, 0)
            after, beyond = before + n, self._beyond_bytes
            if before > share or after > share:
                beyond += max(0, after - share) - max(0, before - share)
            if n > 0 and beyond > max(self._beyond_bytes, self._for_all_bytes):
                raise Overloaded(
                    f"More than {self._max_bytes} bytes of requests are in flight"
                    f"{f', or those of token {token} are over its share' * bool(token)}.",
                    hint="Send it again later. If this stays, raise receive.max_in_flight_bytes.",
                )
            self._beyond_bytes = beyond
            if after:
                self._bytes[token] = after
            else:
                self._bytes.pop(token, None)


class Held:
    """Bytes that one request holds of an ``InFlight``, until they are released."""

    def __init__(self, in_flight: InFlight, token: str) -> None:
        self.bytes = 0
        self._in_flight = in_flight
        self._token = token

    def add(self, n: int) -> None:
        """Hold ``n`` more bytes.

        Raises:
            Overloaded: All requests together, or those of the token, hold too much.
        """
        self._in_flight._add(self._token, n)  # noqa: SLF001  # the two classes are one idea
        self.bytes += n

    def release(self) -> None:
        """Hold nothing any more."""
        n, self.bytes = self.bytes, 0
        self._in_flight._add(self._token, -n)  # noqa: SLF001  # as above


async def read(
    chunks: AsyncIterator[bytes], *, max_bytes: int, timeout_s: float, held: Held
) -> bytes:
    """Read all chunks and join them.

    Raises:
        RequestTooLarge: They are more than ``max_bytes``.
        SlowSender: They did not all arrive within ``timeout_s``.
        Overloaded: All requests together hold too much.
    """
    body = BytesIO()  # returns its bytes without a copy
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
            hint="Send it again. For a slow link, raise receive.body_timeout.",
        ) from exc
    return body.getvalue()


async def drain(chunks: AsyncIterator[bytes], *, timeout_s: float) -> None:
    """Discard the rest of a body, for at most ``timeout_s``.

    If a server answers and closes while the sender still sends, the sender sees a reset connection
    in place of the answer, and retries the same request for ever.
    """
    try:
        async with asyncio.timeout(timeout_s):
            async for _ in chunks:
                pass
    except (TimeoutError, ClientDisconnect):
        pass  # the answer is sent and counted all the same


def decompress(body: bytes, encoding: str, *, max_bytes: int, held: Held) -> bytes:
    """Undo a Content-Encoding. A decompression bomb is refused as it passes ``max_bytes``.

    Takes time in proportion to input and output. Releases the interpreter; any thread may call it.

    Args:
        body: Bytes as received.
        encoding: One of ``ENCODINGS``.
        max_bytes: Bound of the result.
        held: The result is added to it as it grows.

    Raises:
        RequestTooLarge: The result is larger, or the body is over 1,024 concatenated gzip streams.
        MalformedRequest: The body does not have this encoding, or is cut off.
        Overloaded: All requests together hold too much.
    """
    if encoding == "identity":
        return body
    result = BytesIO()  # returns its bytes without a copy
    left, position = max_bytes, 0
    # A gzip file may be several concatenated streams.
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
