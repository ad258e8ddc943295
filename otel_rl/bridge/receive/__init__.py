"""The first stage of the bridge: OTLP over HTTP and gRPC in, durable batches out.

A request is checked against the limits, parsed once, freed of what is refused and handed to
``accept``. The sender is told that it was taken only after ``accept`` has returned.
"""

from otel_rl.bridge.receive.grpc import GrpcServer
from otel_rl.bridge.receive.http import create_app
from otel_rl.bridge.receive.limits import ReceiveLimits
from otel_rl.bridge.receive.server import HttpServer

__all__ = ["GrpcServer", "HttpServer", "ReceiveLimits", "create_app"]
