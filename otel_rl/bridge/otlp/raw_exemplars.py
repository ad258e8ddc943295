"""Metrics request whose exemplars stay bytes.

A request of otel_rl is nearly all exemplars, and protobuf creates a Python object for every message
that is touched. With this view parsing costs a sixth, and ``exemplars.py`` reads the bytes by
column. Everything else is as in OTLP, so the view serializes to OTLP again.
"""

from collections.abc import MutableSequence
from typing import cast

from google.protobuf import message_factory
from google.protobuf.descriptor_pb2 import FieldDescriptorProto, FileDescriptorProto
from google.protobuf.descriptor_pool import DescriptorPool
from opentelemetry.proto.collector.metrics.v1 import metrics_service_pb2
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import (
    ExportMetricsServiceRequest,
)
from opentelemetry.proto.common.v1 import common_pb2
from opentelemetry.proto.metrics.v1 import metrics_pb2
from opentelemetry.proto.metrics.v1.metrics_pb2 import (
    ExponentialHistogramDataPoint,
    HistogramDataPoint,
    Metric,
    NumberDataPoint,
)
from opentelemetry.proto.resource.v1 import resource_pb2

__all__ = ["MetricView", "MetricsView", "exemplars_of"]


def _view() -> tuple[type[ExportMetricsServiceRequest], type[Metric]]:
    pool = DescriptorPool()
    for module in (common_pb2, resource_pb2, metrics_pb2, metrics_service_pb2):
        file = FileDescriptorProto()
        module.DESCRIPTOR.CopyToProto(file)
        for message in file.message_type:
            for field in message.field:
                if field.name == "exemplars":
                    # On the wire a message is bytes with a length, so both types read the same
                    # request.
                    field.type = FieldDescriptorProto.TYPE_BYTES
                    field.ClearField("type_name")
        pool.AddSerializedFile(file.SerializeToString())
    request, metric = [
        message_factory.GetMessageClass(pool.FindMessageTypeByName(name))
        for name in (ExportMetricsServiceRequest.DESCRIPTOR.full_name, Metric.DESCRIPTOR.full_name)
    ]
    return cast("type[ExportMetricsServiceRequest]", request), cast("type[Metric]", metric)


MetricsView, MetricView = _view()
"""Typed as the messages that they read. Only ``exemplars`` differ: see ``exemplars_of``."""


def exemplars_of(
    point: NumberDataPoint | HistogramDataPoint | ExponentialHistogramDataPoint,
) -> MutableSequence[bytes]:
    """Return the exemplars of a point of the view, each an unchecked serialized ``Exemplar``."""
    return cast("MutableSequence[bytes]", point.exemplars)
