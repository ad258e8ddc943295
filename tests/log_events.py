"""Log events as protobuf, for tests."""

from collections.abc import Mapping, Sequence

from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest
from opentelemetry.proto.common.v1.common_pb2 import AnyValue
from opentelemetry.proto.logs.v1.logs_pb2 import LogRecord

from otel_rl.records import Value
from tests.otlp_requests import Attributes, key_values

__all__ = ["any_value", "event", "logs_request"]


def any_value(value: Value) -> AnyValue:
    """What OTLP makes of it."""
    made = AnyValue()
    match value:
        case None:
            pass
        case bool():
            made.bool_value = value
        case int():
            made.int_value = value
        case float():
            made.double_value = value
        case str():
            made.string_value = value
        case Mapping():
            made.kvlist_value.SetInParent()
            for key, item in value.items():
                made.kvlist_value.values.add(key=key, value=any_value(item))
        case Sequence():
            made.array_value.SetInParent()
            made.array_value.values.extend(map(any_value, value))
    return made


def event(
    name: str,
    time_ns: int,
    attributes: Mapping[str, Value] | None = None,
    body: Value = None,
    *,
    uid: str = "",
) -> LogRecord:
    """One event; with ``uid``, its own ``log.record.uid``."""
    record = LogRecord(event_name=name, time_unix_nano=time_ns)
    said = {**(attributes or {}), **({"log.record.uid": uid} if uid else {})}
    for key, value in said.items():
        record.attributes.add(key=key, value=any_value(value))
    if body is not None:
        record.body.CopyFrom(any_value(body))
    return record


def logs_request(
    *records: LogRecord, resource: Attributes | None = None
) -> ExportLogsServiceRequest:
    """One resource, by default of experiment "x", with these records."""
    request = ExportLogsServiceRequest()
    resource_logs = request.resource_logs.add()
    named: Attributes = {"rl.experiment.name": "x"} if resource is None else resource
    resource_logs.resource.attributes.extend(key_values(named))
    resource_logs.scope_logs.add().log_records.extend(records)
    return request
