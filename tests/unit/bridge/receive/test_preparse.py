"""The bound on the number of messages holds for every payload that protobuf can parse."""

import contextlib
import time
from collections.abc import Callable
from functools import partial

import pytest
from google.protobuf.descriptor import Descriptor
from hypothesis import given
from hypothesis import strategies as st
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import (
    ExportMetricsServiceRequest,
)
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from otel_rl.bridge.receive.limits import ReceiveLimits
from otel_rl.bridge.receive.wire import check_message_count
from otel_rl.errors import MalformedRequest, RequestTooLarge
from tests.support.costs import cost_ratio
from tests.support.otlp_requests import delimited, gauge, metrics_request, point

ROOT = ExportMetricsServiceRequest.DESCRIPTOR


def check(payload: bytes, max_messages: int) -> None:
    check_message_count(payload, ROOT, max_messages)


@given(st.integers(0, 20))
def test_messages_at_every_depth_are_counted(n_points: int) -> None:
    request = metrics_request(gauge(*[point() for _ in range(n_points)]))
    payload = request.SerializeToString()
    # ResourceMetrics, Resource, KeyValue, AnyValue, ScopeMetrics, Metric, Gauge, and the points
    n_messages = 7 + max(n_points, 1)
    check(payload, n_messages)
    with pytest.raises(RequestTooLarge, match=f"more than {n_messages - 1} messages"):
        check(payload, n_messages - 1)


def test_empty_points_are_counted_before_they_take_memory() -> None:
    points = b"\x0a\x00" * 1_000_000
    payload = points
    for tag in (b"\x2a", b"\x12", b"\x12", b"\x0a"):  # gauge, metric, scope, resource
        payload = tag + varint(len(payload)) + payload
    with pytest.raises(RequestTooLarge):
        check(payload, 100_000)


def test_strings_are_bounded_as_well() -> None:
    payload = b"\x7a\x01x" * 1000  # of a field that nobody knows
    check(payload, 500)
    with pytest.raises(RequestTooLarge, match="more than 998 strings"):
        check(payload, 499)


@pytest.mark.parametrize(
    "field", [b"\x78\x01", b"\xf8\x07\x80\x01", b"\x79" + bytes(8), b"\xfd\x07" + bytes(4)]
)
def test_numbers_are_skipped_however_many_they_are_and_wherever_they_stand(field: bytes) -> None:
    # More than the expression looks at in one go, and at every offset to where it stops.
    for shift in range(len(field) + 1):
        payload = b"\x7a" + bytes([shift]) + bytes(shift) + field * 200_000
        check(payload, 1)
        with pytest.raises(MalformedRequest):
            check(payload[:-1], 1)
        with pytest.raises(RequestTooLarge):
            check(payload + b"\x0a\x00" * 2, 1)


@pytest.mark.slow
@pytest.mark.timeout(600)  # a busy machine gives little of its time; the assertion is of CPU
def test_the_worst_of_64_mib_take_seconds_not_minutes() -> None:
    size = 64 << 20
    for worst in (b"\x78\x00", b"\x7a\x00", b"\x0a\x00", b"\x00"):
        begun_s = time.process_time()
        with contextlib.suppress(RequestTooLarge, MalformedRequest):
            check(worst * (size // len(worst)), ReceiveLimits().max_messages_per_request)
        assert time.process_time() - begun_s < 15


def test_short_payload_is_not_looked_at() -> None:
    check(b"\xff" * 100, 51)


@pytest.mark.parametrize(
    "payload",
    [
        b"\x0a\x7f" + b"x" * 50,  # longer than what holds it
        b"\x0b" * 50,  # a group, which OTLP has none of
        b"\xff" * 50,  # an endless number
        b"\x09" + b"x" * 5,  # a number of eight bytes cut off
        b"\x00" * 50,  # a field without a number
    ],
)
def test_bytes_that_are_no_protobuf_are_malformed(payload: bytes) -> None:
    with pytest.raises(MalformedRequest):
        check(payload, 1)


@given(st.binary(max_size=300))
def test_what_protobuf_parses_is_never_malformed(payload: bytes) -> None:
    try:
        check(payload, 1)
    except RequestTooLarge:
        pass
    except MalformedRequest:
        has_group = True
        try:
            ExportMetricsServiceRequest.FromString(payload)
        except Exception:  # noqa: BLE001  # any error means that protobuf refuses it too
            has_group = False
        # Unknown groups are the one thing that protobuf takes and OTLP has not.
        assert not has_group or any(byte & 7 in (3, 4) for byte in payload)


def varint(value: int) -> bytes:
    encoded = bytearray()
    while value > 0x7F:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    encoded.append(value)
    return bytes(encoded)


TRACES, LOGS = ExportTraceServiceRequest.DESCRIPTOR, ExportLogsServiceRequest.DESCRIPTOR

# Fields by their numbers, from the request down to what is repeated without content.
EMPTY_MESSAGES: list[tuple[str, Descriptor, list[int], int]] = [
    ("resources", ROOT, [1], 1),
    ("attributes of a resource", ROOT, [1, 1, 1], 3),
    ("entities of a resource", ROOT, [1, 1, 3], 3),
    ("scopes", ROOT, [1, 2], 2),
    ("attributes of a scope", ROOT, [1, 2, 1, 3], 4),
    ("metrics", ROOT, [1, 2, 2], 3),
    ("metadata", ROOT, [1, 2, 2, 12], 4),
    ("points of a gauge", ROOT, [1, 2, 2, 5, 1], 5),
    ("points of a sum", ROOT, [1, 2, 2, 7, 1], 5),
    ("points of a histogram", ROOT, [1, 2, 2, 9, 1], 5),
    ("points of an exponential histogram", ROOT, [1, 2, 2, 10, 1], 5),
    ("points of a summary", ROOT, [1, 2, 2, 11, 1], 5),
    ("quantiles", ROOT, [1, 2, 2, 11, 1, 6], 6),
    ("attributes of a point", ROOT, [1, 2, 2, 5, 1, 7], 6),
    ("exemplars", ROOT, [1, 2, 2, 5, 1, 5], 6),
    ("values of an array", ROOT, [1, 1, 1, 2, 5, 1], 6),
    ("pairs of a map", ROOT, [1, 1, 1, 2, 6, 1], 6),
    ("resources of spans", TRACES, [1], 1),
    ("scopes of spans", TRACES, [1, 2], 2),
    ("spans", TRACES, [1, 2, 2], 3),
    ("attributes of a span", TRACES, [1, 2, 2, 9], 4),
    ("events of a span", TRACES, [1, 2, 2, 11], 4),
    ("links of a span", TRACES, [1, 2, 2, 13], 4),
    ("resources of records", LOGS, [1], 1),
    ("scopes of records", LOGS, [1, 2], 2),
    ("records", LOGS, [1, 2, 2], 3),
    ("attributes of a record", LOGS, [1, 2, 2, 6], 4),
]


def nested(numbers: list[int], n: int, content: bytes = b"") -> bytes:
    """``n`` fields of the last number, within one field of each of the others."""
    *outer, last = [number << 3 | 2 for number in numbers]
    payload = delimited(last, content) * n
    for tag in reversed(outer):
        payload = delimited(tag, payload)
    return payload


@pytest.mark.parametrize(
    ("root", "numbers", "depth"), [case[1:] for case in EMPTY_MESSAGES], ids=lambda _: ""
)
def test_every_message_is_counted_also_if_it_is_empty(
    root: Descriptor, numbers: list[int], depth: int
) -> None:
    assert depth == len(numbers)
    payload = nested(numbers, 1000)
    n_messages = 1000 + depth - 1
    check_message_count(payload, root, n_messages)
    with pytest.raises(RequestTooLarge, match=f"more than {n_messages - 1} messages"):
        check_message_count(payload, root, n_messages - 1)


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 300)), max_size=30), st.integers(1, 40))
def test_rows_of_fields_are_counted_one_by_one(rows: list[tuple[int, int]], repeat: int) -> None:
    # Strings of any length, alone and in rows, between numbers and empty messages.
    payload, strings, messages = b"", 0, 0
    for kind, length in rows:
        if kind == 0:
            payload += (b"\x78\x05" + b"\x79" + bytes(8)) * repeat
        elif kind == 1:
            payload += b"\x0a\x00" * repeat
            messages += repeat
        else:
            payload += delimited(0x7A, b"\x0a" * length) * repeat
            strings += repeat
    fewest = max(messages, (strings + 1) // 2)
    check(payload, fewest)
    if fewest > 1:
        with pytest.raises(RequestTooLarge):
            check(payload, fewest - 1)


@pytest.mark.slow
def test_counting_costs_time_in_proportion_to_the_bytes() -> None:
    for content, messages in ((b"", 1), (b"\x12\x00", 2), (b"\x7a\x00\x7a\x01x", 1)):

        def counting(n: int, content: bytes = content, each: int = messages) -> Callable[[], None]:
            return partial(check, nested([1, 2], n, content), n * each + 1)

        assert cost_ratio(counting, 6_000, most=10) < 10
