"""Transport of each signal, over HTTP or gRPC, or through a file. No queue, no retry."""

from otel_rl.worker import settings
from otel_rl.worker.export.http_transport import HttpTransport
from otel_rl.worker.export.reply import Outcome, Reply, Transport

__all__ = ["Outcome", "Reply", "Transport", "open_transport"]


def open_transport(signal: settings.SignalSettings, beside: Transport | None = None) -> Transport:
    """The transport that ``signal`` asks for. Loads grpc only if it does.

    Args:
        signal: Where to and how.
        beside: That of another signal. If both go to one place, they share a connection: a bridge
            has so many connections as it has workers, and gRPC survives a fork with one only.
    """
    if signal.inbox is not None:
        from otel_rl.worker.export.inbox import InboxTransport  # others have an endpoint

        return InboxTransport(signal.signal, signal.inbox)
    if signal.protocol is settings.Protocol.GRPC:
        from otel_rl.worker.export.grpc_transport import GrpcTransport  # most speak HTTP

        return GrpcTransport(signal, beside)
    return HttpTransport(signal, beside)
