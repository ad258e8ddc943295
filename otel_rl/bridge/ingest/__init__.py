"""First stage of the bridge: OTLP over HTTP and gRPC in, durable batches out.

A request is checked against the limits, parsed once, stripped of refused items and handed to
``accept``. The sender gets its answer only after ``accept`` has returned.
"""

from otel_rl.bridge.ingest.admission.experiments import Experiments
from otel_rl.bridge.ingest.admission.journal_shares import JournalShares
from otel_rl.bridge.ingest.admission.token_shares import TokenShares
from otel_rl.bridge.ingest.dropped_after_acceptance import Overflow
from otel_rl.bridge.ingest.grpc.server import GrpcServer
from otel_rl.bridge.ingest.http.server import HttpServer
from otel_rl.bridge.ingest.limits import ReceiveLimits
from otel_rl.bridge.ingest.pipeline import IngestPipeline
from otel_rl.bridge.ingest.security.exposure import exposure
from otel_rl.bridge.ingest.security.tls import TlsSettings, load_tls
from otel_rl.bridge.ingest.security.tokens import AuthSettings, Tokens

__all__ = [
    "AuthSettings",
    "Experiments",
    "GrpcServer",
    "HttpServer",
    "IngestPipeline",
    "JournalShares",
    "Overflow",
    "ReceiveLimits",
    "TlsSettings",
    "TokenShares",
    "Tokens",
    "exposure",
    "load_tls",
]
