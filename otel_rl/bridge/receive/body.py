"""Reads request bodies into memory, within the limits."""

import asyncio
import zlib
from collections.abc import AsyncIterator
from io import BytesIO

from starlette.requests import ClientDisconnect

from otel_rl.bridge.receive.gate import Held
from otel_rl.errors import MalformedRequest, RequestTooLarge, SlowSender

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


async def read(
    chunks: AsyncIterator[bytes], *, max_bytes: int, timeout_s: float, held: Held
) -> bytes:
    """Read all chunks and join them.

    Raises:
        RequestTooLarge: The chunks are more than ``max_bytes``.
        SlowSender: The chunks did not all arrive within ``timeout_s``.
        Overloaded: All requests together hold too many bytes.
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
            hint="Send it again. For a slow link, send smaller batches.",
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

    Raises:
        RequestTooLarge: The result is larger, or the body has over 1,024 concatenated gzip streams.
        MalformedRequest: The body does not have this encoding, or is cut off.
        Overloaded: All requests together hold too many bytes.
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
