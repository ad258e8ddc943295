from contextlib import suppress

from google.protobuf.message import DecodeError
from hypothesis import given
from hypothesis import strategies as st
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceResponse
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import (
    ExportMetricsPartialSuccess,
    ExportMetricsServiceResponse,
)

from otel_rl.worker.otlp.partial_success import NotAnAnswer, read_partial_success


@given(st.integers(-(1 << 63), (1 << 63) - 1), st.text(), st.binary(max_size=8))
def test_answers_are_read_as_protobuf_reads_them(rejected: int, message: str, more: bytes) -> None:
    answer = ExportMetricsServiceResponse(
        partial_success=ExportMetricsPartialSuccess(
            rejected_data_points=rejected, error_message=message
        )
    )
    assert read_partial_success(answer.SerializeToString()) == (rejected, message)
    assert read_partial_success(b"\x7a" + bytes((len(more),)) + more) == (0, "")  # field 15


@given(
    st.binary(max_size=24) | st.lists(st.sampled_from(b"\x0a\x08\x12\x02\x01\xff\x80")).map(bytes)
)
def test_whatever_is_read_of_any_bytes_is_what_protobuf_reads(body: bytes) -> None:
    try:
        found = read_partial_success(body)
    except NotAnAnswer:
        return
    with suppress(DecodeError):  # it also checks what stands in groups
        partial = ExportLogsServiceResponse.FromString(body).partial_success
        assert found == (partial.rejected_log_records, partial.error_message)
