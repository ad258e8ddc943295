"""No body takes more memory or time than the limits allow."""

import asyncio
import gzip
import time
import zlib
from collections.abc import AsyncIterator, Callable
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from otel_rl.bridge.receive.body import decompress, drain, read
from otel_rl.bridge.receive.gate import InFlight
from otel_rl.errors import Overloaded, RequestTooLarge
from tests.support.costs import cost_ratio

COMPRESS: dict[str, Callable[[bytes], bytes]] = {
    "gzip": gzip.compress,
    "deflate": zlib.compress,
    "identity": bytes,
}


def unpacked(body: bytes, encoding: str, *, max_bytes: int) -> bytes:
    with InFlight(1 << 20).hold() as held:
        return decompress(body, encoding, max_bytes=max_bytes, held=held)


async def chunks_of(*chunks: bytes) -> AsyncIterator[bytes]:
    for chunk in chunks:
        yield chunk


async def endless() -> AsyncIterator[bytes]:
    yield b"begin"
    await asyncio.Event().wait()


@given(st.binary(max_size=5000), st.sampled_from(sorted(COMPRESS)))
def test_decompress_undoes_compress_up_to_the_very_limit(body: bytes, encoding: str) -> None:
    assert unpacked(COMPRESS[encoding](body), encoding, max_bytes=len(body)) == body


@given(st.binary(min_size=1, max_size=5000), st.sampled_from(["gzip", "deflate"]))
def test_one_byte_over_the_limit_is_too_large(body: bytes, encoding: str) -> None:
    with pytest.raises(RequestTooLarge):
        unpacked(COMPRESS[encoding](body), encoding, max_bytes=len(body) - 1)


def test_limit_counts_over_all_streams_of_a_gzip_body() -> None:
    body = gzip.compress(bytes(60)) * 2
    assert unpacked(body, "gzip", max_bytes=120) == bytes(120)
    with pytest.raises(RequestTooLarge):
        unpacked(body, "gzip", max_bytes=119)


def test_drain_ends_with_the_body_or_with_its_time() -> None:
    asyncio.run(drain(chunks_of(b"x"), timeout_s=5))
    asyncio.run(drain(endless(), timeout_s=0.01))


def test_bytes_in_flight_are_given_back_after_an_error() -> None:
    in_flight = InFlight(10)
    with pytest.raises(RequestTooLarge), in_flight.hold() as held:
        asyncio.run(read(chunks_of(bytes(9), b"xx"), max_bytes=10, timeout_s=5, held=held))
    with in_flight.hold() as later:
        later.add(10)


def test_a_body_counts_as_it_grows_and_a_bomb_takes_no_more_than_is_left() -> None:
    bomb = gzip.compress(bytes(10_000_000))
    in_flight = InFlight(len(bomb) + 2_000_000)
    with in_flight.hold() as held:
        held.add(len(bomb))
        with pytest.raises(Overloaded):
            decompress(bomb, "gzip", max_bytes=20_000_000, held=held)
        assert held.bytes <= len(bomb) + 2_000_000


EMPTY_STREAM = gzip.compress(b"", mtime=0)


@pytest.mark.timeout(600)  # before there was a bound, 4 MB of them took 100 s
def test_many_streams_are_refused_at_a_fixed_number_whatever_the_size_of_the_body() -> None:
    assert unpacked(EMPTY_STREAM * 1023 + gzip.compress(b"x"), "gzip", max_bytes=9) == b"x"
    with pytest.raises(RequestTooLarge, match="1024 streams"):
        unpacked(EMPTY_STREAM * 1025, "gzip", max_bytes=9)
    body = EMPTY_STREAM * (4_000_000 // len(EMPTY_STREAM))
    begun_s = time.process_time()
    with pytest.raises(RequestTooLarge, match="1024 streams"):
        unpacked(body, "gzip", max_bytes=1 << 20)
    assert time.process_time() - begun_s < 5


@pytest.mark.timeout(600)
def test_cost_of_streams_grows_with_bytes_not_with_their_square() -> None:
    # Bytes that do not compress, so that there is much behind each stream.
    stream = gzip.compress(Random(1).randbytes(16_000), 1)

    def unpacking(n: int) -> Callable[[], object]:
        body = stream * n

        def unpack() -> None:
            with InFlight(1 << 30).hold() as held:
                decompress(body, "gzip", max_bytes=64 << 20, held=held)

        return unpack

    assert cost_ratio(unpacking, 256, most=8) < 8
