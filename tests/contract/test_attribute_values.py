"""Every attribute value of OTLP 1.9 is accepted in every place, as protobuf and as JSON."""

import json
import time
from collections.abc import Mapping

import pytest
from google.protobuf.json_format import MessageToDict
from google.protobuf.message import Message
from opentelemetry.proto.common.v1.common_pb2 import AnyValue, ArrayValue, KeyValue, KeyValueList

from otel_rl.bridge.receive.limits import ReceiveLimits
from otel_rl.bridge.receive.otlp_json import parse_json
from otel_rl.bridge.receive.signal_specs import ExportRequest
from otel_rl.bridge.receive.validate import validate
from otel_rl.records import Signal
from tests.dialects.record import as_otlp
from tests.support.doors import decode
from tests.support.otlp_requests import (
    event,
    gauge,
    logs_request,
    metrics_request,
    point,
    trace_request,
)


def array(*values: AnyValue) -> AnyValue:
    return AnyValue(array_value=ArrayValue(values=values))


def mapping(**values: AnyValue) -> AnyValue:
    pairs = [KeyValue(key=key, value=value) for key, value in values.items()]
    return AnyValue(kvlist_value=KeyValueList(values=pairs))


TEXT, NUMBER = AnyValue(string_value="a"), AnyValue(int_value=-(1 << 63))
VALUES: Mapping[str, AnyValue] = {
    "text": TEXT,
    "empty text": AnyValue(string_value=""),
    "truth": AnyValue(bool_value=False),
    "integer": NUMBER,
    "float": AnyValue(double_value=float("inf")),
    "not a number": AnyValue(double_value=float("nan")),
    "bytes": AnyValue(bytes_value=b"\x00\xff"),
    "no bytes": AnyValue(bytes_value=b""),
    "array": array(TEXT, NUMBER, AnyValue()),
    "empty array": array(),
    "array of arrays": array(array(TEXT), array()),
    "map": mapping(a=TEXT, b=AnyValue(bytes_value=b"\x01")),
    "empty map": mapping(),
    "map of maps": mapping(a=mapping(b=array(mapping(c=NUMBER)))),
    "empty": AnyValue(),
}


def requests_with(pair: KeyValue) -> dict[Signal, ExportRequest]:
    """One request of each signal, with an attribute wherever there may be one."""
    now_ns = time.time_ns()
    measured = point(1.0, now_ns)
    measured.attributes.append(pair)
    exemplar = measured.exemplars.add(time_unix_nano=now_ns, as_double=1.0)
    exemplar.filtered_attributes.append(pair)
    metrics = metrics_request(gauge(measured))
    metrics.resource_metrics[0].resource.attributes.append(pair)
    metrics.resource_metrics[0].scope_metrics[0].scope.attributes.append(pair)
    traces = trace_request()
    traces.resource_spans[0].resource.attributes.append(pair)
    span = traces.resource_spans[0].scope_spans[0].spans[0]
    span.attributes.append(pair)
    span.events.add(name="e").attributes.append(pair)
    span.links.add(trace_id=bytes(16), span_id=bytes(8)).attributes.append(pair)
    record = event("rl.rollout.sample", {}, {"text": "a"})
    record.attributes.append(pair)
    logs = logs_request(record)
    logs.resource_logs[0].resource.attributes.append(pair)
    return {Signal.METRICS: metrics, Signal.TRACES: traces, Signal.LOGS: logs}


def as_json(request: Message) -> bytes:
    return json.dumps(as_otlp(MessageToDict(request))).encode()


@pytest.mark.parametrize("encoding", ["protobuf", "json"])
@pytest.mark.parametrize("signal", Signal)
@pytest.mark.parametrize("value", VALUES.values(), ids=VALUES)
def test_a_value_is_accepted_and_decoded(value: AnyValue, signal: Signal, encoding: str) -> None:
    request = requests_with(KeyValue(key="k", value=value))[signal]
    sent = request
    if encoding == "json":
        sent = parse_json(signal, as_json(request), max_objects=10_000)
        assert sent == request or value.double_value != value.double_value
    admitted = validate(signal, sent, ReceiveLimits(), time.time_ns())
    assert (admitted.accepted, admitted.refused, admitted.message) == (1, {}, "")
    (batch,) = admitted.batches
    assert decode(batch).items == 1
