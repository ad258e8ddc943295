"""Transport of each signal, over HTTP, gRPC or through a file: one attempt, no queue, no retry."""

from collections.abc import Iterable, Mapping, Sequence

from otel_rl.signals import Signal
from otel_rl.worker import settings
from otel_rl.worker.export.reply import Outcome, Reply, Transport

__all__ = ["Outcome", "Reply", "Transport", "open_transport", "open_transports"]


def open_transport(signal: settings.SignalSettings, beside: Sequence[Transport] = ()) -> Transport:
    """The transport that ``signal`` asks for. Loads the library of its protocol.

    Args:
        signal: Where to and how.
        beside: Those of other signals. If they go to one place, they share a connection: a bridge
            has so many connections as it has workers, and gRPC survives a fork with one only.
    """
    if signal.inbox is not None:
        from otel_rl.worker.export.inbox import InboxTransport  # others have an endpoint

        return InboxTransport(signal.signal, signal.inbox)
    if signal.protocol is settings.Protocol.GRPC:
        from otel_rl.worker.export.grpc_transport import GrpcTransport

        return GrpcTransport(signal, beside)
    from otel_rl.worker.export.http_transport import HttpTransport

    return HttpTransport(signal, beside)


def open_transports(signals: Iterable[settings.SignalSettings]) -> Mapping[Signal, Transport]:
    """The transports of the signals that are enabled."""
    opened: dict[Signal, Transport] = {}
    for signal in signals:
        if signal.enabled:
            opened[signal.signal] = open_transport(signal, tuple(opened.values()))
    return opened
