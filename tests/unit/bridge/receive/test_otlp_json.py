"""OTLP/JSON becomes the message that the same request in protobuf would be."""

import base64
import json
import math
from typing import Any

import pytest
from google.protobuf.json_format import MessageToDict
from hypothesis import given, settings
from hypothesis import strategies as st
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import (
    ExportMetricsServiceRequest,
)
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.logs.v1.logs_pb2 import LogRecord
from opentelemetry.proto.metrics.v1.metrics_pb2 import Metric, NumberDataPoint
from opentelemetry.proto.trace.v1.trace_pb2 import Span

from otel_rl.bridge.receive.otlp_json import parse_json
from otel_rl.bridge.receive.signal_specs import ExportRequest
from otel_rl.errors import MalformedRequest, RequestTooLarge
from otel_rl.signals import Signal
from tests.support.otlp_requests import (
    every_event,
    gauge,
    key_values,
    logs_request,
    metrics_request,
    trace_request,
)
from tests.support.slow import examples

MAX_OBJECTS = 100_000


def parse(signal: Signal, value: object) -> ExportRequest:
    payload = value if isinstance(value, bytes) else json.dumps(value).encode()
    return parse_json(signal, payload, max_objects=MAX_OBJECTS)


def parse_metric(metric: object) -> Metric:
    request = parse(
        Signal.METRICS, {"resourceMetrics": [{"scopeMetrics": [{"metrics": [metric]}]}]}
    )
    assert isinstance(request, ExportMetricsServiceRequest)
    return request.resource_metrics[0].scope_metrics[0].metrics[0]


def parse_point(point: object) -> NumberDataPoint:
    return parse_metric({"gauge": {"dataPoints": [point]}}).gauge.data_points[0]


def parse_span(span: object) -> Span:
    request = parse(Signal.TRACES, {"resourceSpans": [{"scopeSpans": [{"spans": [span]}]}]})
    assert isinstance(request, ExportTraceServiceRequest)
    return request.resource_spans[0].scope_spans[0].spans[0]


def parse_record(record: object) -> LogRecord:
    request = parse(Signal.LOGS, {"resourceLogs": [{"scopeLogs": [{"logRecords": [record]}]}]})
    assert isinstance(request, ExportLogsServiceRequest)
    return request.resource_logs[0].scope_logs[0].log_records[0]


def test_25_ids_of_exemplars_are_hexadecimal() -> None:
    (exemplar,) = parse_point({"exemplars": [{"traceId": "aB" * 16, "spanId": "cd" * 8}]}).exemplars
    assert (exemplar.trace_id, exemplar.span_id) == (b"\xab" * 16, b"\xcd" * 8)


@pytest.mark.parametrize(
    "trace_id",
    [
        "ab",
        "ab" * 15,
        "ab" * 17,
        "zz" * 16,
        "ab" * 15 + " a",
        7,
        base64.b64encode(b"x" * 16).decode(),
    ],
)
def test_25_id_that_is_none_is_malformed(trace_id: object) -> None:
    with pytest.raises(MalformedRequest, match="hexadecimal"):
        parse_span({"traceId": trace_id})


def test_25_empty_id_is_unset() -> None:
    assert parse_span({"traceId": "", "parentSpanId": ""}) == Span()


@pytest.mark.parametrize("value", [-(2**63), str(-(2**63)), 5.0, 1e3, "0"])
def test_26_signed_integers(value: float | str) -> None:
    assert parse_point({"asInt": value}).as_int == int(value)


@pytest.mark.parametrize(
    "value",
    [
        1.5,
        "1.5",
        2**64,
        str(2**64),
        "-1",
        -1,
        1e30,
        2.0**53 + 2,
        "",
        " 1",
        "1_000",
        "0x1",
        "9" * 5000,
        True,
        [],
        {},
    ],
)
def test_26_what_is_no_unsigned_integer_is_malformed(value: object) -> None:
    with pytest.raises(MalformedRequest, match=r"dataPoints\[0\]\.timeUnixNano"):
        parse_point({"timeUnixNano": value})


def test_26_repeated_integers_are_numbers_or_strings() -> None:
    metric = parse_metric({"histogram": {"dataPoints": [{"bucketCounts": ["1", 2]}]}})
    assert list(metric.histogram.data_points[0].bucket_counts) == [1, 2]


def test_27_unknown_enum_name_is_malformed() -> None:
    with pytest.raises(MalformedRequest):
        parse_metric({"sum": {"aggregationTemporality": "SOMETIMES"}})


@pytest.mark.parametrize("written", [2, "AGGREGATION_TEMPORALITY_CUMULATIVE"])
def test_27_enums_are_numbers_and_a_name_is_understood(written: object) -> None:
    assert (
        parse_metric({"sum": {"aggregationTemporality": written}}).sum.aggregation_temporality == 2
    )


def test_27_unknown_and_snake_case_keys_are_ignored() -> None:
    assert parse_point({"as_double": 9, "invented": [{}], "asDouble": 1.5}).as_double == 1.5


def test_27_null_is_unset() -> None:
    assert parse_point({"asInt": None, "attributes": None, "timeUnixNano": None}) == (
        NumberDataPoint()
    )


@pytest.mark.parametrize(
    ("value", "expected"),
    [(1, 1.0), (-0.5, -0.5), ("1e-3", 0.001), ("Infinity", math.inf), ("-Infinity", -math.inf)],
)
def test_28_doubles(value: object, expected: float) -> None:
    assert parse_point({"asDouble": value}).as_double == expected


@pytest.mark.parametrize(
    ("point", "value"),
    [
        ({"asDouble": None}, "as_double"),
        ({"asDouble": None, "asInt": 3}, "as_int"),
        ({"asInt": 3, "asDouble": None}, "as_int"),
        ({"asInt": None, "asDouble": None}, "as_double"),
    ],
)
def test_28_what_javascript_writes_for_nan_is_nan(point: object, value: str) -> None:
    parsed = parse_point(point)
    assert parsed.WhichOneof("value") == value
    assert parsed.as_int == 3 or math.isnan(parsed.as_double)


@pytest.mark.parametrize("literal", [b"NaN", b"Infinity", b"-Infinity", b"1e999", b"01", b"1."])
def test_28_what_json_does_not_have_is_malformed(literal: bytes) -> None:
    with pytest.raises(MalformedRequest):
        parse(Signal.METRICS, b'{"x":' + literal + b"}")


@pytest.mark.parametrize("value", ["nan", "inf", "1e999", "1_0", "", "٣", True, [], {}])
def test_28_what_is_no_double_is_malformed(value: object) -> None:
    with pytest.raises(MalformedRequest, match="asDouble"):
        parse_point({"asDouble": value})


@pytest.mark.parametrize("text", ["+/+/", "-_-_", "Zg==", "Zg"])
def test_29_bytes_are_base64_of_either_alphabet(text: str) -> None:
    point = parse_point({"attributes": [{"key": "k", "value": {"bytesValue": text}}]})
    padded = text + "=" * (-len(text) % 4)
    assert point.attributes[0].value.bytes_value == base64.urlsafe_b64decode(
        padded.replace("+", "-").replace("/", "_")
    )


@pytest.mark.parametrize("text", ["Z", "Z g=", "é", 7])
def test_29_what_is_no_base64_is_malformed(text: object) -> None:
    with pytest.raises(MalformedRequest, match="base64"):
        parse_point({"attributes": [{"key": "k", "value": {"bytesValue": text}}]})


def test_29_nested_values() -> None:
    value = {
        "kvlistValue": {
            "values": [{"key": "", "value": {"arrayValue": {"values": [{"boolValue": True}, {}]}}}]
        }
    }
    parsed = parse_point({"attributes": [{"key": "k", "value": value}]}).attributes[0].value
    (pair,) = parsed.kvlist_value.values
    assert pair.key == ""
    assert pair.value.array_value.values[0].bool_value is True
    assert pair.value.array_value.values[1].WhichOneof("value") is None


@pytest.mark.parametrize("depth", [60, 500, 100_000])
def test_29_too_deep_nesting_is_malformed(depth: int) -> None:
    value = b'{"arrayValue":{"values":[' * depth + b"]}}" * depth
    payload = (
        b'{"resourceMetrics":[{"resource":{"attributes":[{"key":"k","value":' + value + b"}]}}]}"
    )
    with pytest.raises((MalformedRequest, RequestTooLarge)):
        parse(Signal.METRICS, payload)


def test_29_nesting_that_is_taken_survives_protobuf() -> None:
    # 100 levels are also what protobuf's own parser takes, so nothing taken here is lost later.
    for depth in range(1, 60):
        value = b'{"arrayValue":{"values":[' * depth + b"]}}" * depth
        try:
            request = parse(
                Signal.METRICS,
                b'{"resourceMetrics":[{"resource":{"attributes":[{"value":' + value + b"}]}}]}",
            )
        except MalformedRequest:
            break
        assert ExportMetricsServiceRequest.FromString(request.SerializeToString()) == request
    assert depth > 40


@pytest.mark.parametrize(
    "payload", [b"\xff", b'{"a":"\xff"}', b'{"a":"\\ud800"}', b"", b"{", b"{}x"]
)
def test_29_bytes_that_are_no_json_are_malformed(payload: bytes) -> None:
    with pytest.raises(MalformedRequest, match="not JSON"):
        parse(Signal.METRICS, payload)


@pytest.mark.parametrize(
    ("value", "path"),
    [
        ([], r"\$ must be an object"),
        ("x", r"\$ must be an object"),
        ({"resourceMetrics": {}}, r"\$\.resourceMetrics must be an array"),
        ({"resourceMetrics": [7]}, r"\$\.resourceMetrics\[0\] must be an object"),
        ({"resourceMetrics": [None]}, r"\$\.resourceMetrics\[0\] must be an object"),
        ({"resourceMetrics": [{"schemaUrl": 7}]}, r"schemaUrl: must be a string"),
    ],
)
def test_wrong_shape_is_malformed_and_the_place_is_named(value: object, path: str) -> None:
    with pytest.raises(MalformedRequest, match=path):
        parse(Signal.METRICS, value)


def test_two_values_where_one_can_be_are_malformed() -> None:
    with pytest.raises(MalformedRequest, match="second value"):
        parse_point({"asInt": 1, "asDouble": 2.0})


def test_zero_is_a_value() -> None:
    assert parse_point({"asInt": "0"}).WhichOneof("value") == "as_int"
    assert parse_metric({"gauge": {}}).WhichOneof("data") == "gauge"


def test_more_objects_than_the_limit_are_too_large() -> None:
    with pytest.raises(RequestTooLarge):
        parse_json(Signal.METRICS, b'{"x":' + b"[" * 50 + b"]" * 50 + b"}", max_objects=50)


def as_otlp_json(value: Any, key: str = "") -> Any:
    """protobuf's JSON with the ids as OTLP has them."""
    if isinstance(value, dict):
        return {k: as_otlp_json(v, k) for k, v in value.items()}
    if isinstance(value, list):
        return [as_otlp_json(element, key) for element in value]
    if key in ("traceId", "spanId", "parentSpanId"):
        return base64.b64decode(value).hex()
    return value


@settings(max_examples=examples(50), deadline=None)
@given(
    values=st.lists(
        st.floats(allow_nan=False) | st.just(math.nan) | st.integers(-(2**63), 2**63 - 1),
        max_size=5,
    ),
    key=st.text(max_size=5),
    text=st.text(max_size=20),
    blob=st.binary(max_size=20),
    trace_id=st.binary(min_size=16, max_size=16),
    counts=st.lists(st.integers(0, 2**64 - 1), max_size=4),
)
def test_json_of_a_message_parses_to_that_message(
    values: list[float | int],
    key: str,
    text: str,
    blob: bytes,
    trace_id: bytes,
    counts: list[int],
) -> None:
    metric = gauge()
    for value in values:
        point = metric.gauge.data_points.add(time_unix_nano=2**63)
        if isinstance(value, int):
            point.as_int = value
        else:
            point.as_double = value
        point.attributes.extend(key_values({key: text}))
        point.attributes.add(key="blob").value.bytes_value = blob
        point.exemplars.add(as_double=1, trace_id=trace_id, span_id=trace_id[:8])
    histogram = Metric(name=text)
    histogram.histogram.data_points.add(bucket_counts=counts, min=0)
    request = metrics_request(metric, histogram)
    written = as_otlp_json(MessageToDict(request, use_integers_for_enums=True))
    parsed = parse(Signal.METRICS, written)
    # Bytes, because NaN is not equal to itself. JSON has one NaN, without a sign.
    assert parsed.SerializeToString(deterministic=True) == request.SerializeToString(
        deterministic=True
    )


def test_json_of_a_trace_parses_to_that_trace() -> None:
    request = trace_request(3)
    written = as_otlp_json(MessageToDict(request, use_integers_for_enums=True))
    assert parse(Signal.TRACES, written) == request


def test_json_of_events_parses_to_those_events() -> None:
    request = logs_request(*every_event())
    for record in request.resource_logs[0].scope_logs[0].log_records:
        record.trace_id, record.span_id = b"\xfe" * 16, b"\xfd" * 8
        record.attributes.add(key="blob").value.bytes_value = b"\xff\xfe"
        record.severity_number, record.flags = 9, 1  # type: ignore[assignment]  # INFO
    written = as_otlp_json(MessageToDict(request, use_integers_for_enums=True))
    assert "eventName" in written["resourceLogs"][0]["scopeLogs"][0]["logRecords"][0]
    assert parse(Signal.LOGS, written) == request


def test_a_log_record_has_the_name_time_and_body_that_json_gives_it() -> None:
    record = parse_record(
        {
            "timeUnixNano": "1800000000000000001",
            "observedTimeUnixNano": 1_800_000_000_000_000_002,
            "severityNumber": "SEVERITY_NUMBER_INFO",
            "eventName": "rl.rollout.sample",
            "event_name": "another",
            "body": {
                "kvlistValue": {
                    "values": [
                        {"key": "completion", "value": {"stringValue": "2"}},
                        {"key": "reward", "value": {"doubleValue": "NaN"}},
                        {"key": "n", "value": {"intValue": "-7"}},
                        {"key": "raw", "value": {"bytesValue": "AAE="}},
                        {"key": "empty", "value": {}},
                    ]
                }
            },
        }
    )
    assert (record.time_unix_nano % 10, record.observed_time_unix_nano % 10) == (1, 2)
    assert (record.event_name, record.severity_number) == ("rl.rollout.sample", 9)
    completion, reward, n, raw, empty = [pair.value for pair in record.body.kvlist_value.values]
    assert completion.string_value == "2"
    assert math.isnan(reward.double_value)
    assert (n.int_value, raw.bytes_value) == (-7, b"\x00\x01")
    assert empty.WhichOneof("value") is None


@pytest.mark.parametrize(
    ("record", "path"),
    [
        ({"eventName": 7}, r"logRecords\[0\]\.eventName: must be a string"),
        ({"body": "text"}, r"logRecords\[0\]\.body must be an object"),
        ({"body": {"kvlistValue": []}}, r"body\.kvlistValue must be an object"),
        ({"body": {"kvlistValue": {"values": {}}}}, r"kvlistValue\.values must be an array"),
        ({"body": {"bytesValue": "Z"}}, r"body\.bytesValue: must be a base64"),
        ({"body": {"stringValue": "a", "intValue": 1}}, "a second value"),
        ({"spanId": "ab"}, r"logRecords\[0\]\.spanId: must be 16 hexadecimal"),
        ({"flags": 2**32}, "flags"),
    ],
)
def test_a_log_record_of_wrong_shape_is_malformed(record: object, path: str) -> None:
    with pytest.raises(MalformedRequest, match=path):
        parse_record(record)


def test_members_and_elements_are_bounded_before_they_are_made() -> None:
    for payload in (b"[" + b"1," * 400 + b"1]", b"{" + b'"a":1,' * 400 + b'"a":1}'):
        with pytest.raises(RequestTooLarge, match="more than 100 objects or 400 values"):
            parse_json(Signal.METRICS, b'{"x":' + payload + b',"y":1}', max_objects=100)
