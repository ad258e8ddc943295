"""The first stage of the bridge: OTLP over HTTP and gRPC in, durable batches out.

A request is checked against the limits, parsed once, freed of what is refused and handed to
``accept``. The sender is told that it was taken only after ``accept`` has returned.
"""

from otel_rl.bridge.receive.experiments import Experiments
from otel_rl.bridge.receive.exposure import exposure
from otel_rl.bridge.receive.grpc import GrpcServer
from otel_rl.bridge.receive.intake import Intake
from otel_rl.bridge.receive.journal_shares import JournalShares
from otel_rl.bridge.receive.limits import ReceiveLimits
from otel_rl.bridge.receive.overflow import Overflow
from otel_rl.bridge.receive.server import HttpServer
from otel_rl.bridge.receive.shares import Shares
from otel_rl.bridge.receive.tls import TlsSettings, load_tls
from otel_rl.bridge.receive.tokens import AuthSettings, Tokens

__all__ = [
    "AuthSettings",
    "Experiments",
    "GrpcServer",
    "HttpServer",
    "Intake",
    "JournalShares",
    "Overflow",
    "ReceiveLimits",
    "Shares",
    "TlsSettings",
    "Tokens",
    "exposure",
    "load_tls",
]
