"""Exemplars read by the column say what protobuf says, whoever wrote them."""

import math
import struct

import pytest
from google.protobuf.message import DecodeError
from hypothesis import given
from hypothesis import strategies as st
from opentelemetry.proto.common.v1.common_pb2 import AnyValue, KeyValue
from opentelemetry.proto.metrics.v1.metrics_pb2 import Exemplar

from otel_rl.bridge.otlp.exemplars import read_exemplars

_int64 = st.integers(-(1 << 63), (1 << 63) - 1)
_attributes = st.lists(
    st.builds(
        KeyValue,
        key=st.sampled_from(["rl.loop.iteration", "head", ""]),
        value=st.one_of(
            st.builds(AnyValue, int_value=st.integers(0, 300)),
            st.builds(AnyValue, string_value=st.sampled_from(["7", "7.5", "x", "x" * 200])),
        ),
    ),
    max_size=3,
    unique_by=lambda pair: pair.key,
)
_fragments = [
    st.builds(Exemplar, time_unix_nano=st.integers(0, (1 << 64) - 1)),
    st.builds(Exemplar, span_id=st.sampled_from([b"", b"\x11" * 8, b"\x3a\x02" * 4])),
    st.builds(Exemplar, trace_id=st.sampled_from([b"", b"\x19" * 16])),
    st.builds(Exemplar, filtered_attributes=_attributes),
]


@st.composite
def _serialized(draw: st.DrawFn) -> bytes:
    """An exemplar with its fields in any order, some of them twice, or not there."""
    parts = [draw(part).SerializeToString() for part in _fragments if draw(st.booleans())]
    number = draw(st.one_of(st.none(), _int64, st.floats()))
    if isinstance(number, int):
        parts.append(b"\x31" + struct.pack("<q", number))
    elif number is not None:
        parts.append(b"\x19" + struct.pack("<d", number))
    if draw(st.booleans()):
        parts.append(
            draw(st.sampled_from([b"", b"\xba\x3e\x01x", b"\x22\x00", b"\x11" + b"\1" * 8]))
        )
    return b"".join(draw(st.permutations(parts)))


def _step(exemplar: Exemplar) -> int | None:
    for pair in exemplar.filtered_attributes:
        if pair.key == "rl.loop.iteration":
            if pair.value.WhichOneof("value") == "int_value":
                return pair.value.int_value
            return {"7": 7}.get(pair.value.string_value)
    return None


def _assert_reads_as_protobuf_does(serialized: list[bytes]) -> None:
    times_ns, values, steps = read_exemplars(serialized)
    messages = [Exemplar.FromString(exemplar) for exemplar in serialized]
    assert list(times_ns) == [message.time_unix_nano for message in messages]
    for value, message in zip(values, messages, strict=True):
        expected = message.as_int if message.HasField("as_int") else message.as_double
        assert value == expected or (math.isnan(value) and math.isnan(expected))
        assert isinstance(value, int) == message.HasField("as_int")
    assert list(steps) == [_step(message) for message in messages]


@given(st.lists(_serialized(), min_size=1, max_size=8))
def test_any_exemplars_are_read_as_protobuf_reads_them(serialized: list[bytes]) -> None:
    _assert_reads_as_protobuf_does(serialized)


@given(_serialized(), st.lists(st.tuples(st.integers(0, 100), st.integers(0, 255)), max_size=4))
def test_one_that_only_looks_like_the_others_is_not_taken_for_one(
    serialized: bytes, damage: list[tuple[int, int]]
) -> None:
    damaged = bytearray(serialized)
    for place, byte in damage:
        if damaged:
            damaged[place % len(damaged)] = byte
    run = [serialized, bytes(damaged), serialized]
    try:
        Exemplar.FromString(bytes(damaged))
    except DecodeError:
        with pytest.raises(DecodeError):
            read_exemplars(run)
    else:
        times_ns, values, _ = read_exemplars(run)
        assert list(times_ns) == [Exemplar.FromString(one).time_unix_nano for one in run]
        assert len(values) == len(run)
