"""Metrics requests whose points and exemplars stay bytes.

A request is nearly all points and exemplars, and protobuf creates a Python object for every message
that is touched. With these views parsing costs a sixth, and ``columns.py`` reads the bytes by
column. All other fields are as in OTLP, so a view serializes to OTLP again.
"""

from collections.abc import Collection, MutableSequence, Sequence
from typing import cast

from google.protobuf import message_factory
from google.protobuf.descriptor_pb2 import FieldDescriptorProto, FileDescriptorProto
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message import Message
from opentelemetry.proto.collector.metrics.v1 import metrics_service_pb2
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import (
    ExportMetricsServiceRequest,
)
from opentelemetry.proto.common.v1 import common_pb2
from opentelemetry.proto.metrics.v1 import metrics_pb2
from opentelemetry.proto.metrics.v1.metrics_pb2 import (
    ExponentialHistogramDataPoint,
    HistogramDataPoint,
    NumberDataPoint,
)
from opentelemetry.proto.resource.v1 import resource_pb2

_EXEMPLARS = frozenset({"exemplars"})
_NUMBERS = frozenset({"Gauge.data_points", "Sum.data_points"})


def _view(raw: Collection[str], *types: type[Message]) -> Sequence[type[Message]]:
    """Return message types in which the named fields are bytes instead of parsed messages."""
    pool = DescriptorPool()
    for module in (common_pb2, resource_pb2, metrics_pb2, metrics_service_pb2):
        file = FileDescriptorProto()
        module.DESCRIPTOR.CopyToProto(file)
        for message in file.message_type:
            for field in message.field:
                if field.name in raw or f"{message.name}.{field.name}" in raw:
                    # On the wire a message is bytes with a length, so both types read the same
                    # request.
                    field.type = FieldDescriptorProto.TYPE_BYTES
                    field.ClearField("type_name")
        pool.AddSerializedFile(file.SerializeToString())
    return [
        message_factory.GetMessageClass(pool.FindMessageTypeByName(one.DESCRIPTOR.full_name))
        for one in types
    ]


MetricsView, NumberView = cast(
    "tuple[type[ExportMetricsServiceRequest], type[NumberDataPoint]]",
    _view(_EXEMPLARS, ExportMetricsServiceRequest, NumberDataPoint),
)
"""Typed as the messages that they read. Only ``exemplars`` differ: see ``exemplars_of``."""

(RawMetrics,) = cast(
    "tuple[type[ExportMetricsServiceRequest]]",
    _view(_EXEMPLARS | _NUMBERS, ExportMetricsServiceRequest),
)
"""The same, and the points of gauges and sums are unchecked bytes, too."""


def exemplars_of(
    point: NumberDataPoint | HistogramDataPoint | ExponentialHistogramDataPoint,
) -> MutableSequence[bytes]:
    """Return the exemplars of a point of a view, each an unchecked serialized ``Exemplar``."""
    return cast("MutableSequence[bytes]", point.exemplars)
